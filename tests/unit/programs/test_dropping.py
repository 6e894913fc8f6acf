"""Dropping a parked program is silent: its `finally` blocks run, and nobody outside can tell."""

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from everhold.core.query import QueryAnswer
from everhold.programs.python.coroutine_close import UNCLOSED_COROUTINES
from everhold.programs.python.event_loop import UNDROPPED_LOOPS, DeterministicLoop
from tests.unit.programs.driving import Life, result

pytestmark = pytest.mark.usefixtures("silence")


def dropped(program: Any) -> Life:
    """A life that has come to its first pause and is dropped there."""
    life = Life(program)
    assert life.go().outcome is None
    life.drop()
    return life


@pytest.mark.parametrize("answers", range(7))
def test_a_stack_of_contexts_that_ask_on_leaving(answers: int) -> None:
    """What catches the end of one and goes on to the next is closed to its end, wherever it
    waited.
    """

    async def program(ctx: Any) -> None:
        @asynccontextmanager
        async def asking(name: str) -> AsyncIterator[None]:
            await ctx.llm(f"enter {name}")
            try:
                yield
            finally:
                await ctx.llm(f"leave {name}")

        async with AsyncExitStack() as stack:
            for name in "abc":
                await stack.enter_async_context(asking(name))
            await ctx.llm("inside")

    life = Life(program)
    life.go()
    for q in range(answers):
        assert life.go(QueryAnswer(q, "yes")).outcome is None
    life.drop()


def test_a_program_that_waits_deep_down() -> None:
    async def deeper(ctx: Any, left: int) -> None:
        try:
            await (deeper(ctx, left - 1) if left else ctx.llm("a"))
        finally:
            await ctx.llm("on the way up")

    async def program(ctx: Any) -> None:
        await deeper(ctx, 200)

    dropped(program)


async def _asking(ctx: Any) -> None:
    try:
        await ctx.llm("a")
    finally:
        await ctx.llm("on leaving")


async def _steps(ctx: Any) -> AsyncIterator[int]:
    try:
        await _asking(ctx)
        yield 1
    finally:
        await _asking(ctx)


async def _loops(ctx: Any) -> None:
    try:
        async for _ in _steps(ctx):
            await _asking(ctx)
    finally:
        await _asking(ctx)


async def _nests(ctx: Any) -> None:
    async def outer() -> AsyncIterator[int]:
        async for step in _steps(ctx):
            yield step

    await _loops(ctx)
    async for _ in outer():
        await _asking(ctx)


async def _takes_the_next(ctx: Any) -> None:
    await anext(_steps(ctx), None)
    await _asking(ctx)


async def _enters(ctx: Any) -> None:
    async with asynccontextmanager(_steps)(ctx):
        await _asking(ctx)


@pytest.mark.parametrize("answers", range(4))
@pytest.mark.parametrize("program", [_loops, _nests, _takes_the_next, _enters])
def test_a_coroutine_in_which_an_async_generator_waits_is_closed_first(
    program: Any, answers: int
) -> None:
    """Whatever lies between it and the program: what asks on leaving is asked once more to leave,
    and goes.
    """
    life, before = Life(program), len(UNCLOSED_COROUTINES)
    life.go()
    for q in range(answers):
        assert life.go(QueryAnswer(q, "yes")).outcome is None
    life.drop()
    assert len(UNCLOSED_COROUTINES) == before


def test_finally_blocks_run_innermost_first() -> None:
    heard = []

    async def program(ctx: Any) -> None:
        try:
            try:
                await ctx.llm("a")
            finally:
                heard.append("inner")
        finally:
            heard.append("outer")

    dropped(program)
    assert heard == ["inner", "outer"]


def test_an_await_in_finally_never_comes_back_and_the_outer_finally_still_runs() -> None:
    """ctx verbs that wait suspend for ever; nothing is asked."""
    heard = []

    async def program(ctx: Any) -> None:
        try:
            try:
                await ctx.llm("a")
            finally:
                heard.append("before")
                await ctx.llm("bye")
                heard.append("after")
        finally:
            heard.append("outer")

    life = dropped(program)
    assert heard == ["before", "outer"]
    assert life.asked == ["0:0 a"]


