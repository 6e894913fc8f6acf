"""Where tools come from that are not written in the agent: somebody outside offers them, and may
change his mind.

Rules
  1. What is offered is asked once a turn, and what came of it is in the journal: a replay asks
     nobody.
  2. Whoever cannot be reached keeps the tools that he offered last; the model is told that he
     cannot be reached.
  3. What an offer says is data: `tool` makes the same tool of it, in whatever process.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from everhold.core.codec import JSON
from everhold.ports.tool import Tool


class OfferedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool, as somebody offers it."""

    name: str  # as the model knows it
    origin: str  # as he knows it himself
    description: str = ""
    schema: dict[str, JSON] = {}
    read_only: bool = False
    idempotent: bool = False


@runtime_checkable
class ToolSource(Protocol):
    """Somebody who offers tools."""

    @property
    def name(self) -> str: ...

    async def offered(self) -> list[OfferedTool]:
        """What he offers now; raises `ToolServerFailed` if he cannot be reached."""
        ...

    def tool(self, offer: OfferedTool) -> Tool:
        """The tool that was offered."""
        ...
