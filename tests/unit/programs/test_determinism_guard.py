"""The watch over programs: what it hears, in which mode, and that it hears nothing elsewhere."""

import asyncio
import logging
import os
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.request
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold.errors import BadSetting
from everhold.programs.python import determinism_guard
from tests.unit.programs.driving import Life, failure, result

HERE = Path(__file__)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = determinism_guard._settings.mode, determinism_guard._settings.limit
    determinism_guard._warned_lines.clear()
    yield
    determinism_guard.configure_guard(mode=before[0], limit=before[1])


def connect() -> None:
    with socket.socket() as door:
        door.settimeout(0.01)
        door.connect(("127.0.0.1", 9))


BLOCKING: dict[str, Any] = {
    "open": lambda: open(HERE).close(),
    "pathlib.PosixPath.read_text": lambda: HERE.read_text(),
    "os.listdir": lambda: os.listdir(HERE.parent),
    "os.scandir": lambda: os.scandir(HERE.parent).close(),
    "os.remove": lambda: os.remove("/nowhere/at/all"),
    "os.mkdir": lambda: os.mkdir("/nowhere/at/all"),
    "os.rename": lambda: os.rename("/nowhere/at/all", "/nowhere/else"),
    "os.kill": lambda: os.kill(os.getpid(), 0),
    "tempfile.mkdtemp": lambda: tempfile.mkdtemp(dir="/nowhere/at/all"),
    "time.sleep": lambda: time.sleep(0),
    "sqlite3.connect": lambda: sqlite3.connect(":memory:").close(),
    "socket.connect": lambda: connect(),
    "socket.getaddrinfo": lambda: socket.getaddrinfo("localhost", 1),
    "urllib.request.urlopen": lambda: urllib.request.urlopen("http://127.0.0.1:9/", timeout=0.01),
    "input": lambda: input(),
}


def living(act: Any) -> Life:
    async def program(ctx: Any) -> str:
        try:
            act()
        except OSError:
            pass
        return "done"

    return Life(program)


@pytest.mark.parametrize("name", BLOCKING)
def test_refuse_makes_blocking_io_an_error_that_names_it(name: str) -> None:
    determinism_guard.configure_guard(mode="refuse")
    end = failure(living(BLOCKING[name]).go())
    assert end.kind == "foreign_call"
    assert name in end.error
    assert "ctx.call" in end.error


