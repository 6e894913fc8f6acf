"""A plugin that limits what an agent may spend: tokens, money and time, per turn and per
session.

    Agent(…, plugins=[Allowance(turn_tokens=50_000, session_money=2.5, prices={"claude-*": Price(3, 15)})])

Rules
  1. Limits are checked before each model call, so that a turn overspends by at most one call.
  2. Money limits need prices. A model without a price stops the turn, since its cost is unknown.
  3. Spending of other sources (a compaction, a subagent) counts too. A subagent's spending counts
     when it ends; until then it has limits of its own, of the same size.
  4. Answers without usage cost nothing here: those of people, of hosts, and of functions that do
     not return `Answer(…, usage=…)`. Time limits and `max_turns` still hold.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import ClassVar

import msgspec

from everhold.core.ledger import Ledger, TokenCounts
from everhold.errors import BadSetting
from everhold.hooks import Abort, Moment, Plugin

_MILLION = 1_000_000


class Price(msgspec.Struct, frozen=True):
    """The cost of a million tokens, in your currency. The cache costs as much as input, unless it
    has its own prices.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def of(self, cost: TokenCounts) -> float:
        """The price of these tokens."""
        read = self.input if self.cache_read is None else self.cache_read
        written = self.input if self.cache_write is None else self.cache_write
        paid = cost.input * self.input + cost.output * self.output
        return (paid + cost.cache_read * read + cost.cache_write * written) / _MILLION


class Allowance(Plugin):
    """Stops a turn at a limit. Times are seconds."""

    name: ClassVar[str] = "budget"

    def __init__(
        self,
        *,
        turn_tokens: int | None = None,
        session_tokens: int | None = None,
        turn_money: float | None = None,
        session_money: float | None = None,
        turn_seconds: float | None = None,
        session_seconds: float | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self._tokens = {"turn": turn_tokens, "session": session_tokens}
        self._money = {"turn": turn_money, "session": session_money}
        self._seconds = {"turn": turn_seconds, "session": session_seconds}
        self._prices = dict(prices or {})
        for what, limits in (
            ("tokens", self._tokens),
            ("money", self._money),
            ("seconds", self._seconds),
        ):
            for scope, most in limits.items():
                if most is not None and not most >= 0:
                    raise BadSetting(f"{scope}_{what}", f"should be 0 or more, got {most!r}")

    def before_model_call(self, moment: Moment) -> Abort | None:
        reason = next(self._reasons(moment), None)
        return None if reason is None else Abort(reason)

    def _reasons(self, moment: Moment) -> Iterator[str]:
        spent = {"turn": moment.turn_usage, "session": moment.usage}
        passed = {"turn": moment.now - moment.started, "session": moment.now - moment.began}
        for scope, ledger in spent.items():
            most: float | None = self._tokens[scope]
            if most is not None and ledger.total.total >= most:
                yield f"the {scope} has used {ledger.total.total} of {most} tokens"
            most = self._money[scope]
            if most is not None:
                yield from self._unpaid(scope, ledger, most)
            most = self._seconds[scope]
            if most is not None and passed[scope] >= most:
                yield f"the {scope} has taken {passed[scope]:.0f} of {most:g} seconds"

    def _unpaid(self, scope: str, ledger: Ledger, most: float) -> Iterator[str]:
        paid = 0.0
        for _, model, cost in ledger:
            price = self._price(model)
            if price is None:
                yield f"there is no price for the model {model or 'without a name'!r}"
                return
            paid += price.of(cost)
        if paid >= most:
            yield f"the {scope} has cost {paid:.4g} of {most:g}"

    def _price(self, model: str) -> Price | None:
        if model in self._prices:
            return self._prices[model]
        return next(
            (price for pattern, price in self._prices.items() if fnmatchcase(model, pattern)), None
        )