@pytest.mark.parametrize(
    "verb",
    [
        lambda ctx: ctx.llm("bye"),
        lambda ctx: ctx.llm_batch(["bye", "bye"]),
        lambda ctx: ctx.call(print, "bye"),
        lambda ctx: ctx.approval("bye"),
        lambda ctx: ctx.input("bye"),
        lambda ctx: ctx.receive("bye"),
        lambda ctx: ctx.sleep(5),
        lambda ctx: asyncio.sleep(5),
        lambda ctx: ctx.state.get("bye"),
        lambda ctx: ctx.state.set("bye", 1),
        lambda ctx: asyncio.Event().wait(),
    ],
)
def test_no_verb_that_waits_comes_back(verb: Any) -> None:
    heard = []

    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        finally:
            heard.append("before")
            await verb(ctx)
            heard.append("after")

    life = dropped(program)
    assert heard == ["before"]
    assert life.asked == ["0:0 a"]


def test_verbs_that_do_not_wait_do_nothing() -> None:
    """They can be called; nothing of it reaches the journal, the log or the record."""
    heard = []

    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        finally:
            ctx.log("bye")
            ctx.progress(1)
            ctx.record("bye", 1)
            ctx.version("bye", 2)
            heard.extend([ctx.random(), ctx.uuid(), ctx.now(), ctx.rng()])

    life = dropped(program)
    assert len(heard) == 4
    assert life.execution._notes is None
    assert life.execution._asked == life.journal[0].asked


@pytest.mark.parametrize(
    "start",
    [
        lambda coro: asyncio.create_task(coro()),
        lambda coro: asyncio.ensure_future(coro()),
        lambda coro: asyncio.gather(coro(), coro()),
        lambda coro: asyncio.get_running_loop().create_task(coro()),
    ],
)
def test_no_task_can_start(start: Any) -> None:
    heard = []

    async def more() -> None:
        heard.append("ran")

    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        finally:
            try:
                start(more)
            except RuntimeError as error:
                heard.append(str(error))

    dropped(program)
    assert heard == ["this program was dropped from memory; no task can start"]


def test_a_task_group_is_dropped_whole() -> None:
    """Twenty-five groups inside each other, each of which waits for its tasks on the way out."""
    heard = []

    async def program(ctx: Any) -> None:
        async def nest(depth: int) -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.llm(f"at {depth}"))
                    if depth:
                        await nest(depth - 1)
            finally:
                heard.append(depth)

        await nest(25)

    before = len(UNCLOSED_COROUTINES)
    dropped(program)
    assert heard == [*range(26)]
    assert len(UNCLOSED_COROUTINES) == before


def test_every_task_is_closed_in_its_own_context() -> None:
    import contextvars

    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")
    heard = []

    async def program(ctx: Any) -> None:
        async def one(own: str) -> None:
            name.set(own)
            try:
                await ctx.llm(own)
            finally:
                heard.append(name.get())

        await asyncio.gather(one("a"), one("b"))

    dropped(program)
    assert sorted(heard) == ["a", "b"]


def test_a_coroutine_that_was_not_begun_is_no_warning() -> None:
    """It would have been awaited, had the program lived on."""

    async def program(ctx: Any) -> None:
        later = ctx.llm("b")
        await ctx.llm("a")
        await later

    dropped(program)


def test_an_error_in_finally_concerns_nobody() -> None:
    async def program(ctx: Any) -> None:
        try:
            await asyncio.gather(ctx.llm("a"), ctx.llm("b"))
        finally:
            raise ValueError("bye")

    dropped(program)


def test_exits_in_finally_concern_nobody() -> None:
    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        finally:
            sys.exit("bye")

    dropped(program)