@pytest.mark.parametrize("name", [name for name in BLOCKING if name != "input"])
def test_warn_lets_it_happen_and_says_so_once_a_place(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    determinism_guard.configure_guard(mode="warn")
    for _ in range(3):
        assert result(living(BLOCKING[name]).go()) == "done"
    named = [message for message in caplog.messages if message.startswith(name)]
    assert len(named) == 1
    assert "replay repeats it; use ctx.call" in named[0]


@pytest.mark.parametrize("name", [name for name in BLOCKING if name != "input"])
def test_off_says_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    determinism_guard.configure_guard(mode="off")
    assert result(living(BLOCKING[name]).go()) == "done"
    assert caplog.messages == []


@pytest.mark.process
@pytest.mark.parametrize("mode", determinism_guard.MODES)
def test_threads_and_processes_are_refused_in_every_mode(mode: str) -> None:
    determinism_guard.configure_guard(mode=mode)
    for act in (lambda: threading.Thread(target=print).start(), lambda: os.system("true")):
        assert failure(living(act).go()).kind == "foreign_call"


def test_an_import_inside_a_program_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even of a module that reads a file when it is imported."""
    determinism_guard.configure_guard(mode="refuse")
    (tmp_path / "imported_late.py").write_text(
        "with open(__file__) as file:\n    VALUE = file.read()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def act() -> None:
        import imported_late

        assert imported_late.VALUE

    assert result(living(act).go()) == "done"
    del sys.modules["imported_late"]


def test_tracebacks_logging_and_time_zones_are_not_reported(tmp_path: Path) -> None:
    determinism_guard.configure_guard(mode="refuse")
    handler = logging.FileHandler(tmp_path / "program.log", delay=True)
    log = logging.getLogger("tests.program")
    log.addHandler(handler)

    def act() -> None:
        try:
            raise ValueError
        except ValueError:
            log.exception("oh")
        zoneinfo.ZoneInfo.no_cache("UTC")

    try:
        assert result(living(act).go()) == "done"
    finally:
        log.removeHandler(handler)
        handler.close()


def test_clocks_and_dice_cannot_be_heard() -> None:
    """Nothing tells of them: docs/explanation/determinism.md says so, and replay is the net."""
    determinism_guard.configure_guard(mode="refuse")
    assert (
        result(living(lambda: (time.time(), time.monotonic(), random.random(), os.urandom(4))).go())
        == "done"
    )


def test_the_watch_ends_with_the_advance() -> None:
    determinism_guard.configure_guard(mode="refuse")

    async def program(ctx: Any) -> None:
        await ctx.llm("a")

    life = Life(program)
    life.go()
    for name in ("open", "os.listdir", "time.sleep", "sqlite3.connect"):
        BLOCKING[name]()
    threading.Thread(target=int).start()
    life.drop()
    BLOCKING["open"]()


def test_only_the_thread_of_the_advance_is_watched() -> None:
    """Another thread reads files and starts threads while a program advances."""
    determinism_guard.configure_guard(mode="refuse")
    begun, done, heard = threading.Event(), threading.Event(), []

    def other() -> None:
        begun.wait(60)
        BLOCKING["open"]()
        thread = threading.Thread(target=heard.append, args=("ran",))
        thread.start()
        thread.join()
        done.set()

    thread = threading.Thread(target=other)
    thread.start()

    def act() -> None:
        begun.set()
        assert done.wait(60)

    assert result(living(act).go()) == "done"
    thread.join()
    assert heard == ["ran"]


async def test_what_a_call_does_is_not_watched() -> None:
    """The way out is a way out."""
    determinism_guard.configure_guard(mode="refuse")

    @everhold.program
    async def reader(ctx: everhold.Context) -> int:
        return len(await ctx.call(HERE.read_text)) + len(await ctx.call(read))

    async def read() -> str:
        return await asyncio.to_thread(HERE.read_text)

    async with everhold.open("memory://") as runtime:
        assert await runtime.run(reader()) == 2 * len(HERE.read_text())


def test_dropping_reports_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        finally:
            BLOCKING["open"]()
            BLOCKING["time.sleep"]()

    for mode in determinism_guard.MODES:
        determinism_guard.configure_guard(mode=mode)
        life = Life(program)
        life.go()
        life.drop()
    assert caplog.messages == []


def test_a_setting_that_makes_no_sense_is_refused() -> None:
    for wrong in ({"mode": "loud"}, {"limit": 0}, {"limit": float("nan")}):
        with pytest.raises(BadSetting):
            determinism_guard.configure_guard(**wrong)  # type: ignore[arg-type]


def test_an_event_that_does_not_concern_us_costs_one_lookup() -> None:
    """The hook hears of everything in the process; for nearly all of it, it only looks at the
    name.
    """
    assert determinism_guard._audit("compile", ()) is None
    assert determinism_guard._audit("open", ("x", "r", 0)) is None


def test_an_event_is_heard_while_a_thread_gets_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may run a finalizer that opens a file while the place of a new thread
    is being made.
    """
    result(living(lambda: None).go())  # from here on the hook is installed

    class Place(determinism_guard._ThreadState):
        def __init__(self, thread: int) -> None:
            Path(os.devnull).read_bytes()
            super().__init__(thread)

    monkeypatch.setattr(determinism_guard, "_ThreadState", Place)
    errors: list[BaseException] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: errors.append(args.exc_value))
    thread = threading.Thread(target=Path(os.devnull).read_bytes)
    thread.start()
    thread.join()
    assert errors == []
    assert type(determinism_guard._states.pop(thread.ident)) is Place


@pytest.mark.process
def test_an_event_at_the_end_of_the_interpreter_is_no_error() -> None:
    """The names of modules are cleared by then."""
    import subprocess

    script = """
    import sys
    from everhold.programs.python import determinism_guard as purity

    class Late:
        def __del__(self, audit=sys.audit, write=sys.stdout.write, names=vars(purity)):
            audit("open", "file", "r", 0)
            write("heard" if names["_WATCHED"] is None else "too early")

    purity._install()
    sys.kept = [purity, Late()]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=250
    )
    assert (done.stdout, done.stderr) == ("heard", "")


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_gets_a_watchman_of_its_own(tmp_path: Path) -> None:
    """Threads do not survive a fork; the limit does."""
    import subprocess

    source = """
import os, sys
from everhold.programs.python import determinism_guard as purity
from tests.unit.programs.driving import Life
async def spin(ctx, forever: bool):
    while forever:
        pass
purity.configure_guard(limit=0.2)
Life(spin, forever=False).go()
child = os.fork()
if child == 0:
    end = Life(spin, forever=True).go().outcome
    os._exit(0 if end.kind == "spinning" else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        cwd=HERE.parents[3],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        timeout=250,
    )
    assert done.returncode == 0


@pytest.mark.process
def test_a_strike_leaves_nothing_behind() -> None:
    """After a program was struck, another thread can run under a profile function (on 3.11 it never
    got anywhere).
    """
    script = """
        import sys, threading
        import everhold
        from everhold.programs.python import determinism_guard as purity

        purity.configure_guard(limit=0.2)

        @everhold.program
        async def spins(ctx: everhold.Context) -> None:
            while True:
                pass

        with everhold.open_blocking("memory://") as runtime:
            assert runtime.start(spins()).outcome.kind == "spinning"

        def profiled():
            sys.setprofile(lambda *_: None)
            (lambda: None)()
            sys.setprofile(None)

        thread = threading.Thread(target=profiled, daemon=True)
        thread.start()
        thread.join(30)
        print(thread.is_alive())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=250
    )

    assert done.stdout == "False\n", done.stderr
