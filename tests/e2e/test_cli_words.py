"""What a person reads at the command line, in real processes: help, explanations, and the end of a
pipe.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import start

PROGRAM = """
import everhold

@everhold.program
async def refund(ctx: everhold.Context, order: str) -> str:
    reason = await ctx.llm(f"Why did {order} come back?")
    return "refunded" if await ctx.approval(f"Refund {order}? {reason}") else "declined"

@everhold.program
async def panel(ctx: everhold.Context) -> list:
    return await ctx.llm_batch([f"Number {n}?" for n in range(6)])
"""


def everhold(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*start.everhold(), *words],
        cwd=cwd,
        env={**os.environ, "EVERHOLD_DATABASE_URL": "sqlite:///app.db", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=250,
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = everhold(
        "run", "shop.py:refund", "order=7", "--key", "k", "--answer-with", "cat", cwd=tmp_path
    )
    assert done.returncode == 10, done.stderr
    return tmp_path


def test_help_is_in_four_groups(tmp_path: Path) -> None:
    told = everhold("--help", cwd=tmp_path).stdout
    assert re.findall(r"^(\w+):$", told, re.MULTILINE)[-4:] == [
        "Run",
        "Inspect",
        "Answer",
        "Manage",
    ]


def test_explain_says_who_is_asked_since_when(shop: Path) -> None:
    told = everhold("explain", "k", cwd=shop).stdout
    assert re.search(r"q-1 asks a person for an approval \(\d+ \w+ ago\): Refund 7\?", told), told


def test_explain_says_which_program_is_missing(shop: Path) -> None:
    (shop / "shop.py").rename(shop / "gone.txt")
    told = everhold("explain", "k", cwd=shop).stdout
    assert "It cannot resume here: no program" in told
    assert "shop.py" in told


def test_explain_says_which_version_is_missing(shop: Path) -> None:
    (shop / "shop.py").write_text(
        PROGRAM.replace(
            "@everhold.program\nasync def refund", "@everhold.program(version=2)\nasync def refund"
        )
    )
    told = everhold("explain", "k", cwd=shop).stdout
    assert "It cannot resume here: " in told
    assert "version 1" in told


def test_explain_says_where_it_would_diverge(shop: Path) -> None:
    (shop / "shop.py").write_text(PROGRAM.replace("ctx.approval(f", "ctx.input(f"))
    told = everhold("explain", "k", cwd=shop).stdout
    assert "It cannot resume here: step 1: the program asks" in told


def test_a_session_of_a_file_is_meant_by_its_key_or_a_prefix(shop: Path) -> None:
    everhold("run", "shop.py:refund", "order=8", cwd=shop)
    everhold("export", "-o", "all.jsonl", cwd=shop)
    session_id = json.loads(everhold("show", "k", "--json", cwd=shop).stdout)["session"][
        "session_id"
    ]
    for name in ("k", session_id[:18], session_id):
        checked = json.loads(
            everhold("check", name, "--file", "all.jsonl", "--json", cwd=shop).stdout
        )["checked"]
        assert [one["session_id"] for one in checked] == [session_id], name
    assert (
        "[unknown_session]" in everhold("check", "nobody", "--file", "all.jsonl", cwd=shop).stderr
    )


def test_a_command_that_takes_too_long_is_an_error_that_the_program_sees(shop: Path) -> None:
    done = everhold(
        "run",
        "shop.py:refund",
        "order=7",
        "--answer-with",
        "sleep 60",
        "--timeout",
        "0.3",
        cwd=shop,
    )
    assert done.returncode == 1
    assert "sleep did not answer within 0.3 s" in done.stderr


def test_so_many_commands_run_at_a_time(shop: Path) -> None:
    """Each notes how many there are while it runs: never more than two."""
    (shop / "count.py").write_text(
        "import os, pathlib, sys, time\n"
        "here = pathlib.Path('running'); here.mkdir(exist_ok=True)\n"
        "mine = here / str(os.getpid()); mine.touch()\n"
        "time.sleep(0.3); print(len(list(here.iterdir()))); mine.unlink()\n"
    )
    words = [
        "run",
        "shop.py:panel",
        "--answer-with",
        f"{sys.executable} count.py",
        "--at-once",
        "2",
    ]
    done = everhold(*words, cwd=shop)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert len(counts) == 6
    assert set(counts) <= {"1", "2"}


def test_whoever_reads_only_the_beginning_is_no_mistake(shop: Path) -> None:
    for words in ("sessions", "sessions --json", "show k --full"):
        line = f"{sys.executable} -m everhold {words} | true; exit ${{PIPESTATUS[0]}}"
        env = {**os.environ, "EVERHOLD_DATABASE_URL": "sqlite:///app.db"}
        done = subprocess.run(
            ["bash", "-c", line], cwd=shop, env=env, capture_output=True, text=True, timeout=250
        )
        assert (done.returncode, done.stderr) == (0, ""), words


def test_without_words_it_shows_its_help(tmp_path: Path) -> None:
    done = everhold(cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == everhold("--help", cwd=tmp_path).stdout


def test_letters_that_a_terminal_does_not_have_are_spelled_out(shop: Path) -> None:
    env = {**os.environ, "EVERHOLD_DATABASE_URL": "sqlite:///app.db", "PYTHONIOENCODING": "latin-1"}
    words = [sys.executable, "-m", "everhold", "replay", "k"]
    done = subprocess.run(words, cwd=shop, env=env, capture_output=True, timeout=250)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"   1  q-0 \\u2190 Why did 7 come back?" in done.stdout


def test_closed_streams_are_like_empty_ones(shop: Path) -> None:
    """Nothing is a terminal then, and no file that is opened later takes their places."""
    env = {**os.environ, "EVERHOLD_DATABASE_URL": "sqlite:///app.db"}
    for words, closed, code in (
        ("answer k", "<&-", 2),
        ("run shop.py:refund order=8", "<&-", 10),
        ("run shop.py:refund order=8", "<&- >&- 2>&-", 10),
        ("sessions --json", ">&-", 0),
    ):
        line = f"{sys.executable} -m everhold {words} {closed}"
        done = subprocess.run(
            ["bash", "-c", line], cwd=shop, env=env, capture_output=True, text=True, timeout=250
        )
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


@pytest.mark.parametrize("noun", ["db", "eval", "mcp", "outbox", "pkg", "schedule", "trigger"])
def test_what_each_verb_does_is_told_in_full(tmp_path: Path, noun: str) -> None:
    told = everhold(noun, "--help", cwd=tmp_path).stdout.partition("Commands:")[2]
    assert told
    assert "..." not in told
