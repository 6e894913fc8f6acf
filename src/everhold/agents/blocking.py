"""A conversation for code that is not async: the verbs of `AgentSession`, each waited for.

Written from `AgentSession` by tools/blocking.py; a test compares their verbs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from everhold.agents.agent import Agent
from everhold.agents.events import Event
from everhold.agents.inputs import NEXT_TURN, BusyPolicy, InputStatus
from everhold.agents.session import AgentSession, InputContent, Turn
from everhold.agents.stored import ReadView, Snapshot, Stored
from everhold.core.codec import JSON
from everhold.core.conversation import Conversation
from everhold.core.graph import Frame, Node
from everhold.core.intake import IntakeItem, ItemCancellation, Receipt
from everhold.core.ledger import Ledger
from everhold.core.turn import SettledTurn

T = TypeVar("T")


class BlockingWait(Protocol):
    """Has work done on the loop, and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


class BlockingSession:
    """`AgentSession` for code that is not async. Made by `BlockingRuntime.session`."""

    def __init__(self, session: AgentSession, wait: BlockingWait) -> None:
        self._session = session
        self._wait = wait

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def agent(self) -> Agent:
        return self._session.agent

    def stream(self, content: InputContent, *, id: str | None = None) -> Iterator[Event]:
        """Say something, and give what happens, as it happens: until the turn settles or somebody
        has to answer.
        """
        return self._each(self._session.stream(content, id=id))

    def follow(self, input_id: str, cursor: str | None = None) -> Iterator[Event]:
        """What happens in the turn of an input, after a cursor: until it settles or somebody has to
        answer.
        """
        return self._each(self._session.follow(input_id, cursor))

    def events(self, cursor: str | None = None) -> Iterator[Event]:
        """What happens in the conversation, from the beginning or after the event with that cursor,
        until it ends.
        """
        return self._each(self._session.events(cursor))

    def fork(
        self, at: int | None = None, *, key: str | None = None, again: bool = False
    ) -> BlockingSession:
        """A new conversation that shares this one up to turn `at` (its last one, by default)."""
        return BlockingSession(self._wait(self._session.fork(at, key=key, again=again)), self._wait)

    def _each(self, found: AsyncIterator[Event]) -> Iterator[Event]:
        try:
            while (event := self._wait(_next(found))) is not None:
                yield event
        finally:
            self._wait(_close(found))

    # [[[cog
    # from tools.blocking import handle
    # print(handle())
    # ]]]
    def send(
        self,
        content: InputContent,
        *,
        id: str | None = None,
        wait: float | None = None,
        options: Mapping[str, JSON] | None = None,
        busy: str = BusyPolicy.QUEUE,
    ) -> Turn:
        """Say something, and return when the turn has settled or somebody outside has to answer."""
        return self._wait(self._session.send(content, id=id, wait=wait, options=options, busy=busy))

    def turn(self, input_id: str, *, wait: float | None = None) -> Turn:
        """Wait until the turn of an input has settled, or somebody outside has to answer."""
        return self._wait(self._session.turn(input_id, wait=wait))

    def steer(self, content: InputContent, *, id: str | None = None) -> str:
        """Say something to the turn under way: the model hears it in its next round. Returns the
        id of the input.
        """
        return self._wait(self._session.steer(content, id=id))

    def cancel_turn(self, reason: str = "") -> Turn | None:
        """Stop the turn under way, if there is one. What was said stays, and the conversation
        goes on.
        """
        return self._wait(self._session.cancel_turn(reason))

    def branch(self, to: str | None) -> None:
        """Go on from an earlier node, or (None) from nothing. Nothing is deleted. Refused during
        a turn.
        """
        return self._wait(self._session.branch(to))

    def history(self) -> list[Node]:
        """What was said: the messages on the way to the leaf, of settled turns."""
        return self._wait(self._session.history())

    def node(self, node_id: str) -> Node:
        """Any node, also of a branch that was left."""
        return self._wait(self._session.node(node_id))

    def usage(self) -> Ledger:
        """What the conversation has cost, a turn under way included."""
        return self._wait(self._session.usage())

    def turns(self) -> list[SettledTurn]:
        """The receipts of all turns."""
        return self._wait(self._session.turns())

    def conversation(self) -> Conversation:
        """All of it, as it is stored."""
        return self._wait(self._session.conversation())

    def refresh(self) -> bool:
        """Read what other handles and processes have done since; returns whether there was
        anything.
        """
        return self._wait(self._session.refresh())

    def view(self) -> ReadView:
        """The conversation for plugins, hosts and people: what was said, and where it stands."""
        return self._wait(self._session.view())

    def snapshot(self) -> Snapshot:
        """The conversation for inspection: all nodes by reference, the ledger, no words."""
        return self._wait(self._session.snapshot())

    def stored(self, *, fresh: bool = False) -> Stored:
        """The conversation whole, to be applied to another session; `fresh` reads all of it anew
        from the store.
        """
        return self._wait(self._session.stored(fresh=fresh))

    def apply(self, state: Stored, *, id: str | None = None) -> Turn | None:
        """Stand where a stored conversation stands. What both share stays; the rest is added on
        a branch of its own.
        """
        return self._wait(self._session.apply(state, id=id))

    def compact(self, instructions: str = "", *, id: str | None = None) -> bool:
        """Let a plugin make the context smaller; returns whether one did. Earlier frames stay
        readable.
        """
        return self._wait(self._session.compact(instructions, id=id))

    def reset(self, *, id: str | None = None) -> Turn:
        """Begin anew with nothing said. History, usage and options stay; what plugins know is
        forgotten.
        """
        return self._wait(self._session.reset(id=id))

    def continue_as(
        self, frame: str, messages: Sequence[JSON] = (), *, id: str | None = None
    ) -> Turn:
        """Go on in a new frame of this name that begins with these messages; the current one's
        is left as it is.
        """
        return self._wait(self._session.continue_as(frame, messages, id=id))

    def configure(
        self, options: Mapping[str, JSON], *, everywhere: bool = False, id: str | None = None
    ) -> dict[str, JSON]:
        """Set options of the current frame, or of all frames, name by name (None takes one
        away); returns all.
        """
        return self._wait(self._session.configure(options, everywhere=everywhere, id=id))

    def options(self, frame: str | None = None) -> dict[str, JSON]:
        """The options that hold in the current frame, or in another one, over those of the
        agent.
        """
        return self._wait(self._session.options(frame))

    def frames(self) -> list[Frame]:
        """All frames on the way to where the conversation stands, oldest first."""
        return self._wait(self._session.frames())

    def messages(self, frame: str | None = None) -> list[JSON]:
        """What was said in the current frame, or in an earlier one."""
        return self._wait(self._session.messages(frame))

    def enqueue(
        self,
        content: InputContent,
        *,
        key: str | None = None,
        at: str = NEXT_TURN,
        alone: bool = False,
        options: Mapping[str, JSON] | None = None,
        available_at: float = 0.0,
    ) -> Receipt:
        """Let something wait for the next turn, or for a checkpoint of the one under way;
        returns when it is kept.
        """
        return self._wait(
            self._session.enqueue(
                content, key=key, at=at, alone=alone, options=options, available_at=available_at
            )
        )

    def command(self, do: str, *, key: str, reason: str = "") -> Receipt:
        """Have something done to the conversation when no turn is under way: refresh_tools,
        reset or compact.
        """
        return self._wait(self._session.command(do, key=key, reason=reason))

    def intake(self, *, all: bool = False) -> list[IntakeItem]:
        """What waits to enter the conversation, in order, without what somebody is letting in;
        or all that is known.
        """
        return self._wait(self._session.intake(all=all))

    def cancel(self, *names: str, reason: str = "") -> list[ItemCancellation]:
        """Take back what waits, by id or key: the outcomes in the order asked for. What has
        entered stays.
        """
        return self._wait(self._session.cancel(*names, reason=reason))

    def cancel_from(self, anchor: str, *, reason: str = "") -> list[ItemCancellation]:
        """Take back an item and all that came after it in its lane; raises `UnknownInput`."""
        return self._wait(self._session.cancel_from(anchor, reason=reason))

    def input(self, id: str) -> InputStatus:
        """Where an input stands; raises `UnknownInput` if there was none of that id."""
        return self._wait(self._session.input(id))

    # [[[end]]]


async def _next(found: AsyncIterator[Event]) -> Event | None:
    return await anext(found, None)


async def _close(found: Any) -> None:
    """Leave a stream; who was interrupted while it looked for the next event is still on the way
    out.
    """
    while found.ag_running:
        await asyncio.sleep(0.001)
    await found.aclose()
