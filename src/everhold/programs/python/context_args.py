"""What a program hands to `ctx`, checked where it is handed over.

A record is written as it is, and read by its types: what is not of its type would be written and
never be read again. The error is the program's own, and the same on replay.
"""

from __future__ import annotations

from typing import Any, Final

from everhold.core.codec import to_plain
from everhold.core.query import Rerun
from everhold.errors import BadArguments, BadValue

_LIMIT: Final = 2**63
_NEVER: Final = float("inf")


def check_ctx_string(value: Any, what: str) -> str:
    if type(value) is not str:
        raise BadValue(what, f"{type(value).__name__} is not text")
    to_plain(value, what)
    return value


def check_ctx_name(value: Any, what: str) -> str:
    """A name. Text of a kind of its own, a member of a StrEnum for one, is the text it stands
    for.
    """
    if not isinstance(value, str):
        raise _misfit(what, "text", value)
    return check_ctx_string(str.__str__(value), what)


def check_ctx_integer(value: Any, what: str) -> int:
    """A whole number that can be stored."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_LIMIT <= value < _LIMIT:
        raise _misfit(what, "a whole number of 64 bits", value)
    return int(value)


def check_ctx_count(value: Any, what: str) -> int:
    """How often: no or more times."""
    if check_ctx_integer(value, what) < 0:
        raise _misfit(what, "0 or more", value)
    return int(value)


def check_ctx_flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise _misfit(what, "True or False", value)
    return value


def check_ctx_seconds(value: Any, what: str) -> float | None:
    """How long to wait; an infinite time, as None, is for ever."""
    if value is None or value == _NEVER:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LIMIT:
        raise _misfit(what, "a number of seconds", value)
    return value


def parse_ctx_rerun(value: Any) -> Rerun:
    try:
        return Rerun(value)
    except ValueError:
        raise _misfit("rerun", ", ".join(Rerun), value) from None


def _misfit(what: str, expected: str, value: object) -> BadArguments:
    shown = (
        repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    )
    return BadArguments("ctx", f"{what} should be {expected}, not {shown[:80]}")
