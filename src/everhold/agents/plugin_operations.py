"""Operations of plugins for the host: `session.plugin("notes")` gives a handle that runs them.

Rules
  1. An operation is a turn of its own: it is recorded, a replay does not run it, and what it asks
     for beside its value lands with its result. After a crash it may run again.
  2. A `read_only` operation is no turn. It runs in the host's process, also during a turn, on the
     plugin's state of the last settled turn, and can change nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from everhold.agents.agent import Agent
from everhold.agents.conversation_reader import ConversationReader, read_effective_options
from everhold.agents.plugin_host import PluginHost, call_operation
from everhold.core.codec import JSON
from everhold.core.graph import NodeKind
from everhold.core.ledger import Ledger
from everhold.core.turn import OperationDone, TurnOutcome
from everhold.errors import NotAllowed, TurnStopped, UnknownOperation
from everhold.hooks import Moment, Operation, get_operations
from everhold.ports.process_environment import ENVIRONMENT, merge_environment, parse_environment
from everhold.ports.store import Store
from everhold.ports.tool_services import CURRENT_SERVICES

#: Runs an operation as a turn: plugin, operation, input, and the id of the input.
RunOperation = Callable[[str, str, dict[str, JSON], str | None], Awaitable[TurnOutcome | None]]


class OperationInfo(msgspec.Struct, frozen=True):
    """An operation, for a host that lists them."""

    name: str
    description: str
    input_schema: dict[str, JSON]
    read_only: bool


class PluginHandle:
    """One plugin of a conversation. `AgentSession.plugin` makes it."""

    def __init__(
        self,
        agent: Agent,
        name: str,
        session_id: str,
        reading: ConversationReader,
        store: Store,
        now: Callable[[], float],
        run: RunOperation,
    ) -> None:
        named = {plugin.name: plugin for plugin in agent.plugins}
        if name not in named:
            raise UnknownOperation(name, "", sorted(named))
        self.name = name
        self._agent = agent
        self._known = get_operations(named[name])
        self._session_id = session_id
        self._reading = reading
        self._store = store
        self._now = now
        self._run = run

    @property
    def operations(self) -> list[OperationInfo]:
        """The operations that the plugin declares."""
        return [
            OperationInfo(name, one.description, one.schema, one.read_only)
            for name, one in self._known.items()
        ]

    async def call(self, operation: str, *, id: str | None = None, **arguments: Any) -> Any:
        """Run an operation, and return its value. With an `id`, the same call again is the same
        turn.

        Raises `UnknownOperation`, `BadArguments` for input that does not fit, `PluginFailed` for a
        read-only operation that raises, and `TurnStopped` for another one that does.
        """
        known = self._known.get(operation)
        if known is None:
            raise UnknownOperation(self.name, operation, sorted(self._known))
        given = known.encode_input(arguments)
        if known.read_only:
            return known.decode_value(await self._read(known, given))
        outcome = await self._run(self.name, operation, given, id)
        if not isinstance(outcome, OperationDone):
            why = getattr(outcome, "error", "") or getattr(outcome, "reason", "")
            tag = "" if outcome is None else str(type(outcome).__struct_config__.tag)
            raise TurnStopped(tag, why)
        return known.decode_value(outcome.value)

    async def _read(self, operation: Operation, given: dict[str, JSON]) -> JSON:
        """Run a read-only operation on a copy of the plugin, as the last settled turn left it."""
        await self._reading.refresh()
        told = self._reading.told
        host = PluginHost(self._agent.plugins)
        path = told.graph.path(told.graph.leaf)
        kept = [node.content for node in path if node.kind is NodeKind.PLUGIN]
        host.adopt(kept[-1] if kept else None, whole=True)
        options = read_effective_options(self._agent, told)
        birth = self._reading.birth
        moment = Moment(
            session_id=self._session_id,
            root=birth is None or birth.parent is None,
            turn=len(told.turns),
            round=0,
            now=self._now(),
            started=0.0,
            began=0.0 if birth is None else birth.created_at,
            frame=told.graph.frame,
            options=options,
            usage=told.ledger.copy(),
            turn_usage=Ledger(),
            messages=lambda: msgspec.to_builtins(told.graph.messages()),
            nodes=told.graph.custom,
            environment=merge_environment(
                self._agent.environment, parse_environment(options.get(ENVIRONMENT))
            ),
            extensions=host.extensions,
        )
        services: Any = HostServices(self._store)
        token = CURRENT_SERVICES.set(services)
        try:
            return await call_operation(host.find(self.name), operation, moment, given)
        finally:
            CURRENT_SERVICES.reset(token)


class HostServices:
    """What a read-only operation may use: durable values, as they are now."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def value(self, namespace: str, key: str) -> list[JSON] | None:
        return (await self._store.value(namespace, key))[0]

    async def keys(self, namespace: str) -> list[str]:
        return list(await self._store.keys(namespace))

    def __getattr__(self, name: str) -> Any:
        raise NotAllowed(
            "a read-only operation cannot use other sessions",
            "Declare the operation without read_only=True.",
        )
