"""Attachments: bytes that are kept beside a session. Their name is the digest of their content.

Whoever does a session's work (a tool, a plugin inside an effect) may keep some: `keep` finds the session by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from hashlib import sha256

import msgspec

from everhold.core.errors import ForeignCall


class Attachment(msgspec.Struct, frozen=True):
    """What is kept: its name, how many bytes, and what sort of content."""

    id: str
    size: int
    media_type: str


#: Keeps bytes under their name for the session whose work is under way.
Keeper = Callable[[Attachment, bytes], Awaitable[None]]
KEEPER: ContextVar[Keeper] = ContextVar("everhold_keeper")


async def keep(data: bytes | str, media_type: str = "") -> Attachment:
    """Keep bytes or text for the session whose work is under way; the same content again is kept once."""
    keeper = KEEPER.get(None)
    if keeper is None:
        raise ForeignCall("an attachment outside the work of a session")
    body = data.encode() if isinstance(data, str) else bytes(data)
    kind = media_type or ("text/plain" if isinstance(data, str) else "application/octet-stream")
    made = Attachment(sha256(body).hexdigest(), len(body), kind)
    await keeper(made, body)
    return made
