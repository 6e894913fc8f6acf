"""A conversation, read from the journal as it grows.

Rules
  1. Only what is new is read. A look that finds nothing new changes nothing.
  2. What was read never becomes less: neither turns, nor what they cost.
  3. `residency` says what is kept in memory: `all` nodes, or those on the `path` to the leaf.
     Nothing leaves the store.

What happens to inputs that are said from now on: read without the conversation before them.

Whoever opens a long conversation and says something need not read all of it a second time, after
its program did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET

from everhold.core.codec import JSON
from everhold.core.conversation import Conversation
from everhold.core.graph import Graph, Node, extract_text
from everhold.core.journal import Delivery, pair_replies
from everhold.core.message import Role
from everhold.core.session import Head
from everhold.core.turn import SettledTurn, TurnAnswered
from everhold.errors import BadSetting, UnknownNode
from everhold.ports.store import Letter, Store


class TurnReader:
    """The end of a conversation: only what is said from now on, and expected, is found in it."""

    def __init__(self, store: Store, session_id: str) -> None:
        self._store = store
        self._id = session_id
        self.revision = -1  # of the session, when it was last read
        self._next = -1  # the first delivery that was not read yet; -1: it stands nowhere
        self._nodes: dict[str, Node] = {}  # of turns that have not settled
        self._answers: dict[int, JSON] = {}
        self._expected: set[str] = set()
        self._ended: dict[str, tuple[SettledTurn, str]] = {}

    async def expect(self, input_id: str) -> None:
        """An input is about to be said: take note of what comes of it."""
        self._expected.add(input_id)
        if self._next < 0:
            self._next = (await self._store.load(self._id, since=-1)).head.n + 1

    async def refresh(self) -> None:
        """Read what is new."""
        record = await self._store.load(self._id, since=self._next)
        self.revision = record.head.revision
        for delivery in record.deliveries:
            if delivery.n >= self._next:
                self._take(delivery)
                self._next = delivery.n + 1

    def settled(self, input_id: str) -> SettledTurn | None:
        """The receipt of the turn of an input."""
        found = self._ended.get(input_id)
        return None if found is None else found[0]

    def words(self, input_id: str) -> str:
        """The model's last words in the turn of an input. Who hears them knows all, and it is
        forgotten.
        """
        return self._ended.pop(input_id)[1]

    def _take(self, delivery: Delivery) -> None:
        self._answers.update((answer.q, answer.value) for answer in delivery.answers)
        notes = delivery.notes
        if notes is None:
            return
        self._nodes.update((node.id, node) for node in notes.nodes)
        settled = notes.settled
        if settled is None:
            return
        for input_id in self._expected.intersection((settled.input, *settled.taken)):
            self._expected.remove(input_id)
            self._ended[input_id] = (settled, self._words(settled))
        self._nodes = {}
        self._answers = {}

    def _words(self, settled: SettledTurn) -> str:
        node = find_last_reply(self._nodes, settled)
        return extract_text(
            None if node is None else node.content if node.q is None else self._answers.get(node.q)
        )


def find_last_reply(nodes: Mapping[str, Node], settled: SettledTurn) -> Node | None:
    """What the model said last in a turn that was answered; after it comes what plugins keep."""
    node = nodes.get(settled.leaf or "") if isinstance(settled.outcome, TurnAnswered) else None
    while node is not None and node.role is not Role.ASSISTANT:
        node = nodes.get(node.parent or "")
    return node


RESIDENCY_ALL: Final = "all"
RESIDENCY_PATH: Final = "path"


class ConversationReader:
    """What one handle knows of a conversation."""

    def __init__(self, store: Store, session_id: str, residency: str = RESIDENCY_ALL) -> None:
        if residency not in (RESIDENCY_ALL, RESIDENCY_PATH):
            raise BadSetting(
                "residency", f"{residency!r} is neither {RESIDENCY_ALL!r} nor {RESIDENCY_PATH!r}"
            )
        self.told = Conversation()
        self.head: Head | None = None
        self.steps = [-1]  # the delivery that settled each turn
        self.residency = residency
        self._store = store
        self._id = session_id
        self._next = 0  # the first delivery that was not read yet
        self._letters: list[Letter] = []

    async def refresh(self) -> bool:
        """Read what is new; returns whether there was anything."""
        record = await self._store.load(self._id, since=self._next)
        before = self.head
        self.head = record.head
        self._letters = record.letters
        fresh = [delivery for delivery in record.deliveries if delivery.n >= self._next]
        if not fresh:
            return before is None or before.revision != record.head.revision
        if self._next and any(_needs_more(delivery, self.told.graph) for delivery in fresh):
            record = await self._store.load(self._id)
            self.told = Conversation()
            self.steps = [-1]
            fresh = record.deliveries
        for expected in pair_replies(fresh):
            self.told.fold(expected.given, expected.reply)
            if expected.reply.notes is not None and expected.reply.notes.settled is not None:
                self.steps.append(expected.reply.n)
        self._next = fresh[-1].n + 1
        if self.residency == RESIDENCY_PATH:
            self.told.graph.trim()
        return True

    @property
    def revision(self) -> int:
        """Of the session, when it was last read."""
        return -1 if self.head is None else self.head.revision

    @property
    def begun(self) -> bool:
        """Whether anything was read yet."""
        return self._next > 0

    @property
    def under_way(self) -> int | None:
        """The turn that is under way."""
        graph = self.told.graph
        return len(self.told.turns) + 1 if graph.tip != graph.leaf else None

    def settled(self, input_id: str) -> SettledTurn | None:
        return self.told.settled(input_id)

    def words(self, input_id: str) -> str:
        """The model's last words in the turn of an input."""
        settled = self.settled(input_id)
        node = None if settled is None else find_last_reply(self.told.graph.nodes, settled)
        return "" if node is None else extract_text(node.content)

    def input(self, input_id: str) -> JSON:
        """What was said under this id, also if no turn began with it yet; None if nothing was."""
        heard = self.told.inputs.get(input_id)
        return heard if heard is not None else self._kept(input_id)

    def _kept(self, input_id: str) -> JSON:
        """What waits in the intake under this id."""
        for letter in self._letters:
            body: Any = letter.body
            said = body.get("value") if letter.kind in ("signal", "answer") else None
            if isinstance(said, dict) and said.get("id") == input_id and "content" in said:
                return said["content"]
        return None

    async def node(self, node_id: str) -> Node:
        """A node of any branch; one that is not in memory is read from the store."""
        known = self.told.graph.nodes.get(node_id)
        if known is None and self.residency == RESIDENCY_PATH:
            known = (await self.whole()).graph.nodes.get(node_id)
        if known is None:
            raise UnknownNode(node_id)
        return known

    async def whole(self) -> Conversation:
        """Everything there is, read anew."""
        return Conversation((await self._store.load(self._id)).deliveries)


def _needs_more(delivery: Delivery, graph: Graph) -> bool:
    """Whether a delivery cannot be read without those before it: it retries one, or names a node
    not in memory.
    """
    notes = delivery.notes
    if notes is None:
        return False
    moved = notes.leaf is not UNSET and notes.leaf is not None and notes.leaf not in graph.nodes
    return notes.retry or moved
