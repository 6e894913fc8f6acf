"""The strategies that come with everhold: ways of getting a better answer out of a model than it
gives at once.

Each is one module with one program of the same name, and a `STRATEGY` that says what it is for and
what it costs. They ask in plain words and read the answers with patience, so that any model and any
host can answer them.

Rules
  1. The task is the first parameter, and all others have defaults. The result has at least
     `answer`.
  2. What does not depend on another answer is asked at the same time.
  3. An answer that cannot be read never fails a session, and never lengthens it beyond what the
     estimate says.
  4. No dice but those of `ctx`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from everhold.packages.strategies.metadata import Strategy

PACKAGE: Final = __name__
NAMES: Final = (
    "cot",
    "reflect",
    "self_consistency",
    "cove",
    "panel",
    "rank",
    "tree_of_thoughts",
    "ucb",
)


def strategy(name: str) -> Strategy:
    """The strategy of this name, one of `NAMES`; its module is loaded now."""
    found: Strategy = import_module(f"{PACKAGE}.{name}").STRATEGY
    return found


def strategies() -> tuple[Strategy, ...]:
    """All of them, in the order in which one would try them."""
    return tuple(strategy(name) for name in NAMES)
