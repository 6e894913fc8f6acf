"""Refuses real models while a test runs with the fixture `everhold`.

A module of its own, because `testing` sets the guard and every real answerer reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from everhold.errors import BadSetting


class _Guard:
    wanted = 0


@contextmanager
def refuse_real_models() -> Iterator[None]:
    """Refuse real models inside the `with` block, in the whole process."""
    _Guard.wanted += 1
    try:
        yield
    finally:
        _Guard.wanted -= 1


def refuse_in_tests(model: str) -> None:
    """Raise `BadSetting` if a test refuses real models."""
    if _Guard.wanted:
        raise BadSetting(
            "llm",
            f"{model} is a real model, which a test with the fixture everhold may not ask; prepare"
            " its answers instead",
        )
