"""`everhold worker`: what it prints, how it exits, and what it refuses."""

import asyncio
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold.cli.context import SHORT_ID_LENGTH
from everhold.cli.worker import WorkerOutput, parse_limits
from everhold.core.query import FailedAttempt, Kind, Query
from everhold.core.session import OUTSIDE, WORKERS
from everhold.errors import BadSetting
from everhold.movers import Limits
from everhold.packages.find import find_program
from everhold.wire import ExitCode

from .conftest import Cli


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def test_once_with_nothing_to_do(cli: Cli) -> None:
    """It exits with 0, and its last line says that nothing is left."""
    said = cli("worker", "--once", "--json")
    assert (said.code, said.err) == (ExitCode.OK, "")
    assert events(said.out) == ["opened", "started", "stopped", "done"]
    last = json.loads(said.out.splitlines()[-1])
    assert (last["left"], last["moved"], last["next_due"]) == (0, 0, None)


def test_once_tells_when_the_next_is_due(cli: Cli) -> None:
    """A session whose time has not come is not left, but known."""
    cli("run", "shop.py:naps", "--wait", "0")
    last = json.loads(cli("worker", "--once", "--json").out.splitlines()[-1])
    assert last["left"] == 0
    assert last["next_due"] > 0


TRIES = """
import everhold

def act():
    raise ConnectionError("no route")

@everhold.program
async def tries(ctx: everhold.Context) -> str:
    return await ctx.call(act, retry=everhold.Retry(3, 3600, max_backoff=3600))
"""


def test_a_session_that_waits_for_its_next_attempt_is_not_left_but_known(
    cli: Cli, tmp_path: Path
) -> None:
    """The attempt is due when its session is."""
    (tmp_path / "tries.py").write_text(TRIES)
    while "attempt 2 of 3" not in cli("run", "tries.py:tries", "--key", "k", "--wait", "0.1").err:
        pass
    last = json.loads(cli("worker", "--once", "--json").out.splitlines()[-1])
    due = cli("sessions", "--json").json["sessions"][0]["due_at"]
    assert (last["left"], int(last["next_due"] * 1000)) == (0, due)


def test_a_failed_attempt_is_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    """With the moment of the next one."""
    failed = FailedAttempt(1, 3, "ConnectionError: no route\x1b[2J", 1000.0, 2000.0004)
    query = Query(7, "0:7", kind=Kind.CALL, name="shop:pay")
    for as_json in (True, False):
        WorkerOutput(as_json).attempt_failed("s-1", query, failed)
    line, text = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["event"], told["query_id"], told["attempt"]) == ("retrying", "q-7", 1)
    assert told["next_at"] == 2000.0
    assert text.startswith(
        "retrying  s-1 attempt 1 of 3 of call shop:pay failed: ConnectionError: no route"
    )
    assert "; the next one starts at 1970-01-01 " in text and "\x1b" not in text


HANGS = """
[[tell]]
name = "desk"
command = ["sh", "-c", "[ -e open ] && cat > told || sleep 600"]
"""


@pytest.mark.process
def test_who_could_not_be_told_is_left(cli: Cli, tmp_path: Path) -> None:
    """Whoever comes next tells them: the exit code says that there is something to do."""
    cli("run", "shop.py:chat", "--key", "c")
    (tmp_path / "everhold.toml").write_text(HANGS)
    said = cli("worker", "--once", "--for", "1s", "--json")
    last = json.loads(said.out.splitlines()[-1])
    assert (said.code, last["left"], last["untold"]) == (ExitCode.LEFT, 0, 1)
    assert last["text"] == "1 notification to send"

    (tmp_path / "open").touch()
    assert cli("worker", "--once").code == ExitCode.OK
    assert json.loads((tmp_path / "told").read_text())["prompt"] == "Your name?"


def test_in_words(cli: Cli) -> None:
    """One line for each event, which begins with its name."""
    said = cli("worker", "--once", "shop.py:refund")
    assert [line.split()[0] for line in said.out.splitlines()] == [
        "opened",
        "started",
        "stopped",
        "done",
    ]


DOZES = """
import everhold

@everhold.program
async def dozes(ctx):
    await ctx.sleep(0.01)
"""


