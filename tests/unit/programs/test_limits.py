"""What ends a program that will not pause, cannot go on, or wants to leave; and what a cancel means
to it.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold.core.status import Stopped
from everhold.errors import ForeignWake, Overtaken
from everhold.programs.python import determinism_guard, event_loop
from tests.unit.programs.driving import Life, failure

ROOT = Path(__file__).parents[3]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """An advance may take a thousand turns."""
    monkeypatch.setattr(event_loop, "HANDLES", 1000)


@pytest.fixture
def short() -> Iterator[None]:
    """An advance may take three tenths of a second of CPU time."""
    before = determinism_guard._settings.limit
    determinism_guard.configure_guard(limit=0.3)
    yield
    determinism_guard.configure_guard(limit=before)


# Spinning


def test_polling_with_sleep_zero_ends_as_spinning(few: None) -> None:
    async def program(ctx: Any) -> None:
        while True:
            await asyncio.sleep(0)

    end = failure(Life(program).go())
    assert (end.kind, end.error) == (
        "spinning",
        "Spinning: the program did not pause within 1,000 turns of its loop",
    )


def test_polling_with_a_timeout_of_zero_ends_as_spinning(few: None) -> None:
    async def program(ctx: Any) -> None:
        task = asyncio.create_task(ctx.llm("a"))
        while not task.done():
            await asyncio.wait([task], timeout=0)

    assert failure(Life(program).go()).kind == "spinning"


def test_a_loop_that_never_awaits_is_stopped(short: None) -> None:
    """The end is typed, and says where the program was."""

    async def program(ctx: Any) -> None:
        while True:
            pass

    end = failure(Life(program).go())
    assert (end.kind, end.error) == (
        "spinning",
        "Spinning: the program did not pause within 0.3 s of CPU time",
    )
    assert "while True" in end.traceback or "pass" in end.traceback


@pytest.mark.parametrize("caught", [Exception, BaseException], ids=["Exception", "BaseException"])
def test_what_stops_it_cannot_be_swallowed(short: None, caught: Any) -> None:
    """Not by `except Exception`; and what catches everything is struck, and if it then pauses it
    fails all the same.
    """

    async def program(ctx: Any) -> None:
        try:
            while True:
                time.monotonic()
        except caught:
            pass
        await ctx.llm("as if nothing had happened")

    assert failure(Life(program).go()).kind == "spinning"


def test_a_task_that_spins_ends_the_program(short: None) -> None:
    async def program(ctx: Any) -> None:
        async def spin() -> None:
            while True:
                pass

        async with asyncio.TaskGroup() as group:
            group.create_task(spin())
            group.create_task(ctx.llm("a"))

    assert failure(Life(program).go()).kind == "spinning"


def test_a_finally_that_spins_while_being_dropped_is_stopped(short: None) -> None:
    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        finally:
            while True:
                pass

    life = Life(program)
    life.go()
    begun = time.process_time()
    life.drop()
    assert time.process_time() - begun < 15


def test_nothing_is_thrown_at_what_comes_after(short: None) -> None:
    """An advance that is struck at its very end takes the blow with it."""

    async def program(ctx: Any) -> None:
        begun = time.thread_time()
        while time.thread_time() - begun < 0.3:
            pass

    for _ in range(3):
        Life(program).go()
        begun = time.thread_time()
        while time.thread_time() - begun < 0.1:
            pass
    assert determinism_guard._local.state.executing is None


@pytest.mark.parametrize(("module", "end"), [("pdb", "Returned"), ("elsewhere", "Raised")])
def test_time_at_a_debugger_does_not_count(
    monkeypatch: pytest.MonkeyPatch, module: str, end: str
) -> None:
    """Its module is on the stack: stepping through a program has no time limit."""
    spent = [0]
    monkeypatch.setattr(determinism_guard, "_read_cpu_time", lambda place: spent[0])
    scope: dict[str, Any] = {
        "__name__": module,
        "look": determinism_guard._check_advances,
        "time": time,
        "spent": spent,
    }
    code = """
        def prompt():
            look(time.monotonic())
            spent[0] = 3600
            look(time.monotonic() + 3600)
    """
    exec(textwrap.dedent(code), scope)

    async def program(ctx: Any) -> None:
        scope["prompt"]()

    assert type(Life(program).go().outcome).__name__ == end


def test_a_thread_without_a_cpu_clock_is_watched_by_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch, short: None
) -> None:
    """As on macOS and Windows."""
    monkeypatch.setattr(determinism_guard._local.state, "clock", None)

    async def program(ctx: Any) -> None:
        while True:
            pass

    assert failure(Life(program).go()).kind == "spinning"


# Standing still


def test_a_program_that_blocks_is_warned_of_once_and_not_failed(
    caplog: pytest.LogCaptureFixture, short: None
) -> None:
    """It uses no CPU time. The warning says which session it is and where it stands; the next
    advance has its own.
    """

    def warnings() -> list[str]:
        return [message for message in caplog.messages if "has advanced for" in message]

    async def program(ctx: Any) -> str:
        for n in (1, 2):
            while len(warnings()) < n:
                time.sleep(0.02)
            for _ in range(20):  # of the watch's looks, a few
                time.sleep(0.02)
            await ctx.llm("a")
        return "done"

    life = Life(program)
    life.go()
    life.answer("a")
    assert life.finish() == "done"
    first, second = warnings()
    assert life.execution.birth.id in first and "test_limits.py, line " in first
    assert "used 0." in second


FROZEN = """
import os, signal, sys, time
from everhold.programs.python import determinism_guard as purity
from tests.unit.programs.driving import Life, result

