"""Signs and verifies webhooks by the Standard Webhooks specification.

The signed text is the id, the seconds since 1970 and the body, joined by dots. The signature is
`v1,` and a base64 HMAC-SHA256. A secret is `whsec_` and the base64 of 24 to 64 bytes. During a
rotation of secrets, each of them signs.
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
#: Seconds that a message may be old, or ahead of our clock.
TOLERANCE: Final = 300.0


def new_secret() -> str:
    """A new random secret for a webhook."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def decode_secret(secret: str) -> bytes:
    """The bytes of a secret; raises `BadSetting`, which does not contain the secret."""
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
    """The headers of a message: id, time and, for each secret, a signature."""
    headers = {"webhook-id": id, "webhook-timestamp": str(timestamp)}
    if given:
        headers["webhook-signature"] = " ".join(
            sign(secret, id, timestamp, body) for secret in given
        )
    return headers


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secret: str,
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> dict[str, Any]:
    """The message of a webhook, if the signature is valid and recent; raises `BadSignature`.

    `body` is the unchanged request body. A message may be delivered more than once: ignore one
    whose `id` you have already processed.
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
        raise BadSignature(f"its timestamp differs by more than {tolerance:g} s")
    wanted = sign(secret, id, int(sent), body).encode()
    if not any(hmac.compare_digest(wanted, one.encode()) for one in signatures.split()):
        raise BadSignature("no signature matches")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise BadSignature("the signature is valid, but the body is not a JSON object") from None
