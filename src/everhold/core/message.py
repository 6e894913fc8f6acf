"""Messages of a conversation: a role, and blocks of text, images, tool calls and tool results.

The JSON is exactly that of fluers, because sessions and envelopes hold it: empty `content` is
omitted, the bytes of an image are padded base64, the fields of a tool call are beside its `type`.

`encode_message` and `decode_message` convert between messages and plain values; `codec` converts
between plain values and text.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, SupportsIndex

import msgspec

from everhold.core import codec
from everhold.core.codec import JSON
from everhold.core.schema import decode_value_as
from everhold.errors import AnswerRefused, BadValue


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SIGNAL = "signal"


class CopiedOnRead(list[JSON]):
    """Values of a conversation, for code that is not ours: each is copied when it is read.

    A change of what was read changes nothing here. Long conversations cost only what is read of
    them.
    """

    def __iter__(self) -> Iterator[JSON]:
        return map(msgspec.to_builtins, super().__iter__())

    def __reversed__(self) -> Iterator[JSON]:
        return map(msgspec.to_builtins, super().__reversed__())

    def __getitem__(self, at: Any) -> Any:
        return msgspec.to_builtins(super().__getitem__(at))

    def pop(self, at: SupportsIndex = -1) -> JSON:
        found: JSON = msgspec.to_builtins(super().pop(at))
        return found

    def copy(self) -> list[JSON]:
        return list(self)


class _Block(msgspec.Struct, frozen=True, tag_field="type"):
    """One part of a message; `type` says which."""


class Text(_Block, frozen=True, tag="text"):
    """Text in a message."""

    text: str


class ImageData(msgspec.Struct, frozen=True):
    """The bytes of an image, and their media type."""

    media_type: str
    data: bytes


class Image(_Block, frozen=True, tag="image"):
    """An image in a message."""

    image: ImageData


class ToolUse(_Block, frozen=True, tag="tool_use"):
    """A tool call requested by a model."""

    id: str
    name: str
    input: JSON


class ToolResult(_Block, frozen=True, tag="tool_result"):
    """The result of the tool call with this id."""

    tool_use_id: str
    content: JSON


#: One part of the content of a message.
Block = Text | Image | ToolUse | ToolResult


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation: a role, and blocks of content."""

    role: Role
    content: tuple[Block, ...] = ()


def system(*content: str | Block) -> Message:
    """A system message of texts and blocks."""
    return _said(Role.SYSTEM, content)


def user(*content: str | Block) -> Message:
    """A message of a user, of texts and blocks."""
    return _said(Role.USER, content)


def assistant(*content: str | Block) -> Message:
    """A message of a model, of texts and blocks."""
    return _said(Role.ASSISTANT, content)


def encode_message(message: Message, path: str = "message") -> dict[str, JSON]:
    """The message as a plain value; raises `BadValue` with the path of what JSON would change."""
    plain: dict[str, JSON] = {"role": str(message.role)}
    if message.content:
        plain["content"] = [
            _encoded(block, f"{path}.content[{index}]")
            for index, block in enumerate(message.content)
        ]
    return plain


def decode_message(value: JSON, path: str = "message") -> Message:
    """Decodes a message; raises `BadValue` with the path of the error. Unknown keys are ignored."""
    try:
        message: Message = decode_value_as(value, Message, path)
    except AnswerRefused as error:
        raise BadValue(error.path, f"it must be {error.expected}, not {error.got}") from None
    return message


def _said(role: Role, content: tuple[str | Block, ...]) -> Message:
    return Message(role, tuple(Text(part) if isinstance(part, str) else part for part in content))


def _encoded(block: Block, path: str) -> dict[str, Any]:
    match block:  # any JSON is allowed here; check it before msgspec could change it
        case ToolUse(input=free):
            codec.to_plain(free, f"{path}.input")
        case ToolResult(content=free):
            codec.to_plain(free, f"{path}.content")
    plain: dict[str, Any] = codec.to_plain(msgspec.to_builtins(block), path)
    return plain
