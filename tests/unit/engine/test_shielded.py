"""Verbs that complete although their callers leave."""

import asyncio
import gc
import logging
import weakref
from contextlib import suppress

import pytest

import everhold
from everhold.engine.shielded import ShieldedCalls
from everhold.errors import Overtaken, StoreUnavailable
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock


class Verb:
    """A verb that waits in the middle, and then returns or raises."""

    def __init__(self, ends: object = "done") -> None:
        self.began, self.go, self.ended = asyncio.Event(), asyncio.Event(), False
        self._ends = ends

    async def __call__(self) -> object:
        self.began.set()
        await self.go.wait()
        self.ended = True
        if isinstance(self._ends, BaseException):
            raise self._ends
        return self._ends


async def left(verb):
    """A caller that waits for a verb, and leaves in the middle of it."""
    shielded = ShieldedCalls()
    caller = asyncio.create_task(shielded.run(verb()))
    await verb.began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    return shielded


async def test_a_verb_returns_to_its_caller():
    verb = Verb()
    verb.go.set()
    assert await ShieldedCalls().run(verb()) == "done"


async def test_a_verb_completes_although_its_caller_is_cancelled():
    verb = Verb()
    shielded = await left(verb)
    assert not verb.ended
    verb.go.set()
    await shielded.rest()
    assert verb.ended


async def test_a_verb_completes_although_its_caller_has_a_timeout():
    """A timeout cancels, too; the caller hears of it and not of the verb."""
    verb, shielded = Verb(), ShieldedCalls()
    with pytest.raises(TimeoutError):
        # clock: nothing ends it earlier, for the verb waits for `go`
        async with asyncio.timeout(0.01):
            await shielded.run(verb())
    verb.go.set()
    await shielded.rest()
    assert verb.ended


async def test_a_verb_completes_although_its_caller_is_cancelled_before_it_began():
    """The task of the verb exists by then; that it has not had a turn yet makes no difference."""
    verb, shielded = Verb(), ShieldedCalls()
    verb.go.set()
    caller = asyncio.create_task(shielded.run(verb()))
    await asyncio.sleep(0)  # the caller has begun to wait
    assert not verb.began.is_set()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await shielded.rest()
    assert verb.ended


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), Overtaken("s-1", 1), KeyboardInterrupt(), SystemExit(3), GeneratorExit()],
    ids=repr,
)
async def test_an_error_reaches_the_caller(error):
    """Also an interrupt, which would end the loop if a task raised it."""
    verb, shielded = Verb(error), ShieldedCalls()
    verb.go.set()
    try:
        await shielded.run(verb())
    except BaseException as caught:
        assert caught is error
    else:
        pytest.fail("nothing was raised")
    await asyncio.sleep(0)  # the loop goes on
    assert await shielded.run(asyncio.sleep(0, "after")) == "after"


async def test_a_verb_that_is_cancelled_itself_says_so():
    """What it awaits may be cancelled by somebody else; the caller was not, and hears of it."""

    async def verb():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await ShieldedCalls().run(verb())
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_the_error_of_a_verb_whose_caller_left_is_logged(caplog):
    """It is in nobody's hands any more, and it is no error of the loop either."""
    unhandled = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: unhandled.append(context)
    )
    verb = Verb(ValueError("too late"))
    with caplog.at_level(logging.INFO, "everhold"):
        shielded = await left(verb)
        verb.go.set()
        await shielded.rest()
        await asyncio.sleep(0)
        gc.collect()
    assert "a call failed after its caller was cancelled: too late" in caplog.text
    assert unhandled == []


async def test_an_interrupt_of_a_verb_whose_caller_left_does_not_end_the_loop():
    verb = Verb(KeyboardInterrupt())
    shielded = await left(verb)
    verb.go.set()
    await shielded.rest()
    await asyncio.sleep(0)
    assert verb.ended


class Held:
    """Something large that a verb has in its hands."""


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
async def test_nothing_is_left_to_the_garbage_collector_after_an_error(kind):
    """The traceback names the frames of verb and caller: none of them may hold the error."""
    seen = []

    async def verb():
        held = Held()
        seen.append(weakref.ref(held))
        await asyncio.sleep(0)
        raise kind("no")

    async def caller():
        with suppress(kind):
            await ShieldedCalls().run(verb())

    gc.collect()
    gc.disable()
    try:
        await caller()
        await asyncio.sleep(0)
        assert seen[0]() is None
    finally:
        gc.enable()


