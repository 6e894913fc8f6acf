"""What a runtime does for agents: opens conversations, finds tool calls that finish later, and
serves running tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from everhold.agents.added_tools import describe_option, share_tools
from everhold.agents.agent import Agent
from everhold.agents.conversation_handle import ConversationHandle
from everhold.agents.events import LiveBuffers
from everhold.agents.model_calls import check_options, refuse_unknown_options
from everhold.agents.session import AgentSession
from everhold.core.codec import JSON, is_same_json, to_plain
from everhold.core.query import Kind, Query, QueryId
from everhold.core.session import Birth
from everhold.core.status import Status
from everhold.core.turn import EventOutcome, HandoverOutcome
from everhold.engine.accept import Signal
from everhold.engine.arguments import check_seconds_arg, parse_budget_arg
from everhold.engine.engine import Engine
from everhold.engine.journal_reader import index_queries
from everhold.engine.session_lookup import resolve_session_id
from everhold.errors import (
    BadArguments,
    EverholdError,
    KeyConflict,
    NotAllowed,
    UnknownQuery,
    UnknownSession,
)
from everhold.packages.catalog import KnownPrograms
from everhold.ports.program import Call, ForkVerb, StartVerb
from everhold.ports.program_identity import is_same_program
from everhold.ports.store import SessionFilter, SessionRecord
from everhold.ports.stream import Delta, DeltaKind, publish_delta

#: Seconds between two reads while a call may still return `Later`.
LATER_CALL_POLL: Final = 1.0


class Conversations:
    """Opens conversation handles, and keeps the live event buffers of watched ones."""

    def __init__(
        self, engine: Engine, programs: KnownPrograms, start: StartVerb, fork: ForkVerb
    ) -> None:
        self._engine = engine
        self._programs = programs
        self._start = start
        self._fork = fork
        self._buffers = LiveBuffers()

    async def open(
        self,
        agent: Agent,
        id: str,
        residency: str,
        *,
        options: Mapping[str, JSON] | None = None,
        plugin_options: Mapping[str, JSON] | None = None,
        again: bool = False,
        **birth: Any,
    ) -> AgentSession:
        """Open the conversation of an agent with this id; see `Runtime.session`."""
        if not isinstance(agent, Agent):
            raise BadArguments(
                "session", f"{agent!r} is not an Agent; start a program with runtime.start()"
            )
        given: dict[str, JSON] = {}
        if options is not None:
            given["options"] = self._check_options(agent, id, options)
        if plugin_options is not None:
            given["plugin_options"] = _check_plugin_options(agent, plugin_options)
        known = await self._known(agent, id, given)
        if known is None:
            try:
                status = await self._start(agent(**given), key=id, wait=0, again=again, **birth)
                known = status.session_id
            except KeyConflict as conflict:
                if conflict.what != "arguments":
                    raise
                # it was started with options: not naming them again is no conflict
                record = await self._engine.store.load(conflict.session_id, since=-1)
                if record.birth.args.get("task") is not None:
                    raise
                known = self._adopt(agent, id, record.birth, given)
        budget = parse_budget_arg(birth.get("budget"))
        if budget is not None:
            await self._engine.raise_budget(known, budget)
        # the session may have waited for a process that has the agent
        self._engine.sessions.send(known)
        if "options" in given:
            share_tools(id, known)  # the code of tools that its options name
        session = AgentSession(self._engine, self._buffers, self._fork, agent, known, residency)
        await session._check_provider()
        return session

    def _check_options(self, agent: Agent, id: str, options: Mapping[str, JSON]) -> dict[str, JSON]:
        """Options as they are stored; raises for a model that may not be asked here."""
        given = dict(options)
        if "tools" in given:
            declared = [*agent.tools, *agent.extra_tools]
            given["tools"] = describe_option(given["tools"], declared, id)
        found = check_options(given)
        refuse_unknown_options(found)
        if found.get("model"):
            self._engine.policy.check_model(str(found["model"]))
        return found

    async def read(self, session_id: str, residency: str) -> ConversationHandle:
        """Open a conversation without its agent; see `Runtime.conversation`."""
        return await ConversationHandle._open(self._engine, self._buffers, session_id, residency)

    async def _known(self, agent: Agent, id: str, given: dict[str, JSON]) -> str | None:
        """The session id, if `id` is a session id and not a key; a fork has no key."""
        store = self._engine.store
        if not id.startswith("s-") or await store.find(id) is not None:
            return None
        try:
            record = await store.load(id, since=-1)
        except UnknownSession:
            return None
        if not is_same_program(record.birth.program, agent.ref):
            raise BadArguments(
                "session", f"{id!r} is a session of {record.birth.program}, not of {agent.ref}"
            )
        return self._adopt(agent, id, record.birth, given)

    def _adopt(self, agent: Agent, id: str, birth: Birth, given: dict[str, JSON]) -> str:
        """Open a session that exists; raises `KeyConflict` if it was started with other options
        than `given`.
        """
        same = all(is_same_json(birth.args.get(name), value) for name, value in given.items())
        if not same:
            raise KeyConflict(id, birth.id, "arguments")
        self._programs.add(agent)
        self._engine.policy.ask(birth)
        return birth.id

    def is_agent(self, record: SessionRecord) -> bool:
        """Whether a session is a conversation: by its program, or by its messages if its program is
        not here.
        """
        try:
            return isinstance(
                self._programs.find(record.birth.program, record.birth.version), Agent
            )
        except EverholdError:
            return any(reply.notes is not None and reply.notes.nodes for reply in record.deliveries)

    def close(self) -> None:
        self._buffers.close()


async def find_later_call(engine: Engine, session_id: str, key: str) -> QueryId:
    """The query of a call that finishes later, by its idempotency key; raises `UnknownQuery`.

    Waits while the call runs: it may not have returned `Later` yet.
    """
    while True:
        with engine.sessions.watched(session_id) as changed:
            record = await engine.store.load(session_id)
            for query in index_queries(record.deliveries).values():
                if query.kind is Kind.TOOL and (query.options or {}).get("key") == key:
                    return query.id
            if not record.effects:
                raise UnknownQuery(session_id, key)
            await asyncio.wait([changed], timeout=LATER_CALL_POLL)


def _check_plugin_options(agent: Agent, given: Mapping[str, JSON]) -> dict[str, JSON]:
    """Options by plugin, as plain JSON; raises `BadArguments` for a plugin that the agent does not
    have.
    """
    found: dict[str, JSON] = to_plain(dict(given), "plugin_options")
    names = [plugin.name for plugin in agent.plugins]
    for name, options in found.items():
        if name not in names:
            raise BadArguments(
                "plugin_options",
                f"the agent has no plugin {name!r}; its plugins: {', '.join(names) or 'none'}",
            )
        if not isinstance(options, dict):
            raise BadArguments("plugin_options", f"the options of {name!r} must be an object")
    return found


#: The label of a session that a call of another session started.
BEGUN_BY: Final = "begun_by"


class EmitVerb(Protocol):
    """`Triggers.emit`, for features that must not depend on triggers."""

    async def __call__(self, event: str, payload: JSON = None, *, key: str | None = None) -> Any:
        """Emit an event; returns a receipt with `handovers`."""
        ...


class ListTriggersVerb(Protocol):
    """`Triggers.list`, for features that must not depend on triggers."""

    async def __call__(self) -> Sequence[Any]:
        """All triggers; each has `event` and `enabled`."""
        ...


class RuntimeSessionServices:
    """What a running call may use of the runtime: values, sessions and events
    (`SessionServices`).
    """

    def __init__(
        self,
        engine: Engine,
        start: StartVerb,
        emit: EmitVerb,
        triggers: ListTriggersVerb,
        session_id: str,
        query: Query,
    ) -> None:
        self._engine = engine
        self._start = start
        self._emit = emit
        self._triggers = triggers
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

    def output(self, delta: Delta) -> None:
        publish_delta(self._id, self._query, delta)
        if delta.kind is DeltaKind.OUTPUT:
            self._engine.sessions.observers.printed(self._id, delta.call, delta.text)

    async def status(self, session_id: str) -> Status:
        await self._own(session_id)
        return await self._engine.status(session_id)

    async def cancel(self, session_id: str, reason: str) -> Status:
        await self._own(session_id)
        return await self._engine.cancel(session_id, reason)

    async def wait(self, session_id: str, timeout: float | None) -> Status:
        await self._own(session_id)
        return await self._engine.wait(session_id, check_seconds_arg("timeout", timeout))

    async def find(self, session: str) -> str:
        found = await resolve_session_id(self._engine.store, session)
        return (await self._engine.store.load(found, since=-1)).birth.id

    async def signal(self, session_id: str, name: str, value: JSON, key: str) -> None:
        await self._engine.send(session_id, Signal(name, value, key))

    async def emit(self, event: str, payload: JSON, key: str) -> JSON:
        emitted = await self._emit(event, payload, key=key)
        handovers = [
            HandoverOutcome(one.trigger, one.state, one.session_id, one.error)
            for one in emitted.handovers
        ]
        return msgspec.to_builtins(EventOutcome(event, key, handovers))

    async def events(self) -> list[str]:
        return sorted({str(one.event) for one in await self._triggers() if one.enabled})

    async def begun(self) -> list[str]:
        wanted = SessionFilter(labels={BEGUN_BY: self._id})
        return [str(row.birth.id) for row in await self._engine.store.list(wanted)]

    async def _own(self, session_id: str) -> None:
        birth = (await self._engine.store.load(session_id, since=-1)).birth
        if birth.labels.get(BEGUN_BY) != self._id and birth.parent != self._id:
            raise NotAllowed(
                f"session {session_id!r} was not started by {self._id!r}",
                "Use a runtime outside of the session.",
            )
