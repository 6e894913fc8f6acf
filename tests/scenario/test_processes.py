"""Any number of processes on one store; and how a second caller waits its turn."""

import asyncio

import pytest

import everhold
from everhold.errors import AnswerConflict, ReadOnlyStore, StoreBusy, StoreFull, StoreUnavailable
from tests.scenario.harness import ids, opened, prompts, rows


@everhold.program
async def story(ctx, lines: int = 10):
    return [await ctx.llm(f"line {number}") for number in range(lines)]


@everhold.program
async def batch(ctx, size: int = 10):
    return await ctx.llm_batch([f"item {number}" for number in range(size)])


async def test_two_processes_answer_alternately(tmp_path):
    """P5: a cached execution that another process has overtaken is rebuilt, and nobody notices."""
    async with opened(tmp_path) as one, opened(tmp_path) as two:
        status = await one.start(story())
        for number in range(10):
            status = await (one, two)[number % 2].answer(status.queries[0], f"answer {number}")
        assert status.result == [f"answer {number}" for number in range(10)]


async def test_two_processes_answer_one_batch_at_once(tmp_path):
    """Different queries are all accepted."""
    async with opened(tmp_path) as one, opened(tmp_path) as two:
        status = await one.start(batch())
        await asyncio.gather(
            *(
                (one, two)[index % 2].answer(query, f"a{index}")
                for index, query in enumerate(status.queries)
            )
        )
        assert (await one.status(status.session_id)).result == [f"a{index}" for index in range(10)]


async def test_two_processes_answer_one_query_at_once(tmp_path):
    """The first one wins; the other is a conflict; the same is a no-op."""
    async with opened(tmp_path) as one, opened(tmp_path) as two:
        for words in (("a", "b"), ("same", "same")):
            query = (await one.start(story(lines=1))).queries[0]
            await two.status(query.session_id)
            both = await asyncio.gather(
                one.answer(query, words[0]), two.answer(query, words[1]), return_exceptions=True
            )
            conflicts = [each for each in both if isinstance(each, AnswerConflict)]
            assert len(conflicts) == (words[0] != words[1])
            assert len(await rows(one, query.session_id)) == 2


async def test_a_second_answer_waits_its_turn():
    """It comes while the session runs, and is never "not found"."""
    async with opened() as runtime:
        status = await runtime.start(batch(size=50))
        answers = await asyncio.gather(*(runtime.answer(query, "x") for query in status.queries))
        assert [each.remaining for each in answers[:-1]] == list(range(49, 0, -1))
        assert answers[-1].result == ["x"] * 50


@pytest.mark.parametrize("file", [False, True])
async def test_many_sessions_at_once(file, tmp_path):
    """Commits that come together land together, and nobody's harms another's."""
    async with opened(tmp_path if file else None) as runtime:

        async def one(number):
            status = await runtime.start(story(lines=5), key=f"k{number}")
            while status.state == "paused":
                status = await runtime.answer(status.queries[0], str(number))
            return status.result

        results = await asyncio.gather(*(one(number) for number in range(100)))
        assert results == [[str(number)] * 5 for number in range(100)]
        assert await runtime.archive.verify() == []


async def test_one_refusal_does_not_fail_its_neighbours(tmp_path):
    """Answers of several sessions in one turn: the bad ones are refused, the good ones land."""
    async with opened(tmp_path) as one, opened(tmp_path) as two:
        asked = [(await one.start(story(lines=1))).queries[0] for _ in range(20)]
        for query in asked[::2]:
            await two.answer(query, "quicker")
        told = await asyncio.gather(
            *(one.answer(query, "slower") for query in asked), return_exceptions=True
        )
        assert [isinstance(each, AnswerConflict) for each in told] == [True, False] * 10


async def test_wait_for_what_another_process_does(tmp_path):
    """wait returns when another process has moved the session."""
    async with opened(tmp_path) as one, opened(tmp_path) as two:
        status = await one.start(sleeps())
        waiting = asyncio.create_task(one.wait(status.session_id, 60))
        await asyncio.sleep(0)
        await two.cancel(status.session_id)
        assert (await waiting).state == "cancelled"


@everhold.program
async def sleeps(ctx):
    await ctx.sleep(1000)


async def test_run_says_what_it_waits_for():
    """run raises Waiting with the questions; after `wait` seconds also for a timer."""
    async with opened() as runtime:
        with pytest.raises(everhold.Waiting) as waiting:
            await runtime.run(story())
        assert [query.prompt for query in waiting.value.queries] == ["line 0"]
        with pytest.raises(everhold.Waiting) as waiting:
            await runtime.run(sleeps(), wait=0.01)
        assert (waiting.value.queries, waiting.value.until) == ((), runtime.clock.now() + 1000)


