"""What listings share: filter, then sort, then limit, then the fields that somebody wants to see.

filter an object: every key in it must be there and be equal sort "a,-b": upwards by a, then
downwards by b; what is missing comes last upwards, first downwards limit at most so many; 0 or less
means all fields these keys alone; else those of `verbose`: "summary" or "full"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from everhold.errors import BadPackage

#: How values of different types are ordered among each other.
_RANKS: Final = {bool: 1, int: 2, float: 2, str: 3, list: 4, dict: 5}

Row = dict[str, Any]


def select_rows(
    rows: Sequence[Row],
    *,
    summary: Sequence[str],
    full: Sequence[str],
    limit: int | None = None,
    sort: str = "",
    filter: Any = None,
    fields: Sequence[str] | None = None,
    verbose: str | None = None,
) -> list[Row]:
    """The rows that are wanted, with the keys that are wanted. A filter that is no object is
    none.
    """
    wanted = _fields(fields, verbose, summary, full)
    keys = _keys(sort)
    found = [row for row in rows if not isinstance(filter, Mapping) or _fits(row, filter)]
    for key, is_down in reversed(keys):
        found.sort(key=lambda row, key=key: _rank(row.get(key)), reverse=is_down)  # type: ignore[misc]
    most = len(found) if limit is None or limit <= 0 else limit
    return [{key: row[key] for key in wanted if key in row} for row in found[:most]]


def _fields(
    fields: Sequence[str] | None, verbose: str | None, summary: Sequence[str], full: Sequence[str]
) -> Sequence[str]:
    if fields is not None:
        return fields
    if verbose not in (None, "summary", "full"):
        raise BadPackage(f'invalid verbose value "{verbose}" (expected "summary" or "full")')
    return full if verbose == "full" else summary


def _keys(sort: str) -> list[tuple[str, bool]]:
    keys = []
    for part in sort.split(","):
        key = part.removeprefix("-")
        if not key:
            raise BadPackage(
                f'invalid sort "{sort}": a key is missing',
                'Say keys with commas between them: "-active,name"',
            )
        keys.append((key, part.startswith("-")))
    return keys


def _fits(row: Row, wanted: Mapping[str, Any]) -> bool:
    return all(key in row and _same(row[key], value) for key, value in wanted.items())


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _rank(value: Any) -> tuple[int, int, Any]:
    """Upwards what is missing is last; downwards all of it is turned round."""
    if value is None:
        return 1, 0, 0
    rank = _RANKS[type(value)]
    return 0, rank, value if rank < 4 else str(value)
