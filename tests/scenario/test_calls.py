"""Side effects: recorded once, run at least once, and what happens when nobody knows whether they
happened.
"""

import asyncio
import functools
import threading
from contextlib import suppress
from dataclasses import dataclass

import pytest

import everhold
from everhold.errors import AnswerConflict, BadSetting, NoOpenQuery, StoreUnavailable
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from tests.scenario.harness import TTL, at_top, die, dying, ids, moved, opened, prompts, rows


class World:
    """What happens outside: counts, and lets a test hold an effect in the middle."""

    def __init__(self):
        self.done = []
        self.begun = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def act(self, what):
        self.done.append(what)
        self.begun.set()
        await self.goes_on.wait()
        return f"did {what}"


world = World()


@pytest.fixture(autouse=True)
def fresh_world():
    world.__init__()


async def send(what):
    return await world.act(what)


def add(a, b=1):
    return a + b


@everhold.program
async def adds(ctx):
    return [
        await ctx.call(add, 2),
        await ctx.call(functools.partial(add, b=5), 2),
        await ctx.call(in_loop),
    ]


async def in_loop():
    return threading.current_thread() is threading.main_thread()


async def test_sync_and_async_functions():
    """Async functions run on the loop, sync ones in a thread; the result is journaled."""

    @everhold.program
    async def where(ctx):
        return await ctx.call(lambda: threading.current_thread() is threading.main_thread())

    async with opened() as runtime:
        assert await runtime.run(adds()) == [3, 7, True]
        assert await runtime.run(where()) is False


@everhold.program
async def once(ctx):
    first = await ctx.call(send, "a")
    await ctx.llm("go on?")
    return first


async def test_a_call_is_recorded_once(tmp_path):
    """After a restart its result comes from the journal."""
    world.goes_on.set()
    async with opened(tmp_path) as runtime:
        status = await runtime.start(once())
    async with opened(tmp_path) as runtime:
        assert (await runtime.answer(status.queries[0], "yes")).result == "did a"
    assert world.done == ["a"]


async def test_an_effect_is_marked_before_it_starts():
    """The mark is in the store when the function runs, and gone with the commit of its outcome."""
    async with opened() as runtime:
        status = await runtime.start(once(), wait=0)
        await world.begun.wait()
        assert [effect.q for effect in (await runtime.store.load(status.session_id)).effects] == [0]
        assert (await runtime.status(status.session_id)).state == "running"
        world.goes_on.set()
        await runtime.wait(status.session_id)
        assert (await runtime.store.load(status.session_id)).effects == []


@everhold.program
async def flaky(ctx, attempts: int):
    try:
        return await ctx.call(fails_twice, retry=everhold.Retry(attempts))
    except everhold.AnswerFailed as error:
        return f"{error.kind}: {error.message}"


def fails_twice():
    world.done.append("try")
    if len(world.done) < 3:
        raise ConnectionError(f"try {len(world.done)}")
    return "ok"


@pytest.mark.parametrize(
    ("attempts", "result"),
    [(3, "ok"), (2, "ConnectionError: try 2"), (1, "ConnectionError: try 1")],
)
async def test_retries(attempts, result):
    """It is tried again with growing pauses; then the program sees the last error."""
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        running = asyncio.create_task(runtime.run(flaky(attempts=attempts)))
        while not running.done():
            await asyncio.sleep(0)
            clock.advance(1)
        assert await running == result
    assert len(world.done) == attempts


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self):
        raise KeyError("detail")


ODD = {
    "mute": (Mute(), "Mute: its message cannot be read (KeyError)"),
    "many": (
        ExceptionGroup("both", [OSError("a"), KeyError()]),
        "ExceptionGroup: both (2 sub-exceptions): OSError: a; KeyError",
    ),
    "cancelled": (asyncio.CancelledError(), "CancelledError: CancelledError"),
    "odd": (BaseException("odd"), "BaseException: odd"),
    "closed": (GeneratorExit("closed"), "GeneratorExit: closed"),
    "setting": (BadSetting("size", "should be 1"), "bad_setting: setting size: should be 1"),
    "timeout": (TimeoutError("the server is slow"), "TimeoutError: the server is slow"),
}


