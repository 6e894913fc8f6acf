"""Queued input, commands and input of a running turn, through the public API.

Nobody answers the model here, so a turn stays open until the test answers.
"""

import pytest

from everhold import Agent, Runtime, open_blocking, program, tool
from everhold.agents import (
    CancelOutcome,
    FrameOpened,
    InputStage,
    OfferedTool,
    ToolsRefreshed,
    TurnAnswered,
    TurnCancelled,
    extract_text,
)
from everhold.errors import (
    BadArguments,
    BadValue,
    InputConflict,
    InputEnded,
    KeyConflict,
    SessionBusy,
    StoreFull,
    TurnWaiting,
    UnknownInput,
)
from everhold.hooks import Confirm
from everhold.stores import MemoryStore
from everhold.testing import ManualClock, StoreWrapper
from tests.scenario.talk import Scripted, use


@tool(read_only=True)
def look(what: str) -> str:
    """Look something up."""
    return f"{what}: found"


@tool
def pay() -> str:
    """Pay."""
    return "paid"


plain = Agent(tools=[look], name="outside_plain")
asking = Agent(tools=[pay], policy=lambda wanted: Confirm("Pay?"), name="outside_asking")
brief = Agent(tools=[look], max_turns=1, name="outside_brief")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def quiet(clock):
    """A runtime without a model: the test answers."""
    with open_blocking("memory://", llm=None, clock=clock) as runtime:
        yield runtime


@pytest.fixture
def lines():
    """What the model of the runtime `speaking` says."""
    return []


@pytest.fixture
def speaking(lines, clock):
    """A runtime with a model that says its lines."""

    async def model(query):
        return lines.pop(0) if lines else "Done."

    with open_blocking("memory://", llm=model, clock=clock) as runtime:
        yield runtime


def hold(runtime, agent=plain, name="chat"):
    """A conversation with a turn that waits for its model."""
    session = runtime.session(agent, name)
    assert session.send("Go.", id="first", wait=0).waiting
    return session


def answer(runtime, session, *lines):
    """Answer the model's open question with each line."""
    for line in lines:
        runtime.wait(session, settled=True)
        asked = [one for one in runtime.status(session).queries if one.kind == "llm"]
        runtime.answer(asked[0], line)
    runtime.wait(session, settled=True)


def words(nodes):
    return [extract_text(node.content) for node in nodes]


def inputs(session):
    return [one.input for one in session.turns()]


# ---- the next turn


def test_what_is_enqueued_during_a_turn_is_the_next_turn(quiet):
    """Enqueuing returns when it is stored, and waits for nobody."""
    session = hold(quiet)
    receipt = session.enqueue("And then?", key="second")
    assert (receipt.new, receipt.item.id, receipt.item.state) == (True, "second", "waiting")
    assert [item.id for item in session.intake()] == ["second"]
    answer(quiet, session, "Done.", "That.")
    assert inputs(session) == ["first", "second"] and session.intake() == []
    assert [(item.id, item.state) for item in session.intake(all=True)] == [("second", "completed")]


def test_what_is_enqueued_on_an_idle_conversation_enters_by_itself(speaking, lines):
    lines += ["Hello."]
    session = speaking.session(plain, "idle")
    receipt = session.enqueue("Hi.")
    turn = session.turn(receipt.item.id)
    assert (turn.text, turn.outcome) == ("Hello.", TurnAnswered())


def test_inputs_that_wait_together_are_one_turn_in_order(quiet):
    session = hold(quiet)
    session.enqueue("One.", key="a")
    session.enqueue("Two.", key="b")
    session.enqueue("Three.", key="c", alone=True)
    answer(quiet, session, "Done.", "Both.", "Alone.")
    assert [(one.input, one.taken) for one in session.turns()] == [
        ("first", []),
        ("a", ["b"]),
        ("c", []),
    ]
    assert words(session.history())[2:4] == ["One.Two.", "Both."]


