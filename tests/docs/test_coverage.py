"""Every row of the tables of coverage is shown by a test that is there, that runs, and that goes
through the public API; and the check of that refuses what it should.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import coverage
from tools.rows import DEFECTS, ROWS, list_defect_tests, shown

pytestmark = pytest.mark.xdist_group("coverage")  # reading all tests takes seconds: once is enough
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "coverage.md").read_text()


def test_the_rows_have_no_faults() -> None:
    assert coverage.find_faults(coverage.load_rows()) == []


def test_the_public_paths_of_the_check_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "stability.md").read_text()
    section = page.partition("## Public import paths\n")[2].partition("\n## ")[0]
    paths = re.findall(r"^\| `(everhold[\w.]*)` \|", section, re.MULTILINE)
    assert tuple(paths) == coverage.PUBLIC


def test_the_page_has_every_row() -> None:
    assert len(coverage.load_rows()) > 250
    for row in coverage.load_rows():
        assert f"| <code>{row.item}</code> | {row.kind} |" in PAGE, row.label


GOOD = "def test_it():\n    assert True\n"
#: The text of a test module (the test is `test_it`), and what the check says of it.
BAD_MODULES = {
    "from everhold.core.graph import Graph": "everhold's own everhold.core.graph.Graph",
    "import everhold.engine": "everhold's own everhold.engine",
    "import everhold.engine as engine": "everhold's own everhold.engine",
    "from everhold import engine": "everhold's own everhold.engine",
    "from everhold.agents import loop": "everhold's own everhold.agents.loop",
    "from everhold.agents.agent import Agent": "everhold's own everhold.agents.agent.Agent",
    "import everhold\nGRAPH = everhold.core.graph": "everhold's own everhold.core",
    "from tests.helper import anything": "everhold's own everhold.wire.anything (in tests.helper)",
    "from .helper import anything": "everhold's own everhold.wire.anything (in tests.helper)",
    "from tests import helper": "everhold's own everhold.wire.anything (in tests.helper)",
    "import importlib\nimportlib.import_module('everhold.core.graph')": "everhold.core.graph",
    "CODE = 'import asyncio\\nfrom everhold.core import graph'": "everhold's own everhold.core",
    "PATCHED = 'everhold.models.stream.DELAY'": "everhold's own everhold.models.stream.DELAY",
    "def peek(session):\n    return session._reading": "the private attribute _reading",
    "def peek(session):\n    return getattr(session, '_reading')": "the private attribute _reading",
    "def spoil(monkeypatch, one):\n    monkeypatch.setattr(one, '_x', 1)": "private attribute _x",
    "import pytest\npytestmark = pytest.mark.skip": "is marked skip",
    "import pytest\npytestmark = [pytest.mark.process, pytest.mark.soak]": "is marked soak",
    "import pytest\npytest.importorskip('lupa')": "is marked pytest.importorskip",
}
#: The test itself, and what the check says of it.
BAD_TESTS = {
    "def test_other():\n    pass\n": "does not exist",
    f"{GOOD}\n\n{GOOD}": "does not exist",  # which of the two?
    f"import pytest\n@pytest.mark.skipif(True, reason='')\n{GOOD}": "is marked skipif",
    f"import pytest\n@pytest.mark.xfail\n{GOOD}": "is marked xfail",
    f"import pytest\n@pytest.mark.full\n{GOOD}": "is marked full",
    "import pytest\ndef test_it():\n    pytest.skip('today')\n": "is marked pytest.skip",
    "def test_it(house):\n    pass\n": "the fixture 'house', which is not defined in its module",
    "def test_it():\n    from everhold.core import graph\n": "everhold's own everhold.core",
}


def fault_of(tmp_path: Path, text: str) -> str:
    """What the check says of a test module."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "helper.py").write_text("from everhold.wire import anything\n")
    (tmp_path / "tests" / "test_it.py").write_text(text)
    return "; ".join(coverage.find_faults([row(["test_it.py::test_it"])], tmp_path))


