"""Writes the table of events from `EventKind` and the comments beside its names; run through cog by
`make fix`.
"""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "everhold" / "agents" / "events.py"
_KIND = re.compile(r'^    [A-Z_]+ = "(\w+)"  # (.+)$')
_SORT = re.compile(r"^    # (.+)$")


def table() -> str:
    """The table: kind, sort, and what it means."""
    lines = ["| kind | sort | means |", "|---|---|---|"]
    sort = ""
    body = (
        SOURCE.read_text(encoding="utf-8")
        .partition("class EventKind(StrEnum):\n")[2]
        .partition("\n\n\n")[0]
    )
    for line in body.splitlines():
        found = _KIND.match(line)
        heading = _SORT.match(line)
        if found:
            lines.append(f"| `{found[1]}` | {sort} | {found[2]} |")
        elif heading:
            sort = {"facts": "fact", "live": "live"}.get(heading[1], "")
    return "\n".join(lines)