def test_a_task_that_failed_and_was_never_asked_is_not_spoken_of() -> None:
    async def program(ctx: Any) -> None:
        async def bad() -> None:
            raise ValueError

        program.task = asyncio.create_task(bad())  # type: ignore[attr-defined]
        await ctx.llm("a")

    dropped(program)
    del program.task  # type: ignore[attr-defined]


def test_an_async_generator_is_closed_with_its_program() -> None:
    heard = []

    async def program(ctx: Any) -> None:
        async def answers() -> AsyncIterator[str]:
            try:
                while True:
                    yield await ctx.llm("a")
            finally:
                heard.append(isinstance(asyncio.get_running_loop(), DeterministicLoop))
                await ctx.llm("bye")

        async for _ in answers():
            pass

    life = dropped(program)
    assert heard == [True]
    assert life.asked == ["0:0 a"]


async def test_an_async_generator_is_not_finished_on_the_loop_outside() -> None:
    """Neither when it is dropped while parked at a yield, nor when the loop outside shuts its own
    down.
    """
    heard = []

    async def program(ctx: Any) -> None:
        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                heard.append(type(asyncio.get_running_loop()) is DeterministicLoop)

        held = numbers()
        await anext(held)
        await ctx.llm("a")

    dropped(program)
    await asyncio.sleep(0)
    await asyncio.get_running_loop().shutdown_asyncgens()
    assert heard == [True]


def test_a_generator_in_a_cycle_is_never_finished() -> None:
    """The garbage collector comes at a moment that replay does not repeat."""
    heard = []

    async def program(ctx: Any) -> list[str]:
        async def numbers(box: list[Any]) -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                heard.append("finished")

        box: list[Any] = []
        box.append(numbers(box))
        await anext(box[0])
        del box
        gc.collect()
        await ctx.llm("a")
        return heard

    assert Life(program).finish() == []
    gc.collect()
    assert heard == []


def test_a_parked_program_is_never_collected() -> None:
    """The garbage collector would run its `finally` wherever it happens to be: inside another
    program, for one.
    """
    heard = []

    async def parked(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        finally:
            heard.append("ran")

    async def other(ctx: Any) -> int:
        gc.collect()
        return len(heard)

    before = set(UNDROPPED_LOOPS)
    life = Life(parked)
    life.go()
    del life
    assert result(Life(other).go()) == 0
    (loop,) = UNDROPPED_LOOPS - before
    loop.drop()
    assert heard == ["ran"]
    assert loop not in UNDROPPED_LOOPS


def test_a_program_that_will_not_end_is_kept_quiet() -> None:
    async def program(ctx: Any) -> None:
        while True:
            try:
                await ctx.llm("a")
            except GeneratorExit:
                pass

    before = len(UNCLOSED_COROUTINES)
    dropped(program)
    assert len(UNCLOSED_COROUTINES) == before + 1


def test_dropping_twice_is_dropping_once() -> None:
    heard = []

    async def program(ctx: Any) -> None:
        try:
            await ctx.llm("a")
        finally:
            heard.append("ran")

    dropped(program).drop()
    assert heard == ["ran"]


def test_what_is_woken_after_the_drop_stays_asleep() -> None:
    """Somebody outside still has one of its futures."""
    kept = []

    async def program(ctx: Any) -> None:
        future = asyncio.get_running_loop().create_future()
        kept.append(future)
        kept.append(asyncio.create_task(ctx.llm("a")))
        await future

    dropped(program)
    kept[0].set_result(1)
    kept[0].get_loop().call_later(0, kept.append, "ran")
    assert len(kept) == 2


END = """
from tests.unit.programs.driving import Life
async def program(ctx):
    try:
        await ctx.llm("a")
    finally:
        await ctx.llm("bye")
async def stubborn(ctx):
    while True:
        try:
            await ctx.llm("a")
        except GeneratorExit:
            pass
parked = Life(program), Life(stubborn)
for life in parked:
    life.go()
"""


@pytest.mark.process
def test_the_end_of_the_process_is_silent() -> None:
    """Programs that nobody dropped are dropped before the interpreter goes."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", END],
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
