"""Writes the tables of the MCP reference from the code; run through cog by `make fix`."""

from __future__ import annotations

from typing import Any

from everhold.mcp import instructions
from everhold.mcp.tool_schema import ServerTool, build_input_schema
from everhold.mcp.tools import TOOLS


def tools() -> str:
    """Every tool: its description for models, its hints, its parameters."""
    parts = []
    for tool in TOOLS:
        parts += [
            f"### `{tool.name}`\n",
            f"*{tool.title}.* {tool.description}\n",
            f"{_hints(tool)}\n",
        ]
        parts += [
            "| parameter | type | |",
            "|---|---|---|",
            *_rows(build_input_schema(tool.takes)),
            "",
        ]
    return "\n".join(parts)


def _hints(tool: ServerTool) -> str:
    words = [
        "reads only"
        if tool.reads
        else "destructive"
        if tool.destroys
        else "changes things, destroys nothing"
    ]
    words += ["may be repeated"] if tool.repeats else []
    words += ["may reach people or things outside"] if tool.world else []
    return f"Hints: {', '.join(words)}."


def _rows(takes: dict[str, Any], before: str = "") -> list[str]:
    rows = []
    needed = takes.get("required", ())
    for name, part in takes["properties"].items():
        kind = part["type"] + (" (needed)" if name in needed else "")
        rows.append(
            f"| `{before}{name}` | {kind} | {part.get('description', '')} |".replace("…|", "… |")
        )
        inner = part.get("items", part)
        if "properties" in inner:
            rows += _rows(inner, f"{before}{name}{'[]' if 'items' in part else ''}.")
    return rows


def prompts() -> str:
    lines = ["| prompt | argument | |", "|---|---|---|"]
    for name, (_, description, (argument, _, required)) in instructions.list_prompts().items():
        lines.append(
            f"| `{name}` | `{argument}`{' (needed)' if required else ''} | {description} |"
        )
    return "\n".join(lines)
