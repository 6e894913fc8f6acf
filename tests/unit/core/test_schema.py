"""Types as schemas, values in and out of types, and the door that answers pass."""

import re
from dataclasses import dataclass, field
from datetime import date
from enum import Enum, IntEnum
from time import process_time
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict

import msgspec
import pydantic
import pytest

from everhold.core.schema import (
    decode_value_as,
    encode_value_as,
    parse_answer,
    schema_of,
    validate_value,
)
from everhold.errors import AnswerRefused, BadSchema, BadValue


@dataclass
class Item:
    name: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclass
class Order:
    """What was
    ordered."""

    items: list[Item]
    best: Item | None = None


@dataclass
class Tree:
    children: list["Tree"] = field(default_factory=list)


class Verdict(msgspec.Struct):
    right: bool


class Move(TypedDict):
    to: str
    fast: NotRequired[bool]


class Point(NamedTuple):
    x: int
    y: int


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


class Page(pydantic.BaseModel):
    number: int = pydantic.Field(alias="n")
    parts: list["Page"] = []


class Strict(pydantic.BaseModel, strict=True):
    day: date


class Even(pydantic.BaseModel):
    value: int

    @pydantic.field_validator("value")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


@dataclass
class Book:
    pages: list[Page]
    cover: Page | None = None


class Opaque:
    pass


def namesake() -> type:
    class Page(pydantic.BaseModel):
        word: str
        more: "list[Page]" = []

    Page.model_rebuild(_types_namespace={"Page": Page})
    return Page


# From a type to its schema


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Literal["yes", "no"], {"enum": ["no", "yes"]}),
        (Annotated[int, msgspec.Meta(ge=1)], {"type": "integer", "minimum": 1}),
        (date, {"type": "string", "format": "date"}),
        ({"type": "string", "minLength": 1}, {"type": "string", "minLength": 1}),
    ],
)
def test_simple_types_have_their_schema(type_, expected):
    """Builtins, containers, unions and literals become the schema one would write by hand."""
    assert schema_of(type_) == expected


def test_named_types_keep_their_names():
    """A dataclass becomes a definition under its own name, and says what is required."""
    defs = schema_of(Order)["$defs"]

    assert sorted(defs) == ["Item", "Order"]
    assert defs["Item"]["required"] == ["name"]
    assert defs["Item"]["properties"]["count"] == {"type": "integer", "minimum": 1, "default": 1}


def test_a_docstring_is_told_without_its_indentation():
    """The description is the same on every Python, though docstrings are not."""
    assert schema_of(Order)["$defs"]["Order"]["description"] == "What was ordered."


@pytest.mark.parametrize(
    ("type_", "value", "wrong"),
    [
        (Order, {"items": [{"name": "a"}]}, {"items": [{}]}),
        (Tree, {"children": [{"children": []}]}, {"children": [{"children": 1}]}),
        (Verdict, {"right": True}, {"right": 1}),
        (Move, {"to": "x"}, {"fast": True}),
        (Point, [1, 2], [1]),
        (Colour, "red", "green"),
        (Level, 2, 3),
        (Cat | Dog, {"type": "dog", "name": "Rex"}, {"type": "dog", "lives": 9}),
        (tuple[int, str], [1, "a"], [1, "a", 2]),
        (set[int], [1, 2], [1, 1]),
        (bytes, "QQ==", "?"),
        (Page, {"n": 1, "parts": [{"n": 2}]}, {"n": 1, "parts": [{}]}),
        (Book, {"pages": [{"n": 1, "parts": [{"n": 2}]}]}, {"pages": [{"number": 1}]}),
        (pydantic.TypeAdapter(list[Page]), [{"n": 1}], [{"n": "x"}]),
    ],
)
def test_a_schema_and_its_type_agree(type_, value, wrong):
    """What the schema lets through the type can read; what it refuses the type refuses too."""
    schema = schema_of(type_)

    validate_value(value, schema)
    decode_value_as(value, type_)
    with pytest.raises(AnswerRefused):
        validate_value(wrong, schema)


def test_a_schema_is_made_once():
    """Asking again gives the same object; a type that has no hash is asked anew."""
    unhashable = Annotated[int, ["a note"]]

    assert schema_of(Order) is schema_of(Order)
    assert schema_of(unhashable) == {"type": "integer"}


def test_unions_that_are_equal_keep_their_own_order():
    """`int | str` equals `str | int`, yet each has the schema it would have alone."""
    assert schema_of(int | str)["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert schema_of(str | int)["anyOf"] == [{"type": "string"}, {"type": "integer"}]


def test_a_schema_handed_in_is_copied():
    """Changing a schema after it was asked with does not change the question."""
    mine = {"enum": ["a"]}
    asked = schema_of(mine)
    mine["enum"].append("b")

    assert asked == {"enum": ["a"]}


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        (Opaque, "Opaque"),
        (list[Opaque], "Opaque"),
        (Item | Order, "Item"),
        (list["Nowhere"], "Nowhere"),  # noqa: F821
        (pydantic.TypeAdapter(Opaque, config={"arbitrary_types_allowed": True}), "TypeAdapter"),
    ],
)
def test_a_type_without_a_schema_is_refused_by_name(type_, name):
    """The error says which type it is, and the hint which types will do."""
    with pytest.raises(BadSchema, match=name) as refused:
        schema_of(type_)

    assert refused.value.path.startswith("the type ")
    assert "dataclass" in refused.value.hint


