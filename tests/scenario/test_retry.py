"""retry: a bug costs nothing; every answer is kept."""

import asyncio

import pytest

import everhold
from everhold.errors import IllegalMove
from everhold.testing.clock import ManualClock
from tests.scenario.harness import at_top, opened, prompts, rows

done = []


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()


def edition(body):
    """A program whose code can be changed: each edition has the same name."""
    body.__name__ = "edited"
    return at_top(body)


async def other(runtime):
    """The same store under the code as it is now."""
    return opened(on=runtime.store, clock=runtime.clock, replay=False)


def divides(by):
    async def body(ctx):
        first = await ctx.llm("first")
        second = await ctx.llm("second")
        if by == 0:
            raise ZeroDivisionError(f"{first} {second}")
        return [first, second, await ctx.llm("third")]

    return edition(body)


async def test_retry_goes_on_from_the_last_answer():
    """Under the code as it is now; what was answered is not asked again."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(divides(0)())
        status = await runtime.answer(status.queries[0], "1")
        status = await runtime.answer(status.queries[0], "2")
        assert status.error == "ZeroDivisionError: 1 2"
        divides(1)
        async with await other(runtime) as mended:
            status = await mended.retry(status.session_id)
            assert prompts(status) == ["third"]
            notes = (await rows(mended, status.session_id))[-1].notes
            assert (notes.retry, notes.fired) == (True, False)
            assert (await mended.answer(status.queries[0], "3")).result == ["1", "2", "3"]


async def test_retry_that_fails_again():
    """It is failed again, with the new error, and may be retried once more."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(divides(0)())
        status = await runtime.answer(status.queries[0], "1")
        status = await runtime.answer(status.queries[0], "2")
        for _ in range(3):
            status = await runtime.retry(status.session_id)
            assert status.error == "ZeroDivisionError: 1 2"
        divides(1)
        async with await other(runtime) as mended:
            status = await mended.retry(status.session_id)
            assert (await mended.answer(status.queries[0], "3")).result == ["1", "2", "3"]


def twice_broken(stage):
    async def body(ctx):
        first = await ctx.llm("first")
        if stage < 1:
            raise ValueError("first bug")
        second = await ctx.llm("second")
        if stage < 2:
            raise ValueError("second bug")
        return [first, second]

    return edition(body)


async def test_retry_twice():
    """Each bug is mended when it shows; the journal replays with both failures in it."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(twice_broken(0)())
        assert (await runtime.answer(status.queries[0], "1")).error == "ValueError: first bug"
        twice_broken(1)
        async with await other(runtime) as second:
            status = await second.retry(status.session_id)
            assert (await second.answer(status.queries[0], "2")).error == "ValueError: second bug"
        twice_broken(2)
        async with opened(on=runtime.store, clock=runtime.clock) as third:
            assert (await third.retry(status.session_id)).result == ["1", "2"]


async def work(name):
    done.append(name)
    await asyncio.Event().wait()


def beside(broken, rerun="safe"):
    async def body(ctx):
        async def breaks():
            await ctx.llm("go")
            if broken:
                raise ValueError("broken")

        async def late():
            return await ctx.llm("sibling")

        async def calls():
            return await ctx.call(work, rerun, rerun=rerun)

        return await asyncio.gather(breaks(), late(), ctx.approval("Approve?"), calls())

    return edition(body)


async def test_siblings_that_were_open_are_open_again():
    """Questions, notices and calls of the other tasks come back with their ids."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(beside(True)(), wait=0)
        before = [(query.id, query.prompt) for query in status.queries]
        await asyncio.sleep(0)
        status = await runtime.answer(status.queries[0], "x", wait=0)
        assert (status.state, await runtime.inbox()) == ("failed", [])
        beside(False)
        async with await other(runtime) as mended:
            status = await mended.retry(status.session_id, wait=0)
            status = await mended.status(status.session_id)
            assert [(query.id, query.prompt) for query in status.queries] == before[1:]
            assert {query.prompt for query in await mended.inbox()} == {"sibling", "Approve?"}
            await asyncio.sleep(0)
            assert done == ["safe", "safe"]
            await mended.cancel(status.session_id)


async def test_a_doubtful_call_is_not_run_again_by_a_retry():
    """Its outcome is unknown: rerun="ask" asks, rerun="never" tells the program."""
    async with opened(replay=False) as runtime:
        for rerun in ("ask", "never"):
            status = await runtime.start(beside(True, rerun)(), wait=0)
            await asyncio.sleep(0)
            await runtime.answer(status.queries[0], "x", wait=0)
            beside(False, rerun)
            async with await other(runtime) as mended:
                status = await mended.retry(status.session_id, wait=0)
                if rerun == "ask":
                    assert (
                        "outcome was not recorded"
                        in prompts(await mended.status(status.session_id))[-1]
                    )
                else:
                    assert "OutcomeUnknown" in status.error
        assert done == ["ask", "never"]


