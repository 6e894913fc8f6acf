"""A conversation read from the journal of its session: the graph, the turns that settled, and what
they cost.

Anybody who has the deliveries can read it: the program that held the conversation is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from everhold.core.codec import JSON
from everhold.core.graph import Graph, compact_blocks, to_blocks
from everhold.core.journal import Delivery, pair_replies
from everhold.core.ledger import TURN, Ledger
from everhold.core.query import Kind, Query
from everhold.core.turn import SettledTurn


class Conversation:
    """What was said, turn by turn. `spent` includes what a turn under way has cost; `ledger` does
    not.
    """

    def __init__(self, deliveries: Iterable[Delivery] = ()) -> None:
        self.graph = Graph()
        self.turns: list[SettledTurn] = []
        self.options: dict[str, JSON] = {}  # that it was given when it began
        self.ledger = Ledger()
        self.spent = Ledger()
        self.inputs: dict[str, JSON] = {}  # what was said under which id
        self._receipts: dict[str, SettledTurn] = {}
        self._heard: dict[str, int] = {}  # which question heard an input
        self._ahead: set[int] = set()  # inputs that no node names yet: a turn may be under way
        self._asked: dict[int, Query] = {}
        self._answers: dict[int, JSON] = {}
        for expected in pair_replies(list(deliveries)):
            self.fold(expected.given, expected.reply)

    def fold(self, given: Delivery, reply: Delivery) -> None:
        """Take one more delivery into account, with the reply that stands."""
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
        for node in notes.nodes:
            self.graph.add(node, self._answers)
            self._ahead.discard(-1 if node.q is None else node.q)
        if notes.leaf is not msgspec.UNSET:
            self.graph.move(notes.leaf)
        if notes.settled is not None:
            self.turns.append(notes.settled)
            for input_id in (notes.settled.input, *notes.settled.taken):
                self._receipts[input_id] = notes.settled
            self.graph.leaf = notes.settled.leaf  # not the tip: the next turn may have begun
            self.ledger = self.spent.copy()
            self._answers = {q: self._answers[q] for q in self._ahead}

    def settled(self, input_id: str) -> SettledTurn | None:
        """The receipt of the turn that this input led to."""
        return self._receipts.get(input_id)

    def entered(self, input_id: str) -> bool:
        """Whether an input was said to the model, and does not wait for the turn under way to
        end.
        """
        return input_id in self._heard and self._heard[input_id] not in self._ahead

    def _hear(self, q: int, said: JSON) -> None:
        """Take note of an input. One whose id was used before is the same input again."""
        given = extract_inputs(said)
        fresh = [(input_id, content) for input_id, content in given if input_id not in self.inputs]
        for input_id, content in fresh:
            self.inputs[input_id] = content
            self._heard[input_id] = q
        # else no node names the answer: it was said in part before
        if fresh and len(fresh) == len(given):
            self._ahead.add(q)


def extract_inputs(said: JSON) -> list[tuple[str, JSON]]:
    """The inputs in what was said to a conversation, each with its id: one, or several that came
    together.
    """
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
    """Whether it is an id, and how many blocks were said under it."""
    match part:
        case [str(), int()]:
            return True
    return False


def get_ledger_source(query: Query) -> str:
    """Who spent the tokens of an answer: what they are entered under."""
    named = (query.options or {}).get("source")
    if named is not None:
        return str(named)
    return (
        TURN
        if query.kind is Kind.LLM
        else f"{'tool' if query.kind is Kind.CALL else query.kind}:{query.name}"
    )