def raises(which):
    raise ODD[which][0]


async def raises_here(which):
    raise ODD[which][0]


@everhold.program
async def tries(ctx, which: str, here: bool):
    try:
        return await ctx.call(raises_here if here else raises, which)
    except everhold.AnswerFailed as error:
        return f"{error.kind}: {error.message}"


@pytest.mark.parametrize("here", [True, False], ids=["on the loop", "in a thread"])
@pytest.mark.parametrize("which", ODD)
async def test_whatever_a_function_raises_is_an_answer(which, here):
    """Also what no function should raise, and what would mean something else if the process had
    raised it.
    """
    async with opened() as runtime:
        assert await runtime.run(tries(which=which, here=here), wait=30) == ODD[which][1]


def leaves():
    raise SystemExit(3)


def runs_dry():
    return next(iter([]))


def interrupts():
    raise KeyboardInterrupt


async def leaves_here():
    raise SystemExit(3)


async def interrupts_here():
    raise KeyboardInterrupt


HOW = {"leaves": leaves, "runs dry": runs_dry, "interrupts": interrupts}
HOW |= {"leaves here": leaves_here, "interrupts here": interrupts_here}


@everhold.program
async def stays(ctx, how: str):
    try:
        return await ctx.call(HOW[how])
    except everhold.AnswerFailed as error:
        return error.message


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("leaves", "SystemExit: 3"),
        ("runs dry", "StopIteration: None"),
        ("interrupts", "KeyboardInterrupt"),
    ],
)
async def test_a_function_in_a_thread_ends_neither_the_process_nor_in_silence(how, words):
    async with opened() as runtime:
        assert await runtime.run(stays(how=how), wait=30) == words


@pytest.mark.parametrize(
    ("how", "words"), [("leaves here", "SystemExit: 3"), ("interrupts here", "KeyboardInterrupt")]
)
async def test_nor_does_one_on_the_loop_of_a_process_that_is_told_of_its_signals(
    how, words, signals_told
):
    async with opened() as runtime:
        assert await runtime.run(stays(how=how), wait=30) == words


async def numbers(ctx):
    try:
        yield 1
    finally:
        await ctx.llm("on leaving")


@everhold.program
async def lends(ctx, here: bool, well: bool):
    async def lend():
        held = numbers(ctx)
        await anext(held)

        def look():
            return repr(type(held)) if well else [][len(repr(held))]

        async def look_here():
            return look()

        await ctx.call(look_here if here else look)

    with suppress(everhold.AnswerFailed):
        await lend()
    await ctx.llm("go on?")


@pytest.mark.parametrize("well", [True, False], ids=["well", "badly"])
@pytest.mark.parametrize("here", [True, False], ids=["on the loop", "in a thread"])
async def test_what_a_call_was_given_is_the_programs_alone_when_it_has_its_result(here, well):
    """An async generator that only the call held as well is finished in the same step on replay."""
    async with opened() as runtime:
        status = await runtime.start(lends(here=here, well=well))
        status = await runtime.wait(status.session_id, 30)
        assert prompts(status) == ["go on?", "on leaving"]


@everhold.program
async def slow(ctx):
    try:
        return await ctx.call(send, "slow", timeout=0.001)
    except everhold.AnswerFailed as error:
        return error.message


async def test_a_call_with_a_timeout():
    """It is stopped, and the program sees an error that says so."""
    async with opened() as runtime:
        assert "took longer than 0.001 s" in await runtime.run(slow())


@dataclass
class Receipt:
    number: int
    to: str


def paid(to: str) -> Receipt:
    return Receipt(7, to)


@everhold.program
async def pays(ctx):
    receipt = await ctx.call(paid, "eve")
    await ctx.llm("go on?")
    return [type(receipt).__name__, receipt.number]


async def test_a_result_of_a_declared_type(tmp_path):
    """It is stored as JSON and read back as its annotation says, live and on replay."""
    async with opened(tmp_path) as runtime:
        status = await runtime.start(pays())
        assert (await rows(runtime, status.session_id))[1].answers[0].value == {
            "number": 7,
            "to": "eve",
        }
    async with opened(tmp_path) as runtime:
        assert (await runtime.answer(status.session_id, "x")).result == ["Receipt", 7]


