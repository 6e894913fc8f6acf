"""Attachments: bytes that are kept beside a session. Their name is the digest of their content.

Whoever does a session's work (a tool, a plugin inside an effect) may keep and read some:
`keep_attachment` and `load_attachment` find the session by themselves. What another session keeps
cannot be read, whoever knows its name.
"""

from __future__ import annotations

from contextvars import ContextVar
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from everhold.errors import BadArguments, ForeignCall

#: Bytes that one attachment may have.
LARGEST: Final = 64 * 1024 * 1024


class Attachment(msgspec.Struct, frozen=True):
    """What is kept: its name, how many bytes, and what sort of content."""

    id: str
    size: int
    media_type: str

    def check(self, data: bytes) -> None:
        """Raises `BadArguments` unless these bytes are what it says."""
        if len(data) != self.size or sha256(data).hexdigest() != self.id:
            raise BadArguments(
                "attach", f"the bytes are not the {self.size:,} that {self.id[:12]}… names"
            )


class SessionAttachments(Protocol):
    """Where the attachments of one session are."""

    async def keep(self, made: Attachment, data: bytes) -> None: ...

    async def read(self, id: str) -> tuple[Attachment, bytes]:
        """Raises `UnknownAttachment` for what the session does not keep."""
        ...


#: The shelf of the session whose work is under way.
CURRENT_ATTACHMENTS: ContextVar[SessionAttachments] = ContextVar("everhold_shelf")


async def keep_attachment(data: bytes | str, media_type: str = "") -> Attachment:
    """Keep bytes or text for the session whose work is under way; the same content again is kept
    once.
    """
    body = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else bytes(data)
    if len(body) > LARGEST:
        raise BadArguments("attach", f"{len(body):,} bytes are more than {LARGEST:,}")
    kind = media_type or ("text/plain" if isinstance(data, str) else "application/octet-stream")
    made = Attachment(sha256(body).hexdigest(), len(body), kind)
    await _shelf().keep(made, body)
    return made


async def load_attachment(id: str) -> tuple[Attachment, bytes]:
    """What the session whose work is under way keeps under this name; raises
    `UnknownAttachment`.
    """
    return await _shelf().read(id)


def _shelf() -> SessionAttachments:
    found = CURRENT_ATTACHMENTS.get(None)
    if found is None:
        raise ForeignCall(
            "an attachment", "can be stored and read only while a session runs a call"
        )
    return found
