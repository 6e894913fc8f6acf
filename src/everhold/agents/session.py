"""Conversations with agents: what one does with a session whose program is an `Agent`.

    session = await runtime.session(agent, "chat-42")
    turn = await session.send("Refund order 7")
    print(turn.text)

A handle is a window: it holds nothing that the store does not have, and any number of them may be open.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from everhold.core.codec import JSON, plain, same
from everhold.core.conversation import Conversation
from everhold.core.errors import BadArguments, KeyConflict, SessionEnded, TurnWaiting
from everhold.core.graph import Node, NodeKind, blocks, text
from everhold.core.journal import tape
from everhold.core.ledger import Ledger
from everhold.core.message import Message, encode
from everhold.core.query import FOR_PEOPLE, Kind
from everhold.core.status import Finished, OpenQuery, Paused, Status
from everhold.core.turn import Answered, Settled, TurnOutcome
from everhold.drive.agent.agent import Agent

if TYPE_CHECKING:
    from everhold.runtime import Runtime


class Turn(msgspec.Struct, frozen=True):
    """Where a turn stands: its outcome, or the questions that it waits for."""

    session_id: str
    input_id: str
    settled: Settled | None
    queries: tuple[OpenQuery, ...] = ()
    text: str = ""  # the model's last words, if the turn was answered

    @property
    def outcome(self) -> TurnOutcome | None:
        return None if self.settled is None else self.settled.outcome

    @property
    def waiting(self) -> bool:
        """Whether somebody outside has to answer before it goes on."""
        return self.settled is None

    @property
    def value(self) -> JSON:
        """The value that an agent with `returns=` came to."""
        return self.outcome.value if isinstance(self.outcome, Answered) else None


class AgentSession:
    """One conversation."""

    def __init__(self, runtime: Runtime, agent: Agent, session_id: str) -> None:
        self._runtime, self.agent, self.id = runtime, agent, session_id
        self._told = Conversation()
        self._steps = [-1]  # the delivery that settled each turn
        self._next = 0  # the first delivery that was not read yet

    # ---- talking

    async def send(
        self, content: str | Message | Sequence[JSON], *, id: str | None = None, wait: float | None = None
    ) -> Turn:
        """Say something, and return when the turn has settled or somebody outside has to answer.

        With an `id`, the same input again gives the first one's receipt; other words under it are a conflict.
        """
        said = _said(content)
        input_id = id or f"i-{secrets.token_hex(8)}"
        if id is not None:
            await self._read()
            known = self._told.settled(input_id)
            if known is not None:
                self._same(input_id, known, said)
                return self._turn(known)
        self._refuse_while_asked(await self._runtime.status(self.id))
        await self._runtime._say(self.id, {"id": input_id, "content": said})
        return await self.turn(input_id, wait=wait)

    async def turn(self, input_id: str, *, wait: float | None = None) -> Turn:
        """Wait for the turn of an input."""
        loop = asyncio.get_running_loop()
        deadline = None if wait is None else loop.time() + wait
        while True:
            await self._read()
            settled = self._told.settled(input_id)
            if settled is not None:
                return self._turn(settled)
            status = await self._runtime.status(self.id)
            if isinstance(status, Finished):
                raise SessionEnded(self.id, status.state, "held a conversation with")
            asked = _asked(status)
            left = None if deadline is None else deadline - loop.time()
            if asked or (left is not None and left <= 0):
                return Turn(self.id, input_id, None, asked)
            await self._runtime._changed(self.id, left)

    async def steer(self, content: str | Message | Sequence[JSON], *, id: str | None = None) -> str:
        """Say something to the turn under way: the model hears it in its next round. Returns the id of the input."""
        input_id = id or f"i-{secrets.token_hex(8)}"
        await self._runtime._say(self.id, {"do": "steer", "id": input_id, "content": _said(content)})
        return input_id

    async def cancel_turn(self, reason: str = "") -> Turn | None:
        """Stop the turn under way, if there is one. What was said stays, and the conversation goes on."""
        await self._read()
        number = len(self._told.turns) + 1
        if self._told.graph.tip == self._told.graph.leaf:
            return None
        await self._runtime._say(self.id, {"do": "cancel", "turn": number, "reason": reason})
        while len(self._told.turns) < number:
            await self._runtime._changed(self.id, 1.0)
            await self._read()
        return self._turn(self._told.turns[number - 1])

    async def branch(self, to: str | None) -> None:
        """Go on from an earlier node, or (None) from nothing. Nothing is deleted."""
        await self._read()
        if to is not None:
            self._told.graph.path(to)
        self._refuse_while_asked(await self._runtime.status(self.id))
        await self._runtime._say(self.id, {"do": "branch", "to": to})

    async def fork(self, at: int | None = None, *, key: str | None = None) -> AgentSession:
        """A new conversation that shares this one up to turn `at` (its last one, by default)."""
        await self._read()
        if at is not None and not 0 <= at <= len(self._told.turns):
            raise BadArguments("fork", f"there is no turn {at}; {len(self._told.turns)} have settled")
        step = None if at is None else self._steps[at]
        status = await self._runtime.fork(self.id, at=step, key=key)
        return AgentSession(self._runtime, self.agent, status.session_id)

    # ---- looking

    async def history(self) -> list[Node]:
        """What was said: the messages on the way to the leaf, of settled turns."""
        await self._read()
        return [node for node in self._told.graph.path(self._told.graph.leaf) if node.kind is NodeKind.MESSAGE]

    async def usage(self) -> Ledger:
        """What the conversation has cost, a turn under way included."""
        await self._read()
        return self._told.spent.copy()

    async def turns(self) -> list[Settled]:
        """The receipts of all turns."""
        await self._read()
        return list(self._told.turns)

    async def conversation(self) -> Conversation:
        """All of it, as it is stored."""
        await self._read()
        return self._told

    # ---- reading the journal as it grows

    async def _read(self) -> None:
        record = await self._runtime.store.load(self.id, since=self._next)
        fresh = [delivery for delivery in record.deliveries if delivery.n >= self._next]
        if not fresh:
            return
        if any(delivery.notes is not None and delivery.notes.retry for delivery in fresh):
            record = await self._runtime.store.load(self.id)
            self._told, self._steps, fresh = Conversation(), [-1], record.deliveries
        for expected in tape(fresh):
            self._told.fold(expected.given, expected.reply)
            if expected.reply.notes is not None and expected.reply.notes.settled is not None:
                self._steps.append(expected.reply.n)
        self._next = fresh[-1].n + 1

    def _turn(self, settled: Settled) -> Turn:
        words = ""
        if isinstance(settled.outcome, Answered) and settled.leaf is not None:
            words = text(self._told.graph.nodes[settled.leaf].content)
        return Turn(self.id, settled.input, settled, text=words)

    def _same(self, input_id: str, known: Settled, said: list[JSON]) -> None:
        """Raise `KeyConflict` if the input of this id was another one."""
        first = self._told.graph.nodes[f"{known.turn}.0"]
        if not same(blocks(first.content), said):
            raise KeyConflict(input_id, self.id, "content")

    def _refuse_while_asked(self, status: Status) -> None:
        asked = [query for query in _asked(status) if query.kind in FOR_PEOPLE]
        if asked:
            raise TurnWaiting(self.id, asked[0].id, asked[0].kind)


def _asked(status: Status) -> tuple[OpenQuery, ...]:
    """What somebody outside has to answer; an input that may come is not asked for."""
    queries = status.queries if isinstance(status, Paused) else ()
    return tuple(query for query in queries if query.kind is not Kind.SIGNAL)


def _said(content: str | Message | Sequence[JSON]) -> list[JSON]:
    """What somebody said, as blocks."""
    if isinstance(content, Message):
        parts: list[JSON] = encode(content).get("content", [])
    else:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    found: list[JSON] = plain(parts, "the input")
    if not found or (len(found) == 1 and not text(found) and found[0].get("type") == "text"):
        raise BadArguments("send", "it needs words, or other content")
    return found
