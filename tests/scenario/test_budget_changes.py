"""A budget that changes while its session lives: it resumes from where it was."""

import asyncio

import pytest

import everhold
from everhold.archive.recording import Recording
from everhold.core.journal import get_new_budget
from everhold.engine.accept import BUDGET_LETTER
from everhold.errors import BadSetting, IllegalMove, SessionEnded
from everhold.packages.find import find_program
from everhold.ports.program import REGISTRY
from everhold.ports.store import Change, Letter
from everhold.programs.python.execution import PythonHost
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from tests.scenario.harness import at_top, opened, prompts, rows


@everhold.program
async def four(ctx):
    return "".join([await ctx.llm(f"{number}?") for number in range(4)])


@everhold.program
async def batches(ctx):
    return [await ctx.llm_batch([f"{number}a?", f"{number}b?"]) for number in range(3)]


@everhold.program
async def patient(ctx):
    """Asks a person when its budget is used up."""
    said = []
    while len(said) < 4:
        try:
            said.append(await ctx.llm(f"{len(said)}?"))
        except everhold.BudgetExceeded:
            if not await ctx.approval(f"Go on after {len(said)}?"):
                break
    return [said, ctx.budget_remaining()]


class Counting:
    """A model that counts what it is asked."""

    def __init__(self):
        self.asked = []

    async def __call__(self, query):
        self.asked.append(query.prompt)
        return "a"


@pytest.fixture
def model():
    return Counting()


async def failed(runtime, call=None, **budget):
    """A session that ran out of its budget of two calls."""
    status = await runtime.start(call or four(), key="k", budget={"max_llm_calls": 2, **budget})
    assert status.outcome.kind == "budget_exceeded"
    return status.session_id


async def rerun(runtime, session):
    return await runtime.start(four(), key="k", budget={"max_llm_calls": 4})


async def retry(runtime, session):
    return await runtime.retry(session, budget={"max_llm_calls": 4})


async def change(runtime, session):
    return await runtime.set_budget(session, everhold.Budget(max_llm_calls=4))


@pytest.mark.parametrize("raise_budget", [rerun, retry, change])
async def test_a_session_that_ran_out_resumes_with_a_larger_budget(model, raise_budget):
    """By the same key, a retry or a new budget; no answer is asked for again."""
    async with opened(llm=model) as runtime:
        session = await failed(runtime)
        assert (await raise_budget(runtime, session)).result == "aaaa"
        assert model.asked == ["0?", "1?", "2?", "3?"]


async def test_a_fork_may_have_a_larger_budget(model):
    """The shared steps count in it, and the origin keeps its own."""
    async with opened(llm=model) as runtime:
        session = await failed(runtime)
        fork = await runtime.fork(session, budget={"max_llm_calls": 4})
        assert fork.result == "aaaa"
        assert fork.metrics["auto"]["budget"] == {"max_llm_calls": 4}
        assert fork.metrics["auto"]["llm_calls"] == 4
        assert (await runtime.status(session)).metrics["auto"]["budget"] == {"max_llm_calls": 2}


async def test_a_fork_without_a_budget_of_its_own_has_that_of_its_origin(model):
    """Also the one that was raised."""
    async with opened(llm=model) as runtime:
        session = await failed(runtime)
        await runtime.retry(session, budget={"max_llm_calls": 3})
        fork = await runtime.fork(session)
        assert fork.metrics["auto"]["budget"] == {"max_llm_calls": 3}
        assert fork.outcome.kind == "budget_exceeded"


async def test_a_batch_is_asked_whole_after_the_raise(model):
    """Nothing of it was asked before."""
    async with opened(llm=model) as runtime:
        session = await failed(runtime, batches())
        assert (await runtime.set_budget(session, {"max_llm_calls": 6})).state == "completed"
        assert len(model.asked) == 6


async def test_what_the_program_saw_before_stays(tmp_path):
    """It was refused under the old budget and caught that; replay refuses it there again, and not
    after the raise.
    """
    async with opened(tmp_path) as runtime:
        status = await runtime.start(patient(), budget={"max_llm_calls": 1, "max_tokens": 900})
        status = await runtime.answer(status.queries[0], "x")
        assert prompts(status) == ["Go on after 1?"]
        status = await runtime.set_budget(status.session_id, {"max_llm_calls": 3}, by={"who": "a"})
        assert prompts(status) == ["Go on after 1?"]
    async with opened(tmp_path) as runtime:
        status = await runtime.answer(status.session_id, True)
        for _ in range(2):
            status = await runtime.answer(status.queries[0], "x")
        assert prompts(status) == ["Go on after 3?"]
        said, left = (await runtime.answer(status.session_id, False)).result
        assert (said, left["llm_calls"]) == (["x", "x", "x"], 0)
        assert left["tokens"] > 0
        steps = await runtime.steps(status.session_id)
        assert [(step.n, step.budget, step.by) for step in steps if step.budget] == [
            (2, everhold.Budget(max_llm_calls=3, max_tokens=900), {"who": "a"})
        ]


