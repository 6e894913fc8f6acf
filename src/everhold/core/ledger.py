"""The token usage of a conversation, by source and by model.

Rules
  1. A ledger only grows. A smaller one is an error, never a correction.
  2. It holds counted tokens only. Estimates are in the metrics of a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import Usage
from everhold.errors import BadValue

#: The source of the tokens of a turn itself.
TURN: Final = "turn"


class TokenCounts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens by type. `input` excludes the cache; `reasoning` is a part of `output`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """All tokens."""
        return self.input + self.output + self.cache_read + self.cache_write

    @property
    def context(self) -> int:
        """All tokens that the model read, the cached ones included."""
        return self.input + self.cache_read + self.cache_write

    def plus(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            *(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__)
        )

    def minus(self, other: TokenCounts) -> TokenCounts:
        """The tokens added since `other`; raises `BadValue` if a count decreased."""
        left = [getattr(self, name) - getattr(other, name) for name in self.__struct_fields__]
        if min(left) < 0:
            raise BadValue("usage", "the token counts of a ledger cannot decrease")
        return TokenCounts(*left)

    def json(self) -> dict[str, JSON]:
        return {
            **{name: getattr(self, name) for name in self.__struct_fields__},
            "total": self.total,
        }


def count_usage_tokens(usage: Usage) -> TokenCounts:
    """The counts of an answerer, by type."""
    read = max(usage.cache_read_tokens, 0)
    written = max(usage.cache_write_tokens, 0)
    return TokenCounts(
        input=max((usage.prompt_tokens or 0) - read - written, 0),
        output=max(usage.completion_tokens or 0, 0),
        cache_read=read,
        cache_write=written,
        reasoning=max(usage.reasoning_tokens, 0),
    )


class Ledger:
    """Tokens by source and model."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], TokenCounts] = {}

    def add(self, source: str, usage: Usage | None) -> None:
        """Adds the usage of an answer. No entry is made if nothing was counted."""
        if usage is None:
            return
        for part in usage.parts:
            self.add(source, part)
        cost = count_usage_tokens(usage)
        if cost.total or cost.reasoning:
            key = source, usage.model
            self._entries[key] = self._entries.get(key, TokenCounts()).plus(cost)

    def merge(self, other: Ledger) -> None:
        """Add the usage of another ledger."""
        for key, cost in other._entries.items():
            self._entries[key] = self._entries.get(key, TokenCounts()).plus(cost)

    def copy(self) -> Ledger:
        """A copy, which later additions do not change."""
        found = Ledger()
        found.merge(self)
        return found

    def since(self, before: Ledger) -> Ledger:
        """The usage added since `before`; raises `BadValue` if a count decreased or is missing."""
        found = Ledger()
        for key in before._entries.keys() - self._entries.keys():
            raise BadValue("usage", f"the entry of {key[0]} for {key[1] or 'no model'} is missing")
        for key, cost in self._entries.items():
            added = cost.minus(before._entries.get(key, TokenCounts()))
            if added.total or added.reasoning:
                found._entries[key] = added
        return found

    def __iter__(self) -> Iterator[tuple[str, str, TokenCounts]]:
        return ((source, model, cost) for (source, model), cost in sorted(self._entries.items()))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def total(self) -> TokenCounts:
        """The sum of all sources and models."""
        found = TokenCounts()
        for cost in self._entries.values():
            found = found.plus(cost)
        return found

    @property
    def usage(self) -> Usage | None:
        """The whole ledger as the usage of one answer, by model; None if it is empty."""
        models: dict[str, TokenCounts] = {}
        for _, model, cost in self:
            models[model] = models.get(model, TokenCounts()).plus(cost)
        parts = [
            Usage(
                prompt_tokens=cost.context,
                completion_tokens=cost.output,
                cache_read_tokens=cost.cache_read,
                cache_write_tokens=cost.cache_write,
                reasoning_tokens=cost.reasoning,
                model=model,
            )
            for model, cost in models.items()
        ]
        return None if not parts else parts[0] if len(parts) == 1 else Usage(parts=parts)

    def report(self) -> dict[str, JSON]:
        """The ledger for people: the total, by source, by model, and by both."""
        return {
            "entries": len(self),
            "total": self.total.json(),
            "by_source": self._by(0),
            "by_model": self._by(1),
            "rows": [
                {"source": source, "model": model, **cost.json()} for source, model, cost in self
            ],
        }

    def _by(self, part: int) -> dict[str, JSON]:
        found: dict[str, TokenCounts] = {}
        for key, cost in sorted(self._entries.items()):
            found[key[part]] = found.get(key[part], TokenCounts()).plus(cost)
        return {name: cost.json() for name, cost in found.items()}
