"""Sessions that other sessions start: their ids, their births, and their ends as their parents are
told.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec

from everhold.core.codec import JSON
from everhold.core.journal import AskedQuery, Delivery
from everhold.core.ledger import Ledger
from everhold.core.metrics import Metrics
from everhold.core.query import Query, QueryAnswer, Usage
from everhold.core.session import Birth, Head, Seed, SessionId, SessionState
from everhold.core.status import Outcome, Raised, Returned, Stopped
from everhold.errors import ChildFailed, UnknownSession
from everhold.ports.store import Store


def child_id(parent: Birth, entry: AskedQuery) -> SessionId:
    """The child a `session` query is about. A fork that shares the query has a child of its own."""
    query = entry.query
    named: str = (query.options or {})["id"]
    if entry.n >= parent.seeds[-1].since:  # asked since it was forked, if it ever was
        return SessionId(named)
    drawn = sha256(f"{parent.id}/{query.key}".encode()).hexdigest()
    return SessionId(f"{named.rpartition('-')[0]}-{drawn[:24]}")


def make_awaited_child_birth(parent: Birth, entry: AskedQuery, at: float) -> tuple[Birth, Head]:
    """The birth of the child that a `session` query asks for."""
    return make_child_birth(parent, entry.query, child_id(parent, entry), at)


def make_child_birth(
    parent: Birth, query: Query, session_id: SessionId, at: float, wakes: str = ""
) -> tuple[Birth, Head]:
    """The birth of the child that a query asks for; the end of its id is its seed."""
    options = query.options or {}
    birth = Birth(
        id=session_id,
        program=query.name,
        version=options.get("version", 1),
        args=query.args or {},
        created_at=at,
        seeds=[Seed(0, session_id.rpartition("-")[2])],
        title=options.get("title", ""),
        labels=parent.labels,
        python=parent.python,
        everhold=parent.everhold,
        parent=parent.id,
        parent_query=query.q,
        wakes=wakes,
        llm=parent.llm,
    )
    return birth, Head(0, 1, SessionState.RUNNING, -1, 0, None, at, Metrics())


def sum_answer_usage(deliveries: Iterable[Delivery]) -> Usage | None:
    """What the answers of a session cost."""
    found = Ledger()
    for delivery in deliveries:
        for answer in delivery.answers:
            found.add("", answer.usage)
    return found.usage


def make_child_answer(birth: Birth, outcome: Outcome, cost: Usage | None = None) -> dict[str, JSON]:
    """A child's end, as its parent's answer, with what it has cost."""
    q = birth.parent_query
    if cost is not None:
        return {**make_child_answer(birth, outcome), "usage": msgspec.to_builtins(cost)}
    if isinstance(outcome, Returned):
        return {"q": q, "value": outcome.value}
    state = "failed" if isinstance(outcome, Raised) else "was cancelled"
    words = outcome.error if isinstance(outcome, Raised) else outcome.reason
    return {
        "q": q,
        "error": {"code": "child_failed", "message": words, "session_id": birth.id, "state": state},
    }


async def load_child_answer(store: Store, parent: Birth, entry: AskedQuery) -> QueryAnswer | None:
    """The answer to a `session` query, if its child has ended; one that was deleted since then has
    no value.
    """
    session_id = child_id(parent, entry)
    try:
        child = await store.load(session_id)
    except UnknownSession:
        gone = {"message": "nobody knows its end", "session_id": session_id, "state": "was deleted"}
        return QueryAnswer(entry.query.q, error={"code": ChildFailed.code, **gone})
    if not child.head.ended:
        return None
    notes = child.deliveries[-1].notes
    outcome = None if notes is None else notes.outcome
    return msgspec.convert(
        make_child_answer(child.birth, outcome or Stopped(""), sum_answer_usage(child.deliveries)),
        QueryAnswer,
    )