async def test_wait_with_a_timeout():
    """It returns where the session stands, and does not hang."""
    async with opened() as runtime:
        status = await runtime.start(sleeps())
        assert await runtime.wait(status.session_id, 0.01) == status
        assert await runtime.wait(status.session_id, 0) == status


async def test_start_with_a_wait():
    """A long call is not waited for longer than that: the status says what is going on."""
    goes_on = asyncio.Event()

    async def long():
        await goes_on.wait()

    @everhold.program
    async def works(ctx):
        await ctx.call(long)
        return await ctx.llm("and?")

    async with opened() as runtime:
        status = await runtime.start(works(), wait=0.01)
        assert (
            status.state == "running"
            and "call" in status.waiting_for[0]
            and "long" in status.waiting_for[0]
        )
        goes_on.set()
        assert prompts(await runtime.wait(status.session_id)) == ["and?"]


async def test_answer_waits_for_what_follows():
    """Without wait, answer returns when this process can do no more for the session."""

    async def double(text):
        return text * 2

    @everhold.program
    async def works(ctx):
        return await ctx.call(double, await ctx.llm("what?"))

    async with opened() as runtime:
        status = await runtime.start(works())
        assert (await runtime.answer(status.queries[0], "x")).result == "xx"


async def test_a_paused_session_is_nobodys():
    """No lease is held while paused: no worker, no effect, nothing in memory is needed."""
    async with opened(cache=1) as runtime:
        status = await runtime.start(story())
        await runtime.start(story())
        assert [live.id for live in runtime.engine.sessions.all()] != [status.session_id]
        assert (await runtime.store.load(status.session_id)).effects == []
        assert await runtime.store.workers() == []
        assert ids(await runtime.status(status.session_id)) == ["q-0"]


async def test_a_refused_commit_drops_the_live_execution():
    """What was computed from it is not used again: the next answer finds the session as it was."""
    async with opened() as runtime:
        status = await runtime.start(story(lines=2))
        commit = runtime.store.commit

        async def full(change, fence):
            raise everhold.errors.StoreFull("here")

        runtime.store.commit, runtime.store.commit_now = full, lambda change, fence: False
        with pytest.raises(everhold.EverholdError):
            await runtime.answer(status.queries[0], "lost")
        runtime.store.commit = commit
        assert await runtime.status(status.session_id) == status
        status = await runtime.answer(status.queries[0], "kept")
        assert (await runtime.answer(status.queries[0], "2")).result == ["kept", "2"]


async def test_an_interrupt_in_the_middle_of_a_step():
    """Ctrl-C goes up; nothing is committed, and the session is as it was."""
    from everhold.programs.python.execution import PythonExecution

    async with opened() as runtime:
        status = await runtime.start(story(lines=2))
        live = runtime.engine.sessions.cached(status.session_id)
        live.execution.__class__ = type(
            "Interrupted", (PythonExecution,), {"advance": _interrupted}
        )
        with pytest.raises(KeyboardInterrupt):
            await runtime.answer(status.queries[0], "half")
        status = await runtime.answer(status.queries[0], "whole")
        assert (await runtime.answer(status.queries[0], "2")).result == ["whole", "2"]


def _interrupted(self, *args):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "away",
    [
        StoreBusy("here", 30),
        StoreFull("here"),
        StoreUnavailable("here", "the server is being restarted"),
        ReadOnlyStore("here"),
    ],
    ids=lambda error: error.code,
)
async def test_the_outcome_of_a_call_is_kept_when_the_store_is_away(away):
    """It is tried again until it lands, however long that takes: nobody else knows it."""
    from everhold.testing.clock import ManualClock

    clock, refused = ManualClock(), []

    async def paid():
        return "receipt"

    @everhold.program
    async def pays(ctx):
        return await ctx.call(paid, rerun="never")

    async with opened(clock=clock) as runtime:
        commit = runtime.store.commit

        async def busy(change, fence):
            if change.deliveries and change.deliveries[0].answers and len(refused) < 3:
                refused.append(True)
                raise away
            await commit(change, fence)

        runtime.store.commit = busy
        status = await runtime.start(pays(), wait=0)
        for _ in range(200):
            await asyncio.sleep(0)
            clock.advance(1)
        assert (await runtime.wait(status.session_id, 60)).result == "receipt"
    assert len(refused) == 3