async def test_a_raised_budget_survives_a_restart(tmp_path):
    """`ctx.restart` keeps it, for replays that begin there, too."""

    @at_top
    async def long(ctx, number: int = 0):
        await ctx.llm(f"{number}?")
        if number < 4:
            await ctx.restart(number=number + 1)
        return ctx.budget_remaining()

    async with opened(tmp_path) as runtime:
        status = await runtime.start(long(), budget={"max_llm_calls": 1})
        status = await runtime.set_budget(status.session_id, {"max_llm_calls": 9})
        status = await runtime.answer(status.queries[0], "x")
    async with opened(tmp_path) as runtime:
        while status.state != "completed":
            status = await runtime.answer(status.session_id, "x")
        assert status.result["llm_calls"] == 4


async def test_the_same_key_raises_limits_and_lowers_none(model):
    """So a program that is started again with its own budget does not take back what an operator
    gave, and an equal budget is no step.
    """
    async with opened() as runtime:
        status = await runtime.start(four(), key="k", budget={"max_llm_calls": 5})
        session = status.session_id
        await runtime.set_budget(session, {"max_llm_calls": 50, "max_tokens": 7000})
        before = len(await rows(runtime, session))
        for budget in ({"max_llm_calls": 5}, {"max_llm_calls": 50, "max_elapsed_ms": 1}):
            await runtime.start(four(), key="k", budget=budget)
        assert len(await rows(runtime, session)) == before
        await runtime.start(four(), key="k", budget={"max_llm_calls": 51, "max_tokens": 1})
        last = (await rows(runtime, session))[-1]
        assert get_new_budget(last) == everhold.Budget(max_llm_calls=51, max_tokens=7000)


async def test_an_ended_session_keeps_its_end(model):
    """The same key with a larger budget finds it; a new budget is refused."""
    async with opened(llm=model) as runtime:
        done = await runtime.start(four(), key="k", budget={"max_llm_calls": 4})
        again = await runtime.start(four(), key="k", budget={"max_llm_calls": 9})
        assert again == done
        with pytest.raises(SessionEnded):
            await runtime.set_budget(done.session_id, {"max_llm_calls": 9})
        with pytest.raises(IllegalMove):
            await runtime.retry(done.session_id, budget={"max_llm_calls": 9})


async def test_a_limit_may_be_lowered_or_lifted():
    """None in a mapping lifts it; limits that are not named stay."""
    async with opened() as runtime:
        status = await runtime.start(four(), budget={"max_llm_calls": 5, "max_tokens": 900})
        session = status.session_id
        for budget, after in (
            ({"max_llm_calls": 1}, everhold.Budget(max_llm_calls=1, max_tokens=900)),
            ({"max_llm_calls": None}, everhold.Budget(max_tokens=900)),
            ({"max_tokens": None}, everhold.Budget()),
            (everhold.Budget(max_elapsed_ms=9), everhold.Budget(max_elapsed_ms=9)),
        ):
            await runtime.set_budget(session, budget)
            assert get_new_budget((await rows(runtime, session))[-1]) == after


@pytest.mark.parametrize("budget", [{}, {"max_money": 3}, {"max_tokens": -1}, everhold.Budget()])
async def test_a_change_that_is_none(budget):
    """It is refused, and the session stays as it is."""
    async with opened() as runtime:
        session = (await runtime.start(four())).session_id
        for verb in (runtime.set_budget, runtime.retry, runtime.fork):
            more = {"budget": budget} if verb != runtime.set_budget else {}
            given = (session, budget) if verb == runtime.set_budget else (session,)
            with pytest.raises(BadSetting):
                await verb(*given, **more)
        assert len(await rows(runtime, session)) == 1
        assert len(await runtime.sessions()) == 1


async def test_a_later_retry_keeps_the_budget_of_the_one_before():
    """The retry that gave it failed for another reason."""
    broken = [True]

    @at_top
    async def careful(ctx):
        said = [await ctx.llm("first?"), await ctx.llm("second?")]
        if broken:
            raise RuntimeError("broken")
        return [*said, await ctx.llm("third?")]

    async with opened(replay=False) as runtime:
        status = await runtime.start(careful(), budget={"max_llm_calls": 1})
        status = await runtime.answer(status.queries[0], "x")
        status = await runtime.retry(status.session_id, budget={"max_llm_calls": 3})
        status = await runtime.answer(status.queries[0], "x")
        assert status.outcome.kind == "RuntimeError"
        status = await runtime.retry(status.session_id, budget={"max_tokens": 500})
        assert status.outcome.kind == "RuntimeError"
        broken.clear()
        status = await runtime.retry(status.session_id)
        assert prompts(status) == ["third?"]
    async with opened(on=runtime.store) as runtime:
        status = await runtime.answer(status.session_id, "x")
        assert status.metrics["auto"]["budget"] == {"max_llm_calls": 3, "max_tokens": 500}


