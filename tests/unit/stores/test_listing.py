"""Lists and the inbox of the SQLite store cost what they show."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everhold.core.query import Kind
from everhold.core.session import SessionState, mint
from everhold.ports.store import InboxPlace, SessionFilter
from everhold.stores.sqlite import SQLiteStore
from everhold.stores.sqlite import store as store_module
from everhold.stores.sqlite.write import write_change
from everhold.testing.conformance.factories import make_query, make_start
from tests.failures import collect_failures

ENDED = (SessionState.FAILED, SessionState.COMPLETED)
#: One of twenty sessions waits for a person; half of the others waits for a signal, as idle agents.
PAGES = {
    "inbox": lambda store: store.inbox(kind=None, to=None, limit=10),
    "inbox by kind": lambda store: store.inbox(kind=Kind.APPROVAL, to=None, limit=10),
    "inbox by addressee": lambda store: store.inbox(kind=None, to="ada", limit=10),
    "inbox after": lambda store: store.inbox(
        kind=None, to=None, limit=10, after=InboxPlace(1050.0, "s", 0)
    ),
    "all": lambda store: store.list(SessionFilter(limit=10)),
    "state": lambda store: store.list(SessionFilter(state=(SessionState.FAILED,), limit=10)),
    "states": lambda store: store.list(SessionFilter(state=ENDED, limit=10)),
    "program": lambda store: store.list(SessionFilter(programs=("p3",), limit=10)),
    "label of few": lambda store: store.list(SessionFilter(labels={"n": "77"}, limit=10)),
    "label of all": lambda store: store.list(SessionFilter(labels={"env": "prod"}, limit=10)),
    "prefix": lambda store: store.list(SessionFilter(prefix="s-", limit=10)),
    "retention": lambda store: store.list(SessionFilter(state=ENDED, older_than=1e9, limit=10)),
}


def make_change(n: int):
    at = 1000.0 + n
    labels = {"env": "prod", "n": str(n)}
    facts = {"created_at": at, "program": f"m{n % 7}:p{n % 7}", "labels": labels}
    if n % 5 == 3:
        change = make_start(mint(at, n), **facts)
        change.head.state = ENDED[n % 2]
        change.head.open_from = 1
        return change
    query = make_query(0, Kind.SIGNAL if n % 2 else Kind.LLM)
    if n % 20 == 0:
        query = make_query(0, Kind.APPROVAL, to="ada" if n % 40 else None)
    return make_start(mint(at, n), query, **facts)


async def count_instructions(path: Path, sessions: int, monkeypatch) -> dict[str, int]:
    """The instructions of SQLite's machine for each page, in steps of ten."""
    ticks = [0]

    def tick() -> int:
        ticks[0] += 1
        return 0

    @contextmanager
    def counting(connection: sqlite3.Connection) -> Iterator[None]:
        connection.set_progress_handler(tick, 10)
        try:
            yield
        finally:
            connection.set_progress_handler(None, 0)

    monkeypatch.setattr(store_module, "limit_steps", counting)
    store = SQLiteStore(path)
    await store.open()
    run = store._connection.cursor().execute
    run("BEGIN")
    for n in range(sessions):
        write_change(run, make_change(n), 0, lambda: 0.0)
    run("COMMIT")
    counts = {}
    for name, read in PAGES.items():
        ticks[0] = 0
        assert await read(store), name
        counts[name] = ticks[0]
    await store.close()
    return counts


@pytest.mark.parametrize("many", [6000])
async def test_a_page_costs_the_same_among_many_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """Each page runs at most 1.5 times the instructions of the same page among 600 sessions."""
    few = await count_instructions(tmp_path / "few.db", 600, monkeypatch)
    lots = await count_instructions(tmp_path / "many.db", many, monkeypatch)

    with collect_failures() as row:
        for name, count in lots.items():
            with row(name):
                assert count <= max(few[name], 20) * 1.5