def row(shown_by: list[str], **more: str) -> coverage.Row:
    names = ["AgentSession.send"] if shown_by else []
    fields = {"system": "lash", "file": "session.rs", "item": "x", "kind": "function", **more}
    return coverage.Row(**fields, everhold=names, shown_by=shown_by)


@pytest.mark.parametrize("text", BAD_MODULES, ids=range(len(BAD_MODULES)))
def test_a_test_that_does_not_go_through_the_public_api_is_refused(
    tmp_path: Path, text: str
) -> None:
    assert BAD_MODULES[text] in fault_of(tmp_path, f"{text}\n\n\n{GOOD}")


@pytest.mark.parametrize("text", BAD_TESTS, ids=range(len(BAD_TESTS)))
def test_a_test_that_shows_nothing_is_refused(tmp_path: Path, text: str) -> None:
    assert BAD_TESTS[text] in fault_of(tmp_path, text)


def test_a_test_of_the_public_api_is_accepted(tmp_path: Path) -> None:
    """With the fixture of the kit, public names, its own fixtures, and what is not everhold's."""
    text = """
import asyncio
import everhold as eh
import everhold
import pytest
from everhold.agents import Agent
from everhold.testing import conformance

class Model:
    def __init__(self):
        self._lines = []

@pytest.fixture
def own():
    return everhold.Agent

@pytest.mark.parametrize("given", [1])
def test_it(everhold, own, given, tmp_path):
    everhold.runtime.session(own, "everhold.toml")
"""
    assert fault_of(tmp_path, text) == ""


def test_a_row_without_a_test_and_without_a_reason_is_refused() -> None:
    (fault,) = coverage.find_faults([row([])])
    assert fault == "lash session.rs x: has neither a test nor a reason"
    assert coverage.find_faults([row([], reason=" ")]) == [fault]
    assert coverage.find_faults([row([], reason="not yet")]) == []


def test_a_row_whose_test_is_nowhere_is_refused() -> None:
    for test in ("scenario/nowhere.py::test_it", "docs/test_coverage.py::test_nothing", "docs"):
        assert coverage.find_faults([row([test])]) == [f"lash session.rs x: {test} does not exist"]


def test_a_row_that_is_there_twice_is_refused() -> None:
    rows = [row([], reason="not yet"), row([], reason="also")]
    assert coverage.find_faults(rows) == ["lash session.rs x: is there twice"]


def test_a_row_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    test = "docs/test_coverage.py::test_the_page_has_every_row"
    assert "and a reason why there are none" in coverage.find_faults([row([test], reason="no")])[0]
    assert "names a test twice" in coverage.find_faults([row([test, test])])[0]
    assert "is not one of" in coverage.find_faults([row([], kind="thing", reason="no")])[0]


@pytest.mark.parametrize(
    "name",
    [
        "AgentSession.nothing",
        "Nothing",
        "Graph",
        "AgentSession.send(nothing=)",
        "everhold nothing",
        "everhold export --nothing",
    ],
)
def test_an_everhold_name_that_does_not_exist_is_refused(name: str) -> None:
    named = coverage.Row("lash", "session.rs", "x", "type", [name], ["docs"])
    assert f"there is no {name}" in coverage.find_faults([named])[0]


def test_unknown_fields_of_the_data_are_refused() -> None:
    with pytest.raises(ValueError, match="shownby"):
        coverage.parse_rows("[[row]]\nshownby = []\n")


def test_the_check_of_make_fails_on_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert coverage.main() == 0
    monkeypatch.setattr(coverage, "load_rows", lambda: [row([])])
    assert coverage.main() == 1
    assert "has neither a test nor a reason" in capsys.readouterr().out
    assert re.search(r"^CHECKS := .*\bcovered\b", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_each_row_is_shown_by_a_test() -> None:
    assert [row for row in ROWS if not shown().get(row)] == []


def test_each_defect_is_named_by_a_test() -> None:
    assert [defect for defect in DEFECTS if not list_defect_tests().get(defect)] == []


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
