"""Tools that the loop of an agent runs itself: they may ask whatever the loop may ask, and wait as
long.

Any other tool runs inside one effect, outside of the program. An inner one is allowed (or not)
there, and then held by the loop: what it asks is journaled step by step, so that it goes on where
it stood after a crash.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from everhold.agents.parse_reply import ToolCall
from everhold.core.codec import JSON
from everhold.core.query import Usage
from everhold.core.tool import Wanted
from everhold.core.turn import TurnFailed
from everhold.ports.agent import AgentContext
from everhold.ports.tool import Tool


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
