"""How turns and sessions end, and what survives, through the public API."""

import asyncio

import msgspec
import pytest

import everhold
from everhold import Agent, Answer, Runtime, Usage, program, tool
from everhold.agents import (
    MaxTurnsReached,
    TurnAnswered,
    TurnCancelled,
    TurnFailed,
    extract_text,
)
from everhold.errors import (
    AnswerConflict,
    AnswerFailed,
    BadArguments,
    InputTooLarge,
    KeyConflict,
    KeyDeleted,
    QueryClosed,
    SessionEnded,
    UnknownQuery,
    UnknownSession,
)
from everhold.stores import MemoryStore
from everhold.testing import ManualClock, crash_everywhere
from tests.scenario.talk import Scripted, told, use, uses

CALLED = []


@pytest.fixture(autouse=True)
def fresh():
    CALLED.clear()


@tool(read_only=True)
def look(what: str) -> str:
    """Look something up."""
    CALLED.append(what)
    return f"{what}: found"


class Verdict(msgspec.Struct):
    right: bool


plain = Agent(instructions="Be brief.", tools=[look], max_turns=2, name="outside_turns")
judging = Agent(returns=Verdict, name="outside_judging")


@program
async def waits(ctx):
    """Wait for a person, for a time, for a signal."""
    first = await ctx.approval("Go on?")
    await ctx.sleep(60)
    return [first, await ctx.receive("word")]


@program
async def asks(ctx, n: int = 1):
    """Ask a model so many times."""
    return [await ctx.llm(f"line {k}") for k in range(n)]


def talk(kit, agent, *lines, name="chat"):
    model = Scripted(*lines)
    kit.answers(model.__call__)
    session = kit.runtime.session(agent, name)
    return session, session.send("Go."), model


# ---- outcomes


def test_a_turn_is_answered_with_a_text(everhold):
    session, turn, model = talk(everhold, plain, use("look", what="x"), "It is there.")
    assert (turn.outcome, turn.text, turn.settled.rounds) == (TurnAnswered(), "It is there.", 2)
    assert model.results == ["x: found"]
    assert session.history()[-1].role == "assistant"


def test_a_turn_is_answered_with_a_value_that_fits(everhold):
    """What does not fit is sent back; then it fails with a code."""
    session, turn, _ = talk(everhold, judging, "yes", '{"right": true}', "no", "no", "no")
    assert (turn.value, turn.settled.rounds) == ({"right": True}, 2)
    assert session.send("Again?").outcome.code == "answer_refused"


def test_a_turn_has_so_many_rounds_and_one_of_grace(everhold):
    calls = [use("look", what=str(n)) for n in range(5)]
    session, turn, model = talk(everhold, plain, *calls)
    assert turn.outcome == MaxTurnsReached(2)
    assert "Answer now" in extract_text(model.shown[-1][-1]["content"])
    last = session.history()[-1]
    assert last.role == "tool" and last.content[0]["is_error"]


def test_an_empty_response_fails_the_turn_and_not_the_session(everhold):
    session, turn, _ = talk(everhold, plain, {"content": []}, "Here I am.")
    assert isinstance(turn.outcome, TurnFailed) and turn.outcome.code == "empty_response"
    assert session.send("Hello?").text == "Here I am."


def test_an_error_of_a_model_fails_the_turn_with_its_words(everhold):
    session = everhold.runtime.session(plain, "chat")
    turn = session.send("Go.", wait=0)
    everhold.runtime.answer(turn.queries[0], error="it is overloaded")
    turn = session.turn(turn.input_id)
    assert isinstance(turn.outcome, TurnFailed) and "overloaded" in turn.outcome.error
    assert [node.role for node in session.history()] == ["user"]


def test_an_answer_that_was_cut_off_fails_the_turn_with_its_code(everhold):
    """What a provider calls the end of its output is an error with a code, as any other."""

    def model(query):
        raise AnswerFailed("the model reached its output limit", "output_limit")

    everhold.answers(model)
    turn = everhold.runtime.session(plain, "chat").send("Go.")
    assert isinstance(turn.outcome, TurnFailed) and turn.outcome.code == "output_limit"


