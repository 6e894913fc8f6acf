"""A conversation as a value, through the public API: what can be read, kept, applied and counted.

The fixture replays every session after its test, without effects.
"""

import msgspec
import pytest

from everhold import Agent, Answer, Usage, tool
from everhold.agents import Stored, TurnAnswered, extract_text
from everhold.errors import BadSetting, BadValue, DamagedGraph, UnknownNode
from tests.scenario.talk import use

USED = Usage(prompt_tokens=10, completion_tokens=2, model="m")
SEEN = []


@tool(rerun="safe")
def ring(times: int) -> str:
    """Ring a bell."""
    return "it rang"


echo = Agent(instructions="Be brief.", name="outside_echo", temperature=0.5)
ringer = Agent(tools=[ring], name="outside_ringer")


def echoes(query):
    return Answer(f"You said: {extract_text(query.messages[-1]['content'])}", usage=USED)


def words(nodes):
    return [extract_text(node.content) for node in nodes]


def begin(everhold, *said, agent=echo, name="chat"):
    everhold.answers(echoes)
    session = everhold.runtime.session(agent, name)
    for one in said:
        session.send(one)
    return session


def test_every_look_has_an_answer_before_anything_was_said(everhold):
    session = begin(everhold)
    view = session.view()
    assert (view.messages, view.pending, view.turns, view.last, view.leaf) == (
        [],
        [],
        0,
        None,
        None,
    )
    assert view.usage["total"] == 0
    assert session.snapshot().nodes == []
    assert session.stored().leaf is None
    assert session.history() == [] and session.turns() == [] and len(session.usage()) == 0
    assert [frame.id for frame in session.frames()] == ["initial"]
    assert session.cancel_turn() is None
    with pytest.raises(UnknownNode):
        session.node("1.0")


def test_a_session_has_an_id_and_a_key(everhold):
    """The handle names its session; by its key or its id it is the same one."""
    session = begin(everhold, "one")
    assert session.id == session.session_id and session.id.startswith("s-")
    assert everhold.runtime.find("chat") == session.id
    assert everhold.runtime.session(echo, session.id).turns() == session.turns()


def test_a_view_has_what_was_said_and_no_references(everhold):
    view = msgspec.to_builtins(begin(everhold, "one").view())
    said = [extract_text(message["content"]) for message in view["messages"]]
    assert said == ["one", "You said: one"]
    assert view["options"] == {"temperature": 0.5}
    assert (view["turns"], view["usage"]["total"]) == (1, 12)
    assert view["last"]["outcome"]["type"] == "answered"
    assert not {"nodes", "ledger", "revision"} & view.keys()


def test_a_snapshot_has_every_node_and_no_words(everhold):
    """All branches by reference, frames, receipts and the ledger's rows; no texts."""
    session = begin(everhold, "one")
    session.branch(None)
    session.send("two")
    shown = session.snapshot()
    assert [node.parent for node in shown.nodes if node.role == "user"] == [None, None]
    assert b"You said" not in msgspec.json.encode(shown)
    assert [(row["source"], row["model"], row["total"]) for row in shown.ledger] == [
        ("turn", "m", 24)
    ]
    assert len(shown.turns) == 2 and [frame["id"] for frame in shown.frames] == ["initial"]
    assert "revision" not in shown.__struct_fields__


def test_what_is_stored_comes_back_as_it_was(everhold):
    """Read anew from the store it is the same, and as JSON, too."""
    session = begin(everhold, "one")
    kept = session.stored()
    assert Stored.read(kept.json()) == kept == session.stored(fresh=True)
    assert words(kept.path())[-1] == "You said: one"
    assert kept.ledger[0]["total"] == 12 and kept.turns == session.turns()


def test_a_stored_conversation_is_applied_to_another_session(everhold):
    """What both share stays, the rest is added on a branch; again changes nothing; usage is not
    carried over.
    """
    session = begin(everhold, "one", "two")
    kept = session.stored()
    fork = session.fork(1)
    fork.send("other")
    assert fork.apply(kept).text == "You said: two"
    assert words(fork.history()) == words(session.history())
    assert fork.apply(kept) is None
    assert fork.usage().total.total == 24
    fresh = begin(everhold, name="fresh")
    fresh.apply(kept)
    assert words(fresh.history()) == words(session.history()) and len(fresh.usage()) == 0
    assert fresh.send("three").text == "You said: three"


def test_a_stored_state_without_its_leaf_is_refused(everhold):
    """A damaged graph is an error, and never repaired in silence."""
    session = begin(everhold, "one")
    with pytest.raises(DamagedGraph):
        session.apply(msgspec.structs.replace(session.stored(), leaf="9.9"))
    assert words(session.history()) == ["one", "You said: one"]


