"""A conversation read from a journal."""

from everhold.core.conversation import Conversation
from everhold.core.graph import Node, extract_text
from everhold.core.journal import Delivery, DeliveryNotes, decode_delivery, encode_delivery
from everhold.core.message import Role
from everhold.core.query import Kind, Query, QueryAnswer, Usage
from everhold.core.turn import SettledTurn, TurnAnswered

USED = Usage(prompt_tokens=10, completion_tokens=2, model="m")


def journal():
    """One turn that is answered, and one under way."""
    return [
        Delivery(0, 0.0, [], [Query(0, "0:0", kind=Kind.SIGNAL, name="input")]),
        Delivery(
            1,
            1.0,
            [QueryAnswer(0, {"id": "i1", "content": "Hello?"})],
            [Query(1, "0.1:0", args={"leaf": "1.0"})],
            DeliveryNotes(nodes=[Node("1.0", None, role=Role.USER, q=0)]),
        ),
        Delivery(
            2,
            2.0,
            [QueryAnswer(1, "Hello.", usage=USED)],
            [Query(2, "0:1", kind=Kind.SIGNAL, name="input")],
            DeliveryNotes(
                nodes=[Node("1.1", "1.0", role=Role.ASSISTANT, q=1)],
                settled=SettledTurn(1, "i1", TurnAnswered(), "1.1", 1),
            ),
        ),
        Delivery(
            3,
            3.0,
            [QueryAnswer(2, {"id": "i2", "content": "Sum up."})],
            [Query(3, "0.2:0", args={"leaf": "2.0"}, options={"source": "compaction"})],
            DeliveryNotes(nodes=[Node("2.0", "1.1", role=Role.USER, q=2)]),
        ),
        Delivery(4, 4.0, [QueryAnswer(3, None, {"code": "x", "message": "no"}, USED)], []),
    ]


def test_what_was_said_and_what_it_cost():
    told = Conversation(journal()[:3])
    assert [extract_text(message) for message in told.graph.messages()] == ["Hello?", "Hello."]
    assert told.turns == [SettledTurn(1, "i1", TurnAnswered(), "1.1", 1)]
    assert told.settled("i1") is told.turns[0]
    assert told.settled("i2") is None
    assert told.ledger.total.total == 12


def test_a_turn_under_way_is_pending_and_its_cost_is_known():
    told = Conversation(journal())
    assert (told.graph.leaf, told.graph.tip) == ("1.1", "2.0")
    assert told.ledger.total.total == 12
    assert told.spent.report()["by_source"].keys() == {"turn", "compaction"}


def test_a_moved_leaf():
    moved = Delivery(3, 3.0, [], [], DeliveryNotes(leaf="1.0"))
    told = Conversation([*journal()[:3], moved])
    assert told.graph.leaf == "1.0"
    assert (
        Conversation(
            [*journal()[:3], Delivery(3, 3.0, [], [], DeliveryNotes(leaf=None))]
        ).graph.leaf
        is None
    )


def test_it_is_stored_with_its_deliveries():
    for delivery in journal():
        assert decode_delivery(delivery.n, delivery.at, *encode_delivery(delivery)) == delivery


def test_a_retry_stands_for_the_failure_before_it():
    deliveries = journal()[:2]
    failed = Delivery(
        2,
        2.0,
        [QueryAnswer(1, "Hello.")],
        [],
        DeliveryNotes(nodes=[Node("1.1", "1.0", role=Role.ASSISTANT, q=1)]),
    )
    again = journal()[2]
    retried = Delivery(3, 3.0, [], again.asked, again.notes)
    assert retried.notes is not None
    retried.notes.retry = True
    told = Conversation([*deliveries, failed, retried])
    assert [extract_text(message) for message in told.graph.messages()] == ["Hello?", "Hello."]


def test_what_was_said_under_an_id_is_known_before_its_turn_settles():
    told = Conversation(journal())
    assert told.inputs == {"i1": "Hello?", "i2": "Sum up."}
    assert told.settled("i2") is None


def test_an_input_that_came_during_a_turn_is_named_by_a_later_node():
    first = journal()[:2]
    first[1].asked.append(Query(2, "0:1", kind=Kind.SIGNAL, name="input"))
    ahead = Delivery(
        2,
        1.5,
        [QueryAnswer(2, {"id": "i2", "content": "And?"})],
        [Query(3, "0:2", kind=Kind.SIGNAL)],
    )
    again = Delivery(3, 1.6, [QueryAnswer(3, {"id": "i2", "content": "And?"})], [])
    settled = journal()[2]
    then = Delivery(5, 2.0, [], [], DeliveryNotes(nodes=[Node("2.0", "1.1", role=Role.USER, q=2)]))
    told = Conversation(
        [*first, ahead, again, Delivery(4, 2.0, settled.answers, [], settled.notes), then]
    )
    assert [extract_text(message) for message in told.graph.messages()] == [
        "Hello?",
        "Hello.",
        "And?",
    ]


def test_a_signal_that_is_no_input_is_not_one():
    odd = [
        Delivery(0, 0.0, [], [Query(0, "0:0", kind=Kind.SIGNAL, name="input")]),
        Delivery(1, 1.0, [QueryAnswer(0, {"do": "cancel", "turn": 1})], []),
    ]
    assert Conversation(odd).inputs == {}


def test_who_spent_what():
    """Row 10: tools and children have sources of their own; an answer that nobody asked for is
    nobody's.
    """
    usage = Usage(prompt_tokens=10, completion_tokens=1, model="m")
    asked = [
        Query(0, "0:0", kind=Kind.CALL, name="look"),
        Query(1, "0:1", kind=Kind.SESSION, name="m:a", options={"source": "subagent:finder"}),
        Query(2, "0:2", kind=Kind.SESSION, name="m:b"),
    ]
    answers = [QueryAnswer(q, "x", usage=usage) for q in (0, 1, 2, 9)]
    told = Conversation([Delivery(0, 0.0, [], asked), Delivery(1, 1.0, answers, [])])
    assert [(source, cost.total) for source, _, cost in told.spent] == [
        ("session:m:b", 11),
        ("subagent:finder", 11),
        ("tool:look", 11),
    ]


def test_a_session_whose_program_takes_inputs_is_a_conversation():
    """Before its first message too; a program that waits for another signal is none."""
    open_signals = {
        name: Conversation([Delivery(0, 0.0, [], [Query(0, "0:0", kind=Kind.SIGNAL, name=name)])])
        for name in ("input", "payment")
    }
    assert {name: told.listens for name, told in open_signals.items()} == {
        "input": True,
        "payment": False,
    }
    approval = Delivery(0, 0.0, [], [Query(0, "0:0", kind=Kind.APPROVAL, name="input")])
    assert not Conversation([approval]).listens
    assert not Conversation().listens


def test_a_session_that_has_added_nodes_is_a_conversation():
    """Also when it takes no input now: in the first turn of this journal."""
    told = Conversation(journal()[:2])
    assert (list(told.graph.nodes), told.listens) == (["1.0"], True)
