"""fork: another life from any step on, which shares what came before."""

import asyncio

import pytest

import everhold
from everhold.errors import AnswerRefused, BadStep, BadValue, KeyConflict
from everhold.testing.clock import ManualClock
from tests.scenario.harness import opened, prompts, rows

done = []


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()


@everhold.program
async def story(ctx):
    told = []
    for number in range(4):
        told.append(await ctx.llm(f"Line {number} after {told}?"))
    return told


async def to_the_end(runtime, status, word="x"):
    while status.state == "paused":
        status = await runtime.answer(status.queries[0], word)
    return status


@pytest.mark.parametrize("at", [0, 1, 2, 3])
async def test_a_fork_at_any_step(at):
    """It has the answers up to that step and goes on by itself; the origin is as it was."""
    async with opened() as runtime:
        end = await to_the_end(runtime, await runtime.start(story()), "old")
        fork = await runtime.fork(end.session_id, at=at)
        assert (await to_the_end(runtime, fork, "new")).result == ["old"] * at + ["new"] * (4 - at)
        assert (await runtime.status(end.session_id)).result == ["old"] * 4


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_a_fork_with_another_answer(at):
    """The answer given at that step is replaced, and the fork goes on from there."""
    async with opened() as runtime:
        end = await to_the_end(runtime, await runtime.start(story()), "old")
        fork = await runtime.fork(end.session_id, at=at, answer="other")
        result = (await to_the_end(runtime, fork, "new")).result
        assert result == ["old"] * (at - 1) + ["other"] + ["new"] * (4 - at)


async def test_a_fork_without_a_step_is_one_of_the_present():
    """Of a paused session it has all steps; of an ended one all but the end."""
    async with opened() as runtime:
        status = await runtime.start(story())
        status = await runtime.answer(status.queries[0], "a")
        fork = await runtime.fork(status.session_id)
        assert prompts(fork) == prompts(status)
        end = await to_the_end(runtime, status)
        assert prompts(await runtime.fork(end.session_id)) == ["Line 3 after ['a', 'x', 'x']?"]


@pytest.mark.parametrize("file", [False, True])
async def test_a_fork_shares_rows(file, tmp_path):
    """P7: its own journal begins after the fork point."""
    async with opened(tmp_path if file else None) as runtime:
        end = await to_the_end(runtime, await runtime.start(story()))
        fork = await runtime.fork(end.session_id, at=3)
        record = await runtime.store.load(fork.session_id)
        assert [row.n for row in record.deliveries] == [0, 1, 2, 3]
        assert (record.birth.origin, record.birth.origin_n) == (end.session_id, 3)
        if file:
            count = runtime.store._connection.execute("SELECT count(*) FROM journal").fetchone()[0]
            assert count == 5


async def test_a_fork_of_a_fork():
    """Each shares what it was forked from."""
    async with opened() as runtime:
        end = await to_the_end(runtime, await runtime.start(story()), "a")
        second = await runtime.fork(end.session_id, at=1)
        second = await runtime.answer(second.queries[0], "b")
        third = await runtime.fork(second.session_id)
        assert (await to_the_end(runtime, third, "c")).result == ["a", "b", "c", "c"]
        assert (await to_the_end(runtime, second, "d")).result == ["a", "b", "d", "d"]


