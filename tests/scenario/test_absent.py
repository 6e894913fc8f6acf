"""A process that does not have the program can still answer; the session goes on where the program
is.
"""

import asyncio

import pytest

import everhold
from everhold.errors import AnswerConflict, AnswerRefused, UnknownQuery
from everhold.ports.program import REGISTRY
from everhold.testing.clock import ManualClock
from tests.scenario.harness import at_top, ids, opened, prompts


def edition():
    @at_top
    async def traveller(ctx):
        first = await ctx.llm("first?")
        both = await ctx.llm_batch(["a?", "b?"], returns=int)
        return [first, *both, await ctx.approval("sure?")]

    return traveller


class Away:
    """While it lasts, the program is not to be found."""

    def __init__(self, program):
        self.place, self.program = (program.ref, program.version), program

    def __enter__(self):
        REGISTRY.pop(self.place, None)

    def __exit__(self, *_):
        REGISTRY[self.place] = self.program


async def test_an_answer_is_accepted_without_the_program(tmp_path):
    """It is committed and acknowledged; the session is ready, and says so."""
    program = edition()
    async with opened(tmp_path) as runtime:
        status = await runtime.start(program())
    with Away(program):
        async with opened(tmp_path, replay=False) as runtime:
            assert await runtime.answer(status.queries[0], "1") == everhold.Accepted(
                status.session_id, 0
            )
            status = await runtime.status(status.session_id)
            assert (status.state, status.waiting_for) == (
                "running",
                ("its program, to take an accepted answer",),
            )
            assert await runtime.inbox() == []
    async with opened(tmp_path) as runtime:
        status = await runtime.wait(status.session_id, 60)
        assert prompts(status) == ["a?", "b?"]


async def test_a_runtime_with_the_program_goes_on_by_itself(tmp_path):
    """It is open already when another process accepts the answer."""
    program = edition()
    async with opened(tmp_path) as runtime:
        status = await runtime.start(program())
        with Away(program):
            async with opened(tmp_path, replay=False, recover=False) as other:
                await other.answer(status.queries[0], "1")
        async with asyncio.timeout(60):
            while prompts(found := await runtime.wait(status.session_id, 1)) != ["a?", "b?"]:
                pass
        assert ids(found) == ["q-1", "q-2"]


async def test_answers_are_checked_without_the_program(tmp_path):
    """Against the schema stored with the query; the same again is a no-op, another is a
    conflict.
    """
    program = edition()
    async with opened(tmp_path) as runtime:
        status = await runtime.start(program())
        status = await runtime.answer(status.queries[0], "1")
    with Away(program):
        async with opened(tmp_path, replay=False) as runtime:
            with pytest.raises(AnswerRefused):
                await runtime.answer(status.queries[0], "many")
            assert await runtime.answer(status.queries[0], 1) == everhold.Accepted(
                status.session_id, 1
            )
            assert await runtime.answer(status.queries[0], 1) == everhold.Accepted(
                status.session_id, 1
            )
            with pytest.raises(AnswerConflict):
                await runtime.answer(status.queries[0], 2)
            with pytest.raises(AnswerConflict):
                await runtime.answer(status.session_id, "other", query_id="q-0")
            with pytest.raises(UnknownQuery):
                await runtime.answer(status.session_id, "x", query_id="q-9")
            assert await runtime.answer(status.session_id, 2) == everhold.Accepted(
                status.session_id, 0
            )
    async with opened(tmp_path) as runtime:
        status = await runtime.wait(status.session_id, 60)
        assert (await runtime.answer(status.queries[0], True)).result == ["1", 1, 2, True]


async def test_a_batch_is_all_or_nothing_without_the_program(tmp_path):
    """Nothing is kept if one does not fit."""
    program = edition()
    async with opened(tmp_path) as runtime:
        status = await runtime.start(program())
        status = await runtime.answer(status.queries[0], "1")
    with Away(program):
        async with opened(tmp_path, replay=False) as runtime:
            with pytest.raises(AnswerRefused):
                await runtime.answer_many(status.session_id, {"q-1": 1, "q-2": "many"})
            assert (await runtime.store.load(status.session_id)).letters == []
            await runtime.answer_many(status.session_id, {"q-1": 1, "q-2": 2})
            assert len((await runtime.store.load(status.session_id)).letters) == 2