@everhold.program
async def policy(ctx, rerun: str):
    try:
        return await ctx.call(send, rerun, rerun=rerun)
    except everhold.OutcomeUnknown as error:
        return f"unknown: {error.name.rpartition(':')[2]}"
    except everhold.AnswerFailed as error:
        return f"failed: {error.message}"


async def killed(tmp_path, clock, rerun, **options):
    """A session whose process died in the middle of its call."""
    runtime = await dying(tmp_path, clock, **options)
    status = await runtime.start(policy(rerun=rerun), wait=0)
    await world.begun.wait()
    await die(runtime, clock)
    world.goes_on.set()
    return status.session_id


async def test_a_safe_call_is_run_again(tmp_path):
    """recover on open: what a dead process left running goes on."""
    clock = ManualClock()
    session_id = await killed(tmp_path, clock, "safe")
    async with opened(tmp_path, clock=clock) as runtime:
        assert (await runtime.wait(session_id, 60)).result == "did safe"
    assert world.done == ["safe", "safe"]


async def test_a_call_that_must_never_run_again(tmp_path):
    """The program is told that the outcome is unknown."""
    clock = ManualClock()
    session_id = await killed(tmp_path, clock, "never")
    async with opened(tmp_path, clock=clock) as runtime:
        assert (await runtime.wait(session_id, 60)).result == "unknown: send"
    assert world.done == ["never"]


@pytest.mark.parametrize(
    ("answer", "result", "times"),
    [
        ({"rerun": True}, "did ask", 2),
        ({"result": "it arrived"}, "it arrived", 1),
        ({"error": "it did not"}, "failed: it did not", 1),
    ],
)
async def test_a_call_about_which_somebody_is_asked(tmp_path, answer, result, times):
    """The question is in the inbox; its answer says whether to run it again, its result, or its
    error.
    """
    clock = ManualClock()
    session_id = await killed(tmp_path, clock, "ask")
    async with opened(tmp_path, clock=clock) as runtime:
        status = await runtime.wait(session_id, 60)
        assert "outcome was not recorded" in prompts(status)[0]
        assert [query.id for query in await runtime.inbox()] == ["q-0"]
        status = await runtime.answer(status.queries[0], answer)
        assert status.result == result
        assert await runtime.inbox() == []
    assert world.done == ["ask"] * times


async def test_the_question_about_an_effect_is_answered_by_a_third_process(tmp_path):
    """It leaves the inbox although the one who answers did not ask it; the id may be left out."""

    @at_top
    async def asks_after(ctx):
        first = await ctx.call(send, "ask", rerun="ask")
        return [first, await ctx.llm("and then?")]

    clock = ManualClock()
    runtime = await dying(tmp_path, clock)
    session_id = (await runtime.start(asks_after(), wait=0)).session_id
    await world.begun.wait()
    await die(runtime, clock)
    async with opened(tmp_path, clock=clock) as runtime:
        await runtime.wait(session_id, 60)
    async with opened(tmp_path, clock=clock) as runtime:
        status = await runtime.answer(session_id, {"result": "fine"})
        assert prompts(status) == ["and then?"]
        assert [query.prompt for query in await runtime.inbox()] == ["and then?"]
        assert ids(await runtime.answer(session_id, {"result": "fine"}, query_id="q-0")) == ["q-1"]
        with pytest.raises(AnswerConflict):
            await runtime.answer(session_id, {"result": "other"}, query_id="q-0")


@pytest.mark.parametrize(
    "answer", [{"rerun": False}, {}, {"result": 1, "error": "x"}, "yes", {"rerun": True, "x": 1}]
)
async def test_an_answer_about_an_effect_that_does_not_fit(tmp_path, answer):
    """Exactly one of rerun, result and error; nothing changes otherwise."""
    clock = ManualClock()
    session_id = await killed(tmp_path, clock, "ask")
    async with opened(tmp_path, clock=clock) as runtime:
        status = await runtime.wait(session_id, 60)
        with pytest.raises(everhold.EverholdError) as refused:
            await runtime.answer(status.queries[0], answer)
        assert refused.value.code == "answer_refused"
        assert await runtime.status(session_id) == status
        await runtime.cancel(session_id)


