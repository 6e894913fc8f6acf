"""Attachments: bytes stored beside a session, named by the digest of their content.

A running call (a tool, or a plugin inside an effect) may store and read them with `keep_attachment`
and `load_attachment`, which find the session themselves. Attachments of other sessions cannot be
read, even by name.
"""

from __future__ import annotations

from contextvars import ContextVar
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from everhold.errors import BadArguments, ForeignCall

#: Bytes of the largest attachment.
LARGEST: Final = 64 * 1024 * 1024


class Attachment(msgspec.Struct, frozen=True):
    """An attachment: its name, size and media type."""

    id: str
    size: int
    media_type: str

    def check(self, data: bytes) -> None:
        """Raise `BadArguments` unless the bytes match the name and size."""
        if len(data) != self.size or sha256(data).hexdigest() != self.id:
            raise BadArguments(
                "attach",
                f"the bytes do not match attachment {self.id[:12]}… of {self.size:,} bytes",
            )


class SessionAttachments(Protocol):
    """The attachments of one session."""

    async def keep(self, made: Attachment, data: bytes) -> None: ...

    async def read(self, id: str) -> tuple[Attachment, bytes]:
        """Raises `UnknownAttachment` for other names."""
        ...


#: The attachments of the session whose call is running.
CURRENT_ATTACHMENTS: ContextVar[SessionAttachments] = ContextVar("everhold_shelf")


async def keep_attachment(data: bytes | str, media_type: str = "") -> Attachment:
    """Store bytes or text for the session of the running call. The same content is stored once."""
    body = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else bytes(data)
    if len(body) > LARGEST:
        raise BadArguments(
            "attach", f"an attachment of {len(body):,} bytes is larger than {LARGEST:,}"
        )
    kind = media_type or ("text/plain" if isinstance(data, str) else "application/octet-stream")
    made = Attachment(sha256(body).hexdigest(), len(body), kind)
    await _shelf().keep(made, body)
    return made


async def load_attachment(id: str) -> tuple[Attachment, bytes]:
    """Read an attachment of the session of the running call; raises `UnknownAttachment`."""
    return await _shelf().read(id)


def _shelf() -> SessionAttachments:
    found = CURRENT_ATTACHMENTS.get(None)
    if found is None:
        raise ForeignCall(
            "an attachment", "can be stored and read only while a session runs a call"
        )
    return found
