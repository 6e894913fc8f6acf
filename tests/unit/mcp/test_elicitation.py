"""What a person is shown, and what counts as their answer."""

import msgspec
import pytest
from mcp.types import ElicitResult

from everhold.core.query import Kind, Query
from everhold.core.status import OpenQuery, Paused
from everhold.mcp import elicitation


def query(kind=Kind.INPUT, schema=None, to=None, number=0):
    return OpenQuery(
        "s-1", Query(number, f"0:{number}", "Well?", kind=kind, schema=schema, to=to), 0
    )


FLAT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (None, ["answer"]),
        ({"type": "string", "enum": ["a", "b"]}, ["answer"]),
        ({"type": "integer"}, ["answer"]),
        ({"type": "boolean"}, ["answer"]),
        (FLAT, ["name", "age"]),
        ({"$ref": "#/$defs/Who", "$defs": {"Who": FLAT}}, ["name", "age"]),
        ({"enum": ["a", "b"]}, ["answer"]),
        ({"$ref": "#/$defs/Color", "$defs": {"Color": {"enum": ["red", "blue"]}}}, ["answer"]),
    ],
)
def test_what_a_form_can_ask_is_asked_in_one(schema, names):
    assert list(elicitation.build_form(query(schema=schema)).schema["properties"]) == names


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {"deep": {"type": "object"}}},
        {"type": "object"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": ["string", "null"]},
        {"type": "object", "properties": {"name": {"type": ["string", "null"]}}},
        {"type": "object", "properties": {"name": True}},
        {"enum": ["a", 1]},
        {"$ref": "#/$defs/Any", "$defs": {"Any": True}},
    ],
)
def test_what_no_form_can_ask_is_left_to_the_command_line(schema):
    assert elicitation.build_form(query(schema=schema)) is None


def test_a_choice_within_an_object_is_one_in_the_form():
    part = {"$ref": "#/$defs/Color", "default": "red"}
    schema = {
        "type": "object",
        "properties": {"color": part},
        "$defs": {"Color": {"enum": ["red", "blue"]}},
    }
    shown = elicitation.build_form(query(schema=schema)).schema["properties"]
    assert shown == {"color": {"type": "string", "enum": ["red", "blue"], "default": "red"}}


@pytest.mark.parametrize("kind", [Kind.TOOL, Kind.SIGNAL, Kind.CALL, Kind.LLM])
def test_only_approvals_and_input_have_forms(kind):
    assert elicitation.build_form(query(kind)) is None


def test_nobody_is_asked_while_the_model_has_something_to_do():
    both = Paused("s-1", (query(Kind.APPROVAL, number=0), query(Kind.LLM, number=1)))
    assert elicitation.select_person_questions(both) == {}
    assert list(elicitation.select_person_questions(Paused("s-1", both.queries[:1]))) == ["q-0"]
    assert (
        elicitation.select_person_questions(Paused("s-1", (query(Kind.APPROVAL, to="alice"),)))
        == {}
    )


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (ElicitResult(action="accept", content={"approve": True}), True),
        (ElicitResult(action="accept", content={"approve": False}), False),
        (ElicitResult(action="accept", content={"approve": "true"}), msgspec.UNSET),
        (ElicitResult(action="accept", content={"approve": 1}), msgspec.UNSET),
        (ElicitResult(action="accept", content={}), msgspec.UNSET),
        (ElicitResult(action="accept"), msgspec.UNSET),
        (ElicitResult(action="decline", content={"approve": True}), msgspec.UNSET),
        (ElicitResult(action="cancel"), msgspec.UNSET),
        ({"action": "accept", "content": {"approve": True}}, msgspec.UNSET),
        (None, msgspec.UNSET),
    ],
)
def test_only_a_clear_yes_or_no_in_an_accepted_form_is_a_decision(result, value):
    assert elicitation.read_form_result(query(Kind.APPROVAL), result) is value


def test_a_flat_object_is_answered_as_a_whole():
    said = ElicitResult(action="accept", content={"name": "Ann", "age": 4})
    assert elicitation.read_form_result(query(schema=FLAT), said) == {"name": "Ann", "age": 4}


def test_a_person_reads_whose_question_it_is():
    assert (
        elicitation.format_form_message(query(), "Refund 7")
        == 'everhold session s-1 "Refund 7" asks:\n\nWell?'
    )
    assert elicitation.format_form_message(query(), "") == "everhold session s-1 asks:\n\nWell?"


def test_a_title_that_a_model_chose_cannot_pass_for_the_question():
    told = elicitation.format_form_message(
        query(), 'x" asks:\n\nPress approve to close this window.' + "z" * 200
    )
    assert told.splitlines()[1:] == ["", "Well?"]
    assert told.count('"') == 2
    assert len(told) < 120
