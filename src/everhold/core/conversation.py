"""A conversation read from the journal of its session: its graph, its settled turns, their usage.

Only the deliveries are needed, not the program that held the conversation.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from everhold.core.codec import JSON
from everhold.core.graph import Graph, compact_blocks, to_blocks
from everhold.core.intake import INPUT
from everhold.core.journal import Delivery, pair_replies
from everhold.core.ledger import TURN, Ledger
from everhold.core.query import Kind, Query
from everhold.core.turn import SettledTurn


class Conversation:
    """A conversation, turn by turn. `spent` includes the cost of a running turn; `ledger` does
    not.
    """

    def __init__(self, deliveries: Iterable[Delivery] = ()) -> None:
        self.graph = Graph()
        self.turns: list[SettledTurn] = []
        self.options: dict[str, JSON] = {}  # the options it was started with
        self.tools: JSON = None  # the registry of its tools, as it was last recorded
        self.ledger = Ledger()
        self.spent = Ledger()
        self.inputs: dict[str, JSON] = {}  # the content of each input, by id
        self._receipts: dict[str, SettledTurn] = {}
        self._heard: dict[str, int] = {}  # the query that received each input
        self._ahead: set[int] = set()  # inputs that no node names yet: a turn may be running
        self._asked: dict[int, Query] = {}
        self._answers: dict[int, JSON] = {}
        for expected in pair_replies(list(deliveries)):
            self.fold(expected.given, expected.reply)

    def fold(self, given: Delivery, reply: Delivery) -> None:
        """Adds one more delivery, with its final reply."""
        for answer in given.answers:
            query = self._asked.pop(answer.q, None)
            self._answers[answer.q] = (
                answer.value if answer.error is None else answer.error.get("message", "")
            )
            if query is not None:
                self.spent.add(get_ledger_source(query), answer.usage)
            if query is not None and query.kind is Kind.SIGNAL:
                self._hear(answer.q, answer.value)
        for query in reply.asked:
            self._asked[query.q] = query
        notes = reply.notes
        if notes is None:
            return
        self.options = notes.facts.get("options", self.options)
        self.tools = notes.facts.get("tools", self.tools)
        for node in notes.nodes:
            self.graph.add(node, self._answers)
            self._ahead.discard(-1 if node.q is None else node.q)
        if notes.leaf is not msgspec.UNSET:
            self.graph.move(notes.leaf)
        if notes.settled is not None:
            self.turns.append(notes.settled)
            for input_id in (notes.settled.input, *notes.settled.taken):
                self._receipts[input_id] = notes.settled
            # not the tip: the next turn may already have added nodes
            self.graph.leaf = notes.settled.leaf
            self.ledger = self.spent.copy()
            self._answers = {q: self._answers[q] for q in self._ahead}

    def settled(self, input_id: str) -> SettledTurn | None:
        """The receipt of the turn that handled this input."""
        return self._receipts.get(input_id)

    @property
    def listens(self) -> bool:
        """Whether it is a conversation: its program takes inputs, or has added nodes."""
        return bool(self.graph.nodes) or any(
            query.kind is Kind.SIGNAL and query.name == INPUT for query in self._asked.values()
        )

    def entered(self, input_id: str) -> bool:
        """Whether the model has received an input; false while it waits for the running turn."""
        return input_id in self._heard and self._heard[input_id] not in self._ahead

    def _hear(self, q: int, said: JSON) -> None:
        """Records an input. An id that was used before means the same input again."""
        given = extract_inputs(said)
        fresh = [(input_id, content) for input_id, content in given if input_id not in self.inputs]
        for input_id, content in fresh:
            self.inputs[input_id] = content
            self._heard[input_id] = q
        # otherwise no node names the answer, because a part of it came before
        if fresh and len(fresh) == len(given):
            self._ahead.add(q)


def extract_inputs(said: JSON) -> list[tuple[str, JSON]]:
    """The inputs in the value of an `input` signal, each with its id; several may come together."""
    match said:
        case {"id": str(), "content": content, "parts": [*parts]} if all(map(_is_part, parts)):
            left = to_blocks(content)
            found = []
            for input_id, count in parts:
                found.append((input_id, compact_blocks(left[:count])))
                left = left[count:]
            return found
        case {"id": str(input_id), "content": content}:
            return [(input_id, content)]
    return []


def _is_part(part: JSON) -> bool:
    """Whether it is an id with its number of blocks."""
    match part:
        case [str(), int()]:
            return True
    return False


def get_ledger_source(query: Query) -> str:
    """The ledger source of an answer: what spent its tokens."""
    named = (query.options or {}).get("source")
    if named is not None:
        return str(named)
    return (
        TURN
        if query.kind is Kind.LLM
        else f"{'tool' if query.kind is Kind.CALL else query.kind}:{query.name}"
    )