def test_only_the_active_path_is_kept_in_memory(everhold):
    """With residency="path"; what was left is read when it is asked for, and other scopes are
    refused.
    """
    everhold.answers(echoes)
    session = everhold.runtime.session(echo, "chat", residency="path")
    left = session.send("one").settled.leaf
    session.branch(None)
    session.send("two")
    assert words(session.history()) == ["two", "You said: two"]
    assert words([session.node(left)]) == ["You said: one"]
    assert len(session.stored().nodes) > len(session.stored().path())
    with pytest.raises(BadSetting, match="residency"):
        everhold.runtime.session(echo, "chat", residency="some")


def test_all_nodes_are_in_memory_by_default(everhold):
    session = begin(everhold, "one")
    left = session.turns()[0].leaf
    session.branch(None)
    assert words([session.node(left)]) == ["You said: one"]


def test_a_refresh_says_whether_there_was_anything_new(everhold):
    """What another handle did is adopted; without it nothing changes."""
    session = begin(everhold)
    other = everhold.runtime.session(echo, "chat")
    session.refresh()
    other.send("one")
    assert session.refresh() and not session.refresh()
    assert words(session.history()) == ["one", "You said: one"]
    other.branch(None)
    assert session.refresh() and session.view().leaf is None


def test_live_options_survive_a_refresh(everhold):
    session = begin(everhold)
    other = everhold.runtime.session(echo, "chat")
    session.configure({"model": "test:small"}, everywhere=True)
    other.send("one")
    session.refresh()
    assert session.options()["model"] == "test:small"


def test_usage_is_by_source_and_model_and_includes_a_running_turn(everhold):
    session = everhold.runtime.session(ringer, "chat")
    turn = session.send("go", wait=0)
    everhold.runtime.answer(turn.queries[0], use("ring", times=2), usage=USED)
    before = session.usage()
    assert before.total.total == 12 and session.turns() == []
    assert session.cancel_turn() is not None
    after = session.usage()
    assert after.since(before).total.total == 0  # what was spent stays spent
    report = after.report()
    assert report["by_source"]["turn"]["total"] == report["by_model"]["m"]["total"] == 12
    assert [row["source"] for row in report["rows"]] == ["turn"]


def test_a_ledger_never_becomes_less(everhold):
    session = begin(everhold, "one")
    before = session.usage()
    session.send("two")
    assert session.usage().since(before).total.total == 12
    with pytest.raises(BadValue, match="decrease"):
        before.since(session.usage())


def test_tokens_are_counted_by_what_they_were(everhold):
    """Uncached input, output, cache reads and writes, and reasoning as a part of the output."""
    used = Usage(
        prompt_tokens=100,
        completion_tokens=20,
        model="m",
        cache_read_tokens=60,
        cache_write_tokens=10,
        reasoning_tokens=5,
    )
    everhold.answers(lambda query: Answer("ok", usage=used))
    session = everhold.runtime.session(echo, "chat")
    session.send("one")
    total = session.usage().total
    assert (total.input, total.output, total.cache_read, total.cache_write, total.reasoning) == (
        30,
        20,
        60,
        10,
        5,
    )
    assert (total.total, total.context) == (120, 100)


def test_receipts_tell_how_each_turn_ended(everhold):
    session = begin(everhold, "one", "two")
    assert [(one.turn, one.outcome, one.rounds) for one in session.turns()] == [
        (1, TurnAnswered(), 1),
        (2, TurnAnswered(), 1),
    ]


def test_a_turn_that_settled_is_never_done_again(everhold):
    """The same id is the same receipt, also after everything in memory was dropped."""
    session = begin(everhold)
    first = session.send("go", id="i")
    everhold.restart()
    everhold.answers(None)
    again = everhold.runtime.session(echo, "chat")
    assert again.send("go", id="i") == first
    assert first.settled.leaf == again.history()[-1].id


def test_history_is_in_order_and_cannot_be_reordered_by_its_reader(everhold):
    session = begin(everhold, "one", "two", "three")
    history = session.history()
    assert words(history)[::2] == ["one", "two", "three"]
    with pytest.raises(AttributeError):
        history[0].content = "something else"
    history.clear()
    assert len(session.history()) == 6


def test_what_cannot_be_replayed_is_refused(everhold):
    """What is not JSON never enters a turn."""
    session = begin(everhold)
    with pytest.raises(BadValue):
        session.send("one", options={"callback": print})
    with pytest.raises(BadValue):
        session.enqueue([{"type": "live", "value": object()}])
    assert session.turns() == []
