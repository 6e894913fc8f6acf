"""A plugin that limits how much of each tool result the model sees.

    Agent(…, plugins=[OutputLimit(size=4_096, lines=100, keep="tail")])

A tool may have its own limit (`@tool(output=…)`); the stricter one wins. The journal keeps the full
result. A program that the model wrote gets full results; only the program's own result is limited.
The limit applies after the other plugins: see `priority`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import ClassVar, Literal

from everhold.core.codec import JSON, dumps
from everhold.core.message import ToolUse
from everhold.core.tool import Window
from everhold.hooks import Moment, Plugin, ReplaceResult


class OutputLimit(Plugin):
    """Cuts results of tools whose name matches a pattern; without patterns, of all tools."""

    name: ClassVar[str] = "output_limit"
    priority: int = -100

    def __init__(
        self,
        *tools: str,
        size: int = 16 * 1024,
        lines: int = 400,
        keep: Literal["head", "tail"] = "head",
    ) -> None:
        self._tools = tools or ("*",)
        self._window = Window(size, lines, keep)

    def before_result(self, moment: Moment, call: ToolUse, content: JSON) -> ReplaceResult | None:
        if (
            moment.in_program
            or _has_pictures(content)
            or not any(fnmatchcase(call.name, pattern) for pattern in self._tools)
        ):
            return None
        text = content if isinstance(content, str) else dumps(content)
        shown = self._window.cut(text)
        if shown is None:
            return None
        side = "end" if self._window.keep == "head" else "beginning"
        note = (
            f"[{len(text) - len(shown):,} of {len(text):,} characters are left out at the {side}.]"
        )
        return ReplaceResult(
            f"{shown}\n{note}" if self._window.keep == "head" else f"{note}\n{shown}"
        )


def _has_pictures(content: JSON) -> bool:
    return isinstance(content, list) and any(
        isinstance(one, dict) and one.get("type") == "image" for one in content
    )
