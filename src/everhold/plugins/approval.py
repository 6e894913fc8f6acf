"""A person says yes before certain tools run.

    Agent(…, plugins=[Approval("refund", "delete_*", to="ops")])

The question is bound to the exact input. Nobody's yes within `timeout` seconds is a no. A plugin is
its agent's own; what must hold for subagents too is a policy, and this is one: `Agent(…,
policy=Approval("refund"))`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import ClassVar

from everhold.core.message import ToolUse
from everhold.core.tool import Allow, Confirm, Verdict, Wanted
from everhold.hooks import Moment, Plugin


class Approval(Plugin):
    """Confirms calls of tools whose name matches one of the patterns; without patterns, of all."""

    name: ClassVar[str] = "approval"

    def __init__(
        self, *tools: str, reason: str = "", to: str | None = None, timeout: float | None = None
    ) -> None:
        self._tools = tools or ("*",)
        self._confirm = Confirm(reason, to, timeout)

    def before_tool_call(self, moment: Moment, call: ToolUse) -> Confirm | None:
        return self._confirm if self._concerns(call.name) else None

    def __call__(self, wanted: Wanted) -> Verdict:
        return self._confirm if self._concerns(wanted.tool) else Allow()

    def _concerns(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._tools)
