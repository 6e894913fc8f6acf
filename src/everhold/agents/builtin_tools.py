"""Tools that the loop of an agent runs itself: they may ask whatever the loop may ask, and wait as
long.

Any other tool runs inside one effect, outside of the program. An inner one is allowed (or not)
there, and then held by the loop: what it asks is journaled step by step, so that it goes on where
it stood after a crash.

The tool with which a model reads what was too long to be shown.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Protocol

from everhold.agents.parse_reply import ToolCall
from everhold.core.codec import JSON
from everhold.core.query import Usage
from everhold.core.tool import Wanted
from everhold.core.turn import TurnFailed
from everhold.errors import UnknownAttachment
from everhold.ports.agent import AgentContext
from everhold.ports.tool import Tool, ToolContext, tool


class ToolHost(Protocol):
    """What an inner tool knows of the toolbox it is in."""

    ctx: AgentContext
    turn: int  # of the conversation
    failed: TurnFailed | None
    finish: list[JSON]  # at most one: what the turn is to end with
    # told of what something has cost, and under which source
    spend: Callable[[str, Usage | None], None]

    history: Callable[[], list[JSON]]  # what was said so far, in order: role and text

    async def also(self, calls: Sequence[ToolCall]) -> list[tuple[bool, JSON]]:
        """Call more tools, as the model would; returns for each whether it failed, and what it came
        to.
        """
        ...


class BuiltinTool(Tool):
    """A tool that the loop runs. Its `function` is what has to be true before it does; it returns
    nothing.
    """

    def __init__(
        self, name: str, description: str, schema: dict[str, JSON], **options: Any
    ) -> None:
        super().__init__(_nothing, name=name, description=description, rerun="safe", **options)
        self.schema = schema

    def arguments(self, given: dict[str, JSON], context: Any) -> dict[str, Any]:
        """Nothing: what the model gave is for `held`."""
        return {}

    @abstractmethod
    async def held(self, box: ToolHost, wanted: Wanted) -> tuple[int | None, JSON]:
        """Do it; returns the query whose answer the result is, if it is one, and the result.

        Raises `AnswerFailed` with what the model is told if it comes to nothing.
        """


def _nothing() -> None:
    """Nothing has to be done outside."""


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