def test_two_models_of_one_name_are_not_mixed_up():
    """Definitions are found by name, so a type that holds two of one name is refused."""
    with pytest.raises(BadSchema, match="two types in it have the name Page"):
        schema_of(tuple[Page, namesake()])


def test_a_schema_that_cannot_be_checked_is_refused():
    """A raw schema passes `check_schema` on the way in."""
    with pytest.raises(BadSchema, match="'dependentRequired'"):
        schema_of({"dependentRequired": {"a": ["b"]}})


# Into a type


def test_values_become_what_the_type_says():
    """Dataclasses, enums, dates, tuples and pydantic models come out as themselves."""
    assert decode_value_as({"items": [{"name": "a"}]}, Order) == Order([Item("a")])
    assert decode_value_as(["red", 2], tuple[Colour, Level]) == (Colour.RED, Level.HIGH)
    assert decode_value_as({"1": "2026-01-31"}, dict[int, date]) == {1: date(2026, 1, 31)}
    assert decode_value_as({"pages": [{"n": 1}]}, Book) == Book([Page(n=1)])
    assert decode_value_as({"day": "2026-01-31"}, Strict) == Strict(day=date(2026, 1, 31))


@pytest.mark.parametrize("type_", [None, Any, object])
def test_without_a_type_a_value_stays_as_it_is(type_):
    """No annotation, Any and object leave plain JSON alone."""
    assert decode_value_as({"a": [1]}, type_) == {"a": [1]}


def test_a_schema_may_stand_for_a_type():
    """With a raw schema the value is checked and handed on."""
    assert decode_value_as(1, {"type": "integer"}) == 1
    with pytest.raises(AnswerRefused, match="answer should be an integer"):
        decode_value_as("1", {"type": "integer"})


@pytest.mark.parametrize(
    ("value", "type_", "path", "expected"),
    [
        ({"items": [{"name": 1}]}, Order, "answer.items[0].name", "`str`"),
        ({"items": [{"name": "a", "count": 0}]}, Order, "answer.items[0].count", "`int` >= 1"),
        ({"a": 1}, dict[int, int], "answer", "`int`"),
        ("soon", date, "answer", "what date accepts"),
        ({"n": 1, "parts": [{"n": "x"}]}, Page, "answer.parts[0].n", "a valid integer"),
        ({"n": 1, "parts": [{}]}, Page, "answer.parts[0].n", "what Page accepts"),
        ({"pages": [{"n": "x"}]}, Book, "Page.n", "a valid integer"),
        ({"value": 3}, Even, "answer.value", "what Even accepts"),
    ],
)
def test_a_value_that_is_not_of_the_type_is_refused(value, type_, path, expected):
    """The refusal has the path and what was expected, whichever library said so."""
    with pytest.raises(AnswerRefused) as refused:
        decode_value_as(value, type_)

    assert refused.value.path == path
    assert refused.value.expected.startswith(expected)


@pytest.mark.parametrize("type_", [Opaque, list["Nowhere"]])  # noqa: F821
def test_nothing_can_be_made_into_a_type_without_a_schema(type_):
    """A type that JSON cannot describe is the author's mistake, not the answer's."""
    with pytest.raises(BadSchema, match=re.escape("Opaque" if type_ is Opaque else "Nowhere")):
        decode_value_as(1, type_)


# Out of a type


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        (Order([Item("a")]), Order, {"items": [{"name": "a", "count": 1}], "best": None}),
        (Verdict(True), Verdict, {"right": True}),
        ({"to": "x"}, Move, {"to": "x"}),
        (Point(1, 2), Point, [1, 2]),
        ([(1, "a")], list[tuple[int, str]], [[1, "a"]]),
        ({"a": (1,)}, dict[str, tuple[int, ...]], {"a": [1]}),
        ({1: 2}, dict[int, int], {"1": 2}),
        (Colour.RED, Colour, "red"),
        (date(2026, 1, 31), date, "2026-01-31"),
        (Page(n=1), Page, {"n": 1, "parts": []}),
        ([Page(n=1)], list[Page], [{"n": 1, "parts": []}]),
        ([Page(n=1)], pydantic.TypeAdapter(list[Page]), [{"n": 1, "parts": []}]),
        (7, {"type": "integer"}, 7),
        ("a", Literal["a", 1], "a"),
        (["a", None], Annotated[list[str | None], "note"], ["a", None]),
        ({"a": [1.5]}, dict[str, Any], {"a": [1.5]}),
        ({"a": 1}, dict, {"a": 1}),
        ([1], list, [1]),
        (None, type(None), None),
    ],
)
def test_typed_values_become_plain_and_can_be_read_again(value, type_, expected):
    """What is stored is plain JSON, and the type makes the same value of it."""
    assert encode_value_as(value, type_, "the result") == expected
    assert decode_value_as(expected, type_) == value