@everhold.program
async def helps(ctx):
    return await ctx.llm("help?")


@everhold.program
async def gives_up(ctx):
    helping = asyncio.ensure_future(ctx.delegate(helps()))
    await ctx.llm("go")
    if not done:  # what is done later mends it
        raise ValueError("not yet")
    helping.cancel()
    return await ctx.llm("alone?")


async def test_a_child_whom_nobody_waits_for_after_a_retry_is_cancelled():
    """If it lives only as long as somebody does."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(gives_up())
        assert (await runtime.answer(status.queries[0], "1")).state == "failed"
        (child,) = [
            one.session_id
            for one in await runtime.sessions()
            if one.session_id != status.session_id
        ]
        done.append("mended")
        assert prompts(await runtime.retry(status.session_id)) == ["alone?"]
        assert (await runtime.wait(child, 30)).state == "cancelled"


async def test_what_cannot_be_retried():
    """Only a failed session can."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(divides(1)())
        with pytest.raises(IllegalMove):
            await runtime.retry(status.session_id)
        await runtime.cancel(status.session_id)
        with pytest.raises(IllegalMove):
            await runtime.retry(status.session_id)


def reads(broken):
    async def body(ctx):
        await ctx.llm("go")
        if broken:
            raise ValueError("before the read")
        return [await ctx.state.get("n", "none"), await ctx.state.incr("k")]

    return edition(body)


async def test_a_retry_that_asks_the_store():
    """What the store itself answers is answered in the retry's own commit."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(reads(True)())
        await runtime.answer(status.queries[0], "x")
        reads(False)
        async with opened(on=runtime.store, clock=runtime.clock) as mended:
            assert (await mended.retry(status.session_id)).result == ["none", 1]


def listens(broken):
    async def body(ctx):
        await ctx.llm("Ready?")
        if broken:
            raise ValueError("broken")
        return [await ctx.receive("news"), await ctx.receive("news")]

    return edition(body)


async def test_signals_survive_a_failure():
    """What was acknowledged is not lost when the program fails before it listens."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(listens(True)())
        await runtime.signal(status.session_id, "news", 1)
        await runtime.signal(status.session_id, "news", 2)
        assert (await runtime.answer(status.session_id, "yes")).state == "failed"
        listens(False)
        async with opened(on=runtime.store, clock=runtime.clock) as mended:
            assert (await mended.retry(status.session_id)).result == [1, 2]
            assert await mended.archive.verify() == []


@everhold.program
async def child(ctx):
    return await ctx.llm("child?")


def raises_beside_child(broken):
    async def body(ctx):
        async def breaks():
            await ctx.llm("go")
            if broken:
                raise ValueError("broken")

        result, _ = await asyncio.gather(ctx.spawn(child()), breaks())
        return result

    return edition(body)


@pytest.mark.parametrize("ends_meanwhile", [True, False])
async def test_a_child_of_a_failed_session(ends_meanwhile):
    """It is not born again; its end counts, also if it came while the parent was failed."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(raises_beside_child(True)())
        while not (infos := await runtime.sessions(parent=status.session_id, state="paused")):
            await asyncio.sleep(0.001)
        await runtime.answer(status.session_id, "x", query_id="q-1")
        if ends_meanwhile:
            await runtime.answer(infos[0].session_id, "of the child")
        raises_beside_child(False)
        async with await other(runtime) as mended:
            await mended.retry(status.session_id)
            if not ends_meanwhile:
                await mended.answer(infos[0].session_id, "of the child")
            assert (await mended.wait(status.session_id, 60)).result == "of the child"
            assert len(await mended.sessions()) == 2


async def test_a_child_that_was_deleted_while_its_parent_was_failed():
    """The parent can be retried, and is told that nobody knows how its child ended."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(raises_beside_child(True)())
        while not (infos := await runtime.sessions(parent=status.session_id, state="paused")):
            await asyncio.sleep(0.001)
        await runtime.answer(status.session_id, "x", query_id="q-1")
        await runtime.answer(infos[0].session_id, "of the child")
        await runtime.delete(infos[0].session_id)
        raises_beside_child(False)
        async with await other(runtime) as mended:
            end = await mended.retry(status.session_id)
            assert end.outcome.error.endswith("was deleted: its outcome is unknown")


def raises_after(broken, verb):
    async def body(ctx):
        found = await verb(ctx)
        if broken:
            raise ValueError("broken")
        return found

    return edition(body)


async def waits_for(ctx):
    return await ctx.spawn(child())


