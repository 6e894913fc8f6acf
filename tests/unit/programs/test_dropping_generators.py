"""Async generators go with their program: silently, to their end, and nothing of them is left for
the collector.
"""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

from everhold.core.query import QueryAnswer
from everhold.programs.python.coroutine_close import UNCLOSED_COROUTINES
from tests.unit.programs.driving import Life

MOST = 40


pytestmark = pytest.mark.usefixtures("silence")


class Thing:
    """Held by whatever waits; alive as long as that is."""

    def __init__(self) -> None:
        ALIVE.add(self)


ALIVE: weakref.WeakSet[Thing] = weakref.WeakSet()


# ---- what programs are made of: all of it asks on leaving, more than once


async def ask(ctx: Any) -> None:
    thing = Thing()
    try:
        await ctx.llm("a")
    finally:
        try:
            await ctx.llm("on leaving")
        finally:
            await ctx.llm("on leaving again")
    del thing


async def steps(ctx: Any) -> AsyncGenerator[int, None]:
    thing = Thing()
    try:
        for step in range(2):
            await ask(ctx)
            yield step
    finally:
        await ask(ctx)
    del thing


async def around(ctx: Any) -> AsyncGenerator[int, None]:
    """A generator that takes its steps from another one."""
    try:
        async for step in steps(ctx):
            await ask(ctx)
            yield step
    finally:
        await ask(ctx)


class By:
    """Waits in something by way of `__await__`, in one of the two usual manners."""

    def __init__(self, inner: Any, *, plain: bool) -> None:
        self.inner, self.plain = inner, plain

    def __await__(self) -> Any:
        return self.inner.__await__() if self.plain else self._await()

    def _await(self) -> Generator[Any, Any, None]:
        try:
            yield from self.inner.__await__()
        finally:
            self.plain = True


