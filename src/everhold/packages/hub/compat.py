"""Ranges of versions, as packages declare them in `alc_shapes_compat`: ">=0.25.0, <0.26".

The rules are those of Cargo: a version without an operator means `^`; all parts have to match.

    ^1.2.3   >=1.2.3, <2.0.0; for 0.x the minor version, and for 0.0.x the patch, may not change
    ~1.2.3   >=1.2.3, <1.3.0
    1.2.*    >=1.2.0, <1.3.0
    =1.2     >=1.2.0, <1.3.0
"""

from __future__ import annotations

import re
from typing import Final

#: The version of alc_shapes that everhold has.
SHAPES_VERSION: Final = "0.25.1"

Version = tuple[int, int, int]

_NUMBER: Final = r"(?:0|[1-9]\d{0,8})"
_VERSION: Final = re.compile(rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:[-+][0-9A-Za-z.+-]+)?")
_PART: Final = re.compile(
    rf"(?P<op>>=|<=|[<>=^~])?\s*(?P<major>{_NUMBER}|[*xX])"
    rf"(?:\.(?P<minor>{_NUMBER}|[*xX])(?:\.(?P<patch>{_NUMBER}|[*xX]))?)?"
)
_END: Final[Version] = (10**9, 0, 0)


def parse_version(text: str) -> Version:
    """The numbers of a version; raises `ValueError`."""
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a version such as 1.2.3")
    return int(found[1]), int(found[2]), int(found[3])


def is_in_range(version: str, wanted: str) -> bool:
    """Whether a version is in a range; raises `ValueError` if the range cannot be read."""
    bounds = [_parse_part(part.strip(), wanted) for part in wanted.split(",")]
    return all(low <= parse_version(version) < high for low, high in bounds)


def _parse_part(text: str, whole: str) -> tuple[Version, Version]:
    """The first version that fits, and the first one after it that does not."""
    found = _PART.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a range of versions such as >=0.25.0, <0.26")
    numbers = [
        int(one)
        for one in (found["major"], found["minor"], found["patch"])
        if one is not None and one.isdigit()
    ]
    written = [one for one in (found["major"], found["minor"], found["patch"]) if one is not None]
    is_open = len(numbers) < len(written)  # it has a *
    if any(not one.isdigit() for one in written[: len(numbers)]) or (is_open and found["op"]):
        raise ValueError(f"{text!r} is not a range of versions")
    low = _fill(numbers)
    match found["op"]:
        case ">=":
            return low, _END
        case ">":
            return (_next(numbers) if len(numbers) < 3 else (low[0], low[1], low[2] + 1)), _END
        case "<":
            return (0, 0, 0), low
        case "<=":
            return (0, 0, 0), _next(numbers)
        case "=":
            return low, _next(numbers)
        case "~":
            return low, _next(numbers[:2])
    if is_open:
        return low, _next(numbers)
    if len(numbers) == 3 and numbers[:2] == [0, 0]:
        return low, _next(numbers)
    return low, _next(numbers[:2] if numbers[0] == 0 and len(numbers) > 1 else numbers[:1])


def _fill(numbers: list[int]) -> Version:
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    return major, minor, patch


def _next(numbers: list[int]) -> Version:
    """The first version after all that begin with these numbers."""
    return _fill([*numbers[:-1], numbers[-1] + 1]) if numbers else _END