async def test_a_process_that_is_open_takes_over(tmp_path):
    """It need not be opened anew: a death that writes nothing is noticed too."""
    clock = ManualClock()
    first = await dying(tmp_path, clock)
    async with opened(tmp_path, clock=clock) as second:
        session_id = (await first.start(policy(rerun="safe"), wait=0)).session_id
        await world.begun.wait()
        await asyncio.sleep(0.25)  # the second one has seen it running
        world.goes_on.set()
        await die(first, clock)
        assert (await second.wait(session_id, 60)).result == "did safe"


async def test_a_worker_that_was_idle_for_long_is_not_dead(tmp_path):
    """Before it marks an effect it says that it lives, however long ago it last did (D17)."""
    clock = ManualClock()
    async with (
        opened(tmp_path, clock=clock) as first,
        opened(tmp_path, clock=clock, recover=False) as second,
    ):
        world.goes_on.set()
        await first.run(policy(rerun="safe"))
        world.goes_on.clear()
        world.begun.clear()
        clock.advance(100 * TTL)
        session_id = (await first.start(policy(rerun="safe"), wait=0)).session_id
        await world.begun.wait()
        assert await second.engine.reconciler.move() is False
        world.goes_on.set()
        assert (await first.wait(session_id, 60)).state == "completed"
    assert world.done == ["safe", "safe"]


async def test_poison_after_three_deaths(tmp_path):
    """A session that killed three processes is failed; retry gives it another chance."""
    clock = ManualClock()
    session_id = await killed(tmp_path, clock, "safe")
    for _ in range(2):
        world.__init__()
        runtime = await dying(tmp_path, clock)
        await world.begun.wait()
        await die(runtime, clock)
    world.__init__()
    async with opened(tmp_path, clock=clock) as runtime:
        status = await runtime.wait(session_id, 60)
        assert (status.state, status.outcome.kind) == ("failed", "poison")
        assert "3 processes died" in status.error
        assert world.done == []
        world.goes_on.set()
        assert (await runtime.retry(session_id)).result == "did safe"


async def stuck_at(what, at):
    world.done.append(what)
    if what == at[0]:
        await world.goes_on.wait()
    return f"did {what}"


AT = [""]


@everhold.program
async def two_errands(ctx):
    return [await ctx.call(lambda: stuck_at("a", AT)), await ctx.call(lambda: stuck_at("b", AT))]


async def test_deaths_count_from_the_last_step_that_landed(tmp_path):
    """Two deaths in a call that succeeds then, and two in the next one, are not four: the session
    completes.
    """
    clock, session_id = ManualClock(), None
    for AT[0], done in (("a", ["a"]), ("a", ["a"]), ("b", ["a", "b"]), ("b", ["b"])):
        world.__init__()
        runtime = await dying(tmp_path, clock)
        session_id = session_id or (await runtime.start(two_errands(), wait=0)).session_id
        while world.done != done:
            assert (await runtime.status(session_id)).state == "running"
            await asyncio.sleep(0.01)
        await die(runtime, clock)
    AT[0] = ""
    async with opened(tmp_path, clock=clock) as runtime:
        assert (await runtime.wait(session_id, 60)).result == ["did a", "did b"]


async def test_closing_in_order_is_no_death(tmp_path):
    """A call that a shutdown interrupts is run again as often as need be."""
    clock = ManualClock()
    runtime = await dying(tmp_path, clock)
    session_id = (await runtime.start(policy(rerun="safe"), wait=0)).session_id
    for _ in range(5):
        await world.begun.wait()
        await runtime.close(grace=0)
        world.__init__()
        runtime = await dying(tmp_path, clock)
    world.goes_on.set()
    assert (await runtime.wait(session_id, 60)).result == "did safe"
    await runtime.close()


async def test_closing_waits_for_calls_under_way(tmp_path):
    """Within its grace; the outcome is recorded."""
    clock = ManualClock()
    runtime = await dying(tmp_path, clock)
    session_id = (await runtime.start(policy(rerun="never"), wait=0)).session_id
    await world.begun.wait()
    asyncio.get_running_loop().call_soon(world.goes_on.set)
    await runtime.close()
    async with opened(tmp_path, clock=clock) as runtime:
        assert (await runtime.status(session_id)).result == "did never"


