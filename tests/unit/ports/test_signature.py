"""What a function says of itself: the schema of its parameters, and what its docstring tells of
each.
"""

import enum
import random
import re
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest
from pydantic import BaseModel, Field

from everhold.errors import BadArguments
from everhold.ports import signature
from everhold.ports.signature import build_parameter_schema, get_return_type, split_docstring
from everhold.ports.tool import Tool, ToolContext

GOOGLE = """Find things.

Looks everywhere.

Args:
    what (str): The thing,
        whatever it is.
    many: How many: at most ten.

Returns:
    What was found.
"""
NUMPY = """Find things.

Looks everywhere.

Parameters
----------
what : str
    The thing,
    whatever it is.
many : int, optional
    How many: at most ten.

Returns
-------
str
    What was found.
"""
SPHINX = """Find things.

Looks everywhere.

:param str what: The thing,
    whatever it is.
:param many: How many: at most ten.
:returns: What was found.
"""


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstrings_are_read_as_people_write_them(doc):
    rest, told = split_docstring(doc)
    assert told == {"what": "The thing, whatever it is.", "many": "How many: at most ten."}
    assert rest.startswith("Find things.\n\nLooks everywhere.")
    assert "thing," not in rest
    assert "What was found." in rest


@pytest.mark.parametrize(
    "doc", ["", "Find.", "Find.\n\nNote: it is slow.", "Args: none to speak of."]
)
def test_a_docstring_that_tells_of_no_parameter_stays_whole(doc):
    assert split_docstring(doc) == (doc, {})


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Spot:
    x: int
    colour: Colour = Colour.RED


class Item(BaseModel):
    name: str = Field(min_length=1)


def draw(
    at: Spot,
    also: list[Spot],
    items: list[Item],
    how: Literal["thin", "thick"] = "thin",
    note: Annotated[str, "for the reader"] = "",
    size: Annotated[int, msgspec.Meta(ge=1)] = 1,
    limit: Annotated[int, Field(description="at most")] = 3,
    who: Optional[str] = None,  # noqa: UP045
    free: Any = None,
    odd: Any = object,
) -> None:
    """Draw.

    Args:
        at: Where.
        note: Not used: the annotation says it.
    """


def test_a_schema_is_made_of_the_signature():
    """Types that are used twice are described once, at the top."""
    found = build_parameter_schema(draw)
    parts = found["properties"]
    assert found["required"] == ["at", "also", "items"]
    assert found["additionalProperties"] is False
    assert set(found["$defs"]) == {"Spot", "Colour"}
    assert parts["at"] == {"$ref": "#/$defs/Spot", "description": "Where."}
    assert parts["also"] == {"type": "array", "items": {"$ref": "#/$defs/Spot"}}
    assert parts["how"] == {"enum": ["thick", "thin"], "default": "thin"}
    assert parts["note"] == {"type": "string", "description": "for the reader", "default": ""}
    assert parts["size"] == {"type": "integer", "minimum": 1, "default": 1}
    assert parts["limit"]["description"] == "at most"
    assert parts["who"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert parts["free"] == {"default": None}
    assert parts["odd"] == {}


def test_a_tool_tells_of_itself_without_its_context():
    def pay(amount: int, ctx: ToolContext) -> None:
        """Pay.

        Args:
            amount: In cents.
        """

    assert Tool(pay).spec() == {
        "name": "pay",
        "description": "Pay.",
        "input_schema": {
            "type": "object",
            "properties": {"amount": {"type": "integer", "description": "In cents."}},
            "required": ["amount"],
            "additionalProperties": False,
        },
    }


def two_of_a_name():
    @dataclass
    class Spot:
        y: str

    return Spot


Other = two_of_a_name()


def unresolved(x: "Nowhere"):  # noqa: F821
    pass


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda *many: None, "which cannot be passed by name"),
        (lambda one, /: None, "which cannot be passed by name"),
        (unresolved, "cannot be read"),
        (3, "is not a function"),
    ],
)
def test_a_function_that_a_model_cannot_call_is_refused(function, words):
    with pytest.raises(BadArguments, match=words):
        Tool(function, name="it")


def test_types_without_a_schema_and_names_used_twice_are_refused():
    def impossible(x: complex) -> None: ...

    def ambiguous(x: Spot, y: Other) -> None: ...

    with pytest.raises(BadArguments, match=r"impossible\(x\)"):
        Tool(impossible)
    with pytest.raises(BadArguments, match="two types with the name Spot"):
        Tool(ambiguous)


def test_the_type_of_a_result_is_resolved_once():
    """What a function returns is remembered; what cannot be resolved yet is tried again."""

    def plainly() -> list[int]: ...

    def early() -> "Later": ...  # noqa: F821

    assert [
        get_return_type(plainly),
        get_return_type(plainly),
        get_return_type(len),
        get_return_type(early),
    ] == [
        list[int],
        list[int],
        None,
        None,
    ]
    early.__globals__["Later"] = int
    try:
        assert get_return_type(early) is int
    finally:
        del early.__globals__["Later"]
    assert get_return_type(early) is int


def test_the_type_of_a_result_of_what_cannot_be_remembered():
    class Unhashable:
        __hash__ = None

        def __call__(self) -> int: ...

    assert get_return_type(Unhashable()) is None
    assert get_return_type(Unhashable().__call__) is int


#: What says in one expression what these lines are; each takes a square of the line's length.
SPHINX = re.compile(
    r"^:(?:param|parameter|arg|argument|key)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$"
)
GOOGLE_LINE = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


def test_lines_are_read_as_one_expression_would_read_them():
    dice = random.Random(7)
    parts = [
        ":param",
        ":",
        " ",
        "\t",
        "\u2003",
        "*",
        "a",
        "int",
        "-",
        "(",
        ")",
        "key",
        ":arg ",
        "é",
        "",
    ]
    for _ in range(30_000):
        line = dice.choice([":param", ":key ", ""]) + "".join(
            dice.choices(parts, k=dice.randrange(12))
        )
        found, read = SPHINX.match(line), GOOGLE_LINE.match(line)
        assert signature._sphinx(line) == (found.groups() if found else None), line
        assert bool(again := signature._GOOGLE.match(line)) == bool(read), line
        assert read is None or again.groups() == read.groups(), line


@pytest.mark.parametrize(
    "line", [":param" + " " * 200_000 + "x", ":param " + "x " * 200_000, "x" + " " * 200_000 + "y"]
)
def test_a_long_line_is_read_in_no_time(line):
    since = time.process_time()
    assert split_docstring(line) == (line.strip(), {})
    split_docstring("Args:\n    " + line)
    assert time.process_time() - since < 2
