"""What tools and plugins ask for beside their result, carried out by the agent loop: events,
signals, messages, nodes, durable values, and values of the turn.

Rules
  1. Each of them is recorded with the result or decision. Without one, none is carried out.
  2. Durable values are part of the commit that has the result. Events and signals follow at once,
     each under a key of its own, so that one that is sent again is the same.
  3. A turn continues after its events and signals were sent; cancelling it stops none of them.
  4. Messages and nodes enter the conversation at the next checkpoint, or when the turn settles.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.graph import Node, NodeKind
from everhold.core.message import Role
from everhold.core.query import Kind
from everhold.core.retry import Retry
from everhold.core.turn import EventOutcome
from everhold.errors import AnswerFailed, EventConflict, SessionEnded, UnknownSession
from everhold.ports.context import AgentContext
from everhold.ports.tool_services import StateWrite, apply_writes, get_services

#: How sending is tried again after an error of the store.
SEND_RETRY: Final = Retry(6, 0.1, max_backoff=10.0)


class SideEffects:
    """The side effects of one conversation."""

    def __init__(self, ctx: AgentContext) -> None:
        self._ctx = ctx
        self._sent = 0  # events and signals of this session so far
        self._sending: asyncio.Future[None] | None = None  # the last one; it follows the others
        self._pending: list[Node] = []  # messages and nodes for the next checkpoint
        self.events: list[EventOutcome] = []  # what the events of this turn came to
        self.turn_values: dict[str, JSON] = {}

    def begin_turn(self) -> None:
        self.turn_values = {}

    async def carry_out(self, writes: Sequence[StateWrite]) -> None:
        """Carry out what a call or a decision asked for. Raises `BadValue` before anything was
        done.
        """
        if not writes:
            return
        await apply_writes(writes, self._ctx.state)
        outgoing = []
        for one in writes:
            verb, name, key, value = one
            match verb:
                case "turn":
                    self.turn_values[str(name)] = value
                case "message":
                    self.say(Role(str(name)), value)
                case "node":
                    content: JSON = {"type": name, "body": value}
                    self._pending.append(Node("", None, NodeKind.CUSTOM, content=content))
                case "emit" | "signal":
                    outgoing.append((str(verb), str(name), str(key), value))
        if outgoing:
            self._sending = asyncio.ensure_future(self._send_all(self._sending, outgoing))

    def say(self, role: Role, content: JSON) -> None:
        """Add a message at the next checkpoint."""
        self._pending.append(Node("", None, role=role, content=content))

    def take_nodes(self) -> list[Node]:
        """The messages and nodes that are due now."""
        nodes = self._pending
        self._pending = []
        return nodes

    async def wait_sent(self) -> None:
        """Wait until everything was sent. The caller may be cancelled; the sending is not."""
        if self._sending is not None:
            await asyncio.wait([self._sending])
            self._sending = None

    async def finish(self) -> list[EventOutcome]:
        """Wait until everything was sent; returns the outcomes of the turn's events."""
        await self.wait_sent()
        events = self.events
        self.events = []
        return events

    async def _send_all(
        self, before: asyncio.Future[None] | None, outgoing: list[tuple[str, str, str, JSON]]
    ) -> None:
        if before is not None:
            await before
        for verb, name, key, value in outgoing:
            own = f"{self._ctx.session_id}:{self._sent}"
            self._sent += 1
            if verb == "emit":
                await self._emit(name, value, key or own)
            else:
                await self._signal(name, key, value, own)

    async def _emit(self, event: str, payload: JSON, key: str) -> None:
        effect = functools.partial(_emit, event, payload, key)
        try:
            _, found = await self._put(f"emit:{event}", effect, {"key": key, "payload": payload})
            self.events.append(msgspec.convert(found, EventOutcome))
        except AnswerFailed as error:
            self.events.append(EventOutcome(event, key, error=error.message))

    async def _signal(self, session_id: str, name: str, value: JSON, key: str) -> None:
        effect = functools.partial(_signal, session_id, name, value, key)
        try:
            _, error = await self._put(f"signal:{name}", effect, {"to": session_id, "value": value})
        except AnswerFailed as failed:
            error = failed.message
        if error:
            self._ctx.log(f"the signal {name!r} to {session_id} was not sent: {error}", "warn")

    async def _put(self, name: str, effect: Any, args: JSON) -> tuple[int, Any]:
        return await self._ctx.put(Kind.CALL, effect, name=name, args=args, retry=SEND_RETRY)


async def _emit(event: str, payload: JSON, key: str) -> JSON:
    try:
        return await get_services("an event").emit(event, payload, key)
    except EventConflict as error:
        return {"event": event, "key": key, "error": str(error)}


async def _signal(session_id: str, name: str, value: JSON, key: str) -> JSON:
    """Send a signal; returns why it cannot be sent, or an empty text."""
    try:
        await get_services("a signal").signal(session_id, name, value, key)
    except (SessionEnded, UnknownSession) as error:
        return str(error)
    return ""