def test_sessions_are_called_what_people_call_them(cli: Cli, tmp_path: Path) -> None:
    """By their key, or their title; else by the beginning of their id. Tools are told the id
    too.
    """
    (tmp_path / "dozes.py").write_text(DOZES)

    def begun(*given: dict[str, Any]) -> list[str]:
        with everhold.open_blocking(recover=False) as runtime:
            ids = [
                runtime.start(find_program("dozes.py:dozes")(), wait=0, **one).session_id
                for one in given
            ]
        time.sleep(0.02)  # until they are due
        return ids

    short = begun({"key": "order-7", "title": "Order"}, {"title": "The order\nof Ann"}, {})[2][
        :SHORT_ID_LENGTH
    ]
    said = cli("worker", "--once").out.splitlines()
    assert sorted(line for line in said if line.startswith("completed")) == [
        "completed The order of Ann",
        "completed order-7",
        f"completed {short}",
    ]
    (id,) = begun({"key": "order-8"})
    told = [json.loads(line) for line in cli("worker", "--once", "--json").out.splitlines()]
    assert [(one["session_id"], one["name"]) for one in told if one["event"] == "completed"] == [
        (id, "order-8")
    ]


def parked(who: str) -> str:
    """Begin a session with a question to a model that is open; returns its id."""

    async def begin() -> str:
        async with everhold.open(recover=False) as runtime:
            runtime._llm = who
            return (await runtime.start(find_program("shop.py:grades")())).session_id

    return asyncio.run(begin())


def states() -> dict[str, str]:
    with everhold.open_blocking(recover=False) as runtime:
        return {info.session_id: info.state for info in runtime.sessions()}


def test_a_worker_with_a_model_answers_what_is_for_workers(cli: Cli, tmp_path: Path) -> None:
    """Questions that a host answers stay open, and the worker says so."""
    (tmp_path / "grade.json").write_text("[5, 5]")
    ours, hosts = parked(WORKERS), parked(OUTSIDE)
    said = cli("worker", "--once", "--answers", "grade.json").out
    assert states() == {ours: "completed", hosts: "paused"}
    (line,) = [line for line in said.splitlines() if line.startswith("leaves")]
    assert line == (
        "leaves    1 session whose model questions are answered outside (by an MCP host, or"
        " by hand)"
    )


@pytest.mark.parametrize("where", ["option", "settings"])
def test_sessions_of_older_databases_are_answered_if_the_worker_is_told_to(
    cli: Cli, tmp_path: Path, where: str
) -> None:
    """They do not say who answers their questions: without the option they are left alone."""
    (tmp_path / "grade.json").write_text("[5, 5]")
    old, hosts = parked(""), parked(OUTSIDE)
    said = cli("worker", "--once", "--answers", "grade.json").out
    assert states() == {old: "paused", hosts: "paused"}
    assert "--adopt-parked takes those of older databases" in said
    if where == "settings":
        (tmp_path / "everhold.toml").write_text("[worker]\nadopt_parked = true\n")
    option = ["--adopt-parked"] if where == "option" else []
    said = cli("worker", "--once", "--answers", "grade.json", *option).out
    assert states() == {old: "completed", hosts: "paused"}
    assert "--adopt-parked" not in said


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["--concurrency", "0"], "bad_setting", "concurrency"),
        (["--limit", "many"], "bad_setting", "name=value"),
        (["--limit", "x.y=1"], "bad_setting", "not session, program.NAME or tool.NAME"),
        (["--limit", "tool.y=none"], "bad_setting", "'none' is not a number"),
        (["--limit", "tool.y=0"], "bad_setting", "limits.tool.y"),
        (["--lease-ttl", "0"], "bad_setting", "lease"),
        (["--grace", "soon"], "usage", "duration"),
        (["--poll", "0"], "bad_setting", "poll"),
        (["--for", "5s"], "usage", "--once"),
        (["nowhere.py:nobody"], "unknown_program", "nowhere"),
    ],
)
def test_what_is_refused(cli: Cli, words: list[str], code: str, part: str) -> None:
    """Before anything is worked on, with a code and words that name it."""
    said = cli("worker", "--once", *words) if "--for" not in words else cli("worker", *words)
    assert said.code == ExitCode.USAGE
    assert f"[{code}]" in said.err
    assert part in said.err
    assert "started" not in said.out


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "gracee = 3",
            "worker: there is no 'gracee'; there are concurrency, lease_ttl, grace, limits",
        ),
        (
            "limits = { tol = { pay = 1 } }",
            "worker.limits: there is no 'tol'; there are session, program, tool",
        ),
        ("limits = 3", "worker: Expected `object`, got `int`"),
    ],
)
def test_settings_that_are_wrong(cli: Cli, tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "everhold.toml").write_text(f"[worker]\n{text}\n")
    said = cli("worker", "--once")
    assert (said.code, part in said.err) == (ExitCode.USAGE, True)