async def test_closing_ends_also_where_the_store_is_away(caplog):
    """Everything is closed, an error of one's own is not hidden by it, and what was held is free
    after a while.
    """

    class Away(MemoryStore):
        closed = False

        async def leave(self, owner):
            raise StoreUnavailable("here", "the server is gone")

        async def close(self):
            self.closed = True

    store = Away()
    with pytest.raises(KeyError, match="my own"):
        async with opened(on=store, replay=False) as runtime:
            await runtime.run(adds())
            raise KeyError("my own")
    assert store.closed and "they will expire" in caplog.text


@everhold.program
async def two_calls(ctx):
    return await asyncio.gather(ctx.call(send, "a"), ctx.call(send, "b"))


async def test_calls_beside_each_other():
    """Both run at the same time, and each outcome is recorded when it comes."""
    async with opened() as runtime:
        status = await runtime.start(two_calls(), wait=0)
        while len(world.done) < 2:
            await asyncio.sleep(0)
        world.goes_on.set()
        assert (await runtime.wait(status.session_id)).result == ["did a", "did b"]


@everhold.program
async def gives_up_on(ctx):
    try:
        async with asyncio.timeout(60):
            await ctx.call(send, "a")
    except TimeoutError:
        return "gave up"


async def test_a_call_that_is_withdrawn_is_stopped():
    """Its task is cancelled with the commit that withdraws it."""
    clock = ManualClock()
    stopped = []

    async def long():
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    @everhold.program
    async def gives_up(ctx):
        async with asyncio.timeout(60):
            await ctx.call(long)

    async with opened(clock=clock) as runtime:
        status = await runtime.start(gives_up(), wait=0)
        await asyncio.sleep(0)
        clock.advance(61)
        status = await moved(runtime, status.session_id)
        assert status.state == "failed"
        await asyncio.sleep(0)
        assert stopped == [True]


@everhold.program
async def lends_in_vain(ctx):
    async def lend():
        held = numbers(ctx)
        await anext(held)

        async def look():
            await world.act(repr(held))

        async with asyncio.timeout(1):  # clock: a program's timer, on the manual clock
            await ctx.call(look)

    with suppress(TimeoutError):
        await lend()
    await ctx.llm("go on?")


async def test_what_a_call_holds_that_was_given_up_is_held_on_replay_too():
    """It may go on for a while: an async generator that it holds is left as it is, whether or not
    it runs.
    """
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        status = await runtime.start(lends_in_vain(), wait=0)
        await world.begun.wait()
        clock.advance(2)
        status = await moved(runtime, status.session_id)
        assert prompts(status) == ["go on?"]


async def test_what_a_call_needs_is_a_function():
    """A coroutine, or a value, is refused in the program."""

    @everhold.program
    async def wrong(ctx):
        await ctx.call("not a function")

    async with opened() as runtime:
        assert "is not a function" in (await runtime.start(wrong())).error


async def test_arguments_of_a_call_are_shown_not_stored():
    """What JSON cannot hold is shown as text; the function gets the object."""

    @everhold.program
    async def passes(ctx):
        return await ctx.call(lambda thing: len(thing), {1, 2, 3})

    async with opened() as runtime:
        status = await runtime.start(passes())
        assert status.result == 3
        assert (await rows(runtime, status.session_id))[0].asked[0].args == {"args": ["{1, 2, 3}"]}


async def test_a_question_about_an_effect_has_no_sole_id_once_it_runs_again(tmp_path):
    """While it runs nobody is asked."""
    clock = ManualClock()
    session_id = await killed(tmp_path, clock, "ask")
    world.goes_on.clear()
    async with opened(tmp_path, clock=clock) as runtime:
        status = await runtime.wait(session_id, 60)
        status = await runtime.answer(status.queries[0], {"rerun": True}, wait=0)
        assert status.state == "running"
        with pytest.raises(NoOpenQuery):
            await runtime.answer(session_id, {"rerun": True})
        world.goes_on.set()
        assert (await runtime.wait(session_id, 60)).result == "did ask"
