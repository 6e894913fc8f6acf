"""Which session people mean: its id, the beginning of it, its key, or `@last`.

Whoever starts a session chooses its key, and that may be a model. So what looks like an id is never
a key: whoever types the name that a list shows for one session cannot be led to another.
"""

from __future__ import annotations

import re
from typing import Final

from everhold.core.session import SessionId
from everhold.errors import BadId, UnknownSession
from everhold.ports.store import SessionFilter, Store

LAST_SESSION: Final = "@last"
#: Characters of an id that are enough to tell sessions apart.
SHORT_ID_CHARS: Final = 18
#: How what looks like an id begins.
_ID: Final = re.compile(r"s-[0-9a-f]{16}")


async def find_session_id(store: Store, name: str, where: str) -> SessionId:
    """The one session that is meant; raises `UnknownSession`, or `BadId` if it could be several."""
    if name == LAST_SESSION:
        return await _newest(store, where)
    if not name:
        raise BadId(name, "it is empty")
    ids = [row.birth.id for row in await store.list(SessionFilter(prefix=name, limit=4))]
    if name in ids:
        return SessionId(name)
    found = None if _ID.match(name) else await store.find(name)
    if found is not None:
        return found
    if len(ids) == 1 and len(name) > 2:
        return ids[0]
    if ids:
        error = BadId(
            name,
            "several sessions begin with it:"
            f" {', '.join(one[: SHORT_ID_CHARS + 4] for one in ids[:3])}…",
        )
        error.hint = "Give more of the id, or the session's key."
        raise error
    raise UnknownSession(name, where)


def format_session_name(session_id: str, key: str | None) -> str:
    """What people call a session: its key, unless that looks like an id, `@last` or an option; else
    its id.
    """
    if key is None or not key.strip() or key.startswith(("@", "-")) or _ID.match(key):
        return session_id
    return key


async def _newest(store: Store, where: str) -> SessionId:
    """The newest session that is nobody's child."""
    after = None
    while rows := await store.list(SessionFilter(limit=100, after=after)):
        for row in rows:
            if row.birth.parent is None:
                return row.birth.id
        after = rows[-1].birth.id
    raise UnknownSession(LAST_SESSION, where)