async def test_forks_of_forks_say_no_more_than_the_first_fork():
    """A fork at the same step, of a fork of a fork, has a birth as long as that of the first."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(story())
        status = await runtime.answer(status.queries[0], "a")
        births = []
        for _ in range(1100):
            status = await runtime.fork(status.session_id)
            births.append((await runtime.store.load(status.session_id)).birth)
        assert {len(birth.seeds) for birth in births} == {2}
        assert [birth.origin for birth in births[1:]] == [birth.id for birth in births[:-1]]
        assert (await to_the_end(runtime, status, "b")).result == ["a", "b", "b", "b"]


async def test_a_fork_of_a_fork_keeps_the_dice_of_what_it_shares():
    """The seeds of steps that are shared stay; those of steps after the fork point go."""
    async with opened() as runtime:
        end = await to_the_end(runtime, await runtime.start(dicing()))
        later = await to_the_end(runtime, await runtime.fork(end.session_id, at=1))
        again = await to_the_end(runtime, await runtime.fork(later.session_id))
        earlier = await runtime.fork(again.session_id, at=0)
        assert again.result[:2] == later.result[:2] == end.result[:2]
        assert len({status.result[2] for status in (end, later, again)}) == 3
        assert [
            seed.since for seed in (await runtime.store.load(earlier.session_id)).birth.seeds
        ] == [0, 1]


@everhold.program
async def spawns(ctx):
    return await ctx.spawn(story())


async def test_a_session_that_has_not_begun_cannot_be_forked():
    """Such as a child that no process has started yet: it has no steps. The refusal says what to
    do.
    """
    async with opened(recover=False) as runtime:
        await runtime.start(spawns(), wait=0)
        (child,) = [row for row in await runtime.sessions() if row.parent]
        for given in ({}, {"at": 0}, {"at": 0, "answer": "x"}):
            with pytest.raises(BadStep, match="has not started") as refused:
                await runtime.fork(child.session_id, **given)
            assert "fork its parent" in refused.value.hint


async def test_forks_of_forks_have_children_of_their_own():
    """Each of them that shares the question which a child answers starts its own."""
    async with opened() as runtime:
        status = await runtime.start(spawns(), wait=0)
        forks = [status.session_id]
        for _ in range(3):
            forks.append((await runtime.fork(forks[-1], wait=0)).session_id)
        children = [row.parent for row in await runtime.sessions() if row.parent]
        assert sorted(children) == sorted(forks)
        for session_id in forks:
            await runtime.cancel(session_id)


@everhold.program
async def dicing(ctx):
    first = ctx.random()
    await ctx.llm("go")
    second = ctx.random()
    await ctx.llm("go")
    return [first, second, ctx.random()]


async def test_a_fork_has_new_dice_from_its_fork_point_on():
    """What fell before is shared; what falls afterwards is its own."""
    async with opened() as runtime:
        end = await to_the_end(runtime, await runtime.start(dicing()))
        fork = await to_the_end(runtime, await runtime.fork(end.session_id, at=1))
        assert fork.result[:2] == end.result[:2]
        assert fork.result[2] != end.result[2]


async def test_a_fork_leaves_no_trace_if_the_answer_does_not_fit():
    """It is refused as a whole."""
    async with opened() as runtime:
        end = await to_the_end(runtime, await runtime.start(story()))
        with pytest.raises((AnswerRefused, BadValue)):
            await runtime.fork(end.session_id, at=1, answer=7)
        with pytest.raises((AnswerRefused, BadValue)):
            await runtime.fork(end.session_id, at=1, answer={1})
        assert len(await runtime.sessions()) == 1


async def test_steps_that_cannot_be_forked():
    """Those that are not there, the end itself, a step without an answer to replace, another step's
    query.
    """
    async with opened() as runtime:
        end = await to_the_end(runtime, await runtime.start(story()))
        for given in ({"at": -1}, {"at": 5}, {"at": 4}, {"at": 0, "answer": "x"}):
            with pytest.raises(BadStep):
                await runtime.fork(end.session_id, **given)
        with pytest.raises(BadStep):
            await runtime.fork(end.session_id, at=1, answer="x", query_id="q-3")


async def test_a_fork_may_have_a_key_and_a_title():
    """They are its own; the origin's key is not shared."""
    async with opened() as runtime:
        status = await runtime.start(story(), key="one", title="first", labels={"a": "b"})
        fork = await runtime.fork(status.session_id, key="two", title="second")
        info = (await runtime.sessions(prefix=fork.session_id))[0]
        assert (info.key, info.title, info.labels, info.origin) == (
            "two",
            "second",
            {"a": "b"},
            status.session_id,
        )
        with pytest.raises(KeyConflict) as taken:
            await runtime.fork(status.session_id, key="one")
        assert (taken.value.what, taken.value.hint) == ("", "Use another key.")


async def work(name):
    done.append(name)
    return f"did {name}"


async def forever(name):
    done.append(name)
    await asyncio.Event().wait()


@everhold.program
async def works(ctx):
    first = await ctx.call(work, "a")
    await ctx.llm("go")
    return [first, await ctx.call(work, "b")]


async def test_calls_before_the_fork_point_are_not_repeated():
    """Their results are shared."""
    async with opened() as runtime:
        status = await runtime.start(works())
        fork = await runtime.fork(status.session_id)
        await runtime.answer(status.session_id, "x")
        assert (await runtime.answer(fork.session_id, "y")).result == ["did a", "did b"]
        assert done == ["a", "b", "b"]


@everhold.program
async def works_beside(ctx, rerun: str):
    return await asyncio.gather(
        ctx.call(forever, rerun, rerun=rerun), ctx.llm("go"), return_exceptions=False
    )


async def test_a_safe_call_open_at_the_fork_point_is_started_in_the_fork_too():
    """It is asked again in the fork's own name."""
    async with opened() as runtime:
        status = await runtime.start(works_beside(rerun="safe"), wait=0)
        fork = await runtime.fork(status.session_id, wait=0)
        await asyncio.sleep(0)
        assert done == ["safe", "safe"]
        await runtime.cancel(status.session_id)
        await runtime.cancel(fork.session_id)


async def test_a_doubtful_call_open_at_the_fork_point_is_not_run_twice():
    """Only the origin runs it: the fork asks, or is told that the outcome is unknown."""
    async with opened() as runtime:
        status = await runtime.start(works_beside(rerun="ask"), wait=0)
        fork = await runtime.fork(status.session_id, wait=0)
        assert "outcome was not recorded" in prompts(fork)[0]
        never = await runtime.start(works_beside(rerun="never"), wait=0)
        fork = await runtime.fork(never.session_id, wait=0)
        assert "OutcomeUnknown" in fork.error
        await asyncio.sleep(0)
        assert done == ["ask", "never"]
        for origin in (status, never):
            await runtime.cancel(origin.session_id)


