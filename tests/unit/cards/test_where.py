"""What `where` and `order_by` refuse, and what they find beside the table for Lua."""

from typing import Any

import pytest

from everhold.cards.where import check_where, matches, parse_order_by, read_count, sort_by
from everhold.errors import BadCardQuery


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (5, "where must be an object"),
        ([1], "where must be an object, not an array"),
        ({"a": {"$gt": 1}}, "unknown operator '$gt' at where.a"),
        ({"a": {">=": 1}}, "unknown operator '>=' at where.a"),
        ({"a": {"like": "x"}}, "unknown operator 'like' at where.a"),
        ({"a": {"gt": 1, "most": 2}}, "unknown operator 'most' at where.a, beside 'gt'"),
        ({"a": {"gt": 1, "_not": {}}}, "where.a.gt stands beside a connective; put it into _and"),
        ({"_xor": [{"a": 1}]}, "unknown operator '_xor' at where"),
        ({"_and": [{"a": {"in": 1}}]}, "where._and.1.a.in must be an array"),
        ({"_or": 5}, "where._or must be an array"),
        ({"a": {"exists": 1}}, "where.a.exists must be true or false"),
    ],
)
def test_what_is_not_a_search_is_refused(where: Any, words: str) -> None:
    with pytest.raises(BadCardQuery) as caught:
        check_where(where)
    assert str(caught.value) == words
    assert "operators are" in caught.value.hint


def test_a_field_may_have_the_name_of_an_operator() -> None:
    """If its condition is an object."""
    where = {"params": {"in": {"eq": "x"}, "other": 1}}
    check_where(where)
    assert matches({"params": {"in": "x", "other": 1}}, where)


@pytest.mark.parametrize(
    ("value", "where", "expected"),
    [
        ({"a": True}, {"a": 1}, False),
        ({"a": 1.0}, {"a": 1}, True),
        ({"a": None}, {"a": {"exists": True}}, False),
        ({"a": False}, {"a": {"lt": True}}, True),
        ({"a": [1, 2]}, {"a": {"contains": 2.0}}, True),
        ({"a": [True]}, {"a": {"contains": 1}}, False),
        ({"a": {"b": [1]}}, {"a": {"eq": {"b": [1.0]}}}, True),
        ({"a": {"b": 1, "c": 2}}, {"a": {"eq": {"b": 1}}}, False),
        (7, {"gt": 5}, True),  # a row of samples may be any value
        ({}, None, True),
    ],
)
def test_matches(value: Any, where: Any, expected: bool) -> None:
    check_where(where)
    assert matches(value, where) is expected


def test_what_lacks_the_value_is_last_in_either_direction() -> None:
    cards = [{"card_id": name, **({"n": n} if n else {})} for name, n in [("a", 1), ("b", 0)]]
    cards.append({"card_id": "c", "n": 2})
    for order, expected in (("n", "acb"), ("-n", "cab")):
        found = sort_by(cards, parse_order_by(order))
        assert "".join(card["card_id"] for card in found) == expected


def test_among_equals_the_newest_is_first() -> None:
    cards = [
        {"card_id": "a", "created_at": "1", "n": 1},
        {"card_id": "b", "created_at": "2", "n": 1},
    ]
    assert [card["card_id"] for card in sort_by(cards, parse_order_by(["n"]))] == ["b", "a"]


@pytest.mark.parametrize("order", [5, "", "-", [""], ["a", 1], {"a": 1}])
def test_what_is_not_an_order_is_refused(order: Any) -> None:
    with pytest.raises(BadCardQuery, match="order_by takes a path, or an array of paths"):
        parse_order_by(order)


@pytest.mark.parametrize("value", [-1, 1.5, True, "1"])
def test_what_is_not_a_count_is_refused(value: Any) -> None:
    with pytest.raises(BadCardQuery, match="limit must be a whole number from 0"):
        read_count("limit", value, None)
    assert read_count("limit", 2.0, None) == 2
