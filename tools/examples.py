"""Finds an example of each public name in the blocks of the docs, which tests run.

An example is the shortest statement of a block that uses the name as its readers would: through
`everhold.NAME`, or imported from a public path. A name that no block uses has none.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
_TITLE: Final = re.compile(r"^# (.+)$", re.M)
#: Lines of an example; a longer statement is shortened to the part that uses the name.
_LONGEST: Final = 14


class Example(NamedTuple):
    """Code that uses a name, and the page where it runs, relative to `docs`."""

    code: str
    page: str
    title: str


def find_example(path: str, name: str) -> Example | None:
    """The example of a name that is public in `path`."""
    return _examples().get((path, name)) or _examples().get(("everhold", name))


@functools.cache
def _examples() -> dict[tuple[str, str], Example]:
    found: dict[tuple[str, str], Example] = {}
    for file in _pages():
        text = file.read_text(encoding="utf-8")
        title = _TITLE.search(text)
        if title is None:
            continue
        page = file.relative_to(ROOT / "docs").as_posix()
        imported: dict[str, tuple[str, str]] = {}
        for block in _BLOCK.findall(text):
            try:
                tree = ast.parse(block)
            except SyntaxError:
                continue  # a fragment, which is shown and does not run
            imported |= _imports(tree)
            for key, code in _uses(block, tree, imported):
                old = found.get(key)
                if old is None or _rank(code) < _rank(old.code):
                    found[key] = Example(code, page, title.group(1))
    return found


def _pages() -> list[Path]:
    """Pages for users, those that teach first."""
    docs = ROOT / "docs"
    folders = ("tutorial", "how-to", "explanation", "reference")
    return [file for folder in folders for file in sorted((docs / folder).glob("*.md"))]


def _imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """The public path and name behind each imported name."""
    return {
        one.asname or one.name: (str(node.module), one.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("everhold")
        for one in node.names
    }


def _uses(
    block: str, tree: ast.Module, imported: dict[str, tuple[str, str]]
) -> Iterator[tuple[tuple[str, str], str]]:
    """Each use of a name in a block: its path and name, and the code around it."""
    lines = block.splitlines()
    for statement, inner in _statements(tree):
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "everhold":
                    yield ("everhold", node.attr), _source(lines, statement, inner, node)
            elif isinstance(node, ast.Name) and node.id in imported:
                yield imported[node.id], _source(lines, statement, inner, node)


def _statements(tree: ast.Module) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """The statements of a block that are no imports, each with those inside it."""
    for statement in tree.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement, [node for node in ast.walk(statement) if isinstance(node, ast.stmt)]


def _source(lines: list[str], statement: ast.stmt, inner: list[ast.stmt], use: ast.expr) -> str:
    """The whole statement if it is short, else the smallest part that holds the use."""
    for part in (statement, *sorted(inner, key=_length)):
        if _first(part) <= use.lineno <= (part.end_lineno or 0) and _length(part) <= _LONGEST:
            return dedent("\n".join(lines[_first(part) - 1 : part.end_lineno]))
    head = lines[use.lineno - 1].strip()
    return f"{head} ..." if head.endswith(":") else head


def _first(statement: ast.stmt) -> int:
    """The first line of a statement, with its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


def _length(statement: ast.stmt) -> int:
    return (statement.end_lineno or 0) - _first(statement) + 1


def _rank(code: str) -> tuple[bool, int]:
    """Examples of few lines come first, but a single short line says little."""
    return len(code) < 24, len(code)
