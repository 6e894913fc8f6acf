"""Policies: who is asked before a tool runs, and what a person's yes is worth."""

import asyncio

import pytest

from everhold.agents.agent import Agent
from everhold.agents.tool_calls import inherit_policies
from everhold.core.query import Kind
from everhold.core.tool import Allow, Confirm, Deny, digest_tool_call
from everhold.core.turn import TurnAnswered
from everhold.errors import AnswerConflict, AnswerRefused, BadArguments, Diverged, TurnWaiting
from everhold.ports.tool import tool
from everhold.testing.clock import ManualClock
from tests.scenario.harness import again, die, dying, opened
from tests.scenario.talk import Scripted, told, use, uses


class World:
    def __init__(self):
        self.paid = []
        self.asked = []
        self.verdict = Allow()
        self.begun = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()


world = World()


@pytest.fixture(autouse=True)
def fresh_world():
    world.__init__()


@tool
async def refund(order: str, amount: int = 1) -> str:
    """Give money back."""
    world.paid.append((order, amount))
    world.begun.set()
    await world.goes_on.wait()
    return f"refunded {order}"


@tool(read_only=True)
def look_up(order: str) -> str:
    """Look an order up."""
    return f"{order} came back"


def decide(wanted):
    world.asked.append((wanted.tool, wanted.input, wanted.read_only))
    if isinstance(world.verdict, Exception):
        raise world.verdict
    return world.verdict


async def decide_slowly(wanted):
    await asyncio.sleep(0)
    return decide(wanted)


def reads_only(wanted):
    return Allow() if wanted.read_only else Deny("only reading is allowed")


agent = Agent(tools=[refund, look_up], policy=decide, name="clerk")
slow = Agent(tools=[refund, look_up], policy=[decide_slowly], name="slow_clerk")
strict = Agent(tools=[refund, look_up], policy=[decide, reads_only], name="strict_clerk")


async def asked(runtime, agent=agent, id="chat"):
    session = await runtime.session(agent, id)
    return session, await session.send("Refund order 7.")


@pytest.mark.parametrize("who", [agent, slow], ids=["sync", "async"])
async def test_what_is_allowed_runs(who):
    """A policy is asked before each call, with the tool, its input, and whether it only reads."""
    model = Scripted(uses(("look_up", {"order": "7"}), ("refund", {"order": "7"})))
    async with opened(llm=model) as runtime:
        await asked(runtime, who)

    assert world.asked == [("look_up", {"order": "7"}, True), ("refund", {"order": "7"}, False)]
    assert model.results == ["7 came back", "refunded 7"]


async def test_what_is_denied_does_not_run_and_the_model_is_told_why():
    world.verdict = Deny("refunds are closed")
    model = Scripted(use("refund", order="7"), "Sorry.")
    async with opened(llm=model) as runtime:
        _, turn = await asked(runtime)

    assert turn.text == "Sorry."
    assert model.results == ["Error: denied by policy: refunds are closed"]
    assert world.paid == []


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (RuntimeError("no answer"), "Error: denied by policy: the policy failed (RuntimeError)"),
        (None, "Error: denied by policy: the policy returned no verdict"),
        (True, "Error: denied by policy: the policy returned no verdict"),
    ],
)
async def test_a_policy_that_fails_denies(verdict, words):
    """It fails closed: no verdict is a denial."""
    world.verdict = verdict
    model = Scripted(use("refund", order="7"))
    async with opened(llm=model) as runtime:
        await asked(runtime)

    assert model.results == [words]
    assert world.paid == []


async def test_of_several_policies_the_strictest_stands():
    model = Scripted(uses(("refund", {"order": "7"}), ("look_up", {"order": "7"})))
    world.verdict = Confirm()
    async with opened(llm=model) as runtime:
        session, turn = await asked(runtime, strict)
        assert [query.query.name for query in turn.queries] == ["look_up"]
        await runtime.answer(turn.queries[0], True)
        await session.turn(turn.input_id)

    assert model.results == ["Error: denied by policy: only reading is allowed", "7 came back"]


async def test_a_person_approves_exactly_one_call(tmp_path):
    """The question shows tool and input and is bound to them by their digest; who answered is
    recorded.
    """
    world.verdict = Confirm("It is a lot.", to="ada")
    model = Scripted(use("refund", order="7", amount=500))
    async with opened(tmp_path, llm=model) as runtime:
        session, turn = await asked(runtime)
        assert world.paid == []
        [query] = turn.queries
        bound = digest_tool_call("refund", {"amount": 500, "order": "7"})
        assert (query.kind, query.query.to) == (Kind.APPROVAL, "ada")
        assert query.prompt == 'Run refund with {"order":"7","amount":500}? It is a lot.'
        assert query.query.args["input"] == {"order": "7", "amount": 500}
        assert query.query.args["digest"] == bound
        with pytest.raises(TurnWaiting):
            await session.send("Hurry.")
        with pytest.raises(AnswerRefused):
            await runtime.answer(query, "perhaps")

    async with opened(tmp_path, llm=model) as runtime:
        await runtime.answer(query, True, by={"front": "cli", "user": "ada"})
        session = await runtime.session(agent, "chat")
        assert isinstance((await session.turn(turn.input_id)).outcome, TurnAnswered)
        with pytest.raises(AnswerConflict):
            await runtime.answer(query, False)
        record = await runtime.store.load(session.id)
        [(answer, at)] = [
            (answer, delivery.at)
            for delivery in record.deliveries
            for answer in delivery.answers
            if answer.value is True
        ]
        assert answer.by == {"front": "cli", "user": "ada"}
        assert at > 0
    assert world.paid == [("7", 500)]
    assert model.results == ["refunded 7"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"value": False}, "Error: a person declined refund"),
        ({"error": "ask me tomorrow"}, "Error: refund was not approved: ask me tomorrow"),
    ],
)
async def test_a_call_that_is_declined_does_not_run(answer, words):
    world.verdict = Confirm()
    model = Scripted(use("refund", order="7"))
    async with opened(llm=model) as runtime:
        session, turn = await asked(runtime)
        await runtime.answer(turn.queries[0], **answer)
        await session.turn(turn.input_id)

    assert model.results == [words]
    assert world.paid == []


