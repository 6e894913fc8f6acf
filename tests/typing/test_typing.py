"""What a user's type checker knows of a user's project.

`good.py` is right and must pass; `exports.py` names everything that is public, and must pass, too;
each line of `wrong.py` marked `# E:` and mypy's codes is wrong and must be reported there.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Each checker reads everything, which takes its time: once is enough.
pytestmark = [pytest.mark.xdist_group("typing"), pytest.mark.timeout(600)]
HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
ROOT = HERE.parents[1]
Reports = dict[str, dict[int, set[str]]]  # file → line → codes


@pytest.fixture(scope="module")
def mypy() -> Reports:
    # Under the settings of `make check`, which are strict: what that has read is not read again.
    done = checked(BIN / "mypy", "--no-error-summary", "--no-pretty")
    lines = re.findall(
        r"^tests/typing/(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE
    )
    assert done.returncode == bool(lines), done.stdout + done.stderr
    return by_line(lines)


@pytest.fixture(scope="module")
def pyright() -> Reports:
    done = checked(BIN / "pyright", "--outputjson", "--pythonpath", sys.executable)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [
        one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"
    ]
    return by_line(
        [(Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["rule"]) for one in found]
    )


def checked(checker: Path, *options: str) -> subprocess.CompletedProcess[str]:
    offline = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    files = [f"tests/typing/{name}.py" for name in ("exports", "good", "wrong")]
    return subprocess.run(
        [str(checker), *options, *files], cwd=ROOT, env=offline, capture_output=True, text=True
    )


def by_line(found: list[tuple[str, int | str, str]]) -> Reports:
    reports: Reports = {"exports.py": {}, "good.py": {}, "wrong.py": {}}
    for file, line, code in found:
        reports[file].setdefault(int(line), set()).add(code)
    return reports


def marked() -> dict[int, set[str]]:
    lines = (HERE / "wrong.py").read_text().splitlines()
    marks = {number: re.search(r"# E: ([\w -]+)$", line) for number, line in enumerate(lines, 1)}
    return {number: set(mark[1].split()) for number, mark in marks.items() if mark}


def test_mypy_finds_nothing_wrong_with_what_is_right(mypy: Reports) -> None:
    """A user's project passes mypy --strict, and each `assert_type` in it holds."""
    assert mypy["good.py"] == {}


@pytest.mark.full
def test_pyright_finds_nothing_wrong_with_what_is_right(pyright: Reports) -> None:
    """A user's project passes pyright's strict mode, and each `assert_type` in it holds."""
    assert pyright["good.py"] == {}


def test_mypy_knows_every_public_name(mypy: Reports) -> None:
    """Each name of each public path is there under mypy --strict."""
    assert mypy["exports.py"] == {}


@pytest.mark.full
def test_pyright_knows_every_public_name(pyright: Reports) -> None:
    """Each name of each public path has a known type in pyright's strict mode."""
    assert pyright["exports.py"] == {}


def test_mypy_reports_each_mistake(mypy: Reports) -> None:
    """Each wrong call is reported by mypy on its line and with its code, and no other line is."""
    assert mypy["wrong.py"] == marked()


@pytest.mark.full
def test_pyright_reports_each_mistake(pyright: Reports) -> None:
    """Each wrong call is reported by pyright on its line, and no other line is."""
    assert pyright["wrong.py"].keys() == marked().keys()


def test_there_are_mistakes() -> None:
    """The marks are read: there are as many as there are wrong lines."""
    assert len(marked()) == (HERE / "wrong.py").read_text().count("# E: ") > 30
