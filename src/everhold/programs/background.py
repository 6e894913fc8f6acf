"""A process as its parent's program holds it: a child session in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from everhold.core.codec import JSON, plain
from everhold.core.query import Kind

if TYPE_CHECKING:
    from everhold.programs.context import PythonContext

_ENDED: Final = ("completed", "failed", "cancelled")


class PythonProcess:
    """A child session in the background."""

    def __init__(self, context: PythonContext, session_id: str) -> None:
        self.session_id = session_id
        self._context = context

    async def wait(self, timeout: float | None = None) -> dict[str, Any]:
        found = await self.look()
        if found["state"] not in _ENDED:
            _, found = await self._context.put(Kind.SIGNAL, name=f"process:{self.session_id}", timeout=timeout)
        return found

    async def look(self) -> dict[str, Any]:
        return dict(await self._do("look"))

    async def signal(self, name: str, value: JSON = None) -> bool:
        return bool(await self._do("signal", name=str(name), args=plain(value, "the signal")))

    async def cancel(self, reason: str = "") -> bool:
        return bool(await self._do("stop", args=str(reason)))

    async def _do(self, verb: str, **more: Any) -> Any:
        options: dict[str, JSON] = {"do": verb, "process": self.session_id}
        return (await self._context.put(Kind.SESSION, options=options, **more))[1]
