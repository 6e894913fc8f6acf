"""Finds a session by its id, its key or a handle; for people also by a prefix of its id, or
`@last`.

The starter of a session chooses its key, and may be a model. So a name that looks like an id is
never read as a key: an id that a list shows always means that session.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from everhold.core.session import ID_START, SessionId
from everhold.errors import BadArguments, BadId, UnknownSession
from everhold.ports.store import SessionFilter, Store

LAST_SESSION: Final = "@last"
#: Characters of an id that identify a session in practice.
SHORT_ID_CHARS: Final = 18


@runtime_checkable
class SessionHandle(Protocol):
    """An object with a `session_id`: a status, an open query, a turn, a listed session or an
    agent's
    handle.
    """

    @property
    def session_id(self) -> str: ...


#: A session as an argument of verbs: its id, its key, or a handle.
SessionRef = str | SessionHandle


def is_session_id(name: str) -> bool:
    """Whether a name is read as an id, never as a key."""
    return name.startswith("s-") and ID_START.match(name) is not None


async def resolve_session_id(store: Store, session: SessionRef) -> SessionId:
    """The id of a session. An id is not looked up. An unknown name is returned unchanged, and the
    verb that loads it raises `UnknownSession`.
    """
    if isinstance(session, str):
        if is_session_id(session):
            return SessionId(session)
        return (await store.find(session) if session else None) or SessionId(session)
    if isinstance(session, SessionHandle):
        return SessionId(session.session_id)
    raise BadArguments("session", f"{session!r:.100} is not an id, a key or a handle of a session")


async def find_session_id(store: Store, name: str, where: str) -> SessionId:
    """The session with this name. Raises `UnknownSession`, or `BadId` if several match."""
    if name == LAST_SESSION:
        return await _newest(store, where)
    if not name:
        raise BadId(name, "it is empty")
    ids = [row.birth.id for row in await store.list(SessionFilter(prefix=name, limit=4))]
    if name in ids:
        return SessionId(name)
    found = None if ID_START.match(name) else await store.find(name)
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


async def _newest(store: Store, where: str) -> SessionId:
    """The newest session without a parent."""
    after = None
    while rows := await store.list(SessionFilter(limit=100, after=after)):
        for row in rows:
            if row.birth.parent is None:
                return row.birth.id
        after = rows[-1].birth.id
    raise UnknownSession(LAST_SESSION, where)
