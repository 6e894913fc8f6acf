"""Sessions for tests of stores, made without a runtime.

Everything has a default: `make_birth()`, `make_head()`, `make_query(0)` and `make_delivery(0)` are
whole values, and any field can be named. `make_start`, `make_step`, `make_touch` and `make_fork`
make the changes a runtime would commit; `commit_start`, `commit_step`, `commit_touch` and
`commit_fork` commit them and return the session as the store then knows it.

    record = await commit_start(store, "s-1", make_query(0))
    record = await commit_step(store, record, answers={0: "yes"}, asked=[make_query(1)])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from everhold.core import journal
from everhold.core.codec import JSON
from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.metrics import Metrics
from everhold.core.query import ANSWERABLE, Kind, Query, QueryAnswer
from everhold.core.session import Birth, Head, Seed, SessionId, SessionState
from everhold.core.status import Outcome, Raised, Returned
from everhold.ports.store import Change, Notice, SessionRecord, Store

#: The moment of delivery 0; delivery n comes n seconds later.
DAWN: Final = 1_000.0
_NOTED: Final = frozenset({Kind.APPROVAL, Kind.INPUT, Kind.SIGNAL})


def make_birth(id: str = "s-1", **facts: Any) -> Birth:
    """The fields of a session that never change."""
    return Birth(
        **{
            "id": id,
            "program": "tests:story",
            "created_at": DAWN,
            "seeds": [Seed(0, "seed")],
            **facts,
        }
    )


def make_head(**facts: Any) -> Head:
    """The head of a new session: paused, nothing asked, nothing delivered."""
    known: dict[str, Any] = {
        "ref": 0,
        "revision": 1,
        "state": SessionState.PAUSED,
        "n": -1,
        "open_from": 0,
        "due_at": None,
        "updated_at": DAWN,
        "metrics": Metrics(),
    }
    return Head(**{**known, **facts})


def make_query(q: int, kind: Kind = Kind.LLM, **facts: Any) -> Query:
    """A query; asked in the order of `q` by the first task."""
    return Query(**{"q": q, "key": f"0:{q}", "prompt": f"question {q}", "kind": kind, **facts})


def make_delivery(
    n: int,
    answers: Mapping[int, JSON] | None = None,
    asked: Iterable[Query] = (),
    *,
    at: float | None = None,
    **notes: Any,
) -> Delivery:
    """One record of a journal: the values answered by query, what was asked in return, and the
    notes.
    """
    given = [QueryAnswer(q, value) for q, value in (answers or {}).items()]
    return Delivery(
        n,
        DAWN + n if at is None else at,
        given,
        list(asked),
        DeliveryNotes(**notes) if notes else None,
    )


def make_notice(query: Query, at: float = DAWN) -> Notice:
    """The inbox row of a query."""
    return Notice(query.q, query.kind, query.to, at, query)


def make_start(
    id: str = "s-1", *asked: Query, state: SessionState = SessionState.PAUSED, **facts: Any
) -> Change:
    """The first change of a session that asks these queries; `facts` are of its birth."""
    born = make_birth(id, **facts)
    first = make_delivery(0, asked=asked, at=born.created_at)
    tip = make_head(
        state=state,
        n=0,
        open_from=0 if asked else 1,
        updated_at=born.created_at,
        asking=journal.is_asking(journal.find_open_queries([first]), ()),
    )
    return Change(born.id, tip, [first], birth=born, notices=_noted(first))


def make_step(
    record: SessionRecord,
    *,
    answers: Mapping[int, JSON] | None = None,
    asked: Iterable[Query] = (),
    at: float | None = None,
    withdrawn: Iterable[int] = (),
    outcome: Outcome | None = None,
    tip: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Change:
    """The change that delivers one more delivery to a session, read with all its deliveries.

    `tip` are fields of the head and `rest` fields of the change to set.
    """
    gone = list(withdrawn)
    notes = {"withdrawn": gone, "outcome": outcome} if gone or outcome is not None else {}
    last = record.head
    given = make_delivery(last.n + 1, answers, asked, at=at, **notes)
    opened = journal.find_open_queries([*record.deliveries, given])
    ahead = {
        "revision": last.revision + 1,
        "state": _state(outcome),
        "n": given.n,
        "open_from": journal.find_first_open_delivery(opened, given.n),
        "updated_at": given.at,
        "metrics": last.metrics.copy(),
        "asking": outcome is None and journal.is_asking(opened, ()),
        **(tip or {}),
    }
    closed = [*(answers or {}), *gone]
    known = {"deliveries": [given], "notices": _noted(given), "closed": closed, **rest}
    return Change(record.birth.id, msgspec.structs.replace(last, **ahead), **known)


def make_touch(
    record: SessionRecord, *, tip: Mapping[str, Any] | None = None, **rest: Any
) -> Change:
    """A change without a delivery: marks, letters, values."""
    ahead = msgspec.structs.replace(record.head, revision=record.head.revision + 1, **(tip or {}))
    return Change(record.birth.id, ahead, **rest)


def make_fork(origin: SessionRecord, id: str, at: int, **facts: Any) -> Change:
    """The first change of a fork that shares the deliveries of `origin` up to `at`."""
    shared = [one for one in origin.deliveries if one.n <= at]
    opened = journal.find_open_queries(shared)
    born = make_birth(id, origin=origin.birth.id, origin_n=at, **facts)
    tip = make_head(
        n=at,
        open_from=journal.find_first_open_delivery(opened, at),
        updated_at=born.created_at,
        asking=journal.is_asking(opened, ()),
    )
    notices = [
        one
        for entry in opened.values()
        for one in _noted(Delivery(at, entry.at, asked=[entry.query]))
    ]
    return Change(born.id, tip, birth=born, notices=notices)


async def commit_start(store: Store, id: str = "s-1", *asked: Query, **facts: Any) -> SessionRecord:
    """Commit `make_start` and read the session back."""
    await store.commit(make_start(id, *asked, **facts), 0)
    return await store.load(id)


async def commit_step(store: Store, record: SessionRecord, **facts: Any) -> SessionRecord:
    """Commit `make_step` and read the session back."""
    await store.commit(make_step(record, **facts), record.head.revision)
    return await store.load(record.birth.id)


async def commit_touch(store: Store, record: SessionRecord, **facts: Any) -> SessionRecord:
    """Commit `make_touch` and read the session back."""
    await store.commit(make_touch(record, **facts), record.head.revision)
    return await store.load(record.birth.id)


async def commit_fork(
    store: Store, origin: SessionRecord, id: str, at: int, **facts: Any
) -> SessionRecord:
    """Commit `make_fork` and read the fork back."""
    await store.commit(make_fork(origin, id, at, **facts), 0)
    return await store.load(id)


async def commit_end(
    store: Store, record: SessionRecord, outcome: Outcome | None = None
) -> SessionRecord:
    """Commit a delivery in which the program ends."""
    return await commit_step(
        store, record, outcome=Returned("done") if outcome is None else outcome
    )


def _noted(given: Delivery) -> list[Notice]:
    """The inbox rows that a runtime writes: for people, and for every addressee."""
    return [
        make_notice(query, given.at)
        for query in given.asked
        if query.kind in _NOTED or (query.to is not None and query.kind in ANSWERABLE)
    ]


def _state(outcome: Outcome | None) -> SessionState:
    match outcome:
        case None:
            return SessionState.PAUSED
        case Returned():
            return SessionState.COMPLETED
        case Raised():
            return SessionState.FAILED
        case _:
            return SessionState.CANCELLED


def list_session_ids(records: Iterable[Any]) -> list[SessionId]:
    """The session ids of summaries or of inbox rows."""
    return [one.birth.id if hasattr(one, "birth") else one[0].id for one in records]