class Steps:
    """An async iterator that is no generator."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def __aiter__(self) -> "Steps":
        return self

    async def __anext__(self) -> int:
        await ask(self.ctx)
        return 1


# ---- programs


async def loops(ctx: Any) -> None:
    try:
        async for _ in steps(ctx):
            await ask(ctx)
    finally:
        await ask(ctx)


async def nests(ctx: Any) -> None:
    async for _ in around(ctx):
        await loops(ctx)


async def takes_the_next(ctx: Any) -> None:
    held = around(ctx)
    await anext(held, None)
    await ask(ctx)
    await anext(held)
    await anext(Steps(ctx), None)


async def in_a_group(ctx: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(loops(ctx))
        async for _ in steps(ctx):
            group.create_task(loops(ctx))
            await ask(ctx)


async def closing(ctx: Any) -> None:
    async with aclosing(around(ctx)) as held:
        async for _ in held:
            await ask(ctx)
            break
    await ask(ctx)


async def enters(ctx: Any) -> None:
    async with asynccontextmanager(around)(ctx):
        await ask(ctx)


async def enters_many(ctx: Any) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(asynccontextmanager(around)(ctx))
        stack.push_async_callback(ask, ctx)
        await ask(ctx)


async def never_started(ctx: Any) -> None:
    held = [steps(ctx), around(ctx)]
    await ask(ctx)
    del held


async def never_awaited(ctx: Any) -> None:
    """It has made the steps of a generator, and not come to them."""
    held = steps(ctx)
    later = [held.asend(None), held.aclose(), held.athrow(ValueError)]
    await ask(ctx)
    for one in later:
        with suppress(Exception):
            await one


async def held_at_a_yield(ctx: Any) -> None:
    """Not waited in by anybody; the last reference goes with the program."""
    held = around(ctx)
    await anext(held)
    await ask(ctx)
    await held.aclose()


async def closed_before(ctx: Any) -> None:
    held = around(ctx)
    await anext(held)
    await held.aclose()
    await held.aclose()
    await ask(ctx)
    del held


async def left_early(ctx: Any) -> None:
    """A task of its own finishes it, and waits too."""
    async for _ in around(ctx):
        break
    await ask(ctx)


async def thrown_into(ctx: Any) -> None:
    held = around(ctx)
    await anext(held)
    with suppress(ValueError):
        await held.athrow(ValueError())
    await ask(ctx)


async def sent_another(ctx: Any) -> None:
    """What is sent into a generator is a generator too, and not the one that waits."""

    async def takes() -> AsyncGenerator[None, Any]:
        other = yield
        await ask(ctx)
        del other

    held = takes()
    await anext(held)
    other = steps(ctx)
    await anext(other)
    with suppress(StopAsyncIteration):
        await held.asend(other)


async def swallows(ctx: Any) -> None:
    """A generator that goes on after GeneratorExit, for a while."""

    async def stubborn() -> AsyncGenerator[int, None]:
        for _ in range(3):
            try:
                await ask(ctx)
            except GeneratorExit:
                pass
        yield 1
        await ask(ctx)

    async for _ in stubborn():
        await ask(ctx)


async def yields_when_told_to_go(ctx: Any) -> None:
    async def stubborn() -> AsyncGenerator[int, None]:
        while True:
            try:
                await ask(ctx)
                yield 1
            except GeneratorExit:
                yield 2

    async for _ in stubborn():
        await ask(ctx)


async def raises_instead(ctx: Any) -> None:
    async def angry() -> AsyncGenerator[int, None]:
        try:
            await ask(ctx)
            yield 1
        except GeneratorExit:
            raise ValueError from None
        finally:
            await ask(ctx)

    async for _ in angry():
        await ask(ctx)


async def shared(ctx: Any) -> None:
    """Two tasks take their steps from one generator; who comes while it waits is refused."""
    held = around(ctx)

    async def take() -> None:
        for _ in range(2):
            with suppress(RuntimeError, StopAsyncIteration):
                await anext(held)
            await ask(ctx)

    await asyncio.gather(take(), take())


async def by_await(ctx: Any) -> None:
    await By(By(By(loops(ctx), plain=True), plain=False), plain=True)


async def in_time(ctx: Any) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(loops(ctx))), 60)
    await ask(ctx)


async def cancelled(ctx: Any) -> None:
    task = asyncio.create_task(nests(ctx))
    await ask(ctx)
    task.cancel()
    await asyncio.wait([task])


async def made_of_all(ctx: Any) -> None:
    async def every() -> AsyncGenerator[int, None]:
        async with asynccontextmanager(steps)(ctx), aclosing(around(ctx)) as held:
            async for step in held:
                async with asyncio.TaskGroup() as group:
                    group.create_task(closing(ctx))
                    yield step

    with suppress(BaseExceptionGroup, RuntimeError):
        async for _ in every():
            await ask(ctx)


PROGRAMS: list[Callable[[Any], Awaitable[None]]] = [
    loops, nests, takes_the_next, in_a_group, closing, enters, enters_many, never_started, never_awaited,  # noqa: E501
    held_at_a_yield, closed_before, left_early, thrown_into, sent_another, swallows, yields_when_told_to_go,  # noqa: E501
    raises_instead, shared, by_await, in_time, cancelled, made_of_all,
]  # fmt: skip


def parked(program: Any, answers: int) -> Life | None:
    """A life that was given so many answers, the oldest question first; None if it has ended."""
    life = Life(program)
    life.go()
    for _ in range(answers):
        life.go(QueryAnswer(min(life.open), "yes"))
        if life.last.outcome is not None:
            return None
    return life


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_goes_at_once_wherever_it_is_dropped(program: Any, replayed: bool) -> None:
    """Everything that waited has ended, and all that it held is free, before the collector
    comes.
    """
    lives, before = 0, len(UNCLOSED_COROUTINES)
    gc.collect(1)
    gc.disable()
    try:
        while lives < MOST and (life := parked(program, lives)) is not None:
            assert ALIVE
            life.drop()
            if replayed:
                life = life.again()
                assert ALIVE
                life.drop()
            del life
            assert len(ALIVE) == 0
            lives += 1
    finally:
        gc.enable()
    assert lives > 2
    assert len(UNCLOSED_COROUTINES) == before


@pytest.mark.parametrize(
    "answer",
    [QueryAnswer(0, error={"code": "no", "message": "no"}), QueryAnswer(0, {"a": "no number"})],
)
def test_a_generator_that_an_error_leaves_behind_is_finished(answer: QueryAnswer) -> None:
    """Nobody holds it when the error is dealt with: whoever gave the answer, and whether or not it
    fits.
    """

    async def numbers(ctx: Any) -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await ctx.llm("on leaving")

    async def typed(ctx: Any) -> None:
        held = numbers(ctx)
        await anext(held)
        await ctx.llm("a", returns=dict[str, int])

    async def program(ctx: Any) -> None:
        with suppress(Exception):
            await typed(ctx)
        await ctx.llm("b")

    life = Life(program)
    life.go()
    assert life.go(answer).outcome is None
    assert life.asked == ["0:0 a", "0:1 b", "~1:0 on leaving"]
    life.drop()
