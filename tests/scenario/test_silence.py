"""What replay does not repeat: logs, progress, records, metrics, and what observers hear."""

import asyncio
import logging

import pytest

import everhold
from everhold.testing.clock import ManualClock
from tests.scenario.harness import opened, rows


@everhold.program
async def talks(ctx, times: int = 3):
    for number in range(times):
        ctx.log(f"round {number}")
        ctx.progress(number, times, "on the way")
        ctx.record("last", number)
        await ctx.llm(f"question {number}")
    ctx.record("done", True)
    return "said"


async def to_the_end(runtime, status, between=None):
    while status.state == "paused":
        if between is not None:
            await between()
        status = await runtime.answer(
            status.queries[0], "an answer", usage={"prompt_tokens": 5, "completion_tokens": 2}
        )
    return status


async def test_logs_progress_and_records_are_written_once():
    """Each is in the delivery that said it, however often the session is rebuilt."""
    async with opened(cache=1) as runtime:

        async def evict():
            await runtime.start(talks())

        end = await to_the_end(runtime, await runtime.start(talks()), evict)
        notes = [row.notes for row in await rows(runtime, end.session_id)]
        assert [[line.message for line in note.log] for note in notes] == [
            ["round 0"],
            ["round 1"],
            ["round 2"],
            [],
        ]
        assert [note.progress and note.progress.step for note in notes] == [0, 1, 2, None]
        assert end.metrics["custom"] == {"last": 2, "done": True}


async def test_metrics_are_the_same_after_eviction():
    """Counted live, and counted again by every rebuild: the same numbers."""
    async with opened() as one, opened(cache=1) as two:

        async def evict():
            await two.start(talks())

        live = await to_the_end(one, await one.start(talks()))
        rebuilt = await to_the_end(two, await two.start(talks()), evict)
        assert live.metrics == rebuilt.metrics
        assert live.metrics["auto"]["llm_calls"] == 3
        assert live.metrics["auto"]["rounds"] == 3


async def test_metrics_are_stored_as_they_are_told():
    """The head in the store has the numbers of the status."""
    async with opened() as runtime:
        end = await to_the_end(runtime, await runtime.start(talks()))
        head = (await runtime.store.load(end.session_id)).head
        assert head.metrics.stats(0)["auto"]["total_tokens"] == end.metrics["auto"]["total_tokens"]
        assert (await runtime.status(end.session_id)).metrics == end.metrics


async def test_idle_sessions_leave_memory():
    """One that was idle for the ttl is rebuilt when it is needed."""
    clock = ManualClock()
    async with opened(clock=clock, recover=False) as runtime:
        status = await runtime.start(talks())
        clock.advance(100)
        for live in runtime.engine.sessions.idle(clock.now(), 100):
            runtime.engine.sessions.drop(live)
        assert runtime.engine.sessions.all() == []
        assert (await to_the_end(runtime, status)).result == "said"


@pytest.mark.parametrize(
    ("idle", "moved", "gone"), [(0, 0, True), (10, 9.9, False), (10, 10, True), (10, -500, False)]
)
async def test_when_a_session_counts_as_idle(idle, moved, gone):
    """At the ttl, not before; ttl 0 at once; a clock going backwards never."""
    clock = ManualClock()
    async with opened(clock=clock, recover=False) as runtime:
        await runtime.start(talks())
        clock.advance(moved)
        assert bool(runtime.engine.sessions.idle(clock.now(), idle)) is gone


async def test_a_busy_runtime_lets_go_of_idle_sessions():
    """Reconciliation does it while the runtime is open."""
    clock = ManualClock()
    async with opened(clock=clock, idle=100) as runtime:
        await runtime.start(talks())
        clock.advance(101)
        async with asyncio.timeout(60):
            while runtime.engine.sessions.all():
                await asyncio.sleep(0.01)


