"""What to type, from the files that are here; none of them is run."""

from pathlib import Path

import pytest

from everhold.cli.candidates import suggest_reference
from everhold.packages import source_names

TEXT = """
raise SystemExit("it was run")

import everhold
from everhold import Agent, program

@program
async def plain(ctx): ...

@everhold.program(version=2)
async def second(ctx): ...

one = two = Agent(instructions="Help.")
three = everhold.Agent()
limit = 3
made = dict()

async def helper(): ...
"""


def test_a_file_is_told_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(TEXT)
    names = "jobs.py:plain, jobs.py:second, jobs.py:one, jobs.py:two, jobs.py:three"
    assert (
        suggest_reference("jobs", tmp_path)
        == suggest_reference("jobs.py", tmp_path)
        == f"jobs.py is a file. Name a program in it: {names}"
    )


@pytest.mark.parametrize("name", ["plain", "two", "three"])
def test_a_name_is_found_in_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "jobs.py").write_text(TEXT)
    (tmp_path / "broken.py").write_text("def (")
    assert suggest_reference(name, tmp_path) == f"Did you mean jobs.py:{name}?"


@pytest.mark.parametrize("name", ["helper", "limit", "made", "nobody", "", "..", "a\0b"])
def test_what_is_nowhere_is_not_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "jobs.py").write_text(TEXT)
    assert suggest_reference(name, tmp_path) == ""


def test_what_cannot_be_read_in_a_moment_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs.py").write_text(TEXT)
    monkeypatch.setattr(source_names, "MAX_FILE_BYTES", 10)
    assert suggest_reference("plain", tmp_path) == ""
    assert suggest_reference("jobs", tmp_path).startswith(
        "jobs.py is a file. It defines no program."
    )


def test_a_file_with_a_mistake_is_told_with_the_command_that_shows_it(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (")
    assert (
        suggest_reference("broken", tmp_path)
        == "broken.py is a file. It has a mistake; to see it: everhold run broken.py"
    )
