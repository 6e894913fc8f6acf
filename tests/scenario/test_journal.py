"""What the journal records, and that replay hands over the same groups in the same order."""

import asyncio

import pytest

import everhold
from everhold.errors import QueryClosed
from everhold.testing.clock import ManualClock
from tests.scenario.harness import ids, moved, opened, prompts, rows


@everhold.program
async def race(ctx):
    first = {asyncio.create_task(ctx.llm(name)): name for name in "ab"}
    done, late = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    for task in late:
        task.cancel()
    winner = first[done.pop()]
    return await ctx.llm(f"winner={winner}")


async def test_answering_b_before_a_makes_b_the_winner():
    """Replay hands over the same groups: b won the race, and still does in another life."""
    async with opened(cache=1) as runtime:
        asked = (await runtime.start(race())).queries
        status = await runtime.answer(asked[1], "B")
        assert prompts(status) == ["winner=b"]
        await runtime.start(race())  # pushes the first one out of memory
        assert (await runtime.answer(status.session_id, "ok")).result == "ok"


@everhold.program
async def nested(ctx):
    async def ask(name):
        return await ctx.llm(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(ask("first"))
        group.create_task(ask("second"))
    await ctx.llm("third")
    await ctx.run(inner())
    return await ctx.llm("last")


@everhold.program
async def inner(ctx):
    return await ctx.llm("inside")


async def test_a_key_is_the_task_path_and_the_ordinal():
    """The k-th task made by task t is t.k; ctx.run adds a segment; then comes the ordinal in that
    task.
    """
    async with opened() as runtime:
        status = await runtime.start(nested())
        keys = [query.key for query in status.queries]
        await runtime.answer(status.queries[0], "1")
        status = await runtime.answer(status.queries[1], "2")
        while status.state == "paused":
            keys += [query.key for query in status.queries]
            status = await runtime.answer(status.queries[0], "x")
        assert keys == ["0.1:0", "0.2:0", "0:0", "0/1:0", "0:2"]


@everhold.program
async def twice(ctx):
    for turn in range(3):
        await asyncio.gather(ctx.llm(f"a{turn}"), ctx.llm(f"b{turn}"))
    return "done"


async def test_query_ids_never_repeat():
    """Every question of a session has its own id, round after round."""
    async with opened() as runtime:
        status, seen = await runtime.start(twice()), []
        while status.state == "paused":
            seen += ids(status)
            status = await runtime.answer_many(status.session_id, dict.fromkeys(ids(status), "x"))
        assert seen == [f"q-{number}" for number in range(6)]


async def test_a_delivery_is_what_was_handed_over_together():
    """Its number, its time, its answers and the queries asked in return; two answers of one call
    are one delivery.
    """
    clock = ManualClock(1000.0)
    async with opened(clock=clock) as runtime:
        status = await runtime.start(twice())
        clock.advance(5)
        await runtime.answer_many(status.session_id, {"q-1": "B", "q-0": "A"})
        first, second = await rows(runtime, status.session_id)
        assert (first.n, first.at, first.answers) == (0, 1000.0, [])
        assert (second.n, second.at) == (1, 1005.0)
        assert [(answer.q, answer.value) for answer in second.answers] == [(1, "B"), (0, "A")]
        assert [query.prompt for query in second.asked] == ["a1", "b1"]


async def test_the_loser_of_a_race_is_withdrawn_in_the_same_commit():
    """It leaves the inbox with the answer that decided the race, and takes no answer any more."""
    async with opened() as runtime:
        asked = (await runtime.start(race())).queries
        await runtime.answer(asked[0], "A")
        assert [query.id for query in await runtime.inbox()] == ["q-2"]
        assert (await rows(runtime, asked[0].session_id))[1].notes.withdrawn == [1]
        with pytest.raises(QueryClosed) as refused:
            await runtime.answer(asked[1], "B")
        assert refused.value.state == "withdrawn"


@everhold.program
async def impatient(ctx):
    try:
        async with asyncio.timeout(60):
            return await ctx.approval("Go?")
    except TimeoutError:
        return await ctx.llm("Nobody came. What now?")


async def test_the_loser_of_a_timeout_is_withdrawn():
    """An approval that came too late is gone from the inbox when the timeout fires."""
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        status = await runtime.start(impatient())
        assert [query.kind for query in await runtime.inbox()] == ["approval"]
        clock.advance(61)
        status = await moved(runtime, status.session_id)
        assert prompts(status) == ["Nobody came. What now?"]
        assert [query.kind for query in await runtime.inbox()] == ["llm"]
        with pytest.raises(QueryClosed):
            await runtime.answer(status.session_id, True, query_id="q-0")


@everhold.program
async def patient(ctx, default: bool = False):
    given = {"default": "nobody"} if default else {}
    try:
        return await ctx.input("Name?", timeout=60, **given)
    except everhold.Expired as error:
        return f"expired {error.query_id}"


@pytest.mark.parametrize(("default", "result"), [(True, "nobody"), (False, "expired q-0")])
async def test_a_query_expires(default, result):
    """With a default it is answered by it; without one the program sees Expired. Nobody can answer
    it afterwards.
    """
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        status = await runtime.start(patient(default=default))
        assert status.queries[0].expires_at == clock.now() + 60
        clock.advance(61)
        assert (await moved(runtime, status.session_id)).result == result
        with pytest.raises(QueryClosed) as refused:
            await runtime.answer(status.queries[0], "Eve")
        assert refused.value.state == "expired"
        assert await runtime.inbox() == []


async def test_a_cancelled_session_takes_its_queries_along():
    """Nothing of it stays in the inbox, and an answer to it is refused."""
    async with opened() as runtime:
        status = await runtime.start(patient())
        await runtime.cancel(status.session_id)
        assert await runtime.inbox() == []
        with pytest.raises(everhold.EverholdError) as refused:
            await runtime.answer(status.queries[0], "Eve")
        assert refused.value.code == "session_ended"


@everhold.program
async def chain(ctx):
    async def ask(name):
        first = await ctx.llm(name)
        return await ctx.llm(f"{name} after {first}")

    return await asyncio.gather(ask("a"), ask("b"))


async def test_a_partial_answer_is_delivered_at_once():
    """The program may ask more while others stay open: the status then shows all that is open."""
    async with opened() as runtime:
        asked = (await runtime.start(chain())).queries
        status = await runtime.answer(asked[1], "1")
        assert isinstance(status, everhold.Paused)
        assert prompts(status) == ["a", "b after 1"]


@everhold.program
async def batch(ctx, size: int = 3):
    return await ctx.llm_batch([f"item {number}" for number in range(size)])


async def test_a_partial_answer_that_asks_nothing_new_is_accepted():
    """Accepted(remaining) counts what is still open."""
    async with opened() as runtime:
        asked = (await runtime.start(batch())).queries
        assert await runtime.answer(asked[1], "one") == everhold.Accepted(asked[0].session_id, 2)
        assert await runtime.answer(asked[2], "two") == everhold.Accepted(asked[0].session_id, 1)


async def test_a_batch_returns_its_answers_in_the_order_asked():
    """Whatever the order of arrival."""
    async with opened() as runtime:
        asked = (await runtime.start(batch())).queries
        for number in (2, 0, 1):
            status = await runtime.answer(asked[number], f"answer {number}")
        assert status.result == ["answer 0", "answer 1", "answer 2"]


async def test_the_seed_and_the_facts_of_a_birth_are_kept():
    """A session stores its program's reference, version, source digest, Python minor and everhold
    version.
    """
    import sys

    async with opened() as runtime:
        status = await runtime.start(batch(size=1))
        birth = (await runtime.store.load(status.session_id)).birth
        assert (birth.program, birth.version) == (batch.ref, 1)
        assert birth.digest == batch.digest != ""
        assert birth.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
        assert birth.everhold


@everhold.program
async def dicing(ctx):
    before = [ctx.random(), str(ctx.uuid()), ctx.rng().randrange(10**9), ctx.now().isoformat()]
    await ctx.llm("go")
    return [before, [ctx.random(), str(ctx.uuid()), ctx.now().isoformat()]]


async def test_dice_derive_from_the_seed_and_the_key():
    """Random numbers, uuids and the time are the same after a rebuild, and others in another
    session.
    """
    clock = ManualClock()
    async with opened(clock=clock, cache=1) as runtime:
        first = await runtime.start(dicing())
        second = await runtime.start(dicing())  # the first one leaves memory
        clock.advance(10)
        one = (await runtime.answer(first.session_id, "x")).result
        two = (await runtime.answer(second.session_id, "x")).result
        assert one[0][0] != two[0][0] and one[0][1] != two[0][1]
        assert one[0][0] != one[1][0]
        assert (one[0][3], one[1][2]) == ("2023-11-14T22:13:20+00:00", "2023-11-14T22:13:30+00:00")
