"""What to type, for somebody whose words name no program: what the files of a folder hold is read,
not run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Files that are looked at, and bytes of one, before it is given up.
MANY: Final = 200
LARGE: Final = 200_000


def suggest_reference(name: str, folder: Path) -> str:
    """How what is meant is named, if `name` is a file of this folder, or something that one of them
    holds.
    """
    place = name.removesuffix(".py") + ".py"
    if (folder / place).is_file():
        found = [f"{place}:{one}" for one in _held(folder / place)]
        return f"{place} is a file; name what is in it: {', '.join(found[:20]) or f'{place}:NAME'}"
    for lua in (f"{name}.lua", f"./{name}"):
        if (folder / lua).is_file() or (folder / lua / "init.lua").is_file():
            return f"Did you mean {lua}?"
    for file in sorted(folder.glob("*.py"))[:MANY]:
        if name in _held(file):
            return f"Did you mean {file.name}:{name}?"
    return ""


def _held(file: Path) -> list[str]:
    try:
        text = file.read_bytes()
        tree = ast.parse(text) if len(text) <= LARGE else None
    except (OSError, SyntaxError, ValueError):
        return []
    return [] if tree is None else list(_named(tree))


def _named(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and any(
            _last(one) == "program" for one in node.decorator_list
        ):
            yield node.name
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _last(node.value) == "Agent"
        ):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _last(node: ast.expr) -> str:
    """The last name of what is called or stands there: `program` in
    `@everhold.program(version=2)`.
    """
    while isinstance(node, ast.Call):
        node = node.func
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )
