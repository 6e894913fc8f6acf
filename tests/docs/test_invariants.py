"""Every invariant of the table is shown by tests that are there and that run, or says why it does
not apply.
"""

import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools import invariants
from tools.invariants import Row, bare, ids, missed, named, rows, spelled, unknown

pytestmark = pytest.mark.xdist_group("coverage")  # reading all tests takes seconds: once is enough
ROOT = Path(__file__).resolve().parents[2]
#: A plugin for a run of all tests in which only one is done.
ALL_BUT_ONE = """
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.name == "test_no_id_is_missing_or_doubled"]
"""


def ran(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )


def one_of_all(folder: Path) -> list[str]:
    """The options of a run of all tests, of which only one is done."""
    (folder / "all_but_one.py").write_text(ALL_BUT_ONE)
    return ["-p", "all_but_one", "-o", "testpaths=tests/docs/test_invariants.py"]


def make_test() -> list[str]:
    """The options with which `make test` runs all tests but those of the core."""
    (line,) = (
        line
        for line in (ROOT / "Makefile").read_text().splitlines()
        if "--ignore=tests/unit/core" in line
    )
    return shlex.split(line.replace("$(PYTEST)", "").replace("$(JOBS)", "1"))


def test_no_id_is_missing_or_doubled() -> None:
    assert [row.id for row in rows()] == ids()
    assert len(ids()) == 240
    assert unknown() == set()


def test_each_row_has_tests_or_says_why_not() -> None:
    assert [row.id for row in rows() if bool(row.tests) is bool(row.why)] == []
    assert [
        row.id for row in rows() if not row.says.strip() or (row.why and not row.why.endswith("."))
    ] == []
    assert [row.id for row in rows() if "not built" in row.why or "not yet" in row.why] == []


def test_at_most_a_quarter_does_not_apply() -> None:
    assert 4 * sum(1 for row in rows() if row.why) <= len(rows())


def test_the_tests_of_the_table_are_there() -> None:
    """As pytest collects them where all tests are run: on each store, without those that are run
    elsewhere.
    """
    files = sorted({name.partition("::")[0] for name in named()})
    assert not any(file.startswith(invariants.APART) for file in files)
    listed = ran("--collect-only", "-n", "0", *files)
    assert listed.returncode == 0, listed.stdout[-2000:] + listed.stderr
    collected = Counter(bare(line) for line in listed.stdout.splitlines() if "::" in line)
    assert sorted(named() - set(collected)) == []


def test_nothing_is_listed_twice() -> None:
    assert [row.id for row in rows() if len(set(row.tests)) < len(row.tests)] == []
    text = invariants.TABLE.read_text()
    assert [
        line for line, count in Counter(text.splitlines()).items() if line.strip() and count > 1
    ] == []


def test_a_test_of_the_suite_is_one_for_each_store() -> None:
    assert spelled("stores::test_x") == [
        "tests/conformance/test_stores.py::TestMemory::test_x",
        "tests/conformance/test_stores.py::TestSQLite::test_x",
        "tests/conformance/test_postgres.py::TestPostgres::test_x",
    ]
    assert spelled("durable::test_x") == spelled("stores::test_x")[1:]
    assert spelled("scenario/test_y.py::test_x") == ["tests/scenario/test_y.py::test_x"]


def test_what_passed_under_a_parameter_or_in_a_group_has_passed() -> None:
    passed = {f"{name}[a::b[0]]@postgres" for name in named()}
    assert missed(passed) == []
    one = min(named())
    assert missed(passed - {f"{one}[a::b[0]]@postgres"}) == [one]
    assert missed({*named()} - {one}) == [one]


def test_a_docstring_begins_with_its_ids(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(
        'def test_one():\n    """LE1, S20: It is so."""\ndef test_two():\n    """So is LE1:'
        ' not."""\n'
        'def test_three():\n    """A row: of S1."""\ndef helper():\n    """C1: None."""\n'
    )
    found: dict[str, list[str]] = {}
    invariants._gather(found, file, "some")
    assert found == {"LE1": ["some::test_one"], "S20": ["some::test_one"]}


def test_a_row_that_does_not_apply_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [
        Row("A1", "one", ("stores::test_x",), ""),
        Row("A2", "two", (), "There is none."),
        Row("S1", "three", (), ""),
    ]
    monkeypatch.setattr(invariants, "rows", lambda: told)
    assert invariants.table("A").splitlines()[2:] == [
        "| A1 | one | `stores::test_x` |",
        "| A2 | two | *does not apply:* There is none. |",
    ]
    assert invariants.counted() == "3 invariants: 2 are shown by tests, 1 do not apply."


@pytest.mark.parametrize(
    "options",
    [pytest.param(["-n", "0"], marks=pytest.mark.soak), make_test()],
    ids=["alone", "make test"],
)
def test_a_run_of_all_tests_fails_if_one_of_the_table_did_not_run(
    tmp_path: Path, options: list[str]
) -> None:
    """In one process, and as `make test` has others do the work."""
    whole = ran(*one_of_all(tmp_path), *options, PYTHONPATH=str(tmp_path))
    assert whole.returncode == 1, whole.stdout
    assert "1 passed" in whole.stdout
    assert whole.stdout.count("MISSED ") == len(named())


@pytest.mark.parametrize(
    "some",
    [
        ["tests/docs/test_invariants.py"],
        pytest.param(["-k", "no_id"], marks=pytest.mark.soak),
        pytest.param(["-m", "alone or not alone"], marks=pytest.mark.soak),
    ],
)
def test_a_run_of_some_tests_says_nothing_of_the_others(tmp_path: Path, some: list[str]) -> None:
    done = ran(*one_of_all(tmp_path), "-n", "0", *some, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "MISSED" not in done.stdout


def test_a_test_of_the_table_that_is_skipped_has_failed(tmp_path: Path) -> None:
    (tmp_path / "skips_all.py").write_text(
        "import pytest\ndef pytest_runtest_setup(item): pytest.skip('today')\n"
    )
    name = "tests/scenario/test_invariants.py::test_a_graph_that_cannot_be_is_refused"
    done = ran("-n", "0", "-p", "skips_all", name, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout
    assert "invariants.md says that it shows something" in done.stdout
