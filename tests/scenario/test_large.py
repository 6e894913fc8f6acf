"""Ten thousand questions of one batch; hundreds of sessions that wait: nothing on the way grows
with their number.
"""

import asyncio
import time

import pytest

import everhold
from everhold.schedules import Feed
from everhold.stores.sqlite import SQLiteStore
from tests.scenario.harness import Rows, opened

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
        assert time.process_time() - began < 5


async def test_ten_thousand_inline_answers():
    """A function answers them all."""

    async def model(query):
        return query.prompt

    async with opened(llm=model, replay=False) as runtime:
        began = time.process_time()
        assert await runtime.run(batch()) == MANY
        assert time.process_time() - began < 5


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


# ---- many sessions


@everhold.program
async def sleeps(ctx):
    await ctx.sleep(1e6)


talker = everhold.Agent(instructions="Be brief.", name="large_talker")


async def fill(path, count):
    """A database of sessions that wait for people, for time, for a model, or to be told
    something.
    """
    async with opened(
        on=SQLiteStore(path, durability="process"), replay=False, recover=False
    ) as runtime:
        for number in range(count):
            await runtime.start(approvals(size=1), key=f"a-{number}")
            await runtime.start(sleeps(), wait=0)
            await runtime.start(batch(size=1))
            session = await runtime.session(talker, f"c-{number}")
            await session.enqueue("Later.", available_at=2e9)
            await runtime.schedules.add(
                f"s-{number}", "0 3 1 1 *", Feed(f"c-{number}", value="Happy new year.")
            )


async def looks(runtime, store):
    """What a look at the house costs, and the house's other small questions."""
    caretaker, listed = (
        runtime.engine.reconciler,
        [info.session_id for info in await runtime.sessions(limit=1000)],
    )
    last, first = listed[0], listed[-10]
    acts = {
        "a look": caretaker.move,
        "what is next": caretaker._due,
        "a page": lambda: runtime.sessions(limit=5),
        "a late page": lambda: runtime.sessions(limit=5, after=first),
        "by the beginning of an id": lambda: runtime.sessions(prefix=last[:-2]),
        "by the beginning of a name": lambda: store.duties("schedule", prefix="s-1/", limit=5),
        "leaving": lambda: store.leave(runtime.engine.leases.owner),
        "a question that is answered": lambda: answer_one(runtime),
    }
    found = {}
    for name, act in acts.items():
        store.steps = 0
        await act()
        found[name] = store.steps
    return found


async def answer_one(runtime):
    await runtime.answer(str(await runtime.store.find("a-0")), True)


async def test_a_look_costs_the_same_however_many_sessions_wait(tmp_path):
    """Of what waits nothing is read before its time has come."""
    costs = []
    for count in (10, 200):
        path = tmp_path / f"{count}.db"
        await fill(path, count)
        store = Rows(path)
        async with opened(on=store, replay=False, recover=False) as runtime:
            await runtime.engine.reconciler.move()
            costs.append(await looks(runtime, store))
    few, many = costs
    assert {name: many[name] for name in few if many[name] > 1.2 * few[name] + 20} == {}
