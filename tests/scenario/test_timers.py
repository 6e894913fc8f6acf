"""Time: durable timers, expiries, and which of two comes first."""

import asyncio

import everhold
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from tests.scenario.harness import moved, opened, prompts, rows


@everhold.program
async def sleeper(ctx, seconds: float = 60):
    await ctx.sleep(seconds)
    return ctx.now().timestamp()


async def test_a_timer_is_told_by_the_status():
    """A sleeping session is paused, has no open question, and says until when."""
    clock = ManualClock(1000.0)
    async with opened(clock=clock) as runtime:
        status = await runtime.start(sleeper())
        assert (status.state, status.queries, status.until) == ("paused", (), 1060.0)
        assert (await runtime.sessions())[0].due_at == 1060.0


async def test_sleep_goes_on_in_another_process(tmp_path):
    """Timers are rebuilt by replay: the one who is open when the time comes goes on."""
    clock = ManualClock(1000.0)
    async with opened(tmp_path, clock=clock) as runtime:
        session_id = (await runtime.start(sleeper())).session_id
    clock.advance(30)
    async with opened(tmp_path, clock=clock) as runtime:
        assert (await runtime.status(session_id)).until == 1060.0
        clock.advance(31)
        assert (await runtime.wait(session_id, 60)).result == 1061.0


async def test_a_timer_that_came_due_while_nobody_was_there(tmp_path):
    """It fires when a runtime opens."""
    clock = ManualClock(1000.0)
    async with opened(tmp_path, clock=clock) as runtime:
        session_id = (await runtime.start(sleeper())).session_id
    clock.advance(86_400)
    async with opened(tmp_path, clock=clock) as runtime:
        assert (await runtime.wait(session_id, 60)).result == 1000.0 + 86_400


async def test_the_earliest_of_many_timers_fires_first():
    """One task fires them, each at its time."""
    clock = ManualClock(1000.0)
    async with opened(clock=clock) as runtime:
        late = (await runtime.start(sleeper(20))).session_id
        early = (await runtime.start(sleeper(10))).session_id
        clock.advance(11)
        assert (await runtime.wait(early, 60)).result == 1011.0
        assert (await runtime.status(late)).state == "paused"
        clock.advance(10)
        assert (await runtime.wait(late, 60)).result == 1021.0


async def test_a_timer_fires_although_somebody_looked_at_the_very_moment():
    """Looking exactly when a timer is due moves nothing; a moment later it fires all the same."""
    clock = ManualClock(1000.0)
    async with opened(clock=clock, recover=False) as runtime:
        session_id = (await runtime.start(sleeper(10))).session_id
        clock.advance(10)
        await runtime.engine.reconciler.move()
        assert (await runtime.status(session_id)).state == "paused"
        clock.advance(1)
        await runtime.engine.reconciler.move()
        assert (await runtime.status(session_id)).result == 1011.0


@everhold.program
async def hurried(ctx):
    try:
        async with asyncio.timeout(60):
            return await ctx.llm("Quick?")
    except TimeoutError:
        return await ctx.llm("Too late. Why?")


async def test_an_answer_in_time():
    """The timeout around it never fires."""
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        status = await runtime.start(hurried())
        clock.advance(59)
        assert (await runtime.answer(status.queries[0], "yes")).result == "yes"


async def test_on_a_tie_answers_come_before_timers():
    """An answer that comes at the very moment of the timeout is in time."""
    clock = ManualClock()
    async with opened(clock=clock, recover=False) as runtime:
        status = await runtime.start(hurried())
        clock.advance(60)
        assert (await runtime.answer(status.queries[0], "just")).result == "just"


async def test_an_overdue_timer_fires_before_a_late_answer():
    """The answer is refused: the question was withdrawn when the time was up."""
    clock = ManualClock()
    async with opened(clock=clock, recover=False) as runtime:
        status = await runtime.start(hurried())
        clock.advance(61)
        try:
            await runtime.answer(status.queries[0], "late")
        except everhold.EverholdError as error:
            assert error.code == "query_closed"
        assert prompts(await runtime.status(status.session_id)) == ["Too late. Why?"]


