"""What the work of a session may use of the runtime that does it."""

from __future__ import annotations

from typing import Any, Final

from everhold.core.codec import JSON
from everhold.core.query import Query
from everhold.core.status import Status
from everhold.engine.engine import Engine
from everhold.errors import NotAllowed
from everhold.ports.program import Call
from everhold.ports.store import SessionFilter
from everhold.ports.verbs import StartVerb

#: The label of a session that was begun by the work of another.
BEGUN_BY: Final = "begun_by"


class RuntimeSessionServices:
    """The work that is done for one query of a session."""

    def __init__(self, engine: Engine, start: StartVerb, session_id: str, query: Query) -> None:
        self._engine = engine
        self._start = start
        self._id = session_id
        self._query = query.id

    async def value(self, namespace: str, key: str) -> list[JSON] | None:
        return (await self._engine.store.value(namespace, key))[0]

    async def keys(self, namespace: str) -> list[str]:
        return list(await self._engine.store.keys(namespace))

    async def begin(self, call: Call[Any], name: str, title: str) -> str:
        key = f"{self._id}/{self._query}/{name}"
        status = await self._start(call, key=key, title=title, labels={BEGUN_BY: self._id}, wait=0)
        return status.session_id

    async def status(self, session_id: str) -> Status:
        await self._own(session_id)
        return await self._engine.status(session_id)

    async def cancel(self, session_id: str, reason: str) -> Status:
        await self._own(session_id)
        return await self._engine.cancel(session_id, reason)

    async def begun(self) -> list[str]:
        wanted = SessionFilter(labels={BEGUN_BY: self._id})
        return [str(row.birth.id) for row in await self._engine.store.list(wanted)]

    async def _own(self, session_id: str) -> None:
        birth = (await self._engine.store.load(session_id, since=-1)).birth
        if birth.labels.get(BEGUN_BY) != self._id and birth.parent != self._id:
            raise NotAllowed(
                f"session {session_id!r} was not begun by {self._id!r}",
                "Look at it from outside, with a runtime.",
            )
