"""How items are said to an agent: between turns together, in a turn one by one; what cannot be said
fails alone.
"""

import pytest

from everhold.core.intake import Boundary, DeliveryPolicy, Intake, IntakeItem, ItemKind, MergePolicy
from everhold.engine.intake_messages import (
    count_joined_inputs,
    has_item_to_enter,
    plan_intake_messages,
)
from everhold.errors import PluginFailed


def said(id, content, **more):
    return IntakeItem(id, ItemKind.INPUT, {"content": content}, **more)


def test_between_turns_inputs_are_said_together():
    """Contents in order, options of the first that has any, and how much was said under which
    id.
    """
    items = [
        said("a", "A"),
        IntakeItem(
            "b",
            ItemKind.INPUT,
            {"content": [{"type": "image"}, {"type": "text", "text": "B"}], "options": {"x": 1}},
        ),
        IntakeItem("c", ItemKind.INPUT, {"content": "C", "options": {"x": 2}}),
    ]
    (entry,) = plan_intake_messages(items, None).entries
    assert entry.items == tuple(items)
    assert [block.get("text") for block in entry.said.pop("content")] == ["A", None, "B", "C"]
    assert entry.said == {"id": "a", "parts": [["a", 1], ["b", 2], ["c", 1]], "options": {"x": 1}}


def test_in_a_turn_each_is_said_by_itself():
    items = [said("a", "A", turn=1), said("b", "B", turn=1, boundary=Boundary.BEFORE_COMPLETION)]
    assert [entry.said for entry in plan_intake_messages(items, 1).entries] == [
        {"do": "steer", "id": "a", "content": "A"},
        {"do": "steer", "id": "b", "content": "B", "boundary": "before_completion"},
    ]


@pytest.mark.parametrize(
    ("body", "turn", "told"),
    [
        ({"do": "reset", "reason": "r"}, None, {"do": "reset", "reason": "r", "id": "c"}),
        (
            {"do": "cancel_turn", "turn": 3, "reason": "r"},
            3,
            {"do": "cancel", "turn": 3, "reason": "r"},
        ),
        ({"do": "cancel_turn", "turn": 3}, 4, None),
        ({"do": "cancel_turn", "turn": None}, 4, None),
        ({"do": "cancel_turn", "turn": 3}, None, None),
    ],
)
def test_commands_are_done_and_only_the_turn_that_was_meant_is_cancelled(body, turn, told):
    (entry,) = plan_intake_messages([IntakeItem("c", ItemKind.COMMAND, body)], turn).entries
    assert entry.said == told


@pytest.mark.parametrize(
    ("body", "content"),
    [
        ({"origin": "build", "content": "Done."}, "[from build] Done."),
        (
            {"origin": "build", "content": [{"type": "image"}]},
            [{"type": "text", "text": "[from build]"}, {"type": "image"}],
        ),
        ({"content": {"exit": 1}}, '{"exit":1}'),
        ({"exit": 1}, '{"exit":1}'),
        ("Done.", "Done."),
    ],
)
def test_a_wake_says_where_it_comes_from(body, content):
    (entry,) = plan_intake_messages([IntakeItem("w", ItemKind.WAKE, body)], None).entries
    assert entry.said["content"] == content


def test_what_cannot_be_said_fails_and_the_others_are_said():
    found = plan_intake_messages([said("bad", []), said("good", "G")], None)
    assert [entry.said for entry in found.entries] == [{"id": "good", "content": "G"}]
    assert [(item.id, end["code"]) for item, end in found.failed] == [("bad", "bad_input")]


@pytest.mark.parametrize(
    ("item", "idle", "in_a_turn"),
    [
        (said("a", "A"), True, False),
        (said("a", "A", turn=1), True, True),
        (said("a", "A", available_at=99.0), False, False),
        (IntakeItem("a", ItemKind.COMMAND, {"do": "reset"}), True, False),
        (IntakeItem("a", ItemKind.COMMAND, {"do": "cancel_turn"}), True, True),
        (IntakeItem("a", ItemKind.COMMAND, None), True, False),
        (IntakeItem("a", ItemKind.WAKE, "w"), True, True),
        (IntakeItem("a", ItemKind.WAKE, "w", when=DeliveryPolicy.IDLE), True, False),
    ],
)
def test_what_may_enter(item, idle, in_a_turn):
    intake = Intake("s", 10.0, items=[item])
    assert (has_item_to_enter(intake, True), has_item_to_enter(intake, False)) == (idle, in_a_turn)


def test_which_inputs_are_one_turn():
    """Neighbours that join; one that is to be alone is, wherever it stands. Without inputs, work is
    not limited.
    """

    def count(*slots):
        items = [said(str(n), "x", slot=slot, seq=n) for n, slot in enumerate(slots)]
        return count_joined_inputs(Intake("s", 10.0, items=items))

    assert count(MergePolicy.JOIN, MergePolicy.JOIN, MergePolicy.ALONE, MergePolicy.JOIN) == 2
    assert count(MergePolicy.ALONE, MergePolicy.JOIN) == 1
    assert count(*[MergePolicy.JOIN] * 70) == 64
    assert count() == 64


def test_what_enters_is_written_down_as_the_agent_wants_it():
    """Each item by itself, also of those that are one turn; commands say nothing that could be
    changed.
    """
    items = [
        IntakeItem(name, ItemKind.INPUT, {"content": f"{name} secret"}, slot=MergePolicy.JOIN)
        for name in ("a", "b")
    ]

    def keep(value):
        return [{**block, "text": block["text"].replace("secret", "***")} for block in value]

    (entry,) = plan_intake_messages(items, None, keep).entries
    assert [block["text"] for block in entry.said["content"]] == ["a ***", "b ***"]
    assert entry.said["parts"] == [["a", 1], ["b", 1]]
    (entry,) = plan_intake_messages(
        [IntakeItem("c", ItemKind.COMMAND, {"do": "compact", "reason": "x"})], None, keep
    ).entries
    assert entry.said == {"do": "compact", "reason": "x", "id": "c"}
    assert (
        plan_intake_messages(
            [IntakeItem("d", ItemKind.COMMAND, {"do": "cancel_turn", "turn": 1})], None, keep
        )
        .entries[0]
        .said
        is None
    )


def test_what_the_agent_cannot_write_down_fails():
    """Nothing of it is written, and whoever asks is told why."""

    def keep(value):
        raise PluginFailed("careful", "before_store", "no")

    found = plan_intake_messages([IntakeItem("a", ItemKind.INPUT, {"content": "x"})], None, keep)
    assert found.entries == [] and found.failed[0][1]["code"] == "plugin_failed"
