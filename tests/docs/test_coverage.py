"""Every row of the table of coverage is shown by a test that is there and that runs."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_public_paths import PUBLIC
from tools.rows import DEFECTS, ROWS, mended, shown

pytestmark = pytest.mark.xdist_group("coverage")  # reading all tests takes seconds: once is enough
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "coverage.md").read_text()


def test_each_row_is_shown_by_a_test() -> None:
    assert [row for row in ROWS if not shown().get(row)] == []


def test_each_defect_is_named_by_a_test() -> None:
    assert [defect for defect in DEFECTS if not mended().get(defect)] == []


def test_the_page_names_tests_that_exist_and_are_not_skipped() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 2 * len(ROWS)
    nodes = {
        file: [*ast.walk(ast.parse((ROOT / "tests" / file).read_text()))]
        for file in {file for file, _ in named}
    }
    for file, name in named:
        found = [node for node in nodes[file] if getattr(node, "name", "") == name]
        assert len(found) == 1, (file, name)
        marks = " ".join(ast.unparse(mark) for mark in found[0].decorator_list)  # type: ignore[attr-defined]
        assert "skip" not in marks and "xfail" not in marks, (file, name)


def test_the_tests_of_fluers_rows_use_public_paths_only() -> None:
    """What is shown is what a user can import."""
    _, found, section = PAGE.partition("## The session layer of fluers\n")
    files = set(re.findall(r"`([\w/]+\.py)::", section))
    assert found and len(files) == 5
    for file in files:
        for node in ast.walk(ast.parse((ROOT / "tests" / file).read_text())):
            paths = [node.module] if isinstance(node, ast.ImportFrom) else []
            paths += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            for path in paths:
                assert path is not None
                assert not path.startswith("everhold") or path in PUBLIC, (file, path)


def test_a_test_that_shows_a_row_and_is_skipped_has_failed(tmp_path: Path) -> None:
    """Whatever made it skip: in a run of all tests, each that the page names has run."""
    name = "tests/scenario/test_turns.py::test_a_turn_is_answered"
    skip = tmp_path / "skips_all.py"
    skip.write_text("import pytest\ndef pytest_runtest_setup(item): pytest.skip('today')\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "skips_all",
        "-p",
        "no:randomly",
        name,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert "says that it shows something" in done.stdout


def test_a_row_is_found_in_the_words_of_a_docstring() -> None:
    from tools.rows import _rows

    assert _rows("Row 5: the view.") == {5}
    assert _rows("Row 9 and D5: only what is new is read.") == {9}
    assert _rows("It lands whole.\n\nRows 12, 17 and 30: three of them.") == {12, 17, 30}
    assert _rows("Row 12 and §9: also elsewhere; 25 kills.") == {12}
    assert _rows("A row of 5 tests.") == set()
