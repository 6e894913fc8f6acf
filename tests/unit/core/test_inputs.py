"""What was said to a conversation, input by input; and what an intake forgets."""

import pytest

from everhold.core.conversation import Conversation, extract_inputs
from everhold.core.graph import Node
from everhold.core.intake import Intake, IntakeItem, ItemKind
from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.message import Role
from everhold.core.query import Kind, Query, QueryAnswer
from everhold.errors import InputEnded, SessionBusy, UnknownInput


def words(text):
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"id": "a", "content": "A"}, [("a", "A")]),
        (
            {
                "id": "a",
                "content": [words("A"), words("B"), words("C")],
                "parts": [["a", 1], ["b", 2]],
            },
            [("a", "A"), ("b", [words("B"), words("C")])],
        ),
        ({"id": "a", "content": "A", "parts": ["nonsense"]}, [("a", "A")]),
        ({"do": "reset", "id": "r"}, []),
        ("words", []),
    ],
)
def test_the_inputs_in_what_was_said(said, found):
    """One, or several that came together; what is neither has none."""
    assert extract_inputs(said) == found


def heard(*said):
    """A conversation that was told these, one after another, and has said each to its model at
    once.
    """
    deliveries = [Delivery(0, 0.0, [], [Query(0, "s", kind=Kind.SIGNAL, name="input")])]
    for n, one in enumerate(said):
        asked = [Query(n + 1, "s", kind=Kind.SIGNAL, name="input")]
        deliveries.append(Delivery(n + 1, 0.0, [QueryAnswer(n, one)], asked))
    return Conversation(deliveries)


def test_an_input_has_entered_when_a_node_names_it():
    told = heard({"id": "a", "content": "A"})
    assert told.inputs == {"a": "A"} and not told.entered("a") and not told.entered("b")
    node = Node("1.0", None, role=Role.USER, q=0)
    told.fold(Delivery(2, 0.0), Delivery(2, 0.0, notes=DeliveryNotes(nodes=[node])))
    assert told.entered("a")


def test_what_came_twice_is_what_came_first():
    """Of inputs that came together, only those are new that did not come before; nothing waits for
    a node of theirs.
    """
    both = {"id": "a", "content": [words("A"), words("B")], "parts": [["a", 1], ["b", 1]]}
    told = heard({"id": "a", "content": "First."}, both, both)
    assert told.inputs == {"a": "First.", "b": "B"}
    assert told.entered("b")


def test_a_vacuum_forgets_what_has_ended_and_is_old():
    intake = Intake("s", 10.0)
    for name in "abc":
        intake.enqueue(IntakeItem(name, ItemKind.INPUT, {"content": name}))
        intake.now += 10
    intake.cancel(["a", "b"])
    assert intake.vacuum(15.0) == 1 and set(intake.items) == {"b", "c"}
    assert intake.vacuum() == 1 and set(intake.items) == {"c"}


def test_what_is_said_of_inputs_that_ended_or_never_were():
    assert str(InputEnded("s", "i", "cancelled", "no more")).endswith("is cancelled: no more")
    assert str(InputEnded("s", "i", "failed")).endswith("is failed")
    assert "'i'" in str(UnknownInput("s", "i"))
    assert "runs a turn" in str(SessionBusy("s"))
