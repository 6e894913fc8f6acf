"""fluers' session store: sessions in memory, saved and loaded as a whole.

It exists for programs that come from fluers. Sessions of everhold are committed step by step and
need no saving; they only use envelopes for import and export.
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
        """Adds a session that was loaded or changed; it replaces one with the same id."""
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
        """Saves the current session with the adapter."""
        data = pack(self.session(id))
        await adapter.save_session(str(id), data)

    @staticmethod
    async def load(adapter: EnvelopeAdapter, id: UUID | str) -> EnvelopeSession | None:
        """Loads a session, or None. It is not added to the store: see `adopt`."""
        name = parse_session_id(id)
        data = await adapter.load_session(str(name))
        return None if data is None else unpack(data, name)

    @staticmethod
    async def list(adapter: EnvelopeAdapter) -> list[UUID]:
        """The ids of everything in the adapter; raises `InvalidSessionId` if one is not a UUID."""
        return [parse_session_id(raw) for raw in await adapter.list_sessions()]

    async def delete(self, adapter: EnvelopeAdapter, id: UUID | str) -> bool:
        """Deletes the session here and in the adapter; returns whether either had it."""
        name = parse_session_id(id)
        kept = await adapter.delete_session(str(name))
        with self._lock:
            return self._sessions.pop(name, None) is not None or kept

    def _session(self, id: UUID) -> EnvelopeSession:
        try:
            return self._sessions[id]
        except KeyError:
            raise SessionNotFound(id) from None
