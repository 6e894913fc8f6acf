"""The built-in strategies: programs that get a better answer from a model than a single question.

Each module has one program of its own name, and a `STRATEGY` with its use and its cost. The prompts
are plain text and the parsers accept loose answers, so that any model and any host can answer.

Rules
  1. The task is the first parameter, and all others have defaults. The result has at least
     `answer`.
  2. Independent questions are asked at the same time.
  3. An unreadable answer never fails a session, and never makes it longer than the estimate.
  4. Random numbers come from `ctx` only.
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
    """The strategy of a name of `NAMES`; imports its module."""
    found: Strategy = import_module(f"{PACKAGE}.{name}").STRATEGY
    return found


def strategies() -> tuple[Strategy, ...]:
    """All strategies, in the order in which to try them."""
    return tuple(strategy(name) for name in NAMES)
