"""The one way between values and JSON text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everhold.core.codec import checksum_row, dumps, is_same_json, loads, to_plain
from everhold.errors import BadValue

TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def refusal(value, *path):
    with pytest.raises(BadValue) as refused:
        to_plain(value, *path)
    return refused.value.path, refused.value.reason


class Word(str):
    pass


class Later:
    def __await__(self):
        raise NotImplementedError


class Owl:
    pass


@given(VALUES)
def test_plain_values_stay_what_they_are(value):
    """What JSON can say comes back with the same content, types and order."""
    assert repr(to_plain(value)) == repr(value)


@given(VALUES)
def test_text_and_back(value):
    """What is written as text is read back the same."""
    assert repr(loads(dumps(value))) == repr(value)


def test_plain_is_a_copy():
    """Changing the value afterwards does not change what was kept."""
    value = {"a": [1]}

    kept = to_plain(value)
    value["a"].append(2)

    assert kept == {"a": [1]}


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ((1, 2), "the value", "a tuple would change on the way"),
        ({1}, "the value", "a set would change on the way"),
        (b"raw", "the value", "a bytes would change on the way"),
        (Owl(), "the value", "an Owl would change on the way"),
        ([Later()], "the value[0]", "a Later would change on the way; await it"),
        (Word("w"), "the value", "a Word would change on the way"),
        ([{"deep": (1,)}], "the value[0].deep", "a tuple would change on the way"),
        (math.nan, "the value", "nan is not a JSON number"),
        ([1.0, -math.inf], "the value[1]", "-inf is not a JSON number"),
        (2**63, "the value", "an integer outside 64 bits; store it as text"),
        (-(2**63) - 1, "the value", "an integer outside 64 bits; store it as text"),
        ({"a": {1: "x"}}, "the value.a", "the key 1 is an int, not text"),
        ({None: 1}, "the value", "the key None is a NoneType, not text"),
        ({Word("w"): 1}, "the value", "the key 'w' is a Word, not text"),
        ("\ud800", "the value", "a lone surrogate is not text"),
        (["ok", "\udfff"], "the value[1]", "a lone surrogate is not text"),
        ({"\ud800": 1}, "a key of the value", "a lone surrogate is not text"),
    ],
)
def test_what_json_would_change_is_refused(value, path, reason):
    """A value that would come back different is refused, with its path."""
    assert refusal(value) == (path, reason)


def test_the_path_begins_where_the_caller_says():
    """The name of what is checked is part of the path."""
    assert refusal([()], "args.topic")[0] == "args.topic[0]"


def nested(levels):
    value = "core"
    for _ in range(levels):
        value = [value]
    return value


def test_how_deep_values_may_be():
    """Two hundred levels are kept, one more is refused."""
    assert to_plain(nested(200)) == nested(200)
    assert refusal(nested(201))[1] == "nested deeper than 200 levels"


def test_a_value_that_holds_itself():
    """A circle has no end, and is refused for its depth."""
    circle = []
    circle.append(circle)

    assert refusal(circle)[1] == "nested deeper than 200 levels"


@pytest.mark.parametrize("text", ["\0", "é", "漢字", "🦉", "\u2028", "\ufeff", ""])
def test_any_other_text_is_kept(text):
    """NUL and signs beyond ASCII are text."""
    assert to_plain(text) == loads(dumps(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1,]", "NaN", "'a'", '"\ud800"', '"\\ud800"', b'"\xff"', "[" * 100_000, "1e999"],
)
def test_malformed_text_is_refused(text):
    """What is not JSON raises `BadValue`, whatever is wrong with it."""
    with pytest.raises(BadValue):
        loads(text)


def test_bytes_are_read_too():
    """Text may come as UTF-8."""
    assert loads('{"a": "é"}'.encode()) == {"a": "é"}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"a": 1, "b": [{"c": 1, "d": 2}]}, {"b": [{"d": 2, "c": 1}], "a": 1}, True),
        ([1, 2], [2, 1], False),
        (True, 1, False),
        (1, 1.0, False),
        (None, False, False),
        ("1", 1, False),
        ({"a": None}, {}, False),
    ],
)
def test_same_content(one, other, is_same):
    """The order of an object's names does not matter; types and everything else do."""
    assert is_same_json(one, other) is is_same


@given(VALUES)
def test_a_value_is_the_same_as_itself(value):
    """Content is compared with content."""
    assert is_same_json(value, to_plain(value))


def test_a_seal_tells_rows_apart():
    """A changed part, a moved boundary and a missing part change the seal; the same row has the
    same one.
    """
    row = (1, 2.5, "é", None)

    assert checksum_row(*row) == checksum_row(1, 2.5, "é", None)
    assert (
        len(
            {
                checksum_row(*row),
                checksum_row(1, 2.5, "è", None),
                checksum_row(1, 2.5, "é"),
                checksum_row("a", "b"),
                checksum_row("ab", ""),
            }
        )
        == 5
    )