async def test_a_calls_result_can_be_replaced():
    """A fork may pretend that a call returned something else."""
    async with opened() as runtime:
        status = await runtime.start(works())
        fork = await runtime.fork(status.session_id, at=1, answer="pretended")
        assert (await runtime.answer(fork.session_id, "x")).result == ["pretended", "did b"]


@everhold.program
async def child(ctx):
    return await ctx.llm("child?")


@everhold.program
async def parent(ctx):
    return await ctx.spawn(child())


async def test_a_child_open_at_the_fork_point():
    """The fork has a child of its own."""
    async with opened() as runtime:
        status = await runtime.start(parent())
        fork = await runtime.fork(status.session_id)
        for each in (status, fork):
            while not (infos := await runtime.sessions(parent=each.session_id, state="paused")):
                await asyncio.sleep(0.001)
            await runtime.answer(infos[0].session_id, f"of {each.session_id}")
            assert (await runtime.wait(each.session_id, 60)).result == f"of {each.session_id}"


@everhold.program
async def reads(ctx):
    before = await ctx.state.incr("n")
    return [before, await ctx.llm("go")]


async def test_a_fork_right_after_a_question_to_the_store():
    """What the store itself answers is answered in the fork's first commit."""
    async with opened() as runtime:
        status = await runtime.start(reads())
        fork = await runtime.fork(status.session_id, at=0)
        assert prompts(fork) == ["go"]
        assert (await runtime.answer(fork.session_id, "x")).result == [2, "x"]
        replaced = await runtime.fork(status.session_id, at=1, answer=50)
        assert (await runtime.answer(replaced.session_id, "x")).result == [50, "x"]


@everhold.program
async def sleepy(ctx):
    await ctx.llm("go")
    await ctx.sleep(60)
    return "woke"


async def test_a_timer_open_at_the_fork_point():
    """It fires in both."""
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        status = await runtime.start(sleepy())
        status = await runtime.answer(status.queries[0], "x")
        fork = await runtime.fork(status.session_id)
        assert fork.until == status.until
        clock.advance(61)
        assert (await runtime.wait(fork.session_id, 60)).result == "woke"
        assert (await runtime.wait(status.session_id, 60)).result == "woke"


async def test_an_inline_answerer_is_not_asked_what_the_fork_replaces():
    """Only what follows is paid for."""
    asked = []

    async def model(query):
        asked.append(query.prompt)
        return "m"

    async with opened(llm=model) as runtime:
        end = await runtime.start(story())
        asked.clear()
        fork = await runtime.fork(end.session_id, at=3, answer="mine")
        assert (fork.result, len(asked)) == (["m", "m", "mine", "m"], 1)


@pytest.mark.parametrize("file", [False, True])
async def test_deleting_the_origin_keeps_what_the_fork_shares(file, tmp_path):
    """delete says how many steps are kept; the fork goes on."""
    async with opened(tmp_path if file else None) as runtime:
        end = await to_the_end(runtime, await runtime.start(story()), "old")
        fork = await runtime.fork(end.session_id, at=2)
        assert await runtime.delete(end.session_id) == 3
        assert [info.session_id for info in await runtime.sessions()] == [fork.session_id]
        assert (await to_the_end(runtime, fork, "new")).result == ["old", "old", "new", "new"]
        assert await runtime.delete(fork.session_id) == 0
        assert await runtime.archive.verify() == []


async def test_deleting_what_nobody_shares():
    """Nothing is kept; the session is unknown afterwards."""
    async with opened() as runtime:
        status = await runtime.start(story())
        assert await runtime.delete(status.session_id) == 0
        with pytest.raises(everhold.EverholdError) as refused:
            await runtime.answer(status.queries[0], "x")
        assert refused.value.code == "unknown_session"


async def test_a_fork_of_a_failed_session_replaces_the_answer_that_broke_it():
    """The step that failed is gone from the fork."""

    @everhold.program
    async def fragile(ctx):
        number = await ctx.llm("A number?")
        return int(number)

    async with opened() as runtime:
        status = await runtime.start(fragile())
        status = await runtime.answer(status.queries[0], "many")
        assert status.state == "failed"
        assert (await runtime.fork(status.session_id, at=1, answer="7")).result == 7


async def test_a_fork_without_a_step_of_a_session_that_failed_again_begins_before_its_failures():
    @everhold.program
    async def fragile(ctx):
        return int(await ctx.llm("A number?"))

    async with opened() as runtime:
        status = await runtime.start(fragile())
        status = await runtime.answer(status.queries[0], "many")
        assert (await runtime.retry(status.session_id)).state == "failed"
        assert prompts(await runtime.fork(status.session_id)) == ["A number?"]


@pytest.mark.parametrize("file", [False, True])
async def test_a_fork_goes_on_after_a_restart(file, tmp_path):
    """Its journal is read from two places."""
    async with opened(tmp_path) as runtime:
        end = await to_the_end(runtime, await runtime.start(story()), "a")
        fork = await runtime.fork(end.session_id, at=2)
        fork = await runtime.answer(fork.queries[0], "b")
    async with opened(tmp_path) as runtime:
        assert (await to_the_end(runtime, fork, "c")).result == ["a", "a", "b", "c"]
        assert len(await rows(runtime, fork.session_id)) == 5
