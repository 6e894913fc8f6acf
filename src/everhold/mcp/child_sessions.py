"""Children of a session: what whoever holds the session by its id has to know of them.

Rules
  1. What a person said in a child was said by a person, however deep the child is. Of a child that
     is gone nobody knows what was said in it.
  2. A session that waits for a child is moved by answering the child: the one that asks is named,
     and not waited for.
"""

from __future__ import annotations

from typing import Final

from everhold.core.journal import AskedQuery
from everhold.core.query import KINDS, Kind
from everhold.core.session import Birth
from everhold.core.status import Paused, Running, Status
from everhold.engine.children import child_id, is_process_query
from everhold.engine.journal_reader import read_steps
from everhold.errors import UnknownSession
from everhold.ports.store import SessionRecord, Store
from everhold.runtime import Runtime

#: How a status says that it waits for a child.
_CHILD: Final = "child session "


async def is_decided(store: Store, birth: Birth, entry: AskedQuery) -> bool:
    """Whether somebody else than a model said what answers this query, or a part of it."""
    if entry.query.kind is not Kind.SESSION or is_process_query(entry.query):
        return KINDS[entry.query.kind].decision
    children = [
        found
        for one in await _line(store, birth)
        if (found := await _found(store, child_id(one, entry)))
    ]
    return not children or any([await _holds(store, child) for child in children])


async def _holds(store: Store, record: SessionRecord) -> bool:
    return any(
        [
            await is_decided(store, record.birth, one.asked)
            for step in read_steps(record.deliveries)
            for one in step.answered
            if one.asked is not None
        ]
    )


async def _line(store: Store, birth: Birth) -> list[Birth]:
    """A session and those it was forked from: the child that answered may be of any of them."""
    line = [birth]
    while line[-1].origin is not None and (before := await _found(store, line[-1].origin)):
        line.append(before.birth)
    return line


async def _found(store: Store, session_id: str) -> SessionRecord | None:
    try:
        return await store.load(session_id)
    except UnknownSession:
        return None


async def find_asking_child(runtime: Runtime, status: Status) -> str:
    """The child, or a child of a child, that waits for somebody's answer; empty if there is
    none.
    """
    for child in _children(status):
        found = await runtime.status(child)
        if isinstance(found, Paused) and found.queries:
            return child
        if deeper := await find_asking_child(runtime, found):
            return deeper
    return ""


def _children(status: Status) -> list[str]:
    words = status.waiting_for if isinstance(status, Paused | Running) else ()
    return [word.removeprefix(_CHILD) for word in words if word.startswith(_CHILD)]
