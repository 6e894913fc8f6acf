"""The adapter port of envelopes: save, load, list and delete opaque JSON."""

from __future__ import annotations

from typing import Protocol

from everhold.core import codec
from everhold.core.codec import JSON


class EnvelopeAdapter(Protocol):
    """Stores one JSON value per id. Saving again replaces it; there is no history and no
    merging.
    """

    async def save_session(self, session_id: str, data: JSON) -> None:
        """Stores `data`. After a crash it MUST be there completely or not at all."""
        ...

    async def load_session(self, session_id: str) -> JSON | None:
        """Returns the stored value, or None."""
        ...

    async def list_sessions(self) -> list[str]:
        """Returns all stored ids, in any order."""
        ...

    async def delete_session(self, session_id: str) -> bool:
        """Deletes the value; returns whether it existed."""
        ...


class MemoryAdapter:
    """An adapter in memory, for tests and for programs that store nothing."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # text, so that callers cannot change the stored value

    async def save_session(self, session_id: str, data: JSON) -> None:
        self._texts[session_id] = codec.dumps(data)

    async def load_session(self, session_id: str) -> JSON | None:
        text = self._texts.get(session_id)
        return None if text is None else codec.loads(text)

    async def list_sessions(self) -> list[str]:
        return sorted(self._texts)

    async def delete_session(self, session_id: str) -> bool:
        return self._texts.pop(session_id, None) is not None
