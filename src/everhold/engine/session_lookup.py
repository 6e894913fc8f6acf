"""Which session is meant: by its id, its key or a handle; people may also give the beginning of its
id, or `@last`.

Whoever starts a session chooses its key, and that may be a model. So what looks like an id is never
a key: whoever types the name that a list shows for one session cannot be led to another.
"""

from __future__ import annotations

import re
from typing import Final, Protocol, runtime_checkable

from everhold.core.session import SessionId
from everhold.errors import BadArguments, BadId, UnknownSession
from everhold.ports.store import SessionFilter, Store

LAST_SESSION: Final = "@last"
#: Characters of an id that are enough to tell sessions apart.
SHORT_ID_CHARS: Final = 18
#: How what looks like an id begins.
_ID: Final = re.compile(r"s-[0-9a-f]{16}")


@runtime_checkable
class SessionHandle(Protocol):
    """Something that belongs to a session: a status, an open query, a turn, a line of a listing, or
    the handle of a conversation.
    """

    @property
    def session_id(self) -> str: ...


#: How verbs are told which session is meant: its id, its key, or a handle.
SessionRef = str | SessionHandle


async def resolve_session_id(store: Store, session: SessionRef) -> SessionId:
    """The id of the session that is meant. An id is not looked up; a name that is not a key is
    returned as it is, and the verb that reads its session raises `UnknownSession`.
    """
    if isinstance(session, str):
        if session.startswith("s-") and _ID.match(session):
            return SessionId(session)
        return (await store.find(session) if session else None) or SessionId(session)
    if isinstance(session, SessionHandle):
        return SessionId(session.session_id)
    raise BadArguments("session", f"{session!r:.100} is not an id, a key or a handle of a session")


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
