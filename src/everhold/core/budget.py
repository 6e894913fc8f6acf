"""Limits on what a session may spend, checked before a query is recorded.

Rules
  1. Limits are checked in this order: calls, time, tokens. The error names the first one reached.
  2. A batch cannot overshoot: a batch with more calls than are left is refused as a whole.
  3. A limit that is not set never refuses. Time includes the wait for answers.
  4. A budget may change while its session lives. The change is a part of a delivery, so replay sees
     it at the same moment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from everhold.core.schema import fits_type
from everhold.errors import BadSetting, BudgetExceeded

#: A limit: it must fit into 64 bits, like every stored integer.
Limit = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_LIMITS = ("max_llm_calls", "max_elapsed_ms", "max_tokens")
#: What `check` says, also inside other messages.
_REACHED: Final = re.compile(
    r"budget_exceeded: (max_\w+) \(\d+(?:ms)?\) reached: (\d+)\w*"
    r" (?:used|have passed)(?:, (\d+) asked)?"
)
#: Limits to change, by name; None means no limit.
BudgetChange = dict[str, int | None]


class Budget(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a session may spend. Each limit is an integer of 0 or more, or None for no limit."""

    max_llm_calls: Limit | None = None
    max_elapsed_ms: Limit | None = None
    max_tokens: Limit | None = None

    def __post_init__(self) -> None:
        for name in _LIMITS:
            limit = getattr(self, name)
            if limit is not None and not fits_type(limit, Limit):
                raise BadSetting(name, f"must be an integer of 0 or more, got {limit!r}")

    @classmethod
    def read(cls, given: object) -> Budget | None:
        """The valid limits in `given`; invalid ones are ignored. None if there are none."""
        if not isinstance(given, Mapping):
            return None
        found = {name: given[name] for name in _LIMITS if fits_type(given.get(name), Limit)}
        return cls(**found) if found else None

    def changed(self, limits: BudgetChange) -> Budget:
        """This budget with other limits; those that are not named stay."""
        return msgspec.structs.replace(self, **limits)

    def find_raises(self, wanted: Budget) -> BudgetChange:
        """The limits of `wanted` that are larger than those of this budget."""
        found: BudgetChange = {}
        for name, limit in wanted.json().items():
            present = getattr(self, name)
            if present is not None and limit > present:
                found[name] = limit
        return found

    def check(self, asking: int, *, llm_calls: int, elapsed_ms: int, tokens: int) -> None:
        """Raises `BudgetExceeded` if `asking` more llm queries would exceed a limit."""
        most = self.max_llm_calls
        if most is not None and llm_calls + asking > most:
            more = "" if llm_calls >= most else f", {asking} asked"
            raise BudgetExceeded(f"max_llm_calls ({most}) reached: {llm_calls} used{more}")
        most = self.max_elapsed_ms
        if most is not None and elapsed_ms >= most:
            raise BudgetExceeded(f"max_elapsed_ms ({most}ms) reached: {elapsed_ms}ms have passed")
        most = self.max_tokens
        if most is not None and tokens >= most:
            raise BudgetExceeded(f"max_tokens ({most}) reached: {tokens} used")

    def remaining(self, *, llm_calls: int, elapsed_ms: int, tokens: int) -> dict[str, int | None]:
        """The rest of each limit, never below 0; None where there is no limit."""
        return {
            "llm_calls": _left(self.max_llm_calls, llm_calls),
            "elapsed_ms": _left(self.max_elapsed_ms, elapsed_ms),
            "tokens": _left(self.max_tokens, tokens),
        }

    def json(self) -> dict[str, int]:
        """The limits that are set."""
        return {name: limit for name in _LIMITS if (limit := getattr(self, name)) is not None}


def find_reached_limit(message: str) -> tuple[str, int] | None:
    """The limit that the message of a `BudgetExceeded` names, and how much of it was needed."""
    found = _REACHED.search(message)
    if found is None:
        return None
    name, used, asked = found.groups()
    return name, int(used) + int(asked or 0)


def _left(most: int | None, used: int) -> int | None:
    return None if most is None else max(most - used, 0)
