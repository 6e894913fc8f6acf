"""Which session people mean: its id, the beginning of it, its key, or `@last`."""

from __future__ import annotations

from typing import Final

from everhold.core.errors import BadId, UnknownSession
from everhold.core.session import SessionId
from everhold.ports.store import Filter, Store

LAST: Final = "@last"
#: Characters of an id that are enough to tell sessions apart.
SHORT: Final = 18


async def meant(store: Store, name: str, where: str) -> SessionId:
    """The one session that is meant; raises `UnknownSession`, or `BadId` if it could be several."""
    if name == LAST:
        return await _newest(store, where)
    if not name:
        raise BadId(name, "it is empty")
    ids = [row.birth.id for row in await store.list(Filter(prefix=name, limit=4))]
    if name in ids:
        return SessionId(name)
    found = await store.find(name)
    if found is not None:
        return found
    if len(ids) == 1 and len(name) > 2:
        return ids[0]
    if ids:
        error = BadId(name, f"several sessions begin with it: {', '.join(one[: SHORT + 4] for one in ids[:3])}…")
        error.hint = "Give more of the id, or the session's key."
        raise error
    raise UnknownSession(name, where)


async def _newest(store: Store, where: str) -> SessionId:
    """The newest session that is nobody's child."""
    after = None
    while rows := await store.list(Filter(limit=100, after=after)):
        for row in rows:
            if row.birth.parent is None:
                return row.birth.id
        after = rows[-1].birth.id
    raise UnknownSession(LAST, where)