async def test_a_child_that_was_deleted_after_its_parent_was_told():
    """What the parent was told is in its journal; nobody asks for the child again."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(raises_after(True, waits_for)())
        while not (infos := await runtime.sessions(parent=status.session_id, state="paused")):
            await asyncio.sleep(0.001)
        await runtime.answer(infos[0].session_id, "of the child")
        assert (await runtime.wait(status.session_id, 60)).state == "failed"
        await runtime.delete(infos[0].session_id)
        raises_after(False, waits_for)
        async with await other(runtime) as mended:
            assert (await mended.retry(status.session_id)).result == "of the child"


async def begins(ctx):
    return (await ctx.background(child())).session_id


async def lists(ctx):
    return await ctx.processes()


async def tells(ctx):
    return await ctx.tell("news")


@pytest.mark.parametrize(("verb", "children"), [(begins, 1), (lists, 0), (tells, 0)])
async def test_a_failure_right_after_something_about_processes(verb, children):
    """What was done about them is not done again."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(raises_after(True, verb)())
        assert status.state == "failed"
        raises_after(False, verb)
        async with await other(runtime) as mended:
            assert (await mended.retry(status.session_id)).state == "completed"
            assert len(await mended.sessions(parent=status.session_id)) == children


def gives_up_listening(broken):
    async def body(ctx):
        listens = [
            asyncio.create_task(ctx.receive("news", timeout=60)),
            asyncio.ensure_future(ctx.spawn(child())),
        ]
        await ctx.llm("go")
        for task in listens:
            task.cancel()
        await asyncio.wait(listens)
        if broken:
            raise ValueError("broken")
        return await asyncio.gather(ctx.llm("a"), ctx.llm("b"))

    return edition(body)


async def test_what_a_retry_gave_up_is_not_open_after_a_restart():
    """It has no time at which it expires, and is not counted among what is left to answer."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(gives_up_listening(True)())
        assert (await runtime.answer(status.session_id, "x", query_id="q-1")).state == "failed"
        gives_up_listening(False)
        async with await other(runtime) as mended:
            await mended.retry(status.session_id)
        async with await other(runtime) as later:
            assert (await later.answer(status.session_id, "1", query_id="q-3")).remaining == 1
            assert await later.store.next_due() is None
            assert (await later.answer(status.session_id, "2")).result == ["1", "2"]


def sleeps(broken):
    async def body(ctx):
        await ctx.sleep(60)
        if broken:
            raise ValueError("broken")
        before = ctx.now().timestamp()
        await ctx.sleep(60)
        return [before, ctx.now().timestamp()]

    return edition(body)


async def test_a_failure_after_a_timer():
    """The timer is fired again at its own time; the next one counts from there."""
    clock = ManualClock(1000.0)
    async with opened(clock=clock, replay=False) as runtime:
        status = await runtime.start(sleeps(True)())
        clock.advance(61)
        assert (await runtime.wait(status.session_id, 60)).state == "failed"
        clock.advance(1000)
        sleeps(False)
        async with opened(on=runtime.store, clock=clock) as mended:
            await mended.retry(status.session_id)
            assert (await mended.wait(status.session_id, 60)).result == [1061.0, 2061.0]


async def test_a_failure_at_the_start():
    """A program that fails before it asks anything can be retried too."""

    def starts(broken):
        async def body(ctx):
            if broken:
                raise ValueError("at once")
            return await ctx.llm("Now?")

        return edition(body)

    async with opened(replay=False) as runtime:
        status = await runtime.start(starts(True)())
        assert status.error == "ValueError: at once"
        starts(False)
        async with opened(on=runtime.store, clock=runtime.clock) as mended:
            assert prompts(await mended.retry(status.session_id)) == ["Now?"]


async def test_retrying_in_two_processes_at_once(tmp_path):
    """One of them retries; the other is told that the session is not failed any more, or sees the
    same status.
    """
    async with opened(tmp_path, replay=False) as one:
        status = await one.start(divides(0)())
        status = await one.answer(status.queries[0], "1")
        status = await one.answer(status.queries[0], "2")
    divides(1)
    async with opened(tmp_path) as one, opened(tmp_path) as two:
        both = await asyncio.gather(
            one.retry(status.session_id), two.retry(status.session_id), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in both) in (
            ["IllegalMove", "Paused"],
            ["Paused", "Paused"],
        )
        assert len(await rows(one, status.session_id)) == 4


async def test_what_a_failure_says():
    """Its words, the name of its class, the user's lines, and the step."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(divides(0)())
        status = await runtime.answer(status.queries[0], "1")
        status = await runtime.answer(status.queries[0], "2")
        outcome = status.outcome
        assert (outcome.kind, outcome.step) == ("ZeroDivisionError", 2)
        assert "raise ZeroDivisionError" in outcome.traceback
        with pytest.raises(everhold.Failed):
            _ = status.result
