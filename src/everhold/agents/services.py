"""What the work of a session may reach, in the runtime that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from everhold.core.codec import JSON
from everhold.core.query import Query
from everhold.core.status import Status
from everhold.errors import NotAllowed
from everhold.ports.program import Call

if TYPE_CHECKING:
    from everhold.runtime import Runtime

#: The label of a session that was begun by the work of another.
BEGUN_BY: Final = "begun_by"


class RuntimeSessionServices:
    """The work that is done for one query of a session."""

    def __init__(self, runtime: Runtime, session_id: str, query: Query) -> None:
        self._runtime = runtime
        self._id = session_id
        self._query = query.id

    async def value(self, namespace: str, key: str) -> list[JSON] | None:
        return (await self._runtime.store.value(namespace, key))[0]

    async def keys(self, namespace: str) -> list[str]:
        return list(await self._runtime.store.keys(namespace))

    async def begin(self, call: Call[Any], name: str, title: str) -> str:
        key = f"{self._id}/{self._query}/{name}"
        status = await self._runtime.start(
            call, key=key, title=title, labels={BEGUN_BY: self._id}, wait=0
        )
        return status.session_id

    async def status(self, session_id: str) -> Status:
        await self._own(session_id)
        return await self._runtime.status(session_id)

    async def cancel(self, session_id: str, reason: str) -> Status:
        await self._own(session_id)
        return await self._runtime.cancel(session_id, reason)

    async def begun(self) -> list[str]:
        return [
            str(row.session_id) for row in await self._runtime.sessions(labels={BEGUN_BY: self._id})
        ]

    async def _own(self, session_id: str) -> None:
        birth = (await self._runtime.store.load(session_id, since=-1)).birth
        if birth.labels.get(BEGUN_BY) != self._id and birth.parent != self._id:
            raise NotAllowed(
                f"session {session_id!r} was not begun by {self._id!r}",
                "Look at it from outside, with a runtime.",
            )
