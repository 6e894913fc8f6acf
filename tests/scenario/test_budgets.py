"""Budgets: checked before a question is asked, the same on replay."""

import pytest

import everhold
from everhold.errors import BadSetting
from everhold.testing.clock import ManualClock
from tests.scenario.harness import opened, prompts


@everhold.program
async def asks(ctx, size: int = 1):
    told = []
    while True:
        told.append(ctx.budget_remaining())
        try:
            if size > 1:
                await ctx.llm_batch([f"item {number}" for number in range(size)])
            else:
                await ctx.llm("more?")
        except everhold.BudgetExceeded as error:
            return [str(error), len(told), told[-1]]


async def to_the_end(runtime, status, **more):
    while status.state == "paused":
        for query in status.queries:
            status = await runtime.answer(query, "x", **more)
    return status


async def test_max_llm_calls():
    """The fourth question of three is refused."""
    async with opened() as runtime:
        end = await to_the_end(runtime, await runtime.start(asks(), budget={"max_llm_calls": 3}))
        assert end.result[:2] == ["budget_exceeded: max_llm_calls (3) reached: 3 used", 4]
        assert end.result[2]["llm_calls"] == 0
        assert end.metrics["auto"]["budget"] == {"max_llm_calls": 3}


async def test_a_batch_cannot_overshoot():
    """It is refused whole: nothing of it is asked."""
    async with opened() as runtime:
        end = await runtime.start(asks(size=4), budget=everhold.Budget(max_llm_calls=3))
        assert end.result[0] == "budget_exceeded: max_llm_calls (3) reached: 0 used, 4 asked"
        assert end.metrics["auto"]["llm_calls"] == 0


async def test_max_tokens():
    """Provided tokens count."""
    async with opened() as runtime:
        status = await runtime.start(asks(), budget={"max_tokens": 25})
        end = await to_the_end(runtime, status, usage={"prompt_tokens": 8, "completion_tokens": 2})
        assert end.result[0] == "budget_exceeded: max_tokens (25) reached: 30 used"


async def test_max_elapsed():
    """Time includes the time others take to answer."""
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        status = await runtime.start(asks(), budget={"max_elapsed_ms": 5000})
        clock.advance(4)
        status = await runtime.answer(status.queries[0], "x")
        assert prompts(status) == ["more?"]
        clock.advance(2)
        end = await runtime.answer(status.queries[0], "x")
        assert (
            end.result[0] == "budget_exceeded: max_elapsed_ms (5000ms) reached: 6000ms have passed"
        )


@pytest.mark.parametrize("size", [1, 3])
async def test_a_budget_is_the_same_after_a_rebuild(size):
    """Replay counts what was spent, no more and no less."""
    async with opened(cache=1) as runtime:
        status = await runtime.start(
            asks(size=size), budget={"max_llm_calls": 6, "max_tokens": 10_000}
        )
        while status.state == "paused":
            await runtime.start(asks())  # pushes it out of memory
            for query in status.queries:
                status = await runtime.answer(query, "x")
        assert status.result[:2] == [
            "budget_exceeded: max_llm_calls (6) reached: 6 used",
            6 // size + 1,
        ]


async def test_without_a_budget_nothing_is_left_or_used_up():
    """budget_remaining is None."""

    @everhold.program
    async def looks(ctx):
        return ctx.budget_remaining()

    async with opened() as runtime:
        assert (await runtime.start(looks())).result is None


@pytest.mark.parametrize("budget", [{"max_llm_calls": -1}, {"max_tokens": 1.5}, {"max_money": 3}])
async def test_what_is_no_budget(budget):
    """It is refused before anything is started."""
    async with opened() as runtime:
        with pytest.raises(BadSetting):
            await runtime.start(asks(), budget=budget)
        assert await runtime.sessions() == []
