"""Usage of child sessions that still run: as events of the sessions above them, and in their
ledgers.

An ended child's usage is in the answer that its parent got. That of a running child is read from
its journal, wherever it runs; the events reach watchers in the process of the child.
"""

from __future__ import annotations

from everhold.core.conversation import get_ledger_source
from everhold.core.journal import find_open_queries
from everhold.core.ledger import Ledger
from everhold.core.query import Kind, Usage
from everhold.engine.children import child_id, is_process_query, sum_answer_usage
from everhold.engine.engine import Engine
from everhold.errors import UnknownSession
from everhold.ports.store import SessionRecord
from everhold.ports.stream import Delta, DeltaKind, publish_delta


async def add_child_usage(
    engine: Engine, record: SessionRecord, ledger: Ledger, source: str | None = None
) -> None:
    """Add the usage of the children that a session waits for, at any depth, under the sources that
    will have it when they end.
    """
    for entry in find_open_queries(record.deliveries).values():
        if entry.query.kind is not Kind.SESSION or is_process_query(entry.query):
            continue
        try:
            child = await engine.store.load(child_id(record.birth, entry))
        except UnknownSession:  # not started yet, or deleted
            continue
        named = source or get_ledger_source(entry.query)
        ledger.add(named, sum_answer_usage(child.deliveries))
        await add_child_usage(engine, child, ledger, named)


def publish_child_usage(above: list[str], source: str, child: str, usage: Usage) -> None:
    """Tell the watchers of the sessions above a child what its last model call has used."""
    for session_id in above:
        publish_delta(session_id, "", Delta(DeltaKind.USAGE, child, 0, "", source, usage))
