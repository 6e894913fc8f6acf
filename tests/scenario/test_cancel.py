"""cancel: the program sees CancelledError once; what it awaits afterwards is refused."""

import asyncio

import pytest

import everhold
from everhold.errors import SessionEnded
from everhold.ports.program import REGISTRY
from tests.scenario.harness import at_top, moved, opened, rows

seen = []


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()


@everhold.program
async def polite(ctx):
    try:
        return await ctx.llm("What?")
    except asyncio.CancelledError:
        seen.append("cancelled")
        ctx.log("cleaning up")
        raise


async def test_a_paused_session_is_cancelled():
    """The program may clean up; the session ends as cancelled, with the reason."""
    async with opened() as runtime:
        status = await runtime.start(polite())
        end = await runtime.cancel(status.session_id, "changed my mind")
        assert (end.state, end.outcome.reason, seen) == (
            "cancelled",
            "changed my mind",
            ["cancelled"],
        )
        assert (await runtime.status(status.session_id)).state == "cancelled"
        with pytest.raises(everhold.Cancelled, match="changed my mind"):
            _ = end.result


async def test_cancelling_twice():
    """The second time changes nothing."""
    async with opened() as runtime:
        status = await runtime.start(polite())
        end = await runtime.cancel(status.session_id, "first")
        assert await runtime.cancel(status.session_id, "second") == end
        assert len(await rows(runtime, status.session_id)) == 2


async def test_an_ended_session_cannot_be_cancelled():
    """Neither a completed nor a failed one."""
    async with opened() as runtime:
        status = await runtime.start(polite())
        await runtime.answer(status.queries[0], "done")
        with pytest.raises(SessionEnded):
            await runtime.cancel(status.session_id)


@everhold.program
async def stubborn(ctx):
    for _ in range(3):
        try:
            return await ctx.llm("What?")
        except asyncio.CancelledError:
            seen.append("swallowed")
        except everhold.EverholdError as error:
            seen.append(error.code)
    return "I go on"


async def test_a_program_that_swallows_the_cancel():
    """It sees it once; what it asks afterwards is refused; the session is cancelled all the
    same.
    """
    async with opened() as runtime:
        status = await runtime.start(stubborn())
        assert (await runtime.cancel(status.session_id)).state == "cancelled"
        assert seen == ["swallowed", "after_cancel", "after_cancel"]


@everhold.program
async def loops(ctx):
    while True:
        try:
            await ctx.llm("What?")
        except BaseException:
            await asyncio.sleep(0)


async def test_a_program_that_loops_around_the_cancel(monkeypatch):
    """It is stopped by the limit of one advance, and cancelled."""
    monkeypatch.setattr("everhold.programs.python.event_loop.HANDLES", 1000)
    async with opened(replay=False) as runtime:
        status = await runtime.start(loops())
        assert (await runtime.cancel(status.session_id)).state == "cancelled"


@everhold.program
async def tidy(ctx):
    try:
        await ctx.llm("What?")
    finally:
        for ask in (ctx.llm("x"), ctx.call(print), ctx.state.set("a", 1), ctx.sleep(1)):
            try:
                await ask
            except everhold.EverholdError as error:
                seen.append(error.code)


async def test_cleaning_up_cannot_ask():
    """Questions, calls and durable values are refused after a cancel; nothing of them is
    recorded.
    """
    async with opened() as runtime:
        status = await runtime.start(tidy())
        await runtime.cancel(status.session_id)
        assert seen[:3] == ["after_cancel"] * 3
        assert (await rows(runtime, status.session_id))[-1].asked == []


async def test_a_running_session_is_cancelled():
    """Its call is stopped."""
    stopped = asyncio.Event()

    async def long():
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @everhold.program
    async def works(ctx):
        await ctx.call(long)

    async with opened() as runtime:
        status = await runtime.start(works(), wait=0)
        await asyncio.sleep(0)
        assert (await runtime.cancel(status.session_id)).state == "cancelled"
        async with asyncio.timeout(60):
            await stopped.wait()
        assert (await runtime.store.load(status.session_id)).effects == []


async def test_a_session_that_another_process_runs_is_cancelled(tmp_path):
    """What the other one's call brings is not recorded any more."""
    goes_on = asyncio.Event()

    async def long():
        await goes_on.wait()
        return "too late"

    @at_top
    async def works(ctx):
        return await ctx.call(long)

    async with opened(tmp_path) as one, opened(tmp_path) as two:
        status = await one.start(works(), wait=0)
        assert (await two.cancel(status.session_id)).state == "cancelled"
        goes_on.set()
        await one.wait(status.session_id, 60)
        await asyncio.sleep(0)
        assert (await one.status(status.session_id)).state == "cancelled"


async def test_where_the_program_is_not_it_never_hears_of_it():
    """A process without the program can cancel too."""

    @everhold.program
    async def lost(ctx):
        try:
            await ctx.llm("What?")
        except asyncio.CancelledError:
            seen.append("heard")

    async with opened(replay=False) as runtime:
        status = await runtime.start(lost())
        del REGISTRY[(lost.ref, 1)]
        async with opened(on=runtime.store, replay=False) as other:
            end = await other.cancel(status.session_id, "gone")
            assert (end.state, end.outcome.reason) == ("cancelled", "gone")
            assert await other.inbox() == []
    assert seen == []


async def test_a_cancelled_session_replays():
    """Its journal holds the cancel: another process comes to the same end (see house.replayed)."""
    async with opened() as runtime:
        status = await runtime.start(polite())
        await runtime.cancel(status.session_id, "why")
        last = (await rows(runtime, status.session_id))[-1]
        assert (last.notes.cancel, type(last.notes.outcome).__name__) == ("why", "Stopped")


@everhold.program
async def cancels_itself(ctx):
    asyncio.current_task().cancel()
    await ctx.llm("What?")


async def test_a_program_that_cancels_itself_has_failed():
    """Nobody outside cancelled it."""
    async with opened() as runtime:
        status = await runtime.start(cancels_itself())
        assert (status.state, status.outcome.kind) == ("failed", "CancelledError")


async def test_whoever_waits_is_told():
    """wait returns when somebody else cancels."""
    async with opened() as runtime:
        status = await runtime.start(sleeps())
        waiting = asyncio.create_task(moved(runtime, status.session_id))
        await asyncio.sleep(0)
        await runtime.cancel(status.session_id)
        assert (await waiting).state == "cancelled"


@everhold.program
async def sleeps(ctx):
    await ctx.sleep(1000)