def test_an_input_that_is_none_is_refused_before_a_turn(everhold):
    session = everhold.runtime.session(plain, "chat")
    for bad in ("", [], [{"no": "type"}]):
        with pytest.raises(BadArguments):
            session.send(bad)
    assert session.turns() == []


def test_a_cancelled_turn_keeps_what_was_said(everhold):
    session = everhold.runtime.session(plain, "chat")
    turn = session.send("Go.", wait=0)
    everhold.runtime.answer(turn.queries[0], use("look", what="x"))
    turn = session.cancel_turn("enough")
    assert turn.outcome == TurnCancelled("enough")
    assert [node.role for node in session.history()] == ["user", "assistant", "tool"]
    assert session.cancel_turn() is None  # there is nothing to cancel any more


def test_a_budget_that_is_used_up_fails_the_turn_with_its_code(everhold):
    everhold.answers(["One.", "Two."])
    everhold.runtime.start(plain(), key="poor", budget={"max_llm_calls": 1}, wait=0)
    session = everhold.runtime.session(plain, "poor")
    assert session.send("1").text == "One."
    assert session.send("2").outcome.code == "budget_exceeded"


def test_a_session_that_has_ended_is_read_and_not_moved(everhold):
    session, _, _ = talk(everhold, plain, "One.")
    everhold.runtime.cancel(session)
    assert [extract_text(node.content) for node in session.history()] == ["Go.", "One."]
    with pytest.raises(SessionEnded):
        session.send("Again?")


def test_two_conversations_that_go_alike_are_alike(everhold):
    """No id inside a turn is random."""
    found = []
    for name in ("one", "two"):
        calls = uses(("look", {"what": "a"}), ("look", {"what": "b"}))
        model = Scripted(calls, "Both.")
        everhold.answers(model.__call__)
        session = everhold.runtime.session(plain, name)
        session.send("Go.", id="same")
        found.append((session.history(), session.turns()))
    assert found[0] == found[1]


def test_calls_have_a_result_each_and_history_is_in_order(everhold):
    calls = uses(("look", {"what": "a"}), ("look", {"what": "b"}))
    session, _, _ = talk(everhold, plain, calls, "Both.")
    assert [node.role for node in session.history()] == ["user", "assistant", "tool", "assistant"]
    assert told(session.history()) == ["a: found", "b: found"]


# ---- waits


def test_a_wait_is_resolved_once(everhold):
    """The same again is no conflict; another answer is; an unknown question is its own error."""
    session = everhold.start(waits())
    (query,) = everhold.runtime.status(session.status.session_id).queries
    with pytest.raises(UnknownQuery):
        everhold.runtime.answer(query.session_id, True, query_id="q-99")
    everhold.runtime.answer(query, True)
    everhold.runtime.answer(query.session_id, True, query_id=query.id)
    with pytest.raises((AnswerConflict, QueryClosed)):
        everhold.runtime.answer(query.session_id, False, query_id=query.id)
    everhold.signal("word", "early")  # it is kept until the program listens
    everhold.skip(seconds=61)
    session.assert_returned([True, "early"])


def test_a_key_is_one_session_and_a_deleted_one_is_not_used_again(everhold):
    everhold.answers(["a", "b"])
    first = everhold.runtime.start(asks(), key="k")
    assert everhold.runtime.start(asks(), key="k").session_id == first.session_id
    with pytest.raises(KeyConflict):
        everhold.runtime.start(asks(n=2), key="k")
    everhold.runtime.delete("k")
    with pytest.raises(UnknownSession):
        everhold.runtime.status(first.session_id)
    with pytest.raises(KeyDeleted):
        everhold.runtime.start(asks(), key="k")


# ---- what survives


def test_a_turn_with_tools_is_crashed_at_every_commit():
    """The same end, nothing asked or called twice."""
    said = iter([uses(("look", {"what": "a"}), ("look", {"what": "b"})), "Both."])

    async def model(query):
        return next(said)

    report = crash_everywhere(plain(task="Go."), answers=model)
    assert report.result == "Both." and report.commits >= 4


