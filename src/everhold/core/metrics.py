"""What a session has cost so far: counters that move with it and are stored in its row.

`Metrics` speaks the vocabulary of `observe.Observer` without the session id, because it belongs to
one session: `paused` when queries are asked, `answered` for every answer, `partly_answered` after
it while others stay open, `resumed` when the program goes on. It is told first, and what its
`answered` returns is the usage that the observers hear.

Rules
  1. Stored as an array: a new field goes last, with a default, so that old rows open and old
     readers skip it.
  2. Nothing here looks back: each event costs the same however long the session is.
  3. Only `llm` queries count, and an answer that nobody gave (a default after expiry) costs
     nothing. A pause that asks no `llm` query is not counted as a pause; every resume is a round,
     unless all it brings are durable values, for which nobody waited.
  4. An open prompt is estimated until its answer says what it really was, so that a budget sees it
     at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.query import METERED, Query, QueryAnswer
from everhold.core.usage import (
    DEFINITE,
    ESTIMATED,
    TokenCost,
    TokenCount,
    TokenSource,
    measure_answer,
    measure_query,
    price_exchange,
)


class Metrics(msgspec.Struct, array_like=True, gc=False):
    """The counters of one session. Mutable: the one writer of the session moves them."""

    llm_calls: int = 0
    pauses: int = 0
    rounds: int = 0
    prompt_chars: int = 0  # bytes of UTF-8, as are response_chars; the names are those of the wire
    response_chars: int = 0
    prompt_tokens: int = 0  # of answered prompts
    prompt_source: TokenSource = DEFINITE
    response_tokens: int = 0
    response_source: TokenSource = DEFINITE
    open_tokens: int = 0  # estimate of prompts without an answer: open, expired or withdrawn
    # the delivery at which the program began again last, from where its journal is read
    begun: int = 0

    def paused(self, queries: Iterable[Query]) -> None:
        """The program asked these queries."""
        calls = 0
        for query in queries:
            if query.kind in METERED:
                length, tokens = measure_query(query)
                calls += 1
                self.prompt_chars += length
                self.open_tokens += tokens
        if calls:
            self.pauses += 1
            self.llm_calls += calls

    def answered(self, query: Query, answer: QueryAnswer) -> TokenCost | None:
        """A query was answered: return what that cost, or None if it cost no tokens."""
        if query.kind not in METERED or answer.expired:
            return None
        estimated = measure_query(query)[1]
        length, tokens = measure_answer(answer)
        cost = price_exchange(answer.usage, estimated, tokens)
        self.response_chars += length
        self.open_tokens -= estimated
        self.prompt_tokens += cost.prompt
        self.response_tokens += cost.response
        if cost.prompt_source is not self.prompt_source:
            self.prompt_source = self.prompt_source.merge(cost.prompt_source)
        if cost.response_source is not self.response_source:
            self.response_source = self.response_source.merge(cost.response_source)
        return cost

    def partly_answered(self, query: Query, answer: QueryAnswer) -> None:
        """Others are still open: nothing to count, `answered` has done it."""

    def resumed(self) -> None:
        """The program goes on."""
        self.rounds += 1

    @property
    def prompt(self) -> TokenCount:
        """Prompt tokens, the open prompts included."""
        source = ESTIMATED if self.open_tokens else self.prompt_source
        return TokenCount(self.prompt_tokens + self.open_tokens, source)

    @property
    def response(self) -> TokenCount:
        return TokenCount(self.response_tokens, self.response_source)

    @property
    def tokens(self) -> int:
        """What a token budget is compared with."""
        return self.prompt_tokens + self.open_tokens + self.response_tokens

    def copy(self) -> Metrics:
        """The counters as they stand, for somebody who may keep them."""
        return msgspec.structs.replace(self)

    def stats(
        self,
        elapsed_ms: int,
        custom: Mapping[str, JSON] | None = None,
        *,
        budget: Budget | None = None,
    ) -> dict[str, JSON]:
        """The metrics as callers see them: `auto` is ours, `custom` is what the program
        recorded.
        """
        prompt = self.prompt
        response = self.response
        auto: dict[str, JSON] = {
            "elapsed_ms": elapsed_ms,
            "llm_calls": self.llm_calls,
            "pauses": self.pauses,
            "rounds": self.rounds,
            "total_prompt_chars": self.prompt_chars,
            "total_response_chars": self.response_chars,
            "prompt_tokens": prompt.json(),
            "response_tokens": response.json(),
            "total_tokens": prompt.plus(response).json(),
        }
        if budget is not None:
            auto["budget"] = budget.json()
        return {"auto": auto, "custom": dict(custom or {})}