@pytest.mark.parametrize(
    "type_", [None, Any, str, list, dict[str, Any], Literal["a"], list[str | None]]
)
def test_nothing_is_changed_unasked(type_):
    """Without a type, or with one that JSON has, a tuple is refused with its path."""
    with pytest.raises(BadValue) as refused:
        encode_value_as([(1, 2)], type_, "the result")

    assert refused.value.path == "the result[0]"


@pytest.mark.parametrize(
    ("value", "type_", "path"),
    [
        (Item(3), Item, "the result.name"),
        ([Opaque()], list[Item], "the result"),
        (Verdict(True), Item, "the result"),
        ({(1, 2): 3}, dict[tuple[int, int], int], "the result"),
        (Opaque(), pydantic.TypeAdapter(list[Page]), "the result"),
        ("7", {"type": "integer"}, "the result"),
        ([float("nan")], tuple[float, ...], "the result[0]"),
        ({"\ud800"}, set[str], "the result[0]"),
        ("x", Opaque, "the type Opaque"),
    ],
)
def test_what_does_not_fit_its_own_type_is_refused(value, type_, path):
    """A result that could not be read back is refused with the place that is wrong."""
    with pytest.raises((BadValue, BadSchema)) as refused:
        encode_value_as(value, type_, "the result")

    assert refused.value.path == path


# The door


def test_without_a_schema_an_answer_is_text():
    """Text is stored as it came; anything else is refused."""
    assert parse_answer(" as it\x00came\n", None) == " as it\x00came\n"
    with pytest.raises(AnswerRefused, match="answer should be a string, got 3"):
        parse_answer(3, None)


@pytest.mark.parametrize(
    "answer",
    [
        {"right": True},
        '{"right": true}',
        ' \n{"right": true}\n',
        '```json\n{"right": true}\n```',
        '\n```\n{"right": true}```\n',
        '```json   \n  {"right": true}\n\n```  ',
    ],
)
def test_text_is_read_as_json_where_only_json_can_fit(answer):
    """A value, its JSON text, and the same in blanks or a fence are one answer."""
    assert parse_answer(answer, schema_of(Verdict)) == {"right": True}


def test_text_stays_text_where_text_can_fit():
    """A string that happens to be JSON is not unpacked when a string was asked for."""
    assert parse_answer('{"a": 1}', schema_of(str)) == '{"a": 1}'
    assert parse_answer("1", schema_of(int | str)) == "1"


def test_a_fence_inside_the_text_is_not_the_fence_around_it():
    """Only a fence around the whole answer is taken off."""
    assert parse_answer('```\n["```"]\n```', {"type": "array"}) == ["```"]


@pytest.mark.parametrize(
    "answer", ["yes, it is", "", "```json\n{\n```", '{"right": NaN}', "[" * 5000]
)
def test_text_that_is_not_json_is_refused_with_what_was_expected(answer):
    """Whoever answered is told the form that would have fitted."""
    with pytest.raises(AnswerRefused, match="an object with 'right', got text that is not JSON"):
        parse_answer(answer, schema_of(Verdict))


@pytest.mark.parametrize("unit", ["\n", " ", "```", "```\n", "a", "\n```json"])
def test_text_that_never_ends_its_fence_is_refused_in_a_moment(unit):
    """However long it is: whoever answers holds up nobody else."""
    began = process_time()
    with pytest.raises(AnswerRefused):
        parse_answer("```" + unit * (200_000 // len(unit)) + "x", schema_of(Verdict))
    assert process_time() - began < 10


@pytest.mark.parametrize("words", [", got ", " - at `$", " - at `key in $x`"])
def test_a_refusal_in_words_of_the_type_itself_is_read_in_a_moment(words):
    """A type may say the answer again, and whoever answers may have read how refusals are
    written.
    """

    class Picky(msgspec.Struct):
        a: str

        def __post_init__(self) -> None:
            raise ValueError(f"Expected better than {self.a}")

    began = process_time()
    with pytest.raises(AnswerRefused):
        decode_value_as({"a": words * 20_000}, Picky)
    assert process_time() - began < 10


@pytest.mark.parametrize(
    "answer", ["\ud800", {"a": float("nan")}, {1: 2}, (1, 2), "18446744073709551616"]
)
def test_what_cannot_be_stored_does_not_pass_the_door(answer):
    """An answer is plain JSON before it is anything else, also when it came as text."""
    with pytest.raises(BadValue):
        parse_answer(answer, {"type": "integer"})


def test_a_misfit_at_the_door_says_where():
    """The message is enough to send a better answer."""
    with pytest.raises(AnswerRefused) as refused:
        parse_answer('{"items": [{"name": "a"}, {"name": "b", "count": 0}]}', schema_of(Order))

    assert str(refused.value) == (
        "the answer does not fit: answer.items[1].count should be an integer ≥ 1, got 0"
    )
