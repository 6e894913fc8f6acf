"""The language of searches: `where`, `order_by`, and pages of a result.

`where` is an object in the shape of what it looks for. A plain value, or an array, must be equal;
an object of operators is applied to the value at that place; all conditions of an object must be
true. `_and` and `_or` take arrays, `_not` takes an object, at any depth.

Rules
  1. A missing value and null are the same. They satisfy `ne` and `nin`, and `exists` as asked.
  2. Numbers are compared as numbers: 1 equals 1.0. True is not 1.
  3. Only values of the same type (number, text, truth value) have an order.
  4. What lacks the value of `order_by` comes last in either direction.
  5. A search is checked before anything is read: a wrong one raises `BadCardQuery`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import Any, Final, TypeVar

import msgspec

from everhold.core.codec import JSON
from everhold.errors import BadCardQuery
from everhold.packages.lua.card_index import get_at, sort_newest_first

T = TypeVar("T")


def is_same(one: JSON, two: JSON) -> bool:
    """Whether two values are equal, numbers as numbers."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(is_same(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(is_same, one, two))
    return bool(one == two)


def _rank(value: JSON) -> int | None:
    """The place of a type among types; None for a type without an order."""
    if isinstance(value, bool):
        return 1
    if isinstance(value, int | float):
        return 2
    return 3 if isinstance(value, str) else None


def _compare(one: Any, two: Any) -> int | None:
    """-1, 0 or 1; None for values without an order between them."""
    rank = _rank(one)
    if rank is None or rank != _rank(two):
        return None
    return int(one > two) - int(one < two)


def _is_among(value: JSON, items: JSON) -> bool:
    return any(is_same(item, value) for item in items or ())


def _ordered(accepts: Callable[[int], bool]) -> Callable[[JSON, JSON], bool]:
    def apply(value: JSON, wanted: JSON) -> bool:
        order = _compare(value, wanted)
        return order is not None and accepts(order)

    return apply


def _contains(value: JSON, wanted: JSON) -> bool:
    if isinstance(value, str):
        return isinstance(wanted, str) and wanted in value
    return isinstance(value, list) and _is_among(wanted, value)


def _starts_with(value: JSON, wanted: JSON) -> bool:
    return isinstance(value, str) and isinstance(wanted, str) and value.startswith(wanted)


#: Each gets the value that was found, or None, and the operand.
OPERATORS: Final[dict[str, Callable[[JSON, JSON], bool]]] = {
    "eq": lambda value, wanted: value is not None and is_same(value, wanted),
    "ne": lambda value, wanted: value is None or not is_same(value, wanted),
    "lt": _ordered(lambda order: order < 0),
    "lte": _ordered(lambda order: order <= 0),
    "gt": _ordered(lambda order: order > 0),
    "gte": _ordered(lambda order: order >= 0),
    "in": lambda value, wanted: value is not None and _is_among(value, wanted),
    "nin": lambda value, wanted: value is None or not _is_among(value, wanted),
    "exists": lambda value, wanted: (value is not None) == wanted,
    "contains": _contains,
    "starts_with": _starts_with,
}
_CONNECTIVES: Final = ("_and", "_or", "_not")
#: Operators of other languages. As the name of a field they would silently find nothing.
_FOREIGN: Final = frozenset(
    [
        "=",
        "==",
        "!=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "neq",
        "geq",
        "leq",
        "greater",
        "greater_than",
        "less",
        "less_than",
        "not_in",
        "between",
        "like",
        "ilike",
        "regex",
        "startswith",
        "startsWith",
        "ends_with",
        "endswith",
        "endsWith",
    ]
)


# ---- where


def check_where(where: JSON) -> None:
    """Raise `BadCardQuery` if this is not a search."""
    if where is not None:
        _check(where, "where")


