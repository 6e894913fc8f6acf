"""Where envelopes are kept: three verbs over opaque JSON, and delete."""

from __future__ import annotations

from typing import Protocol

from everhold.core import codec
from everhold.core.codec import JSON


class EnvelopeAdapter(Protocol):
    """Keeps one JSON value under each id. Saving again replaces; there is no history and no
    merging.
    """

    async def save_session(self, session_id: str, data: JSON) -> None:
        """Keep `data`. MUST be there whole, or not at all, after a crash."""
        ...

    async def load_session(self, session_id: str) -> JSON | None:
        """Return what was kept last, or None."""
        ...

    async def list_sessions(self) -> list[str]:
        """Return the ids of all that is kept, in any order."""
        ...

    async def delete_session(self, session_id: str) -> bool:
        """Keep it no longer; return whether it was there."""
        ...


class MemoryAdapter:
    """An adapter that forgets with the process; for tests, and for programs that keep nothing."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # text, so that nobody can change what is kept

    async def save_session(self, session_id: str, data: JSON) -> None:
        self._texts[session_id] = codec.dumps(data)

    async def load_session(self, session_id: str) -> JSON | None:
        text = self._texts.get(session_id)
        return None if text is None else codec.loads(text)

    async def list_sessions(self) -> list[str]:
        return sorted(self._texts)

    async def delete_session(self, session_id: str) -> bool:
        return self._texts.pop(session_id, None) is not None