def refuses(query):
    raise AssertionError("it was asked again")


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_what_was_recorded_is_never_done_again_by_another_runtime(tmp_path, where):
    """It has the same receipt, and asks and calls nothing."""
    kept = MemoryStore()

    def opened(model):
        if where == "memory":
            return Runtime(kept, llm=model)
        return everhold.open(f"sqlite:///{tmp_path}/app.db", llm=model)

    async with opened(Scripted(use("look", what="x"), "Done.")) as runtime:
        session = await runtime.session(plain, "chat")
        first = await session.send("go", id="i")
        await session.configure({"temperature": 0.3})
    async with opened(refuses) as runtime:
        session = await runtime.session(plain, "chat")
        assert await session.send("go", id="i") == first
        assert (await session.options())["temperature"] == 0.3
        assert first.settled.leaf in {node.id for node in await session.history()}
        assert (await runtime.archive.verify()) == []
    assert CALLED == ["x"]


async def test_two_runtimes_on_one_store_give_one_turn(tmp_path):
    """What another runtime did is adopted; an input has one receipt, whoever sends it."""
    url = f"sqlite:///{tmp_path}/app.db"

    def model(query):
        return f"to {extract_text(query.messages[-1]['content'])}"

    async with everhold.open(url, llm=model) as one, everhold.open(url, llm=model) as two:
        here, there = [await runtime.session(plain, "chat") for runtime in (one, two)]
        both = await asyncio.gather(here.send("x", id="x"), there.send("x", id="x"))
        assert both[0].settled == both[1].settled and both[0].text == "to x"
        assert (await there.send("y")).text == "to y"
        assert (await here.send("z")).text == "to z"
        await here.refresh()
        assert len(await here.turns()) == len(await there.turns()) == 3


async def test_an_answer_of_another_process_is_taken_up(tmp_path):
    """Whoever waits here hears of it, and the turn resumes."""
    url = f"sqlite:///{tmp_path}/app.db"
    async with everhold.open(url, llm=None) as one, everhold.open(url, llm=None) as two:
        session = await one.session(plain, "chat")
        turn = await session.send("Go.", wait=0)
        await two.answer(turn.queries[0], "From elsewhere.")
        done = await session.turn(turn.input_id)
        assert done.text == "From elsewhere."


async def test_time_is_what_the_clock_of_the_runtime_says():
    clock = ManualClock()
    async with Runtime(MemoryStore(), llm=None, clock=clock) as runtime:
        status = await runtime.start(waits())
        await runtime.answer(status.queries[0], True)
        clock.advance(61)
        await runtime.signal(status.session_id, "word", "w")
        done = await runtime.wait(status.session_id, 20)
        assert done.result == [True, "w"]


def test_who_works_is_told_and_why_a_session_waits(everhold):
    session = everhold.runtime.session(plain, "chat")
    session.send("Go.", wait=0)
    told_of = everhold.runtime.explain(session)
    assert any("llm" in line or "model" in line for line in told_of.because) and told_of.moves


async def test_usage_is_summed_over_sessions():
    used = Usage(prompt_tokens=10, completion_tokens=2, model="m")
    async with Runtime(MemoryStore(), llm=lambda query: Answer("ok", usage=used)) as runtime:
        for name in "ab":
            await (await runtime.session(plain, name)).send("Go.")
        (row,) = await runtime.usage()
        assert row.llm_calls == 2


def test_an_input_above_the_limit_is_refused(everhold):
    """It reaches neither the model nor the store."""
    session = everhold.runtime.session(plain, "large")
    with pytest.raises(InputTooLarge) as refused:
        session.send("x" * 3_000_000)
    assert refused.value.code == "input_too_large" and refused.value.size >= 3_000_000
    with pytest.raises(InputTooLarge):
        session.enqueue("x" * 3_000_000)
    assert session.turns() == [] and session.intake(all=True) == []