async def test_an_answer_in_time_counts_although_the_program_comes_late(tmp_path):
    """What was accepted before the timeout is handed over before it."""

    @at_top
    async def hurried(ctx):
        try:
            async with asyncio.timeout(60):
                return await ctx.llm("quick?")
        except TimeoutError:
            return "too late"

    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as runtime:
        early = await runtime.start(hurried())
        late = await runtime.start(hurried())
    with Away(hurried):
        async with opened(tmp_path, clock=clock, replay=False) as runtime:
            clock.advance(30)
            await runtime.answer(early.queries[0], "in time")
            clock.advance(60)
            await runtime.answer(late.queries[0], "after it")
    async with opened(tmp_path, clock=clock) as runtime:
        assert (await runtime.wait(early.session_id, 60)).result == "in time"
        assert (await runtime.wait(late.session_id, 60)).result == "too late"


async def test_usage_and_errors_are_kept_too(tmp_path):
    """An accepted answer is handed over as it was given."""

    @at_top
    async def careful(ctx):
        try:
            return await ctx.llm("what?")
        except everhold.AnswerFailed as error:
            return error.message

    async with opened(tmp_path) as runtime:
        status = await runtime.start(careful())
    with Away(careful):
        async with opened(tmp_path, replay=False) as runtime:
            await runtime.answer(
                status.queries[0], error="no", usage={"prompt_tokens": 9, "completion_tokens": 1}
            )
    async with opened(tmp_path) as runtime:
        end = await runtime.wait(status.session_id, 60)
        assert end.result == "no"
        assert end.metrics["auto"]["total_tokens"]["tokens"] == 10


async def test_accepted_answers_survive_a_failure(tmp_path):
    """Two answers accepted, the first one breaks the program: after a retry the second one is
    there.
    """

    def body(broken):
        @at_top
        async def beside(ctx):
            async def one():
                await ctx.llm("one?")
                if broken:
                    raise ValueError("broken")

            return await asyncio.gather(one(), ctx.llm("two?"))

        return beside

    program = body(True)
    async with opened(tmp_path) as runtime:
        status = await runtime.start(program())
    with Away(program):
        async with opened(tmp_path, replay=False) as runtime:
            await runtime.answer_many(status.session_id, {"q-0": "1", "q-1": "2"})
    async with opened(tmp_path, replay=False) as runtime:
        assert (await runtime.wait(status.session_id, 60)).state == "failed"
    body(False)
    async with opened(tmp_path) as runtime:
        await runtime.retry(status.session_id)
        assert (await runtime.wait(status.session_id, 60)).result == [None, "2"]
        assert await runtime.archive.verify() == []


async def test_a_cancel_is_not_kept_after_a_failure(tmp_path):
    """An accepted answer breaks a child before the cancel behind it is read: a retry is not
    cancelled by it.
    """

    def body(broken):
        @everhold.program
        async def helper(ctx):
            said = await ctx.llm("one?")
            if broken:
                raise ValueError("broken")
            return [said, await ctx.llm("two?")]

        return helper

    @at_top
    async def chief(ctx):
        process = await ctx.background(helper())
        await ctx.llm("enough?")
        await process.cancel()

    helper = body(True)
    async with opened(tmp_path) as runtime:
        status = await runtime.start(chief())
        (child,) = await runtime.sessions(program=helper.ref)
    with Away(helper):
        async with opened(tmp_path, replay=False) as runtime:
            await runtime.answer(child.session_id, "1")
            assert (await runtime.answer(status.queries[0], "yes")).state == "completed"
            letters = (await runtime.store.load(child.session_id)).letters
            assert [letter.kind for letter in letters] == ["answer", "cancel"]
    async with opened(tmp_path, replay=False) as runtime:
        assert (await runtime.wait(child.session_id, 60)).error == "ValueError: broken"
        assert (await runtime.store.load(child.session_id)).letters == []
    body(False)
    async with opened(tmp_path) as runtime:
        status = await runtime.retry(child.session_id)
        assert prompts(status) == ["two?"]
        assert (await runtime.answer(status.queries[0], "2")).result == ["1", "2"]
        assert await runtime.archive.verify() == []


async def test_many_answers_without_the_program(tmp_path):
    """A thousand questions of one batch, answered one by one, in seconds."""

    @at_top
    async def wide(ctx):
        return len(await ctx.llm_batch([str(number) for number in range(1000)]))

    async with opened(tmp_path) as runtime:
        status = await runtime.start(wide())
    with Away(wide):
        async with opened(tmp_path, replay=False, recover=False) as runtime:
            for query in status.queries[:200]:
                accepted = await runtime.answer(query, "x")
            assert accepted.remaining == 800
