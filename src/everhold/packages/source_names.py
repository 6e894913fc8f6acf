"""Names of programs in Python files, for suggestions: files are parsed, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from everhold.core.unknown_names import find_close_name
from everhold.shell_command import format_command

#: Limits of a search for programs: files in a folder, and bytes of one file.
MAX_FILES: Final = 200
MAX_FILE_BYTES: Final = 200_000
#: References that are listed.
MAX_LISTED: Final = 20


def list_python_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.py"))[:MAX_FILES]


def list_file_programs(file: Path, *, agents_only: bool = False) -> list[str]:
    """The names of the programs and agents that a Python file defines."""
    try:
        text = file.read_bytes()
        tree = ast.parse(text) if len(text) <= MAX_FILE_BYTES else None
    except (OSError, SyntaxError, ValueError):
        return []
    return [] if tree is None else list(_list_tree_programs(tree, agents_only))


def _list_tree_programs(tree: ast.Module, agents_only: bool) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and not agents_only:
            if any(_get_last_name(one) == "program" for one in node.decorator_list):
                yield node.name
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _get_last_name(node.value) == "Agent"
        ):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _get_last_name(node: ast.expr) -> str:
    """The last name of an expression: `program` in `@everhold.program(version=2)`."""
    while isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def suggest_programs(place: Path, shown: str) -> str:
    """A hint for a file or folder that was named without a program; `shown` is how it was named."""
    if place.is_dir():
        files = {f"{shown.rstrip('/')}/{file.name}": file for file in list_python_files(place)}
    else:
        files = {shown: place}
    found = [f"{name}:{one}" for name, file in files.items() for one in list_file_programs(file)]
    if found:
        return f"Name a program in it: {', '.join(found[:MAX_LISTED])}"
    if place.is_file() and not _parses(place):
        return f"It has a mistake; to see it: {format_command('run', shown)}"
    return "It defines no program. Put @everhold.program on an `async def` at its top level."


def _parses(file: Path) -> bool:
    with suppress(OSError, ValueError):
        try:
            ast.parse(file.read_bytes())
        except SyntaxError:
            return False
    return True


def suggest_file(path: Path, name: str) -> str:
    """A hint for a file that does not exist: one beside it with almost the same name, which has the
    program `name`. Without a name, any such file.
    """
    close = _find_close_file(path, name)
    if close is None:
        return ""
    here = Path.cwd()
    shown = close.relative_to(here) if close.is_relative_to(here) else close
    return f"Did you mean {shown}{name and ':'}{name}?"


def suggest_module(module: str, name: str, folder: Path) -> str:
    """A hint for a module that does not exist, as `suggest_file` for a file."""
    package, dot, last = module.rpartition(".")
    close = _find_close_file(folder.joinpath(*package.split("."), f"{last}.py"), name)
    return "" if close is None else f"Did you mean {package}{dot}{close.stem}:{name}?"


def _find_close_file(path: Path, program: str) -> Path | None:
    names = [file.name for file in sorted(path.parent.glob(f"*{path.suffix}"))[:MAX_FILES]]
    close = find_close_name(path.name, names)
    if not close:
        return None
    found = path.with_name(close)
    has_it = not program or path.suffix != ".py" or program in list_file_programs(found)
    return found if has_it else None
