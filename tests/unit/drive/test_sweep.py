"""Sessions that have ended are deleted only when asked, and never what another session needs."""

import pytest

import everhold
from everhold.core.errors import BadArguments, BadSetting
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock


@everhold.program
async def asking(ctx: everhold.Context) -> str:
    return str(await ctx.llm("What?"))


@everhold.program
async def parent(ctx: everhold.Context) -> str:
    child = ctx.spawn(asking())
    word = await child
    return word + str(await ctx.llm("And you?"))


def opened(store=None, **options):
    return Runtime(store or MemoryStore(), clock=ManualClock(), **{"recover": False, **options})


async def ended(runtime, count=1):
    """Completed sessions, an hour apart, oldest first."""
    ids = []
    for _ in range(count):
        status = await runtime.start(asking())
        await runtime.answer(status.queries[0], "this")
        ids.append(status.session_id)
        runtime.clock.advance(3600)
    return ids


async def left(runtime):
    return {row.session_id for row in await runtime.sessions()}


async def test_old_ones_go_and_young_ones_stay():
    """Age is counted from when a session last moved."""
    async with opened() as runtime:
        old, middle, young = await ended(runtime, 3)
        swept = await runtime.sweep(older_than=2 * 3600 - 1)

        assert (swept.deleted, await left(runtime)) == ([old, middle], {young})


async def test_the_newest_stay():
    """`keep_last` counts those that fit, newest first."""
    async with opened() as runtime:
        ids = await ended(runtime, 4)

        assert (await runtime.sweep(keep_last=1)).deleted == ids[:3]
        assert await left(runtime) == {ids[3]}


async def test_what_has_not_ended_stays_however_old():
    """So do failed ones, which can be retried, unless they are named."""
    async with opened() as runtime:
        waiting = (await runtime.start(asking())).session_id
        failed = (await runtime.start(asking())).session_id
        await runtime.answer(failed, error="no")
        runtime.clock.advance(1e9)

        assert (await runtime.sweep(older_than=0)).deleted == []
        assert (await runtime.sweep("failed", older_than=0)).deleted == [failed]
        assert await left(runtime) == {waiting}


async def test_a_dry_run_says_what_would_go():
    """And nothing does."""
    async with opened() as runtime:
        ids = await ended(runtime, 2)
        swept = await runtime.sweep(keep_last=0, dry_run=True)

        assert (swept.deleted, swept.dry_run, await left(runtime)) == (ids, True, set(ids))


async def test_nothing_is_deleted_unasked():
    """Neither without an age and a number, nor in a state that is no end."""
    async with opened() as runtime:
        with pytest.raises(BadArguments, match="older_than or keep_last"):
            await runtime.sweep()
        with pytest.raises(BadArguments, match="keep_last"):
            await runtime.sweep(keep_last=-1)
        with pytest.raises(BadSetting, match="'paused' is no end"):
            await runtime.sweep(["paused"], older_than=0)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_a_fork_shares_is_kept(tmp_path, kind):
    """The origin is gone from every list, and the fork still has its steps."""
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "app.db")
    async with opened(store) as runtime:
        (origin,) = await ended(runtime)
        fork = await runtime.fork(origin, at=0)
        swept = await runtime.sweep(keep_last=0)

        assert (swept.deleted, swept.shared_steps) == ([origin], 1)
        assert (await runtime.answer(fork.session_id, "that")).result == "that"
        assert await runtime.verify() == []


async def test_a_child_stays_while_its_parent_may_need_it():
    """It goes with its parent."""
    async with opened(recover=True) as runtime:
        status = await runtime.start(parent())
        while not (asked := await runtime.inbox()):
            await runtime._caretaker.move()
        child = asked[0].session_id
        await runtime.answer(child, "x")
        status = await runtime.wait(status.session_id)
        swept = await runtime.sweep(keep_last=0)
        assert swept.kept == {child: f"its parent {status.session_id} is paused"}

        await runtime.answer(status.session_id, "y")
        assert set((await runtime.sweep(keep_last=0)).deleted) == {status.session_id, child}


async def test_only_those_that_fit_are_swept():
    """By program and by label."""
    async with opened() as runtime:
        ids = []
        for customer in ("1", "2"):
            status = await runtime.start(asking(), labels={"customer": customer})
            await runtime.answer(status.queries[0], "x")
            ids.append(status.session_id)

        assert (await runtime.sweep(keep_last=0, labels={"customer": "2"}, program="asking")).deleted == ids[1:]
        assert (await runtime.sweep(keep_last=0, program="other")).deleted == []


async def test_a_session_that_moved_meanwhile_is_left_alone():
    """Between looking and deleting somebody may have retried it."""
    async with opened() as runtime:
        status = await runtime.start(asking())
        await runtime.answer(status.session_id, error="no")
        delete = runtime.store.delete

        async def late(session_id, fence):
            await runtime.retry(session_id)
            return await delete(session_id, fence)

        runtime.store.delete = late
        assert (await runtime.sweep("failed", keep_last=0)).kept == {status.session_id: "it has moved since"}
