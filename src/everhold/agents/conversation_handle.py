"""The handle of a conversation without its agent: read it, and manage its queued input.

    conversation = await runtime.conversation("chat-42")
    print((await conversation.view()).messages)

Rules
  1. It begins nothing: a name without a session raises `UnknownSession`.
  2. It needs neither the agent nor its code. Model and options are then those that were configured
     in the session.
  3. What it returns is the caller's own: changing it changes no session.

`AgentSession` (in `session.py`) adds the verbs that need the agent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from everhold.agents.agent import Agent
from everhold.agents.child_usage import add_child_usage
from everhold.agents.conversation_reader import (
    RESIDENCY_ALL,
    ConversationReader,
    ReadView,
    Snapshot,
    Stored,
    build_read_view,
    build_snapshot,
    build_stored,
    copy_node,
    copy_receipt,
    read_effective_options,
)
from everhold.agents.events import Event, EventStream, LiveBuffers
from everhold.agents.inputs import (
    InputStatus,
    cancel_intake_items,
    cancel_items_from,
    enqueue_command,
    list_intake_items,
    read_input_status,
)
from everhold.agents.tool_view import ToolsView, build_tools_view, read_registry
from everhold.core.codec import JSON
from everhold.core.conversation import Conversation
from everhold.core.graph import Frame, Node, NodeKind
from everhold.core.intake import INPUT, IntakeItem, ItemCancellation, Receipt
from everhold.core.ledger import Ledger
from everhold.core.turn import SettledTurn
from everhold.engine.engine import Engine
from everhold.errors import NotAnAgent


class ConversationHandle:
    """One conversation, without its agent. `Runtime.conversation` makes it."""

    def __init__(
        self,
        engine: Engine,
        buffers: LiveBuffers,
        session_id: str,
        residency: str = RESIDENCY_ALL,
    ) -> None:
        self._engine = engine
        self._buffers = buffers
        self.id = session_id
        self._reading = ConversationReader(engine.store, session_id, residency)

    @classmethod
    async def _open(
        cls, engine: Engine, buffers: LiveBuffers, session_id: str, residency: str
    ) -> ConversationHandle:
        """Open the conversation of an existing session; raises `UnknownSession` and
        `NotAnAgent`.
        """
        handle = ConversationHandle(engine, buffers, session_id, residency)
        reading = handle._reading
        await reading.refresh()
        if reading.begun and reading.birth is not None and not reading.told.listens:
            hint = "Read it with runtime.steps() or runtime.status()."
            raise NotAnAgent(reading.birth.program, hint)
        return handle

    @property
    def session_id(self) -> str:
        """The same as `id`; runtime verbs accept a conversation in place of its session."""
        return self.id

    # ---- frames and their options

    async def options(self, frame: str | None = None) -> dict[str, JSON]:
        """The options of the current frame, or of another one by its name or id, merged over the
        agent's.
        """
        return read_effective_options(self._known_agent, await self._told(), frame)

    async def frames(self) -> list[Frame]:
        """All frames on the path to the leaf, oldest first."""
        return list((await self._told()).graph.frames)

    async def messages(self, frame: str | None = None) -> list[JSON]:
        """The messages of the current frame, or of another one by its name or id."""
        graph = (await self._told()).graph
        named = None if frame is None else graph.find_frame(frame).id
        copied: list[JSON] = msgspec.to_builtins(graph.messages(named))
        return copied

    async def tools(self) -> ToolsView:
        """The tools of the conversation, for user interfaces: each with its source, and whether a
        model is offered it; and the generation for `change_tools`.
        """
        told = await self._told()
        options = read_effective_options(self._known_agent, told)
        state = read_registry(told.tools, self._known_agent)
        return build_tools_view(self.id, self._known_agent, state, options)

    # ---- queued input

    async def command(self, do: str, *, key: str, reason: str = "") -> Receipt:
        """Queue a command that runs between turns: refresh_tools, reset or compact.

        `cancel_turn` runs at once, on the running turn. The same key is the same command.
        """
        return await enqueue_command(
            self._engine, self.id, do, key=key, reason=reason, reading=self._reading
        )

    async def intake(self, *, all: bool = False) -> list[IntakeItem]:
        """Queued items that are not claimed, in order; with `all`, also claimed and ended ones."""
        return await list_intake_items(self._engine, self.id, all=all)

    async def cancel(self, *names: str, reason: str = "") -> list[ItemCancellation]:
        """Cancel queued items by id or key. Returns the outcomes in that order; items that have
        entered stay.
        """
        return await cancel_intake_items(self._engine, self.id, names, reason)

    async def cancel_from(self, anchor: str, *, reason: str = "") -> list[ItemCancellation]:
        """Cancel an item and all items queued after it in its lane; raises `UnknownInput`."""
        return await cancel_items_from(self._engine, self.id, anchor, reason)

    async def input(self, id: str) -> InputStatus:
        """The status of an input; raises `UnknownInput`."""
        return await read_input_status(self._engine, self.id, id, self._reading)

    # ---- reading

    async def revision(self) -> int:
        """The revision of the session. It grows with every change, also during a turn; `send` takes
        it as `after`.
        """
        return int((await self._engine.store.load(self.id, since=-1)).head.revision)

    async def history(self) -> list[Node]:
        """The messages of settled turns, on the path to the leaf."""
        graph = (await self._told()).graph
        return [copy_node(node) for node in graph.path(graph.leaf) if node.kind is NodeKind.MESSAGE]

    async def nodes(self, type: str | None = None) -> list[Node]:
        """The nodes that tools and plugins have added (`context.append`), oldest first: all, or
        those of one type.
        """
        return (await self._told()).graph.custom(type)

    async def node(self, node_id: str) -> Node:
        """Any node, also of another branch."""
        await self._reading.refresh()
        return copy_node(await self._reading.node(node_id))

    async def usage(self) -> Ledger:
        """The usage of the conversation, including a running turn and the child sessions that it
        waits for.
        """
        while True:
            told = await self._told()
            record = await self._engine.store.load(self.id, since=-1)
            head = self._reading.head
            if head is not None and head.n == record.head.n:
                break
        spent = told.spent.copy()
        await add_child_usage(self._engine, record, spent)
        return spent

    async def turns(self) -> list[SettledTurn]:
        """The receipts of all settled turns."""
        return [copy_receipt(settled) for settled in (await self._told()).turns]

    async def conversation(self) -> Conversation:
        """The whole conversation, read from the store."""
        return await self._reading.whole()

    async def refresh(self) -> bool:
        """Read what other handles and processes have written; returns whether there was anything
        new.
        """
        return await self._reading.refresh()

    def events(self, cursor: str | None = None) -> AsyncGenerator[Event, None]:
        """The events of the conversation, from the beginning or after a cursor, until the session
        ends.
        """
        return self._watch().events(cursor)

    # ---- as data

    async def view(self) -> ReadView:
        """The conversation for plugins, hosts and people: messages and position."""
        await self._reading.refresh()
        return build_read_view(self.id, self._known_agent, self._reading)

    async def snapshot(self) -> Snapshot:
        """The conversation for inspection: all nodes by reference and the ledger, without texts."""
        await self._reading.refresh()
        return build_snapshot(self.id, self._known_agent, self._reading)

    async def stored(self, *, fresh: bool = False) -> Stored:
        """The whole conversation, to apply it to another session. `fresh` reads everything from the
        store again.
        """
        await self._reading.refresh()
        whole = (
            await self._reading.whole()
            if fresh or self._reading.residency != RESIDENCY_ALL
            else self._reading.told
        )
        return build_stored(self.id, self._known_agent, self._reading, whole)

    # ---- internals

    @property
    def _known_agent(self) -> Agent | None:
        """The agent, if the handle has one."""
        return None

    def _watch(self) -> EventStream:
        """An event stream; live text is buffered from now on."""
        sessions = self._engine.sessions
        return EventStream(
            self._engine.store,
            self.id,
            self._buffers.of(self.id),
            sessions.watched,
            self._viewed,
        )

    async def _command(self, said: dict[str, JSON]) -> None:
        """Signal something else than a plain input to the program; it is stored until received."""
        await self._engine.signal(self.id, INPUT, said)

    async def _viewed(self) -> JSON:
        return msgspec.to_builtins(await self.view())

    async def _told(self) -> Conversation:
        await self._reading.refresh()
        return self._reading.told