async def test_nobodys_yes_is_a_no():
    """An approval with a deadline fails closed."""
    world.verdict = Confirm(timeout=60)
    clock, model = ManualClock(), Scripted(use("refund", order="7"))
    async with opened(clock=clock, llm=model) as runtime:
        session, turn = await asked(runtime)
        clock.advance(61)
        while turn.waiting:
            await asyncio.sleep(0.01)
            turn = await session.turn(turn.input_id, wait=1)

    assert model.results == ["Error: refund was not approved in time"]
    assert world.paid == []


async def test_a_policy_may_still_deny_what_was_approved():
    """It is asked before each run, also the approved one."""
    world.verdict = Confirm()
    model = Scripted(use("refund", order="7"))
    async with opened(llm=model) as runtime:
        session, turn = await asked(runtime)
        world.verdict = Deny("closed by now")
        await runtime.answer(turn.queries[0], True)
        await session.turn(turn.input_id)

    assert model.results == ["Error: denied by policy: closed by now"]


async def test_each_call_needs_its_own_yes():
    """Two calls at once are two questions, and one yes runs one of them."""
    world.verdict = Confirm()
    model = Scripted(uses(("refund", {"order": "7"}), ("refund", {"order": "8"})))
    async with opened(llm=model) as runtime:
        session, turn = await asked(runtime)
        first, second = turn.queries
        await runtime.answer(second, True)
        turn = await session.turn(turn.input_id)
        assert turn.waiting
        await runtime.answer(first, False)
        await session.turn(turn.input_id)

    assert model.results == ["Error: a person declined refund", "refunded 8"]
    assert world.paid == [("8", 1)]


async def test_calls_that_wait_for_a_person_take_up_no_place():
    """With room for one call, another runs while the first waits for its yes."""
    world.verdict = Confirm()
    model = Scripted(
        uses(("refund", {"order": "7"}), ("refund", {"order": "8"}), ("refund", {"order": "9"}))
    )
    async with opened(llm=model) as runtime:
        session, turn = await asked(runtime, one_at_a_time)
        while turn.waiting:
            while runtime.engine.sessions.jobs:  # what is decided at the same time
                await asyncio.sleep(0)
            turn = await session.turn(turn.input_id)
            assert len(turn.queries) > 1 or world.paid
            await runtime.answer(turn.queries[0], True)
            turn = await session.turn(turn.input_id)
    assert sorted(world.paid) == [("7", 1), ("8", 1), ("9", 1)]


one_at_a_time = Agent(tools=[refund], policy=decide, concurrency=1, name="one_at_a_time")


async def test_a_replay_asks_no_policy(tmp_path):
    """What a policy said is in the journal: what it would say now does not matter."""
    world.verdict = Deny("closed")
    model = Scripted(use("refund", order="7"), use("refund", order="8"))
    async with opened(tmp_path, llm=model) as runtime:
        session, _ = await asked(runtime)
    world.asked.clear()
    world.verdict = Allow()
    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        assert (await session.send("Thanks.")).text == "Done."
        assert told(await session.history()) == ["Error: denied by policy: closed"] * 2
    assert world.asked == []


async def test_code_that_would_run_another_input_than_was_approved_is_refused(tmp_path):
    """The digest is part of the question's shape: a changed input is a divergence, not a silent
    other call.
    """
    world.verdict = Confirm()
    model = Scripted(use("refund", order="7"))
    async with opened(tmp_path, llm=model) as runtime:
        session, turn = await asked(runtime)
        await runtime.answer(turn.queries[0], True)
        await session.turn(turn.input_id)
        record = await runtime.store.load(session.id)
    for delivery in record.deliveries:
        for answer in delivery.answers:
            if isinstance(answer.value, dict) and "tool_calls" in answer.value:
                answer.value["tool_calls"][0]["input"] = {"order": "8"}
    with pytest.raises(Diverged):
        await again(record, lambda ref, version: agent)


async def test_an_approved_call_that_was_cut_short_is_asked_about(tmp_path):
    """P3 and the approval together: the yes was for one run. Whether there is another is asked
    again.
    """
    world.verdict = Confirm()
    world.goes_on.clear()
    clock, model = ManualClock(), Scripted(use("refund", order="7"))
    runtime = await dying(tmp_path, clock, llm=model)
    _, turn = await asked(runtime)
    await runtime.answer(turn.queries[0], True, wait=0)
    await world.begun.wait()
    await die(runtime, clock)

    async with opened(tmp_path, clock=clock, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        turn = await session.turn(turn.input_id)
        assert [query.kind for query in turn.queries] == [Kind.CALL]
        await runtime.answer(turn.queries[0], {"result": "refunded by hand"})
        await session.turn(turn.input_id)
    assert model.results == ["refunded by hand"]
    assert world.paid == [("7", 1)]


def test_a_subagent_has_its_parents_policy_and_its_own():
    """Nobody escapes a policy by delegating: the parent's are asked first."""
    assert inherit_policies([reads_only, decide], [decide]) == (decide, reads_only)
    assert inherit_policies([], [decide]) == (decide,)


def test_what_is_no_policy_is_refused():
    with pytest.raises(BadArguments):
        Agent(policy="careful")