class Diary(everhold.Observer):
    def __init__(self):
        self.told = []

    def paused(self, session_id, queries):
        self.told.append(f"paused {[query.id for query in queries]}")

    def answered(self, session_id, query, answer, usage):
        self.told.append(f"answered {query.id} {usage and usage.prompt + usage.response}")

    def partly_answered(self, session_id, query, answer, remaining):
        self.told.append(f"partly {query.id} {remaining}")

    def resumed(self, session_id):
        self.told.append("resumed")

    def completed(self, session_id, value, metrics):
        self.told.append(f"completed {value} {metrics.llm_calls}")

    def failed(self, session_id, error, metrics):
        self.told.append(f"failed {error}")

    def cancelled(self, session_id, reason, metrics):
        self.told.append(f"cancelled {reason}")


async def test_observers_hear_everything_in_order():
    """paused, answered with usage, resumed, … and the end last; nothing twice after a rebuild."""
    diary = Diary()
    async with opened(observers=[diary], cache=1) as runtime:
        status = await runtime.start(talks(times=2))
        end = await to_the_end(runtime, status)
        assert end.state == "completed"
    assert diary.told == [
        "paused ['q-0']",
        "answered q-0 7",
        "resumed",
        "paused ['q-1']",
        "answered q-1 7",
        "resumed",
        "completed said 2",
    ]


@everhold.program
async def batch(ctx):
    await ctx.llm_batch(["a", "b", "c"])
    raise ValueError("at the end")


async def test_observers_hear_of_partial_answers_and_failures():
    """partly_answered follows answered while others are open; the program resumes once for all."""
    diary = Diary()
    async with opened(observers=[diary]) as runtime:
        status = await runtime.start(batch())
        for query in status.queries:
            await runtime.answer(query, "x", usage={"prompt_tokens": 1, "completion_tokens": 1})
    assert diary.told == [
        "paused ['q-0', 'q-1', 'q-2']",
        *["answered q-0 2", "partly q-0 2"],
        *["answered q-1 2", "partly q-1 1"],
        *["answered q-2 2", "resumed", "failed ValueError: at the end"],
    ]


@everhold.program
async def votes(ctx):
    """Three questions at once, each in a task of its own, and one after them."""

    async def vote(n):
        said = await ctx.llm(f"vote {n}")
        ctx.log(f"vote {n}: {said}")
        return said

    said = await asyncio.gather(*(vote(n) for n in range(3)))
    await ctx.state.incr("votes", len(said))
    return await ctx.llm(f"What of {said}?")


@pytest.mark.parametrize("cache", [1000, 0])
async def test_answers_that_are_awaited_together_are_one_round(cache):
    """A round is what happens between two moves of the program, also where each answer comes alone
    and where the program is rebuilt for each.
    """
    diary = Diary()
    async with opened(observers=[diary], cache=cache) as runtime:
        status = await runtime.start(votes())
        for query in status.queries:
            status = await runtime.answer(query, "x")
        assert status.queries[0].prompt == "What of ['x', 'x', 'x']?"
        assert (await runtime.answer(status.queries[0], "y")).state == "completed"
        assert (await runtime.store.load(status.session_id)).head.metrics.rounds == 2
    assert diary.told.count("resumed") == 2


async def test_observers_hear_of_a_cancel():
    """It is the last thing told."""
    diary = Diary()
    async with opened(observers=[diary]) as runtime:
        status = await runtime.start(talks())
        await runtime.cancel(status.session_id, "enough")
    assert diary.told == ["paused ['q-0']", "cancelled enough"]


class Broken(everhold.Observer):
    def paused(self, session_id, queries):
        raise RuntimeError("I am broken")

    answered = completed = paused


async def test_a_broken_observer_harms_nobody(caplog):
    """What it raises is logged; the session goes on and the others are told."""
    diary = Diary()
    with caplog.at_level(logging.ERROR, "everhold"):
        async with opened(observers=[Broken(), diary]) as runtime:
            assert (await to_the_end(runtime, await runtime.start(talks(times=1)))).result == "said"
    assert diary.told[-1] == "completed said 1"
    assert "observer Broken failed" in caplog.text


async def test_an_observer_hears_what_is_committed():
    """When it is told, another process would see it too."""
    states = []

    class Reader(everhold.Observer):
        def answered(self, session_id, query, answer, usage):
            states.append(runtime.store._sessions[session_id].head.n)

    async with opened(observers=[Reader()]) as runtime:
        await to_the_end(runtime, await runtime.start(talks(times=2)))
    assert states == [1, 2]
