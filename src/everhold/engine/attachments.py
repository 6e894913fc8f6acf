"""The attachments of the session whose work is under way, in its store."""

from __future__ import annotations

from everhold.ports.attachment import Attachment
from everhold.ports.program import Clock
from everhold.ports.store import Store


class StoreAttachments:
    def __init__(self, store: Store, clock: Clock, session_id: str) -> None:
        self._store = store
        self._clock = clock
        self._session_id = session_id

    async def keep(self, made: Attachment, data: bytes) -> None:
        await self._store.attach(self._session_id, made, data, self._clock.now())

    async def read(self, id: str) -> tuple[Attachment, bytes]:
        return await self._store.attachment(self._session_id, id)