def test_limits_of_the_command_line() -> None:
    assert parse_limits(()) is None
    found = parse_limits(("session=2", "program.refund=3", "tool.llm=4", "tool.shop:pay=1"))
    assert found == Limits(session=2, program={"refund": 3}, tool={"llm": 4, "shop:pay": 1})
    with pytest.raises(BadSetting):
        parse_limits(("session=-1",))


def test_a_worker_whom_nobody_hears_any_more_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever read its output has gone: it is silent from then on, and no work fails for that."""
    said: list[str] = []

    def echo(words: str) -> None:
        said.append(words)
        raise BrokenPipeError

    monkeypatch.setattr("everhold.cli.worker.click.echo", echo)
    voice = WorkerOutput(as_json=False)
    with voice.log_warnings():
        voice.print_event("completed", "", "s-1")
        logging.getLogger("everhold").warning("something")
    assert len(said) == 1


@pytest.mark.process
def test_only_the_command_changes_the_garbage_collection() -> None:
    """`import everhold` leaves Python's threshold as it is; a process of the command raises it."""
    program = """
import atexit, gc, sys
before = gc.get_threshold()
import everhold, everhold.__main__
print(gc.get_threshold() == before)
atexit.register(lambda: print(gc.get_threshold()[0]))
sys.argv = ["everhold", "--version"]
everhold.__main__.main()
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert said.stdout.splitlines()[::2] == ["True", "50000"], said.stderr


DESK = """
import everhold
from everhold.agents import Allow, Confirm
from everhold.hooks import Plugin

@everhold.tool
def look(what: str) -> str:
    "Look something up."
    return what

@everhold.tool
def pay(to: str) -> str:
    "Pay."
    return to

def ask_before_paying(wanted):
    return Confirm("Pay?") if wanted.tool == "pay" else Allow()

class Watch(Plugin):
    name = "watch"

    def before_tool_call(self, moment, call):
        return None

desk = everhold.Agent(
    instructions="Help.", tools=[look, pay], plugins=[Watch()], policy=ask_before_paying
)
"""


def test_the_work_of_agents_is_counted_as_people_call_it(cli: Cli, tmp_path: Path) -> None:
    """Turns, model calls and tools; not the hooks of plugins, nor a call that an approval stops."""
    (tmp_path / "desk.py").write_text(DESK)
    calls = [{"name": "look", "input": {"what": "a"}}, {"name": "pay", "input": {"to": "b"}}]
    (tmp_path / "said.json").write_text(json.dumps([{"tool_calls": calls}]))
    (tmp_path / "done.json").write_text(json.dumps(["Done."]))
    with everhold.open_blocking(recover=False) as runtime:
        runtime.session(find_program("desk.py:desk"), "ana").enqueue("Go.")
    said = cli("worker", "--once", "--answers", "said.json").out
    assert "stopped   1 move, 1 model call, 1 tool call; everything is handed over" in said
    cli("answer", "ana", "--yes", "--as", "boss")
    lines = cli("worker", "--once", "--answers", "done.json", "--json").out.splitlines()
    (stopped,) = [one for one in map(json.loads, lines) if one["event"] == "stopped"]
    assert (stopped["turns"], stopped["model_calls"], stopped["calls"]) == (1, 1, 0)


def test_a_worker_of_another_copy_of_the_file_names_the_one_that_was_meant(
    cli: Cli, tmp_path: Path
) -> None:
    """In a command that works as it stands; not of a file that is not there."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "shop.py").write_text((tmp_path / "shop.py").read_text())
    with everhold.open_blocking("x.db", recover=False) as runtime:
        runtime.start(f"{tmp_path}/shop.py:refund", args={"order": "8"}, key="k", unchecked=True)
        runtime.start(f"{tmp_path}/shpo.py:refund", args={"order": "9"}, key="m", unchecked=True)
    said = cli("worker", "copy/shop.py:refund", "--once", "-d", "x.db")
    assert said.code == ExitCode.CANNOT
    told = {line.split()[1]: line for line in said.out.splitlines() if line.startswith("cannot")}
    command = f"everhold worker {tmp_path}/shop.py:refund -d sqlite:///{tmp_path}/x.db"
    assert told["k"].endswith(f" Did you mean: {command}")
    assert told["m"].endswith(f" There is no file {tmp_path}/shpo.py here.")
