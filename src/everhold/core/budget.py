"""Limits on what a session may spend, checked before a query is emitted.

Rules
  1. Calls, then time, then tokens; the first limit that is reached is the one named.
  2. A batch cannot overshoot: what asks for more calls than are left is refused whole.
  3. A limit that is not set never refuses. Time includes the time others take to answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from everhold.core.codec import JSON
from everhold.errors import BadSetting, BudgetExceeded

_LIMITS = ("max_llm_calls", "max_elapsed_ms", "max_tokens")


class Budget(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a session may spend. Each limit is a whole number from 0, or None for no limit."""

    max_llm_calls: int | None = None
    max_elapsed_ms: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in _LIMITS:
            limit = getattr(self, name)
            if limit is not None and not _valid(limit):
                raise BadSetting(name, f"should be a whole number from 0, got {limit!r}")

    @classmethod
    def read(cls, given: object) -> Budget | None:
        """The limits found in `given`: what is not valid is ignored, and without any there is no
        budget.
        """
        if not isinstance(given, Mapping):
            return None
        found = {name: given[name] for name in _LIMITS if _valid(given.get(name))}
        return cls(**found) if found else None

    def check(self, asking: int, *, llm_calls: int, elapsed_ms: int, tokens: int) -> None:
        """Raise `BudgetExceeded` if `asking` more llm queries would go beyond a limit."""
        most = self.max_llm_calls
        if most is not None and llm_calls + asking > most:
            more = "" if llm_calls >= most else f", {asking} asked"
            raise BudgetExceeded(f"max_llm_calls ({most}) reached ({llm_calls} used{more})")
        most = self.max_elapsed_ms
        if most is not None and elapsed_ms >= most:
            raise BudgetExceeded(f"max_elapsed_ms ({most}ms) reached ({elapsed_ms}ms elapsed)")
        most = self.max_tokens
        if most is not None and tokens >= most:
            raise BudgetExceeded(f"max_tokens ({most}) reached ({tokens} used)")

    def remaining(self, *, llm_calls: int, elapsed_ms: int, tokens: int) -> dict[str, int | None]:
        """What is left of each limit, never below 0; None where there is no limit."""
        return {
            "llm_calls": _left(self.max_llm_calls, llm_calls),
            "elapsed_ms": _left(self.max_elapsed_ms, elapsed_ms),
            "tokens": _left(self.max_tokens, tokens),
        }

    def json(self) -> dict[str, JSON]:
        """The limits that are set."""
        return {name: limit for name in _LIMITS if (limit := getattr(self, name)) is not None}


def _valid(limit: object) -> bool:
    return type(limit) is int and 0 <= limit < 2**63


def _left(most: int | None, used: int) -> int | None:
    return None if most is None else max(most - used, 0)