def test_many_inputs_enter_in_order(quiet):
    """At most 64 are claimed together; none is lost, none comes twice."""
    session = hold(quiet)
    for n in range(70):
        session.enqueue(f"{n};")
    answer(quiet, session, "Done.", "Sixty-four.", "The rest.")
    said = "".join(extract_text(node.content) for node in session.history() if node.role == "user")
    assert said == "Go." + "".join(f"{n};" for n in range(70))
    assert len(session.turns()) == 3


def test_an_input_for_later_waits_until_then(speaking, lines, clock):
    lines += ["Now.", "Later."]
    session = speaking.session(plain, "later")
    at = clock.now() + 60
    receipt = session.enqueue("Remember.", available_at=at)
    assert session.send("Hello.").text == "Now."
    assert session.input(receipt.item.id).stage is InputStage.WAITING
    clock.advance(61)
    assert session.turn(receipt.item.id).text == "Later."


def test_the_same_key_is_the_same_input_and_other_content_a_conflict(quiet):
    """Before it enters, and after its turn."""
    session = hold(quiet)
    first = session.enqueue("Then.", key="k")
    again = session.enqueue("Then.", key="k")
    assert (again.new, again.item.id) == (False, first.item.id)
    with pytest.raises(InputConflict, match="'k'"):
        session.enqueue("Otherwise.", key="k")
    answer(quiet, session, "Done.", "So.")
    assert not session.enqueue("Then.", key="k").new
    assert session.send("Then.", id="k").text == "So."
    with pytest.raises(KeyConflict):
        session.enqueue("Otherwise.", key="k")
    other = hold(quiet, name="other")
    assert other.enqueue("Otherwise.", key="k").new  # keys are of one conversation


def test_what_cannot_be_kept_is_refused_and_nothing_is_written(quiet):
    session = quiet.session(plain, "refused")
    for bad in ("", [], ["words"], [{"type": "text", "text": ""}]):
        with pytest.raises(BadArguments):
            session.enqueue(bad)
    with pytest.raises(BadValue):
        session.enqueue([{"type": "live", "value": object()}])
    with pytest.raises(BadArguments, match="soon"):
        session.enqueue("Hi.", at="soon")
    assert session.intake(all=True) == []


def test_inputs_are_cancelled_with_an_outcome_for_each(quiet):
    session = hold(quiet)
    session.enqueue("A", key="a")
    session.enqueue("B", key="b")
    found = session.cancel("b", "nobody", "b", reason="no more")
    assert [one.outcome for one in found] == [
        CancelOutcome.CANCELLED,
        CancelOutcome.UNKNOWN,
        CancelOutcome.ALREADY,
    ]
    where = session.input("b")
    assert (where.stage, where.reason) == (InputStage.CANCELLED, "no more")
    with pytest.raises(InputEnded):
        session.send("B", id="b")
    answer(quiet, session, "Done.", "A it is.")
    assert [one.outcome for one in session.cancel("a")] == [CancelOutcome.COMPLETED]
    assert inputs(session) == ["first", "a"]


def test_a_lane_is_cancelled_from_an_item_on(quiet):
    session = hold(quiet)
    for name in "abc":
        session.enqueue(name, key=name)
    session.command("reset", key="r")
    assert [(one.name, one.outcome) for one in session.cancel_from("b")] == [
        ("b", CancelOutcome.CANCELLED),
        ("c", CancelOutcome.CANCELLED),
    ]
    assert [item.id for item in session.intake()] == ["a", "command:reset:r"]
    with pytest.raises(UnknownInput):
        session.cancel_from("nobody")


def test_the_stage_of_an_input_is_told(quiet):
    session = hold(quiet)
    session.enqueue("B", key="b")
    assert session.input("first").stage is InputStage.IN_TURN
    assert session.input("b").stage is InputStage.WAITING
    answer(quiet, session, "Done.", "B.")
    where = session.input("b")
    assert (where.stage, where.turn, where.settled.input) == (InputStage.SETTLED, 2, "b")
    with pytest.raises(UnknownInput):
        session.input("nobody")


