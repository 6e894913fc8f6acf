"""The table of faults is true: every test it names is there, and every test here is in it."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLE = HERE.parents[1] / "docs" / "reference" / "faults.md"
OWN = {"test_tools.py", "test_table.py"}  # the tests of the tools and of the table


def present() -> set[str]:
    found = set()
    for path in HERE.glob("test_*.py"):
        if path.name not in OWN:
            for node in ast.parse(path.read_text()).body:
                if isinstance(
                    node, ast.FunctionDef | ast.AsyncFunctionDef
                ) and node.name.startswith("test_"):
                    found.add(f"{path.name}::{node.name}")
    return found


def named() -> list[str]:
    return re.findall(r"`(test_\w+\.py::\w+)`", TABLE.read_text())


def test_the_table_and_the_tests_name_each_other() -> None:
    """No promise without evidence, no evidence that is not listed, nothing listed twice."""
    assert sorted(named()) == sorted(present())


def test_every_row_has_a_fault_a_promise_and_evidence() -> None:
    """Three cells, none empty, the last one naming a test."""
    rows = [
        line
        for line in TABLE.read_text().splitlines()
        if line.startswith("| ") and "fault | promise" not in line
    ]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row for row in cells if len(row) != 3 or not all(row) or "::test_" not in row[2]] == []
    assert len(rows) >= 30
