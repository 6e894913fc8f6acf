"""Long work shows a bar on standard error, at a terminal and nowhere else."""

import sys
from collections.abc import Callable

import pytest

from everhold.cli import output

from .conftest import Cli

pytestmark = pytest.mark.process

LONG = [
    ("exporting", ["export", "-o", "out.jsonl"]),
    ("importing", ["import", "here.jsonl", "-d", "there.db"]),
    ("checking", ["check"]),
    ("verifying", ["db", "verify"]),
    ("searching", ["db", "gc", "--keep-last", "0", "--state", "completed", "--dry-run"]),
    ("deleting", ["db", "gc", "--keep-last", "0", "--state", "completed", "--yes"]),
    ("copying", ["db", "copy", "copy.db"]),
]


class AtOnce:
    """A timer for which every moment is over."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.start = act

    def cancel(self) -> None: ...

    def join(self) -> None: ...


@pytest.fixture
def shop(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli("run", "shop.py:refund", "order=7", "--key", "seven", "--answer-with", "cat")
    cli("run", "shop.py:refund", "order=8", "--key", "eight", "--answer-with", "cat")
    cli("answer", "eight", "--as", "ana", "--no")
    cli("export", "-o", "here.jsonl")
    monkeypatch.setattr(output.threading, "Timer", AtOnce)
    monkeypatch.setenv("TERM", "xterm")
    return cli


@pytest.mark.parametrize(("words", "typed"), LONG)
def test_long_work_has_a_bar_that_knows_its_end(
    shop: Cli, monkeypatch: pytest.MonkeyPatch, words: str, typed: list[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = shop(*typed)
    assert said.code == 0, said.err
    assert f"{words} ━" in said.err
    assert "%" in said.err
    assert "━" not in said.out


@pytest.mark.parametrize(("words", "typed"), LONG)
def test_there_is_none_without_a_terminal_or_for_other_programs(
    shop: Cli, monkeypatch: pytest.MonkeyPatch, words: str, typed: list[str]
) -> None:
    assert shop(*typed).err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    again = [
        word.replace("copy.db", "again.db").replace("there.db", "elsewhere.db") for word in typed
    ]
    said = shop(*again, "--json")
    assert (said.code, said.err) == (0, "")
    assert isinstance(said.json, dict)


def test_a_moments_work_has_no_bar(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MOMENT", 3600)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    cli("run", "shop.py:refund", "order=7", "--key", "seven", "--answer-with", "cat")
    assert cli("db", "verify").err == ""
