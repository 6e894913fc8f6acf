"""Turns: how they end, what is heard while they run, and what a crash does to them."""

import msgspec
import pytest

from everhold.agents.agent import Agent
from everhold.core.graph import NodeKind, extract_text
from everhold.core.status import Raised
from everhold.core.turn import MaxTurnsReached, TurnAnswered, TurnCancelled, TurnFailed
from everhold.errors import BadArguments, BadValue, SessionEnded, TurnStopped, TurnWaiting
from everhold.ports.tool import tool
from everhold.testing.crash import crash_everywhere
from tests.scenario.harness import opened, rows
from tests.scenario.talk import Scripted, told, use, uses


@tool(read_only=True)
def look(what: str) -> str:
    """Look something up."""
    return f"{what}: found"


class Verdict(msgspec.Struct):
    right: bool
    why: str


plain = Agent(instructions="Be brief.", tools=[look], max_turns=2, name="turns_plain")
judging = Agent(returns=Verdict, name="turns_judging")
three = Agent(tools=[look], name="turns_three")


def words(nodes):
    return [extract_text(node.content) for node in nodes]


async def test_a_turn_is_answered():
    """Row 27: the model calls a tool, sees its result, and answers; the receipt says so."""
    model = Scripted(use("look", what="x"), "It is there.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(plain, "a")
        turn = await session.send("Where is x?")
        assert (turn.outcome, turn.text, turn.settled.rounds) == (TurnAnswered(), "It is there.", 2)
        assert model.results == ["x: found"]


async def test_the_last_round_is_one_of_grace():
    """Row 27: when its rounds are used up the model is told so once, and may still answer."""
    model = Scripted(use("look", what="a"), use("look", what="b"), "Enough.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(plain, "grace")
        turn = await session.send("Go.")
        assert (turn.outcome, turn.settled.rounds) == (TurnAnswered(), 3)
        assert "Answer now" in extract_text(model.shown[-1][-1]["content"])
        assert all("Answer now" not in said for said in words(await session.history()))


async def test_rounds_beyond_grace_are_max_turns():
    """Row 27: a model that goes on calling tools is stopped, and each call has a result."""
    calls = [use("look", what=str(n)) for n in range(5)]
    async with opened(llm=Scripted(*calls)) as runtime:
        session = await runtime.session(plain, "max")
        turn = await session.send("Go.")
        assert turn.outcome == MaxTurnsReached(2)
        last = (await session.history())[-1]
        assert last.role == "tool" and last.content[0]["is_error"]
        assert (await session.send("And now?")).settled.turn == 2


@pytest.mark.parametrize("said", [{"content": []}, {"text": ""}])
async def test_saying_nothing_fails_the_turn(said):
    """Row 27: an empty response is a failure with a code, and the conversation goes on."""
    async with opened(llm=Scripted(said, "Here I am.")) as runtime:
        session = await runtime.session(plain, "empty")
        turn = await session.send("Hello?")
        assert isinstance(turn.outcome, TurnFailed) and turn.outcome.code == "empty_response"
        assert (await session.send("Hello?")).text == "Here I am."


@pytest.mark.parametrize("said", [{"text": 5}, {"text": ["x"]}])
async def test_words_that_are_no_words_fail_the_turn_and_not_the_session(said):
    """Row 27: what a host wrote wrong is an outcome; the conversation goes on."""
    async with opened(llm=Scripted(said, '{"right": true, "why": "so"}')) as runtime:
        session = await runtime.session(judging, "wrong")
        assert (await session.send("Hello?")).outcome.code == "bad_response"
        assert isinstance((await session.send("Hello?")).outcome, TurnAnswered)


async def test_tools_are_called_also_where_the_words_are_called_content():
    """Row 27: as messages of OpenAI are written; calls are not left out in silence."""
    async with opened(
        llm=Scripted({"content": "Let me see.", **use("look", what="a")}, "Seen.")
    ) as runtime:
        session = await runtime.session(plain, "content")
        assert (await session.send("Look.")).text == "Seen."
        assert told(await session.history()) == ["a: found"]


async def test_a_value_that_fits_is_returned():
    """Row 27: an agent with `returns` comes to a value, also from a fence."""
    async with opened(llm=Scripted('```json\n{"right": true, "why": "seen"}\n```')) as runtime:
        session = await runtime.session(judging, "fits")
        turn = await session.send("Is it?")
        assert turn.value == {"right": True, "why": "seen"}


async def test_a_value_that_does_not_fit_is_sent_back_twice():
    """Row 27: the model is told what does not fit, at most twice; then the turn fails with the
    reason.
    """
    model = Scripted("yes", '{"right": 1}', '{"right": true, "why": "now"}', "no", "no", "no")
    async with opened(llm=model) as runtime:
        session = await runtime.session(judging, "repair")
        turn = await session.send("Is it?")
        assert (turn.value, turn.settled.rounds) == ({"right": True, "why": "now"}, 3)
        assert "right" in extract_text(model.shown[2][-1]["content"])
        failed = await session.send("Again?")
        assert (failed.outcome.code, failed.settled.rounds) == ("answer_refused", 3)


async def test_a_session_budget_that_is_used_up_fails_the_turn():
    """Row 27: BudgetExceeded is an outcome with its code, not the end of the conversation."""
    async with opened(llm=Scripted("One.", "Two.")) as runtime:
        status = await runtime.start(three(), key="poor", budget={"max_llm_calls": 1}, wait=0)
        session = await runtime.session(three, "poor")
        assert session.id == status.session_id
        assert (await session.send("1")).text == "One."
        assert (await session.send("2")).outcome.code == "budget_exceeded"


async def test_a_turn_is_cancelled_and_its_calls_have_results():
    """Row 27: a cancel is an outcome; what was said stays."""
    async with opened() as runtime:
        session = await runtime.session(three, "cancel")
        turn = await session.send("Go.")
        await runtime.answer(turn.queries[0], {"tool_calls": [{"name": "nobody", "input": {}}]})
        turn = await session.cancel_turn("enough")
        assert turn.outcome == TurnCancelled("enough")
        assert [node.role for node in await session.history()] == ["user", "assistant", "tool"]


async def test_an_answer_to_what_was_not_asked_changes_nothing():
    """Row 27: a foreign response is refused, and the turn stands where it stood."""
    async with opened() as runtime:
        session = await runtime.session(three, "foreign")
        turn = await session.send("Go.")
        with pytest.raises(Exception, match="q-99"):
            await runtime.answer(session.id, "x", query_id="q-99")
        assert (await session.turn(turn.input_id)).queries == turn.queries


# ---- what is heard while a turn runs


async def test_what_is_said_to_a_turn_is_heard_at_its_next_checkpoint_once():
    """Row 26: an injected input is heard with its id, once, in the turn under way; its receipt is
    that turn's.
    """
    async with opened() as runtime:
        session = await runtime.session(three, "steer")
        turn = await session.send("Go.", id="first")
        await session.steer("Hurry.", id="extra")
        await session.steer("Hurry.", id="extra")
        await runtime.answer(turn.queries[0], use("look", what="x"))
        asked = (await session.turn("first")).queries
        await runtime.answer(asked[0], "Done.")
        done = await session.turn("extra")
        assert done.settled.input == "first" and done.settled.taken == ["extra"]
        said = words(await session.history())
        assert said.count("Hurry.") == 1 and said.index("Hurry.") == 3


async def test_what_is_said_before_the_end_is_heard_before_the_end():
    """Row 26: the checkpoint before completion hears it too, and the model is asked again."""
    async with opened() as runtime:
        session = await runtime.session(three, "late")
        turn = await session.send("Go.")
        await session.steer("And this?")
        await runtime.answer(turn.queries[0], "Done.")
        asked = (await session.turn(turn.input_id)).queries
        await runtime.answer(asked[0], "That too.")
        assert (await session.turn(turn.input_id)).text == "That too."
        assert len(await session.turns()) == 1


async def test_what_misses_the_last_checkpoint_is_the_next_turn():
    """Row 26: what is said during the round of grace is the next turn's, exactly once."""
    once = Agent(tools=[look], max_turns=1, name="turns_once")
    async with opened(replay=False) as runtime:
        session = await runtime.session(once, "missed")
        turn = await session.send("Go.")
        await runtime.answer(turn.queries[0], use("look", what="x"))
        asked = (await session.turn(turn.input_id)).queries
        await session.steer("Too late?", id="late")
        await runtime.answer(asked[0], "Done.")
        assert (await session.turn(turn.input_id)).text == "Done."
        later = await session.turn("late")
        await runtime.answer(later.queries[0], "No.")
        assert [settled.input for settled in await session.turns()] == [turn.input_id, "late"]
        assert words(await session.history()).count("Too late?") == 1


async def test_an_input_that_comes_twice_is_one_turn():
    """Row 26: the same id is the same input, wherever it is said."""
    async with opened(llm=Scripted("One.", "Two.")) as runtime:
        session = await runtime.session(three, "twice")
        await session.send("Hello.", id="x")
        await runtime.signal(session.id, "input", {"id": "x", "content": "Hello."})
        await session.steer("Hello.", id="x")
        assert len(await session.turns()) == 1


# ---- with and without a life in memory


async def test_everything_can_be_asked_of_a_conversation_that_nobody_holds():
    """Row 1: whoever has the journal can read it; only what moves it says that it has ended."""
    async with opened(llm=Scripted("One.")) as runtime:
        session = await runtime.session(three, "cold")
        await session.send("Hello.")
        await runtime.cancel(session.id)
        assert words(await session.history()) == ["Hello.", "One."]
        assert (await session.options(), len(await session.frames())) == ({}, 1)
        assert len(await session.turns()) == 1
        with pytest.raises(SessionEnded):
            await session.send("Again?")


async def test_options_that_cannot_be_kept_are_refused():
    """Row 32: what is given to a turn is plain data that can be replayed, or it is refused and
    nothing happens.
    """
    async with opened(llm=Scripted("One.")) as runtime:
        session = await runtime.session(three, "live")
        with pytest.raises(BadValue):
            await session.send("Hello.", options={"callback": print})
        with pytest.raises(BadArguments):
            await session.send("Hello.", options={"max_turns": 0})
        assert await session.turns() == []


async def test_history_is_in_the_order_in_which_it_was_said():
    """Row 32: the chronological view is read-only data, oldest first."""
    async with opened(
        llm=Scripted(uses(("look", {"what": "a"}), ("look", {"what": "b"})), "Both.")
    ) as runtime:
        session = await runtime.session(three, "order")
        await session.send("Go.")
        nodes = await session.history()
        assert [node.role for node in nodes] == ["user", "assistant", "tool", "assistant"]
        assert [block["content"] for block in nodes[2].content] == ["a: found", "b: found"]


# ---- one task


async def test_a_task_that_does_not_come_to_an_answer_fails():
    """Typed, not prose: the outcome is named (D16)."""
    async with opened(llm=Scripted({"text": ""}), replay=False) as runtime:
        status = await runtime.start(three(task="Go."), wait=60)
        assert isinstance(status.outcome, Raised) and status.outcome.kind == TurnStopped.code
        assert "failed" in status.outcome.error


# ---- changes of the agent


async def test_what_its_author_changes_does_not_change_what_was_said():
    """Row 9: limits, instructions and plugins may change between turns; old turns replay as they
    were (D4).
    """
    changing = Agent(instructions="Old.", tools=[look], max_turns=1, name="turns_changing")
    model = Scripted(use("look", what="a"), use("look", what="b"), "New.")
    async with opened(llm=model, replay=False) as runtime:
        session = await runtime.session(changing, "change")
        assert (await session.send("Go.")).outcome == MaxTurnsReached(1)
        for live in runtime.engine.sessions.all():
            runtime.engine.sessions.drop(live)
        changing.max_turns, changing.instructions = 5, "New."
        assert (await session.send("Again.")).text == "New."
        graph = (await session.conversation()).graph
        told = [
            node.content["system"]
            for node in graph.path(graph.leaf)
            if node.kind is NodeKind.PROMPT
        ]
        assert told == ["Old.", "New."]


async def test_an_agent_may_return_something_else_tomorrow():
    """Row 27: what was sent back and what was accepted is in the journal, not judged again."""
    judge = Agent(returns=Verdict, name="<locals>.judge")
    model = Scripted("yes", '{"right": true, "why": "now"}', "Just words.")
    async with opened(llm=model, replay=False) as runtime:
        session = await runtime.session(judge, "tomorrow")
        first = await session.send("Is it?")
        for live in runtime.engine.sessions.all():
            runtime.engine.sessions.drop(live)
        judge.returns = None
        assert (await session.send("And?")).text == "Just words."
        assert (await session.turns())[0] == first.settled
        assert "does not fit" in words(await session.history())[2]
        assert words([*map(text_node, model.shown[-1])])[2] == words(await session.history())[2]


class text_node:
    """A message as the model was shown it, as a node."""

    def __init__(self, message):
        self.content = message["content"]


async def test_a_prompt_that_did_not_change_is_stored_once():
    """Row 23: the PROMPT node comes up again only when what it says has changed."""
    async with opened(llm=Scripted("1", "2", "3")) as runtime:
        session = await runtime.session(plain, "stored")
        for n in range(3):
            await session.send(str(n))
        kinds = [
            node.kind for delivery in await rows(runtime, session.id) for node in _nodes(delivery)
        ]
        assert kinds.count(NodeKind.PROMPT) == 1


def _nodes(delivery):
    return [] if delivery.notes is None else delivery.notes.nodes


# ---- crashes


def test_a_turn_with_three_tools_is_crashed_at_every_commit():
    """Row 27: before and after each commit of a turn with three tools: the same end, nothing asked
    twice.
    """
    lines = [
        uses(("look", {"what": "a"}), ("look", {"what": "b"}), ("look", {"what": "c"})),
        "All three.",
    ]
    said = iter(lines)

    async def model(query):
        return next(said)

    report = crash_everywhere(three(task="Go."), answers=model)
    assert report.result == "All three." and report.commits >= 5


async def test_two_turns_do_not_run_at_once():
    """An input that comes while a turn runs waits for its end."""
    async with opened() as runtime:
        session = await runtime.session(three, "serial")
        await session.send("One?", id="1")
        await session.send("Two?", id="2")
        for input_id in ("1", "2"):
            (asked,) = (await session.turn(input_id)).queries
            await runtime.answer(asked, f"To {input_id}.")
        assert [settled.input for settled in await session.turns()] == ["1", "2"]
        assert words(await session.history()) == ["One?", "To 1.", "Two?", "To 2."]


async def test_a_command_that_waited_for_a_turn_has_a_receipt_of_its_own():
    """One step has room for one receipt: what is queued takes a step of its own."""
    async with opened() as runtime:
        session = await runtime.session(three, "queued")
        turn = await session.send("Go.")
        for number in ("1", "2"):
            await runtime.signal(
                session.id, "input", {"do": "configure", "id": number, "options": {"seed": number}}
            )
        await runtime.answer(turn.queries[0], "Done.")
        assert [(settled.turn, settled.input) for settled in await session.turns()] == [
            (1, turn.input_id),
            (2, "1"),
            (3, "2"),
        ]
        assert await session.options() == {"seed": "2"}


async def test_a_command_is_refused_while_somebody_outside_has_to_answer():
    """It would wait for ever; the refusal says for what."""
    async with opened() as runtime:
        session = await runtime.session(three, "refused")
        await session.send("Go.")
        with pytest.raises(TurnWaiting, match="llm"):
            await session.configure({"seed": 1})
        with pytest.raises(TurnWaiting):
            await session.compact()


async def test_two_conversations_that_go_alike_are_alike():
    """Ids of nodes and calls come from where they came up, never from dice (D14)."""
    found = []
    for name in ("one", "two"):
        async with opened(
            llm=Scripted(uses(("look", {"what": "a"}), ("look", {"what": "b"})), "Both.")
        ) as runtime:
            session = await runtime.session(three, name)
            await session.send("Go.", id="same")
            found.append((await session.history(), await session.turns()))
    assert found[0] == found[1]
