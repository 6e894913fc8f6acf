"""Every command as a real process that cannot reach anybody, in a home of its own."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.warm import start

PROGRAM = """
import subprocess
import sys
import everhold

def noise() -> None:
    subprocess.run([sys.executable, "-c", "print('noise of a child')"], check=True)

@everhold.program
async def refund(ctx: everhold.Context, order: str) -> str:
    await ctx.call(noise)
    reason = await ctx.llm(f"Why did {order} come back?")
    if not await ctx.approval(f"Refund {order}? {reason}"):
        return "declined"
    raise ValueError("broken on purpose")

@everhold.program
async def sort(ctx: everhold.Context, letter: str) -> str:
    return await ctx.llm(letter)

clerk = everhold.Agent(instructions="Be brief.")
"""
MAIL = """
name = "mail"
graders = ["contains"]
cases = [{id = "one", input = "broken", expected = "broken"}]
"""
#: Python loads this before anything else, in every process that is started: it notes whoever
#: reaches out.
SITE = """
import os, sys

def hear(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"):
        with open(os.environ["REACHED_OUT"], "a") as file:
            file.write(f"{event} {args} in {sys.argv}\\n")

sys.addaudithook(hear)
"""  # noqa: E501
EVERYTHING = [
    "run shop.py:refund order=7 --key seven --answer-with cat",
    "programs",
    "chat shop.py:clerk --session talk",
    "send talk hello",
    "intake talk",
    "tools talk",
    "command talk reset --key one",
    "sessions",
    "show seven",
    "explain seven",
    "inbox",
    "usage",
    "info",
    "doctor",
    "replay seven",
    "diff seven seven",
    "check",
    "export seven -o out.jsonl",
    "export seven --as-test tests",
    "import out.jsonl -d there.db",
    "fork seven --key forked",
    "signal seven hello",
    "answer seven --as ana --yes",
    "watch seven",
    "retry seven",
    "budget seven --max-llm-calls 9",
    "cancel forked",
    "delete forked --yes",
    "schedule add nightly shop.py:refund order=7 --cron @daily",
    "trigger add order.paid shop.py:refund",
    'emit order.paid {"order":"8"} --key one',
    "worker --once",
    "outbox",
    "db path",
    "db verify",
    "db migrate",
    "db copy copy.db",
    "db gc --older-than 1d",
    "eval run mail.toml shop.py:sort --key first --answer-with cat",
    "eval list",
    "eval scenario list",
    "card list",
    "card find --limit 3",
    "hub reindex",
    "version",
    "init made",
]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


#: With what `SITE` hears, as it is heard in what commands start.
COMMAND = "import sitecustomize; from everhold.__main__ import main; main()"


@pytest.fixture
def alone(tmp_path: Path) -> Run:
    """Runs commands in a shop, with a home in which nothing is yet."""
    home, shop, site = tmp_path / "home", tmp_path / "shop", tmp_path / "site"
    for folder in (home, shop, site):
        folder.mkdir()
    (shop / "shop.py").write_text(PROGRAM)
    (shop / "mail.toml").write_text(MAIL)
    (site / "sitecustomize.py").write_text(SITE)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EVERHOLD", "XDG_"))
    }
    paths = [str(site), *(path for path in sys.path if path.endswith("src"))]
    env = {
        **kept,
        "HOME": str(home),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(paths),
        "REACHED_OUT": str(tmp_path / "reached-out"),
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*start.python(), "-c", COMMAND, *words],
            cwd=shop,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=250,
        )

    return run


@pytest.mark.timeout(600)
def test_no_command_reaches_out_and_none_breaks(alone: Run, tmp_path: Path) -> None:
    """Nor does any of the processes that they start. What is made in the home is for its owner
    alone.
    """
    from everhold.cli.app import GROUPS

    assert {line.split()[0] for line in EVERYTHING} | {"completion", "demo", "mcp", "pkg"} >= {
        name for names in GROUPS.values() for name in names
    }
    for line in EVERYTHING:
        done = alone(*line.split())
        assert (
            "Traceback (most recent call last)" not in done.stderr
            or "broken on purpose" in done.stderr
        ), line
        assert done.returncode in (0, 1, 10, 11, 12), (line, done.stderr)
    assert not (tmp_path / "reached-out").exists(), (tmp_path / "reached-out").read_text()
    made = [path for path in (tmp_path / "home").rglob("everhold*") if "everhold" in path.name]
    assert any(path.is_file() for path in made)
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_whoever_would_reach_out_would_be_noticed(alone: Run, tmp_path: Path) -> None:
    """The test above would see it: here a program is found at it."""
    (tmp_path / "shop" / "eager.py").write_text(
        "import socket, everhold\n\n@everhold.program\nasync def x(ctx):"
        " ...\n\nsocket.gethostbyname('localhost')\n"
    )
    alone("run", "eager.py:x")
    assert "socket.gethostbyname" in (tmp_path / "reached-out").read_text()


def test_what_a_child_of_a_program_prints_is_not_among_the_json(alone: Run) -> None:
    done = alone("run", "shop.py:refund", "order=7", "--json")
    assert json.loads(done.stdout)["prompt"] == "Why did 7 come back?"
    assert "noise of a child" in done.stderr


def test_the_demo_reaches_nobody_and_tells_other_programs_what_held(
    alone: Run, tmp_path: Path
) -> None:
    done = alone("demo", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["held"] is True
    assert [one["held"] for one in shown["claims"]] == [True] * 6
    assert not (tmp_path / "reached-out").exists()
