"""Writes the table of graders; run through cog by `make fix`."""

from __future__ import annotations

import inspect

from everhold.evals.graders import GRADERS, Grader


def table() -> str:
    """The table: the name in files, the class, what it wants, and its settings."""
    lines = ["| in a file | in Python | passes if | settings |", "|---|---|---|---|"]
    for name, kind in GRADERS.items():
        wants = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        settings = ", ".join(f"`{one}`" for one in kind.__struct_fields__ if one != "weight")
        names = [name, *kind.aliases]
        shown = ", ".join(f"`{one}`" for one in names)
        lines.append(f"| {shown} | `{kind.__name__}` | {wants} | {settings or '–'} |")
    assert all(issubclass(kind, Grader) for kind in GRADERS.values())
    return "\n".join(lines)
