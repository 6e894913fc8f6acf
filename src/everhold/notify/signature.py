"""Signatures of webhooks, as the Standard Webhooks specification has them; libraries of many
languages check them.

What is signed is the id, a point, the seconds since 1970, a point, and the body; the signature is
an HMAC-SHA256 in base64 after `v1,`. A secret is `whsec_` and the base64 of 24 to 64 bytes. While
one replaces another, both sign.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from everhold.errors import BadSetting, BadSignature

SECRET_PREFIX: Final = "whsec_"
#: Seconds that a message may be old, or ahead, to be believed.
TOLERANCE: Final = 300.0


def new_secret() -> str:
    """A secret for a webhook."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def decode_secret(secret: str) -> bytes:
    """The bytes of a secret; raises `BadSetting`, and does not repeat it."""
    try:
        found = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not 24 <= len(found) <= 64:
        raise BadSetting(
            "secret",
            f"it should be {SECRET_PREFIX} and the base64 of 24 to 64 bytes;"
            " everhold.notify.new_secret() makes one",
        )
    return found


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """The signature of one message."""
    signed = f"{id}.{timestamp}.".encode() + body
    return (
        "v1," + base64.b64encode(hmac.new(decode_secret(secret), signed, sha256).digest()).decode()
    )


def build_headers(given: Sequence[str], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """What goes with a message: its id, when it was sent, and a signature for each secret."""
    told = {"webhook-id": id, "webhook-timestamp": str(timestamp)}
    if given:
        told["webhook-signature"] = " ".join(sign(secret, id, timestamp, body) for secret in given)
    return told


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secret: str,
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> dict[str, Any]:
    """The message of a webhook, if it is signed with this secret and was sent just now; raises
    `BadSignature`.

    Give the body as it came, byte by byte. One message may come more than once: drop those whose
    `id` you know.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        id, sent, signatures = (
            given[f"webhook-{name}"] for name in ("id", "timestamp", "signature")
        )
    except KeyError as missing:
        raise BadSignature(f"it has no header {missing}") from None
    if (
        not (sent.isascii() and sent.isdigit())
        or abs((time.time() if now is None else now) - int(sent)) > tolerance
    ):
        raise BadSignature("it was not sent just now")
    wanted = sign(secret, id, int(sent), body).encode()
    if not any(hmac.compare_digest(wanted, one.encode()) for one in signatures.split()):
        raise BadSignature("no signature fits")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise BadSignature("it is signed, but it is no JSON object") from None
