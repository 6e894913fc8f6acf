"""A person says yes before certain tools run.

    Agent(…, plugins=[Approval("refund", "delete_*", to="ops")])

The question is bound to the exact input. Nobody's yes within `timeout` seconds is a no.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import ClassVar

from everhold.core.message import ToolUse
from everhold.core.tool import Confirm
from everhold.hooks import Moment, Plugin


class Approval(Plugin):
    """Confirms calls of tools whose name matches one of the patterns; without patterns, of all."""

    name: ClassVar[str] = "approval"

    def __init__(self, *tools: str, reason: str = "", to: str | None = None, timeout: float | None = None) -> None:
        self._tools = tools or ("*",)
        self._confirm = Confirm(reason, to, timeout)

    def before_tool_call(self, moment: Moment, call: ToolUse) -> Confirm | None:
        return self._confirm if any(fnmatchcase(call.name, pattern) for pattern in self._tools) else None