@everhold.program
async def asks_twice(ctx):
    first = await ctx.input("First?", timeout=10, default="none")
    second = await ctx.input("Second?", timeout=10, default="none")
    return [first, second]


async def test_an_overdue_expiry_comes_before_a_late_answer():
    """The default stands, and an answer for the next question is taken."""
    clock = ManualClock()
    async with opened(clock=clock, recover=False) as runtime:
        status = await runtime.start(asks_twice())
        clock.advance(11)
        assert (await runtime.answer(status.session_id, "late", query_id="q-1")).result == [
            "none",
            "late",
        ]


async def test_a_clock_going_backwards():
    """The program's time stands still until the clock has caught up; nothing expires early."""
    clock = ManualClock(1000.0)
    async with opened(clock=clock) as runtime:
        status = await runtime.start(asks_twice())
        clock.advance(5)
        status = await runtime.answer(status.queries[0], "a")
        clock.advance(-500)
        assert (await runtime.answer(status.queries[0], "b")).result == ["a", "b"]
        assert [row.at for row in await rows(runtime, status.session_id)] == [
            1000.0,
            1005.0,
            1005.0,
        ]


@everhold.program
async def ticking(ctx):
    seen = []
    for _ in range(3):
        await ctx.sleep(10)
        seen.append(ctx.now().timestamp())
    return seen


async def test_timers_in_a_row_survive_eviction():
    """Each fires once, whoever rebuilds the session in between."""
    clock = ManualClock(1000.0)
    async with opened(clock=clock, cache=1) as runtime:
        session_id = (await runtime.start(ticking())).session_id
        for _ in range(3):
            await runtime.start(sleeper(10_000))  # pushes it out of memory
            clock.advance(11)
            status = await moved(runtime, session_id)
        assert status.result == [1011.0, 1022.0, 1033.0]


@everhold.program
async def both(ctx):
    async def slow():
        await ctx.sleep(10)
        return "slept"

    return await asyncio.gather(slow(), ctx.llm("Meanwhile?"))


async def test_a_timer_fires_while_a_question_is_open():
    """What is open stays open; the answer comes later."""
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        status = await runtime.start(both())
        clock.advance(11)
        status = await moved(runtime, status.session_id)
        assert (prompts(status), status.until) == (["Meanwhile?"], None)
        assert (await runtime.answer(status.queries[0], "here")).result == ["slept", "here"]
        fired = [
            row.notes is not None and row.notes.fired
            for row in await rows(runtime, status.session_id)
        ]
        assert fired == [False, True, False]


async def test_sleeping_no_time_at_all():
    """sleep(0) is a turn of the program's own loop, not a pause."""

    @everhold.program
    async def turns(ctx):
        for _ in range(5):
            await asyncio.sleep(0)
        return "done"

    async with opened() as runtime:
        assert (await runtime.start(turns())).result == "done"


async def test_a_timer_of_a_program_that_is_not_here_starves_nobody():
    """Sessions that cannot move in this process do not keep the others from being looked at."""
    from everhold.engine import reconcile
    from everhold.ports.program import REGISTRY

    @everhold.program
    async def lost(ctx):
        await ctx.sleep(1)

    clock = ManualClock(1000.0)
    store = MemoryStore()
    async with opened(on=store, clock=clock) as runtime:
        for _ in range(reconcile.AT_ONCE + 20):
            await runtime.start(lost())
        session_id = (await runtime.start(sleeper(1))).session_id
    del REGISTRY[(lost.ref, 1)]
    clock.advance(10)
    async with opened(on=store, clock=clock, replay=False) as runtime:
        assert (await runtime.wait(session_id, 60)).state == "completed"
