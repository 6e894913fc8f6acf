"""Refuses names that do not exist, with the name that was probably meant.

For options that are passed by name: they are refused where they are written, before anything is
recorded or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from everhold.errors import BadArguments

F = TypeVar("F", bound=Callable[..., Any])


def find_close_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, or None."""
    from difflib import get_close_matches

    names = list(known)
    longer = [one for one in names if len(name) > 2 and one.startswith(name)]
    return next(iter(longer or get_close_matches(name, names, 1)), None)


def list_keyword_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments that a function takes by name, without those of `**`."""
    code = function.__code__
    first = code.co_posonlyargcount
    names = code.co_varnames[first : code.co_argcount + code.co_kwonlyargcount]
    return tuple(name for name in names if name != "self")


def refuse_unknown_names(
    where: str,
    given: Iterable[str],
    known: Iterable[str],
    otherwise: str = "",
    what: str = "option",
) -> None:
    """Raise `BadArguments` if a given name is not known; `otherwise` follows a name that is like no
    known one.
    """
    names = list(known)
    unknown = [name for name in given if name not in names]
    if unknown:
        words = (f"there is no {what} {_describe(name, names, otherwise)}" for name in unknown)
        raise BadArguments(where, "; ".join(words))


def checks_keywords(where: str) -> Callable[[F], F]:
    """Let a function refuse unknown keywords with `BadArguments`: Python names the one that was
    probably meant only from 3.13 on.
    """

    def decorate(function: F) -> F:
        known = frozenset(list_keyword_names(function))

        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if not known.issuperset(kwargs):
                refuse_unknown_names(where, kwargs, sorted(known))
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorate


def _describe(name: str, known: list[str], otherwise: str) -> str:
    close = find_close_name(name, known)
    hint = f"did you mean {close!r}?" if close else otherwise
    return repr(name) + (f" ({hint})" if hint else "")
