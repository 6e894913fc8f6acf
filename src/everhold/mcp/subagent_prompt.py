"""A sub-agent for a host: a prompt that makes a model run a strategy to its end by itself, and
bring back the result.

The main conversation then sees one call and one result, and none of the questions in between.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from everhold.errors import BadHostFile
from everhold.mcp.hosts import HostEnvironment, rewrite_host_file

#: What a file that we wrote holds, so that nobody else's is replaced.
GENERATED_MARK: Final = "written by `everhold mcp agent`"


def render_subagent(server: str) -> str:
    """The sub-agent of Claude Code for a server of this name."""
    text = files("everhold.mcp").joinpath("agent.md").read_text(encoding="utf-8")
    return text.replace("SERVER", server)


def get_subagent_file(world: HostEnvironment, scope: Literal["user", "project"]) -> Path:
    if scope == "project":
        return world.folder / ".claude" / "agents" / "everhold.md"
    return (
        Path(world.env.get("CLAUDE_CONFIG_DIR") or world.home / ".claude")
        / "agents"
        / "everhold.md"
    )


def write_subagent_file(file: Path, text: str) -> bool:
    """Write the sub-agent; whether that changed anything."""
    return rewrite_host_file(file, lambda there: _ours(file, there) or text, makes=True)


def remove_subagent_file(file: Path) -> bool:
    """Take the sub-agent away; whether it was there."""
    return rewrite_host_file(file, lambda there: _ours(file, there), makes=False)


def _ours(file: Path, there: str) -> str:
    if there.strip() and GENERATED_MARK not in there:
        raise BadHostFile(
            str(file), "somebody else wrote it", "Nothing was changed. Print ours: --print"
        )
    return ""
