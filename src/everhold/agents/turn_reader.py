"""What happens to inputs that are said from now on: read without the conversation before them.

Whoever opens a long conversation and says something need not read all of it a second time, after
its program did.
"""

from __future__ import annotations

from collections.abc import Mapping

from everhold.core.codec import JSON
from everhold.core.graph import Node, extract_text
from everhold.core.journal import Delivery
from everhold.core.message import Role
from everhold.core.turn import SettledTurn, TurnAnswered
from everhold.ports.store import Store


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
