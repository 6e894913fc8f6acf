"""Sums model usage over sessions, by program, session, label or model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from everhold.core.journal import Delivery
from everhold.core.query import Kind, Usage
from everhold.core.usage import measure_answer, measure_query, price_exchange
from everhold.engine.journal_reader import read_steps
from everhold.errors import BadArguments
from everhold.ports.store import SessionFilter, SessionSummary, Store

PAGE_SIZE: Final = 500
#: What usage may be grouped by; a label is `label:NAME`.
GROUPS: Final = ("program", "session", "model")
_LABEL: Final = "label:"


class UsageRow(msgspec.Struct, frozen=True):
    """The usage of one group of sessions. Tokens that the answerer did not count are estimated."""

    name: str  # the program, the session's id, the model, or the label's value; empty: unknown
    sessions: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    key: str | None = None  # of the session, if that is the group

    def plus(self, calls: int, prompt: int, response: int, *, sessions: int = 1) -> UsageRow:
        return UsageRow(
            self.name,
            self.sessions + sessions,
            self.llm_calls + calls,
            self.prompt_tokens + prompt,
            self.response_tokens + response,
            self.key,
        )


async def sum_usage(store: Store, by: str, wanted: SessionFilter) -> list[UsageRow]:
    """The usage of all matching sessions, group by group, newest first.

    By model, only answered questions count, and all journals are read.
    """
    if by not in GROUPS and not (by.startswith(_LABEL) and by != _LABEL):
        raise BadArguments("usage", f"by={by!r} is not one of {', '.join(GROUPS)} or label:NAME")
    rows: dict[str, UsageRow] = {}
    wanted = msgspec.structs.replace(wanted, limit=PAGE_SIZE)
    while page := await store.list(wanted):
        for one in page:
            if by == "model":
                _add_models(rows, (await store.load(one.birth.id)).deliveries)
                continue
            name = _group(one, by)
            row = rows.get(name) or UsageRow(name, key=one.birth.key if by == "session" else None)
            metrics = one.head.metrics
            rows[name] = row.plus(metrics.llm_calls, metrics.prompt.tokens, metrics.response.tokens)
        wanted = msgspec.structs.replace(wanted, after=page[-1].birth.id)
    return list(rows.values())


def _group(one: SessionSummary, by: str) -> str:
    if by == "session":
        return one.birth.id
    return one.birth.program if by == "program" else one.birth.labels.get(by[len(_LABEL) :], "")


def _add_models(rows: dict[str, UsageRow], deliveries: list[Delivery]) -> None:
    """Add the answered model questions of one session."""
    seen: set[str] = set()
    for usage, prompt, response in _exchanges(deliveries):
        for part in (usage.parts or [usage]) if usage is not None else [None]:
            name = "" if part is None else part.model
            cost = price_exchange(part, prompt, response)
            row = rows.get(name) or UsageRow(name)
            rows[name] = row.plus(1, cost.prompt, cost.response, sessions=int(name not in seen))
            seen.add(name)


def _exchanges(deliveries: list[Delivery]) -> Iterator[tuple[Usage | None, int, int]]:
    """The reported usage of each model answer, and estimates for prompt and response."""
    for step in read_steps(deliveries):
        for one in step.answered:
            query = one.query
            if query is not None and query.kind is Kind.LLM and not one.answer.expired:
                yield one.answer.usage, measure_query(query)[1], measure_answer(one.answer)[1]
