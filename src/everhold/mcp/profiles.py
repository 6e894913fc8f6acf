"""Profiles of the MCP server: the default tools, or those with the names of algocline."""

from __future__ import annotations

from typing import Final

from everhold.mcp.progress_notes import ProgressObserver
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.mcp.server import McpFront
from everhold.models import AnswererSpec

#: The profile of a server that names none; the other is `algocline`.
DEFAULT_PROFILE: Final = "default"


def make_front(database: str | None, llm: AnswererSpec, profile: str = DEFAULT_PROFILE) -> McpFront:
    """A front on a database, not opened yet, with the tools of a profile."""
    pulse = ProgressObserver()
    house = RuntimeHolder(database, llm=llm, observer=pulse)
    if profile == DEFAULT_PROFILE:
        return McpFront(house, pulse)
    # loaded on demand: most hosts never use it
    from everhold.mcp.algocline.server import AlcFront

    return AlcFront(house, pulse)