def test_what_has_ended_is_forgotten_on_request_and_its_key_is_not(speaking, lines, clock):
    lines += ["One."]
    session = speaking.session(plain, "vacuum")
    session.enqueue("Hi.", key="k")
    session.turn("k")
    clock.advance(61)
    assert speaking.archive.vacuum(session.id, older_than=60) == 1
    assert session.intake(all=True) == []
    assert not session.enqueue("Hi.", key="k").new and len(session.turns()) == 1


# ---- the running turn


@pytest.mark.parametrize(
    ("at", "place"), [("after_work", 3), ("before_completion", 4)], ids=["after", "before"]
)
def test_an_input_of_the_running_turn_enters_at_its_checkpoint(quiet, at, place):
    """Once, with its id, in the receipt of that turn."""
    session = hold(quiet)
    receipt = session.enqueue("Also this.", key="k", at=at)
    assert (receipt.item.turn, receipt.item.boundary) == (1, at)
    answer(quiet, session, use("look", what="x"), "Done.")
    if at == "before_completion":
        answer(quiet, session, "That too.")
    assert [(one.input, one.taken) for one in session.turns()] == [("first", ["k"])]
    said = words(session.history())
    assert said[place] == "Also this." and said.count("Also this.") == 1


def test_what_misses_its_turn_is_the_next_turn_exactly_once(quiet):
    session = hold(quiet, brief)
    answer(quiet, session, use("look", what="x"))
    session.enqueue("Too late?", key="late", at="after_work")
    answer(quiet, session, "Done.", "No.")
    assert inputs(session) == ["first", "late"]
    assert words(session.history()).count("Too late?") == 1


def test_a_running_turn_is_steered(quiet):
    session = hold(quiet)
    assert session.steer("Hurry.", id="s") == "s"
    answer(quiet, session, "Done.", "Quick.")
    turn = session.turn("s")
    assert (turn.settled.input, turn.settled.taken, turn.text) == ("first", ["s"], "Quick.")


def test_while_a_turn_runs_an_input_is_queued_refused_steered_or_forked(quiet):
    session = hold(quiet)
    with pytest.raises(SessionBusy):
        session.send("Now!", busy="reject")
    assert session.send("Hurry.", id="s", busy="steer", wait=0).waiting
    assert session.send("Next.", id="n", busy="queue", wait=0).waiting
    assert [item.id for item in session.intake()] == ["n"]
    fork = session.send("Meanwhile.", id="m", busy="fork", wait=0)
    assert fork.session_id != session.id and fork.waiting
    answer(quiet, session, "Done.", "Quick.", "Then.")
    assert [(one.input, one.taken) for one in session.turns()] == [("first", ["s"]), ("n", [])]


def test_nothing_is_sent_while_a_person_is_asked_but_it_can_be_enqueued(speaking, lines):
    lines += [use("pay"), "Paid.", "Yes."]
    session = speaking.session(asking, "asked")
    turn = session.send("Pay.")
    with pytest.raises(TurnWaiting):
        session.send("Well?")
    receipt = session.enqueue("Well?")
    speaking.answer(turn.queries[0], True)
    assert session.turn(receipt.item.id).text == "Yes."


# ---- commands


class Source:
    """A source of tools that changes."""

    name = "changing"

    def __init__(self, *offers):
        self.offers, self.fails = list(offers), False

    async def offered(self):
        if self.fails:
            raise OSError("away")
        return [OfferedTool(name, name) for name in self.offers]

    def tool(self, offer):
        return tool(lambda: "done", name=offer.name, description="Something.", read_only=True)


def test_a_command_runs_once_between_turns_and_is_never_said_to_a_model(quiet, clock):
    session = hold(quiet)
    receipt = session.command("reset", key="r", reason="a new topic")
    again = session.command("reset", key="r", reason="said otherwise")
    assert (receipt.new, again.new, again.item.id) == (True, False, receipt.item.id)
    clock.advance(1)
    session.enqueue("Hello.", key="h")
    assert session.turns() == []
    answer(quiet, session, "Done.")
    turns = session.turns()
    assert [one.input for one in turns] == ["first", receipt.item.id]
    assert turns[1].outcome == FrameOpened("reset", "2.0")
    (asked,) = [one for one in quiet.status(session).queries if one.kind == "llm"]
    assert [extract_text(message["content"]) for message in asked.messages] == ["Hello."]


