"""The metrics of a session: counters that every step updates, stored in its row.

`Metrics` has the methods of `observer.Observer` without the session id, because it belongs to one
session. It is called before the observers, and what its `answered` returns is the usage that they
receive.

Rules
  1. It is stored as an array: a new field goes last, with a default, so that old rows can be read
     and old readers ignore it.
  2. Every event costs the same, however long the session is.
  3. Only `llm` queries count. The default that answers an expired query costs nothing. A pause
     without an `llm` query is not counted as a pause. Every resume is a round, unless it delivers
     only durable values, because the program did not wait for these.
  4. An open prompt is estimated until its answer reports the real count, so that a budget includes
     it at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.progress import Progress
from everhold.core.query import METERED, Blocked, Query, QueryAnswer
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
    """The counters of one session. Mutable: only the writer of the session changes them."""

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
    # the delivery of the last restart: the journal is read from there
    begun: int = 0
    # open queries that could not be answered, and why: see `Head.block`
    blocked: dict[int, Blocked] | None = None
    progress: Progress | None = None  # what the program reported last
    # the limits of the session, if they were changed after its birth
    budget: Budget | None = None

    def paused(self, queries: Iterable[Query]) -> None:
        """Counts the queries that the program made."""
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
        """Counts an answer; returns its cost, or None if it cost no tokens."""
        if query.kind not in METERED or answer.expired:
            return None
        estimated = measure_query(query)[1]
        length, tokens = measure_answer(answer)
        cost = price_exchange(answer.usage, estimated, tokens)
        if answer.attempts != 1:  # each attempt asked a model
            self.llm_calls += answer.attempts - 1
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
        """Does nothing: `answered` has counted the answer."""

    def resumed(self) -> None:
        """Counts a round."""
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
        """The tokens that count against a budget."""
        return self.prompt_tokens + self.open_tokens + self.response_tokens

    def copy(self) -> Metrics:
        """A copy that later steps do not change."""
        return msgspec.structs.replace(self)

    def stats(
        self,
        elapsed_ms: int,
        custom: Mapping[str, JSON] | None = None,
        *,
        budget: Budget | None = None,
    ) -> dict[str, JSON]:
        """The metrics for callers: `auto` has the counters, `custom` the program's records."""
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