async def test_a_budget_without_the_program(tmp_path):
    """A process that does not have it records the changes; one that has it applies them."""

    @at_top
    async def lonely(ctx):
        return [await ctx.llm("1?"), await ctx.llm("2?"), ctx.budget_remaining()]

    place = (lonely.ref, lonely.version)
    async with opened(tmp_path) as runtime:
        session = (await runtime.start(lonely(), budget={"max_llm_calls": 1})).session_id
    home = REGISTRY.pop(place)
    async with opened(tmp_path, replay=False) as runtime:
        assert (await runtime.set_budget(session, {"max_llm_calls": 9})).state == "running"
        await runtime.set_budget(session, {"max_llm_calls": 2, "max_tokens": 700}, by={"who": "b"})
        told = (await runtime.explain(session)).because
        assert "A new budget waits for a process that has its program." in told
    REGISTRY[place] = home
    async with opened(tmp_path) as runtime:
        status = await runtime.wait(session, 60)
        for prompt in ("1?", "2?"):
            assert prompts(status) == [prompt]
            status = await runtime.answer(session, "x")
        assert status.result[2]["llm_calls"] == 0
        assert (await runtime.steps(session))[2].by == {"who": "b"}


async def test_exports_and_recordings_have_it(tmp_path):
    """A copy resumes with the raised budget; a change that was not delivered yet is copied, too."""
    async with opened() as runtime:
        status = await runtime.start(patient(), key="k", budget={"max_llm_calls": 1})
        session = status.session_id
        await runtime.answer(session, "x")
        await runtime.set_budget(session, {"max_llm_calls": 2})
        record = await runtime.store.load(session)
        assert Recording.of(record).difference(PythonHost(find_program)) == ""
        assert Recording.of(record).updated(PythonHost(find_program)).deliveries[:3] == [
            *Recording.of(record).deliveries
        ]
        await runtime.engine.acceptance.budget(session, {"max_llm_calls": 3}, None)
        await runtime.archive.export(tmp_path / "x.jsonl", session)
    async with opened() as copy:
        await copy.archive.import_(tmp_path / "x.jsonl")
        status = await copy.answer(session, True)
        for _ in range(2):
            status = await copy.answer(session, "x")
        assert prompts(status) == ["Go on after 3?"]


async def test_a_budget_that_waits_when_the_session_fails_counts_for_the_retry():
    """It was accepted before, by a process without the program."""
    async with opened(llm=Counting()) as runtime:
        session = await failed(runtime)
        record = await runtime.store.load(session)
        letter = Letter(BUDGET_LETTER, {"limits": {"max_llm_calls": 4}, "by": None}, 2e9)
        record.head.revision += 1
        record.head.mail += 1
        await runtime.store.commit(
            Change(session, record.head, letters=[letter]), record.head.revision - 1
        )
        assert (await runtime.retry(session)).result == "aaaa"


async def test_a_running_call_is_not_disturbed():
    """The budget changes beside it."""
    paid = asyncio.Event()

    async def pay():
        await paid.wait()
        return "paid"

    @everhold.program
    async def shop(ctx):
        await ctx.call(pay)
        return [await ctx.llm("1?"), ctx.budget_remaining()]

    async with opened(llm=Counting()) as runtime:
        status = await runtime.start(shop(), budget={"max_llm_calls": 0}, wait=0)
        status = await runtime.set_budget(status.session_id, {"max_llm_calls": 1}, wait=0)
        assert status.state == "running"
        paid.set()
        said, left = (await runtime.wait(status.session_id, 60)).result
        assert (said, left["llm_calls"]) == ("a", 0)


async def test_time_may_be_given():
    """`max_elapsed_ms` counts from the start of the session, so the larger one does, too."""
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        status = await runtime.start(four(), budget={"max_elapsed_ms": 5000})
        clock.advance(6)
        status = await runtime.answer(status.queries[0], "x")
        assert status.outcome.kind == "budget_exceeded"
        clock.advance(60)
        status = await runtime.set_budget(status.session_id, {"max_elapsed_ms": 5500})
        assert "max_elapsed_ms (5500ms) reached: 6000ms" in status.outcome.error
        status = await runtime.set_budget(status.session_id, {"max_elapsed_ms": 90_000})
        assert prompts(status) == ["1?"]


async def test_a_conversation_that_ran_out_answers_the_next_input():
    """Its turn failed; with a larger budget, the next one does not."""
    agent = everhold.Agent(name="assistant_of_budgets", instructions="Help.")
    async with opened(on=MemoryStore(), llm=["one", "two", "three"], replay=False) as runtime:
        session = await runtime.session(agent, "chat", budget={"max_llm_calls": 1})
        assert (await session.send("1")).text == "one"
        assert (await session.send("2")).outcome.code == "budget_exceeded"
        await runtime.set_budget("chat", {"max_llm_calls": 2})
        assert (await session.send("3")).text == "two"
        assert (await session.send("4")).outcome.code == "budget_exceeded"
        session = await runtime.session(agent, "chat", budget={"max_llm_calls": 9})
        assert (await session.send("5")).text == "three"
