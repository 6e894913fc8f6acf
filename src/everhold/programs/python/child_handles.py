"""Child sessions as their parent's program holds them: one that it awaits, and one in the
background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from everhold.core.codec import JSON, to_plain
from everhold.core.query import Kind, Usage

if TYPE_CHECKING:
    from everhold.programs.python.context import PythonContext

_ENDED: Final = ("completed", "failed", "cancelled")


class PythonChild:
    """A child session, to be awaited."""

    def __init__(self, session_id: str, pending: asyncio.Future[Any]) -> None:
        self.session_id = session_id
        self._pending = pending

    @property
    def usage(self) -> Usage | None:
        """What it has cost, once it has ended, if that was counted."""
        return getattr(self._pending, "usage", None)

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._pending.__await__())


class PythonProcess:
    """A child session in the background."""

    def __init__(self, context: PythonContext, session_id: str) -> None:
        self.session_id = session_id
        self._context = context

    async def wait(self, timeout: float | None = None) -> dict[str, Any]:
        found = await self.look()
        if found["state"] not in _ENDED:
            _, found = await self._context.put(
                Kind.SIGNAL, name=f"process:{self.session_id}", timeout=timeout
            )
        return found

    async def look(self) -> dict[str, Any]:
        return dict(await self._do("look"))

    async def signal(self, name: str, value: JSON = None) -> bool:
        return bool(await self._do("signal", name=str(name), args=to_plain(value, "the signal")))

    async def cancel(self, reason: str = "") -> bool:
        return bool(await self._do("stop", args=str(reason)))

    async def _do(self, verb: str, **more: Any) -> Any:
        options: dict[str, JSON] = {"do": verb, "process": self.session_id}
        return (await self._context.put(Kind.SESSION, options=options, **more))[1]
