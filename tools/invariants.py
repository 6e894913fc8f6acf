"""The table of docs/reference/invariants.md: invariants and the tests that show them.

tests/data/invariants.toml says what each invariant is here, and which tests show it or why it does
not apply; tests whose docstrings begin with ids ("LE1, LE2: …") are found by themselves. Run
through cog by `make fix`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "data" / "invariants.toml"
ROOMS = ROOT / "src" / "everhold" / "testing" / "conformance"
#: How many invariants each group has, and what it is about.
GROUPS: Final = {
    "SC": (50, "commits"),
    "LE": (21, "leases"),
    "QW": (32, "queued work"),
    "TI": (18, "inputs"),
    "MA": (7, "maintenance"),
    "FA": (8, "sessions as a whole"),
    "S": (73, "submissions"),
    "C": (21, "the record of a conversation"),
    "A": (10, "attachments"),
}
#: Which stores a test of the conformance suite runs on.
STORES: Final = {
    "stores": (
        "conformance/test_stores.py::TestMemory",
        "conformance/test_stores.py::TestSQLite",
        "conformance/test_postgres.py::TestPostgres",
    ),
    "durable": (
        "conformance/test_stores.py::TestSQLite",
        "conformance/test_postgres.py::TestPostgres",
    ),
}
#: Measured elsewhere: `make test` runs these with another command, or not at all.
APART: Final = ("tests/unit/core/",)
_IDS = re.compile(rf"((?:(?:{'|'.join(GROUPS)})\d+(?:, )?)+): ")


class Row(NamedTuple):
    """One invariant: what it says here, and the tests that show it or why it does not apply."""

    id: str
    says: str
    tests: tuple[str, ...]
    why: str


def ids() -> list[str]:
    """Every id there is, in order."""
    return [f"{group}{n}" for group, (count, _) in GROUPS.items() for n in range(1, count + 1)]


@cache
def rows() -> list[Row]:
    """The rows of the table and of the tests' docstrings."""
    told = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    said = _said()
    return [
        Row(
            id,
            row["says"],
            tuple(dict.fromkeys((*row.get("tests", ()), *said.get(id, ())))),
            row.get("why", ""),
        )
        for id, row in told.items()
    ]


def unknown() -> set[str]:
    """Ids in docstrings that no row has."""
    return set(_said()) - set(ids())


@cache
def named() -> frozenset[str]:
    """The ids that pytest gives to the tests of the table, without parameters."""
    return frozenset(full for row in rows() for test in row.tests for full in spelled(test))


def spelled(test: str) -> list[str]:
    """A test of the table as pytest calls it: a test of the suite once for each store."""
    where, _, name = test.partition("::")
    return [f"tests/{place}::{name}" for place in STORES.get(where, (where,))]


def bare(nodeid: str) -> str:
    """The id of a test without its parameters, and without the group that xdist adds."""
    return nodeid.partition("[")[0].partition("@")[0]


def missed(passed: Iterable[str]) -> list[str]:
    """The tests of the table that are not among those that passed."""
    return sorted(named() - {bare(one) for one in passed})


@cache
def _said() -> dict[str, list[str]]:
    """The ids in docstrings of tests: id → tests."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        where = file.relative_to(ROOT).as_posix()
        if not where.startswith(APART):
            _gather(found, file, where.removeprefix("tests/"))
    for file in sorted(ROOMS.glob("*.py")):
        # The only tests in contract.py are those of DurableStoreContract.
        _gather(found, file, "durable" if file.stem == "contract" else "stores")
    return found


def _gather(found: dict[str, list[str]], file: Path, where: str) -> None:
    for name, words in _tests(ast.parse(file.read_text(encoding="utf-8"))):
        begins = _IDS.match(words)
        for id in begins[1].split(", ") if begins else ():
            found.setdefault(id, []).append(f"{where}::{name}")


def _tests(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield node.name, ast.get_docstring(node) or ""


def table(group: str) -> str:
    """The rows of one group, for people."""
    found = ["| id | here | shown by |", "|---|---|---|"]
    for row in rows():
        if row.id.rstrip("0123456789") == group:
            shown = "<br>".join(f"`{test}`" for test in row.tests) or f"*does not apply:* {row.why}"
            found.append(f"| {row.id} | {row.says} | {shown} |")
    return "\n".join(found)


def counted() -> str:
    """The number of invariants, in a sentence."""
    apart = sum(1 for row in rows() if row.why)
    return (
        f"{len(rows())} invariants: {len(rows()) - apart} are shown by tests, {apart} do not apply."
    )


def page() -> str:
    """All groups, each under its heading."""
    return "\n\n".join(
        f"## {group}: {about}\n\n{table(group)}" for group, (_, about) in GROUPS.items()
    )
