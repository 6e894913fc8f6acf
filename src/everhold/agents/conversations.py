"""The part of `Runtime` that holds conversations, and says why a session is where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from everhold.agents.agent import Agent
from everhold.agents.event_stream import EventStream
from everhold.agents.inputs import vacuum_ended_items
from everhold.agents.session import AgentSession
from everhold.archive.archive import Archive
from everhold.core.codec import JSON
from everhold.core.intake import INPUT
from everhold.core.journal import Delivery
from everhold.core.query import Kind, Query
from everhold.core.session import Birth
from everhold.core.status import Status
from everhold.engine import request_ref
from everhold.engine.explain import Explanation, explain_session
from everhold.engine.session_cache import SessionCache
from everhold.errors import BadArguments, EverholdError, UnknownQuery, UnknownSession
from everhold.ports.attachment import Attachment

if TYPE_CHECKING:
    from everhold.runtime import Runtime

#: Gives a conversation as it stands.
ViewLoader = Callable[[], Awaitable[JSON]]


class Conversations(Archive):
    """The part of `Runtime` that holds conversations."""

    async def session(
        self, agent: Agent, id: str, *, residency: str = "all", again: bool = False
    ) -> AgentSession:
        """The conversation of this id with an agent; one that was not begun yet begins.

        The id of a deleted conversation is refused with `KeyDeleted`, unless `again` says that a
        new one is meant.

        `residency="path"` keeps only what leads to the leaf in memory; what was left is read when
        it is asked for.
        """
        if not isinstance(agent, Agent):
            raise BadArguments(
                "session", f"{agent!r} is not an Agent; programs are begun with start()"
            )
        runtime = cast("Runtime", self)
        known = await _known(runtime, agent, id)
        if known is None:
            known = (await runtime.start(agent(), key=id, wait=0, again=again)).session_id
        runtime.engine.sessions.send(known)  # it may have waited for a process that has the agent
        return AgentSession(runtime, agent, known, residency)

    async def attachments(self, session_id: str) -> list[Attachment]:
        """What a session keeps beside its journal, and may read."""
        return await cast("Runtime", self).store.attachments(session_id)

    async def attachment(self, session_id: str, id: str) -> bytes:
        """What a session keeps under this name; raises `UnknownAttachment`."""
        return (await cast("Runtime", self).store.attachment(session_id, id))[1]

    async def complete(
        self,
        session_id: str,
        key: str,
        value: JSON = None,
        *,
        error: str | None = None,
        by: Mapping[str, JSON] | None = None,
    ) -> Status:
        """Give the result of a call that finishes later, by its idempotency key; see `Later`.

        One that comes before the call has said that it finishes later waits for it.
        """
        runtime = cast("Runtime", self)
        while True:
            with self._watched(session_id) as changed:
                record = await runtime.store.load(session_id)
                for query in _finishing_later(record.deliveries):
                    if (query.options or {}).get("key") == key:
                        if error is not None:
                            return await runtime.answer(
                                session_id, query_id=query.id, error=error, by=by
                            )
                        return await runtime.answer(session_id, value, query_id=query.id, by=by)
                if not record.effects:
                    raise UnknownQuery(session_id, key)
                await asyncio.wait([changed], timeout=1.0)

    async def explain(self, session_id: str) -> Explanation:
        """Say in sentences why a session is where it is, and what moves it. Reads, and replays
        without effects.
        """
        runtime = cast("Runtime", self)
        record = await runtime.store.load(session_id)
        workers = {worker.id: worker for worker in await runtime.store.workers()}
        living = (await runtime.engine.effects.census()).living
        waits = await runtime.store.intake(session_id, lambda intake: intake)
        talks = _is_agent(runtime, record.birth)
        now = runtime.clock.now()
        idle = runtime.engine.effects.idle(record)
        return await explain_session(
            record, runtime.host, workers, set(living), now, waits, talks=talks, idle=idle
        )

    async def vacuum(self, session_id: str | None = None, *, older_than: float = 0.0) -> int:
        """Forget what has ended in the intake of a session, or of all, and is so many seconds old;
        returns how much.

        A key that is forgotten there is still known to the journal, if what came under it has
        entered.
        """
        return await vacuum_ended_items(cast("Runtime", self), session_id, older_than)

    async def _say(self: Any, session_id: str, said: dict[str, JSON]) -> None:
        """Tell a conversation something; it is kept until its program hears it."""
        await self.engine.signal(session_id, INPUT, said)

    async def _in_full(self: Any, session_id: str, query: Query) -> Query:
        """A question as whoever answers it sees it, also where the journal has it by reference."""
        if not request_ref.is_stored_by_reference(query):
            return query
        record = await self.store.load(session_id)
        return request_ref.expand_queries_from_journal([query], record.deliveries)[query.q]

    def _watched(self: Any, session_id: str) -> AbstractContextManager[asyncio.Future[None]]:
        """A future that is done as soon as a session may have changed."""
        sessions: SessionCache = self.engine.sessions
        return sessions.watched(session_id)

    def _watch(self: Any, session_id: str, view: ViewLoader) -> EventStream:
        """One who watches a conversation; live words are kept from now on."""
        return EventStream(
            self.store, session_id, self._rings.of(session_id), self.engine.sessions.watched, view
        )


def _is_agent(runtime: Runtime, birth: Birth) -> bool:
    """Whether a session is a conversation, as far as this process can tell."""
    try:
        return isinstance(runtime._find(birth.program, birth.version), Agent)
    except EverholdError:
        return False


def _finishing_later(deliveries: Sequence[Delivery]) -> Iterator[Query]:
    return (query for delivery in deliveries for query in delivery.asked if query.kind is Kind.TOOL)


async def _known(runtime: Runtime, agent: Agent, id: str) -> str | None:
    """The session of that id, if `id` is no key but a session's own (a fork has no other)."""
    if not id.startswith("s-") or await runtime.store.find(id) is not None:
        return None
    try:
        record = await runtime.store.load(id, since=-1)
    except UnknownSession:
        return None
    if record.birth.program != agent.ref:
        raise BadArguments(
            "session", f"{id!r} is a session of {record.birth.program}, not of {agent.ref}"
        )
    runtime._programs[agent.ref] = agent
    runtime.engine.effects.ask(record.birth)
    return record.birth.id
