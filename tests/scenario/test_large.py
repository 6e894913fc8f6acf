"""Ten thousand questions of one batch: nothing on the way grows with their number."""

import asyncio
import time

import pytest

import everhold
from tests.scenario.house import opened

MANY = 10_000


@everhold.program
async def batch(ctx, size: int = MANY, timeout: float | None = None):
    return len(await ctx.llm_batch([f"item {number}" for number in range(size)], timeout=timeout))


@everhold.program
async def approvals(ctx, size: int = MANY):
    return sum(await asyncio.gather(*(ctx.approval(f"item {number}?") for number in range(size))))


@everhold.program
async def calls(ctx, size: int = MANY):
    return sum(await asyncio.gather(*(ctx.call(one) for _ in range(size))))


async def one():
    return 1


async def answered(runtime, call, value):
    """Start, answer one by one, and return the result and the seconds of computing it took."""
    status = await runtime.start(call)
    began = time.process_time()
    for query in status.queries:
        status = await runtime.answer(query, value)
    return status.result, time.process_time() - began


@pytest.mark.parametrize("file", [False, True])
async def test_ten_thousand_questions_to_a_model(file, tmp_path):
    """Answered one by one."""
    async with opened(tmp_path if file else None, replay=False) as runtime:
        result, seconds = await answered(runtime, batch(), "x")
        assert result == MANY
        assert seconds < 15


async def test_ten_thousand_questions_that_expire():
    """Each has a timeout of its own."""
    async with opened(replay=False) as runtime:
        result, seconds = await answered(runtime, batch(timeout=3600), "x")
        assert result == MANY
        assert seconds < 15


async def test_ten_thousand_approvals():
    """Each has a row in the inbox, which leaves it with its answer."""
    async with opened(replay=False) as runtime:
        result, seconds = await answered(runtime, approvals(), True)
        assert result == MANY
        assert seconds < 15
        assert await runtime.inbox() == []


async def test_ten_thousand_calls():
    """Run side by side, each outcome recorded when it comes."""
    async with opened(replay=False) as runtime:
        began = time.process_time()
        assert await runtime.run(calls()) == MANY
        assert time.process_time() - began < 20


async def test_ten_thousand_inline_answers():
    """A function answers them all."""

    async def model(query):
        return query.prompt

    async with opened(llm=model, replay=False) as runtime:
        began = time.process_time()
        assert await runtime.run(batch()) == MANY
        assert time.process_time() - began < 20


async def test_ten_thousand_steps_are_rebuilt():
    """A cold resume reads them all once."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(batch())
        for query in status.queries[:-1]:
            await runtime.answer(query, "x")
        async with opened(on=runtime.store, clock=runtime.clock) as other:
            began = time.process_time()
            assert (await other.answer(status.queries[-1], "x")).result == MANY
            assert time.process_time() - began < 5
