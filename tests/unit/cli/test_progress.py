"""Long work shows a bar on standard error, at a terminal and nowhere else."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from everhold.cli import output
from tests.failures import collect_failures

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


ASK = """
import everhold

@everhold.program
async def ask(ctx: everhold.Context, order: str) -> str:
    return await ctx.llm(f"Why did {order} come back?")
"""


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
    monkeypatch.setattr(output, "threading", SimpleNamespace(Timer=AtOnce))
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


def test_the_bar_of_an_eval_has_its_cost(shop: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases that have ended, how many passed, and what they cost, on 80 columns."""
    case = {"input": "7", "expected": "never"}
    Path("orders.json").write_text(json.dumps({"name": "orders", "cases": [case, case]}))
    Path("ask.py").write_text(ASK)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    said = shop("eval", "run", "orders.json", "ask.py:ask", "--answer-with", "echo damaged")
    assert said.code == 0, said.err
    bars = [line for line in said.err.replace("\r", "\n").split("\n") if "evaluating" in line]
    assert re.search(r"━ 100% .*2 of 2 cases, 0 passed, 2 model answers, 14 tokens", bars[-1])


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


READS = """
import everhold

@everhold.program
async def reads(ctx: everhold.Context) -> str:
    for number in (136, 137):
        ctx.progress(number, 200, "documents of Tuesday")
        await ctx.llm(f"document {number}")
    return await ctx.input("Which one?")
"""


@pytest.fixture
def reading(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    Path("reading.py").write_text(READS)
    monkeypatch.setattr(output, "threading", SimpleNamespace(Timer=AtOnce))
    monkeypatch.setenv("TERM", "xterm")
    return cli


def test_what_a_program_reports_is_in_every_view_of_its_session(reading: Cli) -> None:
    """`run` without a terminal says it with the status; no bar is shown."""
    said = reading("run", "reading.py:reads", "--key", "k", "--answer-with", "cat")
    words = "137 of 200 (68%): documents of Tuesday"
    assert words in said.err
    assert "━" not in said.err
    with collect_failures() as row:
        for typed in (["show", "k"], ["sessions"], ["run", "-c", "k"]):
            with row(typed[0]):
                shown = reading(*typed)
                assert words in shown.out + shown.err
        with row("explain"):
            assert "Its last progress: 137 of 200: documents" in reading("explain", "k").out
        facts = {"step": 137, "total": 200, "message": "documents of Tuesday"}
        with row("show --json"):
            shown = reading("show", "k", "--json").json
            assert (shown["session"]["progress"], shown["status"]["progress"]) == (facts, facts)
        with row("sessions --json"):
            assert reading("sessions", "--json").json["sessions"][0]["progress"] == facts
        with row("explain --json"):
            assert reading("explain", "k", "--json").json["progress"] == facts
        with row("run --json"):
            assert reading("run", "-c", "k", "--json").json["progress"] == facts


def test_watch_prints_each_report_once(reading: Cli) -> None:
    reading("run", "reading.py:reads", "--key", "k", "--answer-with", "cat")
    reading("answer", "k", "the last", "--as", "ana")
    lines = [line for line in reading("watch", "k").out.splitlines() if "of 200" in line]
    assert lines == [
        "   0  136 of 200 (68%): documents of Tuesday",
        "   1  137 of 200 (68%): documents of Tuesday",
    ]


def test_run_shows_a_bar_at_a_terminal_and_removes_it_for_a_question(
    reading: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    typed = ["run", "reading.py:reads", "--key", "k", "--answer-with", "cat"]
    said = reading(*typed, typed="the last one\n\n")
    assert "137/200 documents of Tuesday" in said.err
    assert "━" in said.err
    assert "Which one?" in said.out


def test_run_of_a_session_that_waits_shows_how_far_it_was_before(
    reading: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar is there at once, before the program reports anything new."""
    naps = READS.replace('ctx.llm(f"document {number}")', "ctx.sleep(3600)")
    Path("reading.py").write_text(naps)
    reading("run", "reading.py:reads", "--key", "k", "--wait", "0")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = reading("run", "-c", "k", "--wait", "0")
    assert "136/200 documents of Tuesday" in said.err


TRIES = """
import everhold

tried = []

def act():
    tried.append(1)
    if len(tried) == 1:
        raise ConnectionError("no route")
    return "done"

@everhold.program
async def tries(ctx: everhold.Context) -> str:
    ctx.progress(1, 2, "half")
    return await ctx.call(act, retry=everhold.Retry(2, 0))
"""


def test_run_says_at_a_terminal_that_an_attempt_failed_and_when_the_next_one_starts(
    reading: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be silent until the last attempt. Without a terminal it is."""
    Path("quiet.py").write_text(TRIES)
    assert "failed" not in reading("run", "quiet.py:tries").err
    Path("tries.py").write_text(TRIES)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = reading("run", "tries.py:tries")
    words = "attempt 1 of 2 of call tries:act failed: ConnectionError: no route (tries.py, line 9"
    assert words in said.err and "; the next one starts at 2" in said.err
    assert "done" in said.out