purity.configure_guard(limit=0.4, mode="off")

def computed(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

async def program(ctx):
    computed(0.12)  # in which the watch looks for the first time
    os.kill(os.getpid(), signal.SIGSTOP)
    computed(0.2)  # in which it looks again
    return "done"

assert result(Life(program).go()) == "done"
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_a_program_is_not_failed_because_its_process_stood_still() -> None:
    """A frozen container, a suspended machine, SIGSTOP: only the clock of others has advanced."""
    path = os.pathsep.join(["src", "."])
    process = subprocess.Popen(
        [sys.executable, "-c", FROZEN], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        time.sleep(1)  # more than the limit
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait() == 0
    finally:
        process.kill()


async def test_a_session_that_spins_has_failed(short: None) -> None:
    @everhold.program
    async def spin(ctx: everhold.Context) -> None:
        await ctx.llm("a")
        while True:
            pass

    async with everhold.open("memory://") as runtime:
        status = await runtime.start(spin())
        status = await runtime.answer(status.session_id, "go")
        assert (status.state, status.outcome.kind) == ("failed", "spinning")


# Stuck


def test_waiting_for_what_cannot_come_is_stuck_and_names_the_tasks() -> None:
    async def program(ctx: Any) -> None:
        async def listen() -> None:
            await asyncio.Event().wait()

        await asyncio.create_task(listen())

    end = failure(Life(program).go())
    assert end.kind == "stuck"
    for task in (", line ", "0 (", "0.1 (", "program", "listen"):
        assert task in end.error


def test_sleeping_for_ever_is_stuck() -> None:
    async def program(ctx: Any) -> None:
        await asyncio.sleep(float("inf"))

    assert failure(Life(program).go()).kind == "stuck"


def test_a_timer_for_no_time_at_all_is_refused() -> None:
    async def program(ctx: Any) -> None:
        asyncio.get_running_loop().call_later(float("nan"), print)

    assert failure(Life(program).go()).kind == "ValueError"


# Leaving


@pytest.mark.parametrize("where", ["program", "task", "callback"])
def test_exit_means_that_the_program_failed(where: str) -> None:
    async def program(ctx: Any) -> None:
        async def leave() -> None:
            sys.exit("enough")

        if where == "task":
            await asyncio.create_task(leave())
        if where == "callback":
            asyncio.get_running_loop().call_soon(sys.exit, "enough")
            await asyncio.sleep(0)
        await leave()

    end = failure(Life(program).go())
    assert (end.kind, end.error) == ("SystemExit", "SystemExit: enough")


def test_ctrl_c_goes_up_and_nothing_is_kept() -> None:
    """The advance is half done: the execution is dropped, and using it again means to load it
    anew.
    """
    heard = []

    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
            raise KeyboardInterrupt
        finally:
            heard.append("finally")

    life = Life(program)
    life.go()
    with pytest.raises(KeyboardInterrupt):
        life.answer("a")
    assert len(life.journal) == 1
    with pytest.raises(Overtaken):
        life.answer("a")
    assert heard == ["finally"]
    assert determinism_guard._local.state.executing is None


async def test_after_ctrl_c_the_session_is_as_it_was() -> None:
    """What was not committed did not happen: the same answer can be given again."""
    hit = [KeyboardInterrupt]

    @everhold.program
    async def program(ctx: everhold.Context) -> str:
        answer = await ctx.llm("a")
        if hit:
            raise hit.pop()
        return answer

    async with everhold.open("memory://") as runtime:
        status = await runtime.start(program())
        with pytest.raises(KeyboardInterrupt):
            await runtime.answer(status.queries[0], "A")
        assert (await runtime.status(status.session_id)).queries == status.queries
        assert (await runtime.answer(status.queries[0], "A")).outcome.value == "A"


@pytest.mark.parametrize(
    "error", [BaseException, GeneratorExit, asyncio.CancelledError, RecursionError]
)
def test_any_other_end_is_a_failure(error: Any) -> None:
    async def program(ctx: Any) -> None:
        await ctx.llm("a")
        raise error("bye")

    life = Life(program)
    life.go()
    assert failure(life.answer("a")).kind == error.__name__


# Waking


async def test_a_lock_shared_by_two_programs_is_a_foreign_wake() -> None:
    """Program A would wake B outside B's advance: A is told, and B is as it was."""
    shared = asyncio.Lock()

    async def first(ctx: Any) -> None:
        async with shared:
            await ctx.llm("a")

    async def second(ctx: Any) -> None:
        task = asyncio.create_task(ctx.llm("b"))
        async with shared:
            await task

    a, b = Life(first), Life(second)
    a.go()
    b.go()
    assert failure(a.answer("a")).kind == "foreign_wake"
    b.drop()


def test_a_future_cannot_be_set_from_outside() -> None:
    kept: list[Any] = []

    async def program(ctx: Any) -> None:
        kept.append(asyncio.get_running_loop().create_future())
        task = asyncio.create_task(ctx.llm("a"))
        await kept[0]
        await task

    life = Life(program)
    life.go()
    with pytest.raises(ForeignWake):
        kept[0].set_result(1)
    with pytest.raises(ForeignWake):
        life.execution.loop.call_later(1, print)
    with pytest.raises(ForeignWake):
        life.execution.loop.create_task(asyncio.sleep(0))
    life.drop()


# Errors nobody awaits


def test_an_error_in_a_callback_is_logged_and_the_program_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program(ctx: Any) -> str:
        asyncio.get_running_loop().call_soon(int, "x")
        return await ctx.llm("a")

    life = Life(program)
    assert life.finish() == "A"
    assert ["exception in callback" in message for message in caplog.messages] == [True]
    life.again()
    assert len(caplog.messages) == 1  # replay is silent


def test_the_exception_handler_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no space")

    handler = Broken()
    logging.getLogger("everhold.program").addHandler(handler)

    async def program(ctx: Any) -> str:
        asyncio.get_running_loop().call_exception_handler({"message": "oh"})
        return await ctx.llm("a")

    try:
        assert Life(program).finish() == "A"
    finally:
        logging.getLogger("everhold.program").removeHandler(handler)


# Cancel


def test_a_cancelled_program_sees_it_once() -> None:
    heard = []

    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        except asyncio.CancelledError as error:
            heard.append(str(error))
            await asyncio.sleep(0)
            heard.append("cleaned up")
            raise

    life = Life(program)
    life.go()
    assert life.go(cancel="enough").outcome == Stopped("enough")
    assert heard == ["enough", "cleaned up"]


@pytest.mark.parametrize(
    "verb",
    [
        lambda ctx: ctx.llm("b"),
        lambda ctx: ctx.llm_batch(["b"]),
        lambda ctx: ctx.call(print),
        lambda ctx: ctx.approval("b"),
        lambda ctx: ctx.input("b"),
        lambda ctx: ctx.receive("b"),
        lambda ctx: ctx.sleep(1),
        lambda ctx: ctx.state.get("b"),
        lambda ctx: ctx.state.incr("b"),
        lambda ctx: ctx.spawn(everhold.program(nothing)()),
    ],
)
def test_what_is_asked_after_a_cancel_is_refused(verb: Any) -> None:
    heard = []

    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        finally:
            try:
                await verb(ctx)
            except Exception as error:
                heard.append(type(error).__name__)

    life = Life(program)
    life.go()
    reply = life.go(cancel="enough")
    assert heard == ["AfterCancel"]
    assert (reply.asked, reply.outcome) == ([], Stopped("enough"))


async def nothing(ctx: everhold.Context) -> None:
    pass


def test_a_program_that_swallows_the_cancel_is_cancelled_all_the_same() -> None:
    async def program(ctx: Any) -> str:
        while True:
            try:
                await ctx.llm("a")
            except asyncio.CancelledError:
                await asyncio.sleep(3600)

    life = Life(program)
    life.go()
    assert life.go(cancel="enough").outcome == Stopped("enough")


def test_a_program_that_spins_after_a_cancel_is_cancelled_all_the_same(short: None) -> None:
    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        finally:
            while True:
                pass

    life = Life(program)
    life.go()
    assert life.go(cancel="enough").outcome == Stopped("enough")
