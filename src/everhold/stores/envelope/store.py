"""Sessions of the old kind: held in memory, saved and loaded whole.

This is the store of fluers, for those who come from it. Sessions of everhold are kept by commits
and survive without being saved; they only meet an envelope on the way in or out.
"""

from __future__ import annotations

import threading
from uuid import UUID

import msgspec

from everhold.core.message import Message
from everhold.stores.envelope.adapter import EnvelopeAdapter
from everhold.stores.envelope.errors import SessionNotFound
from everhold.stores.envelope.format import EnvelopeSession, pack, parse_session_id, unpack


class SessionStore:
    """Sessions in memory, by id. Safe to use from several threads."""

    def __init__(self) -> None:
        self._sessions: dict[UUID, EnvelopeSession] = {}
        self._lock = threading.Lock()

    def create(self) -> UUID:
        return self.create_with_config("", 0)

    def create_with_config(
        self, model: str, max_turns: int, system_message: str | None = None
    ) -> UUID:
        return self.adopt(
            EnvelopeSession(model=model, max_turns=max_turns, system_message=system_message)
        )

    def adopt(self, session: EnvelopeSession) -> UUID:
        """Take in a session that was loaded, or changed; it replaces one with the same id."""
        with self._lock:
            self._sessions[session.id] = session
        return session.id

    def append(self, id: UUID, message: Message) -> None:
        with self._lock:
            session = self._session(id)
            said = (*session.messages, message)
            self._sessions[session.id] = msgspec.structs.replace(session, messages=said)

    def session(self, id: UUID) -> EnvelopeSession:
        with self._lock:
            return self._session(id)

    def messages(self, id: UUID) -> list[Message]:
        return list(self.session(id).messages)

    async def save(self, adapter: EnvelopeAdapter, id: UUID) -> None:
        """Give the session as it is now to the adapter."""
        data = pack(self.session(id))
        await adapter.save_session(str(id), data)

    @staticmethod
    async def load(adapter: EnvelopeAdapter, id: UUID | str) -> EnvelopeSession | None:
        """Read a session, or None if there is none. It is not taken in: see `adopt`."""
        name = parse_session_id(id)
        data = await adapter.load_session(str(name))
        return None if data is None else unpack(data, name)

    @staticmethod
    async def list(adapter: EnvelopeAdapter) -> list[UUID]:
        """The ids of everything the adapter keeps; `InvalidSessionId` if one of them is no UUID."""
        return [parse_session_id(raw) for raw in await adapter.list_sessions()]

    async def delete(self, adapter: EnvelopeAdapter, id: UUID | str) -> bool:
        """Remove the session here and from the adapter; return whether it was in either."""
        name = parse_session_id(id)
        kept = await adapter.delete_session(str(name))
        with self._lock:
            return self._sessions.pop(name, None) is not None or kept

    def _session(self, id: UUID) -> EnvelopeSession:
        try:
            return self._sessions[id]
        except KeyError:
            raise SessionNotFound(id) from None