def _check(where: JSON, path: str) -> None:
    if where == []:  # an empty table of Lua
        return
    if not isinstance(where, dict):
        array = ", not an array" if isinstance(where, list) else ""
        raise BadCardQuery(f"{path} must be an object{array}")
    if _is_leaf(where):
        for key, wanted in where.items():
            _check_operand(key, wanted, f"{path}.{key}")
        return
    for key, wanted in where.items():
        here = f"{path}.{key}"
        if key in ("_and", "_or"):
            if not isinstance(wanted, list) and wanted != {}:
                raise BadCardQuery(f"{here} must be an array")
            for place, part in enumerate(wanted, 1):
                _check(part, f"{here}.{place}")
        elif key == "_not" or isinstance(wanted, dict):
            _check(wanted, here)
        else:
            _check_field(where, key, path)


def _check_operand(name: str, wanted: JSON, here: str) -> None:
    if name in ("in", "nin") and not isinstance(wanted, list) and wanted != {}:
        raise BadCardQuery(f"{here} must be an array")
    if name == "exists" and not isinstance(wanted, bool):
        raise BadCardQuery(f"{here} must be true or false")


def _check_field(where: dict[str, JSON], key: str, path: str) -> None:
    """Refuse what looks like an operator, and is none."""
    if key in OPERATORS:
        for other in where:
            if other not in OPERATORS and other not in _CONNECTIVES:
                raise BadCardQuery(f"unknown operator '{other}' at {path}, beside '{key}'")
        raise BadCardQuery(f"{path}.{key} stands beside a connective; put it into _and")
    is_connective = key.startswith("_") and isinstance(where[key], list)
    if key.startswith("$") or key in _FOREIGN or is_connective:
        raise BadCardQuery(f"unknown operator '{key}' at {path}")


def _is_leaf(where: dict[str, JSON]) -> bool:
    return all(key in OPERATORS for key in where)


def matches(value: JSON, where: JSON) -> bool:
    """Whether a value satisfies a checked search; None and [] find everything."""
    if not where:
        return True
    if _is_leaf(where):
        return all(OPERATORS[key](value, wanted) for key, wanted in where.items())
    return all(_holds(value, key, wanted) for key, wanted in where.items())


def _holds(value: JSON, key: str, wanted: JSON) -> bool:
    match key:
        case "_and":
            return all(matches(value, part) for part in wanted)
        case "_or":
            return any(matches(value, part) for part in wanted)
        case "_not":
            return not matches(value, wanted)
    found = value.get(key) if isinstance(value, dict) else None
    if isinstance(wanted, dict):
        return matches(found, wanted)
    return OPERATORS["eq"](found, wanted)


# ---- order and pages


class OrderBy(msgspec.Struct, frozen=True):
    """One path of `order_by`."""

    path: tuple[str, ...]
    descending: bool


def parse_order_by(given: JSON) -> list[OrderBy]:
    """A path, or an array of paths, each with "-" in front for descending order."""
    if given is None or given == {}:
        return []
    paths = [given] if isinstance(given, str) else given
    if not isinstance(paths, list) or not all(
        isinstance(path, str) and path.strip("-.") for path in paths
    ):
        raise BadCardQuery(
            "order_by takes a path, or an array of paths",
            'Give a path such as "stats.pass_rate", with "-" in front for descending order.',
        )
    return [
        OrderBy(tuple(path.removeprefix("-").split(".")), path.startswith("-")) for path in paths
    ]


def sort_by(cards: Sequence[dict[str, JSON]], order: Sequence[OrderBy]) -> list[dict[str, JSON]]:
    """Cards in an order; among equals the newest comes first."""

    def compare(one: dict[str, JSON], two: dict[str, JSON]) -> int:
        for by in order:
            a, b = get_at(one, by.path), get_at(two, by.path)
            rank_a, rank_b = _rank(a), _rank(b)
            if rank_a is None or rank_b is None:
                if rank_a is not rank_b:
                    return 1 if rank_a is None else -1
                continue
            before = _compare(a, b) if rank_a == rank_b else rank_a - rank_b
            if before:
                return -before if by.descending else before
        return 0

    return sorted(sort_newest_first(cards), key=cmp_to_key(compare))


def read_count(name: str, value: JSON, default: int | None) -> int | None:
    """A whole number from 0; a float from Lua without a fraction is one."""
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadCardQuery(f"{name} must be a whole number from 0", f"Leave out {name}, or fix it.")
    return value


def select_page(found: list[T], offset: int, limit: int | None) -> list[T]:
    return found[offset : None if limit is None else offset + limit]