@pytest.mark.parametrize("key", ["", "  ", 7])
def test_a_command_without_a_key_is_refused(quiet, key):
    session = quiet.session(plain, "blank")
    with pytest.raises(BadArguments, match="key"):
        session.command("reset", key=key)
    assert session.intake(all=True) == []


def test_an_unknown_command_is_refused(quiet):
    session = quiet.session(plain, "unknown")
    with pytest.raises(BadArguments, match="explode"):
        session.command("explode", key="k")


def test_tools_are_refreshed_by_command(speaking, lines):
    """The receipt has the tools that are offered now; a source that fails keeps what it offered."""
    source = Source("one")
    agent = Agent(tools=[source, look], name="<locals>.refreshed")
    lines += ["Hello."]
    session = speaking.session(agent, "refresh")
    session.send("Hi.")
    source.offers.append("two")
    told = session.turn(session.command("refresh_tools", key="1", reason="new").item.id).outcome
    assert isinstance(told, ToolsRefreshed) and told.tools == ["look", "one", "two"]
    source.fails = True
    failed = session.turn(session.command("refresh_tools", key="2").item.id).outcome
    assert failed.tools == ["look", "one", "two"] and failed.unreached
    assert failed.fingerprint == told.fingerprint != ""


def test_a_conversation_is_compacted_by_command(quiet):
    session = quiet.session(plain, "compact")
    receipt = session.command("compact", key="c")
    opened = session.turn(receipt.item.id).outcome
    assert isinstance(opened, FrameOpened) and (opened.reason, opened.frame) == ("compaction", None)


def test_a_turn_is_cancelled_at_once_by_command(quiet):
    session = hold(quiet)
    session.enqueue("Next.", key="n")
    session.command("cancel_turn", key="c", reason="enough")
    quiet.wait(session, settled=True)
    assert session.turns()[0].outcome == TurnCancelled("enough")
    answer(quiet, session, "Yes?")
    assert inputs(session) == ["first", "n"]


# ---- work that wakes a conversation


@program
async def bake(ctx, what: str, minutes: int = 0):
    """Bake something, and tell whoever began it."""
    if minutes:
        await ctx.sleep(minutes * 60)
    await ctx.tell(f"{what} smells good")
    return f"{what} is done"


baker = Agent(background=[bake], name="outside_baker")


def test_what_a_background_program_tells_wakes_the_conversation(speaking, lines):
    """As a turn that names where it comes from; the model is not polled."""
    lines += [use("process_start", program="bake", arguments={"what": "bread"}), "Begun."]
    session = speaking.session(baker, "kitchen")
    session.send("Bake.")
    while len(session.turns()) < 2 or "waiting" in [item.state for item in session.intake()]:
        speaking.wait(session, 1)
    said = "".join(words(session.history()))
    assert "bread smells good" in said and "bread is done" in said


async def test_a_full_store_refuses_an_input_and_keeps_nothing_of_it():
    """It is an error for whoever sends it; later the same input is accepted."""

    class Full(StoreWrapper):
        full = False

        async def commit(self, change, fence):
            if self.full:
                raise StoreFull("memory://")
            return await super().commit(change, fence)

        def commit_now(self, change, fence):
            return False

    store = Full(MemoryStore())
    async with Runtime(store, llm=Scripted("One.", "Two.")) as runtime:
        session = await runtime.session(plain, "full")
        await session.send("one")
        store.full = True
        with pytest.raises(StoreFull):
            await session.send("two", id="i")
        store.full = False
        assert len(await session.turns()) == 1
        assert (await session.send("two", id="i")).text == "Two."
