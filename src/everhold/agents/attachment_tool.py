"""The tool with which a model reads what was too long to be shown."""

from __future__ import annotations

from typing import Annotated, Final

from everhold.errors import UnknownAttachment
from everhold.ports.tool import ToolContext, tool

#: Characters that are read at once.
MAX_READ_CHARS: Final = 16_000


@tool(read_only=True, output=None)
async def read_attachment(
    context: ToolContext,
    id: Annotated[str, "the name of the attachment"],
    offset: Annotated[int, "where to begin, in characters"] = 0,
    length: Annotated[int, "how many characters to read"] = MAX_READ_CHARS,
) -> str:
    """Read a part of an attachment of this conversation, which is text."""
    try:
        made, data = await context.attachment(id)
    except UnknownAttachment:
        return f"There is no attachment {id!r} in this conversation."
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"It is not text but {made.media_type}, of {made.size:,} bytes."
    begin = max(0, offset)
    part = text[begin : begin + max(1, min(length, MAX_READ_CHARS))]
    return f"{part}\n[Characters {begin:,} to {begin + len(part):,} of {len(text):,}.]"