async def test_rest_waits_for_all():
    shielded = ShieldedCalls()
    first, second = Verb(), Verb()
    callers = [asyncio.create_task(shielded.run(verb())) for verb in (first, second)]
    await second.began.wait()
    resting = asyncio.create_task(shielded.rest())
    first.go.set()
    await callers[0]
    assert not resting.done()
    second.go.set()
    await resting
    assert [await caller for caller in callers] == ["done", "done"]


async def test_rest_waits_for_what_begins_meanwhile():
    """A verb that begins while others are waited for has as long as they have."""
    shielded = ShieldedCalls()
    first, second = Verb(), Verb()
    callers = [asyncio.create_task(shielded.run(first()))]
    await first.began.wait()
    resting = asyncio.create_task(shielded.rest(60))
    await asyncio.sleep(0)
    callers.append(asyncio.create_task(shielded.run(second())))
    await second.began.wait()
    first.go.set()
    await callers[0]
    await asyncio.sleep(0.01)
    assert not resting.done()
    second.go.set()
    await resting
    assert await callers[1] == "done"


@pytest.mark.parametrize("timeout", [0, 0.01])
async def test_rest_cancels_what_takes_longer(timeout):
    """A runtime that closes waits for so long. Its callers were not cancelled: they get an
    error.
    """
    verb, shielded = Verb(), ShieldedCalls(where="app.db")
    caller = asyncio.create_task(shielded.run(verb()))
    await verb.began.wait()
    await shielded.rest(timeout)
    with pytest.raises(StoreUnavailable, match=r"app\.db .*the runtime was closed"):
        await caller
    assert not verb.ended
    await shielded.rest()  # there is nothing to wait for


async def test_what_must_not_begin_does_not():
    """The refusal reaches the caller; the verb is not begun."""

    def refuse():
        raise ValueError("not here")

    verb = Verb()
    coroutine = verb()
    with pytest.raises(ValueError, match="not here"):
        await ShieldedCalls(refuse).run(coroutine)
    assert not verb.began.is_set()
    coroutine.close()


# ---- the shortest way: a plain answer


@everhold.program
async def asks(ctx):
    return [await ctx.llm(f"{n}?") for n in range(4)]


class Counted:
    """Counts the tasks that are made on this loop."""

    def __init__(self):
        self.made = 0

    def __call__(self, loop, coro, **more):
        self.made += 1
        return asyncio.Task(coro, loop=loop, **more)


async def test_a_plain_answer_costs_no_task():
    """A model's words for a session in memory are one commit, and nothing has to be waited for."""
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False, llm=None) as runtime:
        status = await runtime.start(asks())
        tasks = Counted()
        asyncio.get_running_loop().set_task_factory(tasks)
        for n in range(3):
            status = await runtime.answer(status.queries[0], str(n))
        assert tasks.made == 0
        assert (await runtime.answer(status.queries[0], "3")).result == ["0", "1", "2", "3"]


async def test_a_plain_answer_that_has_to_wait_completes_although_its_caller_leaves():
    store = MemoryStore()
    async with Runtime(store, clock=ManualClock(), recover=False, llm=None) as runtime:
        status = await runtime.start(asks())
        commit, began, go = store.commit, asyncio.Event(), asyncio.Event()

        async def slow(change, fence):
            began.set()
            await go.wait()
            await commit(change, fence)

        store.commit, store.commit_now = slow, lambda change, fence: False
        caller = asyncio.create_task(runtime.answer(status.queries[0], "0"))
        await began.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go.set()
        await runtime.engine.shielded.rest()
        status = await runtime.status(status.session_id)
        assert [query.prompt for query in status.queries] == ["1?"]
        assert [
            query.prompt for query in (await runtime.answer(status.queries[0], "1")).queries
        ] == ["2?"]


async def test_a_verb_that_the_end_of_its_runtime_cuts_off_says_so():
    """Its caller was not cancelled, so it does not look as if it had been."""
    shielded = ShieldedCalls(where="here")
    caller = asyncio.create_task(shielded.run(asyncio.Event().wait()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await shielded.rest(0)
    with pytest.raises(StoreUnavailable, match="the runtime was closed"):
        await caller
