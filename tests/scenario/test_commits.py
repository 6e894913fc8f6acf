"""When a step lands, what rides in its commit, and what must not start before it."""

import asyncio

import pytest

import everhold
from everhold.errors import StoreFull
from everhold.stores.sqlite import SQLiteStore
from tests.scenario.harness import opened, rows

done = []


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()


async def act(name):
    done.append(name)
    return name


@everhold.program
async def works(ctx, rerun: str = "safe"):
    await ctx.llm("go")
    return await ctx.call(act, rerun, rerun=rerun)


@everhold.program
async def batch(ctx):
    return await ctx.llm_batch(["a", "b", "c"])


class Watched:
    """A store whose commits a test can see, hold and refuse."""

    def __init__(self, runtime):
        self.changes, self.held, self.refuse = [], None, False
        self._commit = runtime.store.commit
        runtime.store.commit = self.commit
        runtime.store.commit_now = lambda change, fence: False

    async def commit(self, change, fence):
        self.changes.append(
            (change.durable, change.light, len(change.deliveries), len(change.effects))
        )
        if self.held is not None:
            await self.held.wait()
        if self.refuse:
            raise StoreFull("here")
        await self._commit(change, fence)


async def test_the_next_advance_waits_for_the_commit():
    """Advance n+1 never starts before commit n is known."""
    async with opened() as runtime:
        store = Watched(runtime)
        status = await runtime.start(batch())
        store.held = asyncio.Event()
        answers = [asyncio.create_task(runtime.answer(query, "x")) for query in status.queries]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(store.changes) == 2  # the start, and the first answer
        store.held.set()
        assert (await asyncio.gather(*answers))[-1].result == ["x", "x", "x"]


async def test_nothing_outside_starts_before_the_commit():
    """A refused commit means that the effect was never begun."""
    async with opened() as runtime:
        status = await runtime.start(works())
        store = Watched(runtime)
        store.refuse = True
        with pytest.raises(StoreFull):
            await runtime.answer(status.queries[0], "x")
        await asyncio.sleep(0)
        assert done == []
        store.refuse = False
        assert (await runtime.answer(status.queries[0], "x")).result == "safe"
        assert done == ["safe"]


async def test_a_cancelled_caller_leaves_the_session_whole():
    """A caller that gives up in the middle of a commit may answer again: its commit lands all the
    same.
    """
    async with opened() as runtime:
        store = Watched(runtime)
        status = await runtime.start(batch())
        store.held = held = asyncio.Event()
        impatient = asyncio.create_task(runtime.answer(status.queries[0], "x"))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        store.held = None
        held.set()
        for query in status.queries:
            status = await runtime.answer(query, "x")
        assert status.result == ["x", "x", "x"]


@pytest.mark.parametrize(("rerun", "durable"), [("safe", False), ("never", True), ("ask", True)])
async def test_marks_of_doubtful_effects_are_fsynced_at_any_level(rerun, durable, tmp_path):
    """At level "process" only those are."""
    async with opened(on=SQLiteStore(tmp_path / "app.db", durability="process")) as runtime:
        store = Watched(runtime)
        status = await runtime.start(works(rerun=rerun))
        await runtime.answer(status.queries[0], "x")
        assert [change[0] for change in store.changes] == [False, durable, False]


@everhold.program
async def mixed(ctx):
    await ctx.llm("a model")
    await ctx.llm("a model")
    await ctx.approval("a person")
    return await ctx.call(act, "effect")


async def test_mixed_durability(tmp_path):
    """Answers by people, and marks of effects, survive power loss; a model's words need not."""
    async with opened(on=SQLiteStore(tmp_path / "app.db", durability="mixed")) as runtime:
        store = Watched(runtime)
        status = await runtime.start(mixed())
        status = await runtime.answer(status.queries[0], "x")
        status = await runtime.answer(status.queries[0], "x")
        await runtime.answer(status.queries[0], True)
        assert [change[0] for change in store.changes] == [False, False, False, True, True]


async def test_a_step_is_one_commit():
    """The answers, the next queries, marks and logs of one step land together."""
    async with opened() as runtime:
        store = Watched(runtime)
        status = await runtime.start(works())
        await runtime.answer(status.queries[0], "x")
        assert [change[2:] for change in store.changes] == [(1, 0), (1, 1), (1, 0)]
        assert len(await rows(runtime, status.session_id)) == 3


@everhold.program
async def long(ctx):
    for number in range(200):
        await ctx.llm(str(number))


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_a_busy_caller_gives_the_others_a_turn(durability, tmp_path):
    """Never more than 16 commits in place (with fsync: 2) without a turn of the loop."""
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with opened(on=SQLiteStore(tmp_path / "app.db", durability=durability)) as runtime:
        status = await runtime.start(long())
        counting = asyncio.create_task(others())
        while status.state == "paused":
            status = await runtime.answer(status.queries[0], "x")
        counting.cancel()
    assert turns >= 200 / (16 if durability == "process" else 2) - 1


async def test_a_read_only_look_writes_nothing():
    """status, wait, inbox, sessions and verify commit nothing."""
    async with opened() as runtime:
        status = await runtime.start(batch())
        store = Watched(runtime)
        await runtime.status(status.session_id)
        await runtime.wait(status.session_id)
        await runtime.inbox()
        await runtime.sessions()
        await runtime.archive.verify()
        assert store.changes == []
