"""A plugin that asks a person before certain tools run.

    Agent(…, plugins=[Approval("refund", "delete_*", to="ops")])

An approval is bound to the exact input. Without an answer within `timeout` seconds, the call is
denied. A subagent's plugin of the same name replaces this one. As a policy it holds for every
subagent: `Agent(…, policy=Approval("refund"))`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import ClassVar

from everhold.core.message import ToolUse
from everhold.core.tool import Allow, Confirm, Verdict, Wanted
from everhold.hooks import Moment, Plugin


class Approval(Plugin):
    """Requires approval for tools whose name matches a pattern; without patterns, for all tools."""

    name: ClassVar[str] = "approval"

    def __init__(
        self, *tools: str, reason: str = "", to: str | None = None, timeout: float | None = None
    ) -> None:
        self._tools = tools or ("*",)
        self._confirm = Confirm(reason, to, timeout)

    def before_tool_call(self, moment: Moment, call: ToolUse) -> Confirm | None:
        return self._confirm if self._concerns(call.name) else None

    def __call__(self, wanted: Wanted) -> Verdict:
        """The decision about one call: `Confirm` for a tool that matches, else `Allow`."""
        return self._confirm if self._concerns(wanted.tool) else Allow()

    def _concerns(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._tools)
