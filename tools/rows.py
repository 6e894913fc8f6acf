"""The table of docs/reference/coverage.md: rows and the tests that show them, from the tests'
docstrings.

A test that shows a row says so in its docstring: "Row 5: …", "Row 9 and D5: …". Run through cog by
`make fix`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What each row is about. Rows that are not here belong to leases, workers and stores.
ROWS = {
    1: "every look at a conversation has an answer, also before anything was said",
    2: "the registry of tools: generations, members, orphans",
    3: "what plugins keep: snapshot, fingerprint, restore",
    4: "options of a session, a frame and a turn",
    5: "a conversation as a value: view, snapshot, stored state",
    6: "the graph: leaf, active path, branch, fork, applying a state",
    7: "frames: one is active, earlier ones stay readable",
    8: "residency: the whole graph, or the active path only",
    9: "refreshing: nothing new changes nothing, live options stay",
    10: "usage: a turn under way counts, and nothing ever becomes less",
    11: "what plugins and tools may use of their session",
    12: "what was recorded is never done again",
    13: "inputs that wait: kept once under their key, and let in without anybody waiting",
    14: "work that waits: when it may enter, what it joins, who has claimed it",
    15: "commands: done once under their key, between turns, in order",
    18: "compaction: who decides, and what always holds",
    19: "configuration: who may change it, and who is told",
    20: "whoever lets things in is woken once, and costs nothing when he fails",
    21: "the catalog of tools is built once for each key, and bounded",
    22: "tools laid over others, for one context",
    23: "the prompt: contributions, layers, cache",
    24: "how a conversation begins, and what may be wrong with a provider",
    25: "running code: with an executor or none, and what a finish means",
    26: "inputs that come during a turn: heard once, in it or after it",
    27: "the outcomes of a turn",
    29: "attachments: kept once, guarded by session, collected",
    30: "asking a model directly, under a source of its own",
    31: "where a subagent stands, and who its parent is",
    32: "history in order, and nothing that could not be replayed",
    33: "what tools say beside their results, delivered once",
    34: "processes: begun, listed, awaited, signalled and cancelled, and their parent woken",
}
#: What went wrong in its first version, and what is so here. Tests name them: "(D5)".
DEFECTS = {
    1: "the id of a frame is derived, never random",
    2: "tools that change below an overlay are seen, also where the overlay is the same",
    3: "few catalogs are remembered",
    4: "what was set live survives being read anew",
    5: "a refresh reads only what is new",
    6: "a reset has one meaning: nothing is shown of before, and history, usage and options stay",
    7: "who let another process do its work can go on",
    8: "who says something need not wait for the turn",
    9: "what was spent is never lost, also where a turn did not end well",
    10: "a change of the memory store lands whole or not at all",
    11: "an input that could not be kept is an error for whoever sent it",
    12: "a commit that is repeated finds its receipt, with the same ids",
    13: "a snapshot that failed leaves the old fingerprint",
    14: "no id inside a turn is random",
    15: "`accept_finish` decides whether a program may end the turn",
    16: "errors have types and codes, also those of turns",
    17: "who is slow but alive loses nothing to a clock",
    18: "a process id says nothing in another container",
}
_NAMES = re.compile(r"\bD(\d+)\b")
_SAYS = re.compile(r"\bRows? ((?:(?:D|§)?\d+(?:, | and )?)+)")


@cache
def shown(root: Path = ROOT) -> dict[int, list[str]]:
    """Row → ids of the tests that show it."""
    found: dict[int, list[str]] = {}
    for file in sorted((root / "tests").rglob("test_*.py")):
        for name, words in _tests(ast.parse(file.read_text(encoding="utf-8"))):
            for row in sorted(_rows(words)):
                found.setdefault(row, []).append(f"{file.relative_to(root).as_posix()}::{name}")
    return dict(sorted(found.items()))


@cache
def list_defect_tests(root: Path = ROOT) -> dict[int, list[str]]:
    """Defect → ids of the tests that name it."""
    found: dict[int, list[str]] = {}
    for file in sorted((root / "tests").rglob("test_*.py")):
        for name, words in _tests(ast.parse(file.read_text(encoding="utf-8"))):
            for number in sorted({int(one) for one in _NAMES.findall(words)}):
                found.setdefault(number, []).append(f"{file.relative_to(root).as_posix()}::{name}")
    return dict(sorted(found.items()))


def _tests(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield node.name, ast.get_docstring(node) or ""


def _rows(words: str) -> set[int]:
    told = " ".join(_SAYS.findall(words))
    return {int(number) for number in re.findall(r"(?<![D§\d])\d+", told)}


def table() -> str:
    """The table: row, what it is about, and the tests that show it."""
    return _table(
        "row", "about", {str(row): (about, shown().get(row, [])) for row, about in ROWS.items()}
    )


def defects() -> str:
    """The table: defect, what is so here, and the tests that show it."""
    return _table(
        "",
        "here",
        {f"D{n}": (about, list_defect_tests().get(n, [])) for n, about in DEFECTS.items()},
    )


def _table(first: str, second: str, lines: dict[str, tuple[str, list[str]]]) -> str:
    found = [f"| {first} | {second} | shown by |", "|---|---|---|"]
    for name, (about, tests) in lines.items():
        listed = "<br>".join(f"`{one.removeprefix('tests/')}`" for one in tests)
        found.append(f"| {name} | {about} | {listed} |")
    return "\n".join(found)
