"""The journal: the deliveries to a program, and the queries it made after each.

Rules
  1. A delivery has a number, the program's time, and everything delivered *together*: answers, then
     timer firings, then a cancel. Replay delivers the same groups in the same order.
  2. Replay compares the queries of the program with the recorded ones. The shape (key, kind,
     schema) must match, otherwise `Diverged` is raised. A changed wording is noted, and the
     recorded answer is used.
  3. A `retry` delivery delivers nothing: its reply replaces the failure before it.
  4. Queries made in the same step in which the program ended were never sent, and are not
     recorded.
  5. A new budget holds from the delivery that has it. A `retry` has the budget with which the
     replaced delivery is repeated.
  6. A `restart` begins the program again: replay starts after the last restart and needs no earlier
     delivery.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, Final
from zlib import crc32

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON, is_same_json
from everhold.core.graph import Node
from everhold.core.metrics import Metrics
from everhold.core.progress import LogEntry, Progress
from everhold.core.query import Query, QueryAnswer, Usage, has_new_wording, is_unnoticed
from everhold.core.status import Outcome, Raised
from everhold.core.turn import SettledTurn
from everhold.errors import Diverged, Spinning


class Restart(msgspec.Struct, omit_defaults=True, kw_only=True, frozen=True):
    """The program begins again in its session: its new arguments, and what it keeps from before."""

    args: dict[str, JSON]
    count: int  # the number of restarts, this one included
    q: int  # the number of its next query
    metrics: Metrics
    spent: Usage | None = None


class DeliveryNotes(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The parts of a delivery besides answers and queries; most deliveries have none."""

    fired: bool = False  # the timers due by its time were fired
    cancel: str | None = None
    retry: bool = False
    withdrawn: list[int] = []
    log: list[LogEntry] = []
    progress: Progress | None = None
    record: dict[str, JSON] = {}
    versions: dict[str, int] = {}
    outcome: Outcome | None = None
    nodes: list[Node] = []  # nodes added to the conversation
    leaf: str | msgspec.UnsetType | None = msgspec.UNSET  # the new leaf, if it was moved
    settled: SettledTurn | None = None  # the turn that ended here
    facts: dict[str, JSON] = {}  # facts that hold from here on: see `AgentContext`
    restart: Restart | None = None  # the program begins again with the next delivery
    by: dict[str, JSON] | None = None  # who cancelled, retried or changed the budget
    budget: Budget | None = None  # the limits from here on, if they changed


_RESTARTS: Final = "a restart"
_DESCRIPTIONS: Final = frozenset({"title", "description", "examples", "$comment"})  # for people
_VALUES: Final = frozenset({"const", "enum", "default"})  # not schemas themselves


class Delivery(msgspec.Struct, omit_defaults=True, gc=False):
    """One record of the journal: answers delivered together, and the queries made next."""

    n: int
    at: float
    answers: list[QueryAnswer] = []
    asked: list[Query] = []
    notes: DeliveryNotes | None = None


class ProgramReply(msgspec.Struct):
    """What the program did with a delivery: its queries, its next timer, or its outcome."""

    asked: list[Query]
    withdrawn: list[int]
    due: float | None
    outcome: Outcome | None
    notes: DeliveryNotes | None  # log, progress, record, versions


class AskedQuery(msgspec.Struct, frozen=True):
    """An open query, with the delivery that recorded it."""

    query: Query
    n: int
    at: float


_text = msgspec.json.Encoder().encode
_numbers = Struct("<qd").pack
_answers = msgspec.json.Decoder(list[QueryAnswer])
_asked = msgspec.json.Decoder(list[Query])
_notes = msgspec.json.Decoder(DeliveryNotes)
_all_answers = msgspec.json.Decoder(list[list[QueryAnswer]]).decode
_all_asked = msgspec.json.Decoder(list[list[Query]]).decode


def encode_delivery(delivery: Delivery) -> tuple[bytes, bytes, bytes | None]:
    """The three texts of a delivery, in UTF-8: answers, asked, notes."""
    notes = delivery.notes
    return _text(delivery.answers), _text(delivery.asked), None if notes is None else _text(notes)


def checksum_delivery(n: int, at: float, answers: bytes, asked: bytes, notes: bytes | None) -> int:
    """A checksum of a stored delivery, so that a damaged one is never used as an answer."""
    found = crc32(asked, crc32(answers, crc32(_numbers(n, at))))
    return found if notes is None else crc32(notes, found)


def decode_delivery(
    n: int, at: float, answers: str | bytes, asked: str | bytes, notes: str | bytes | None
) -> Delivery:
    return Delivery(
        n,
        at,
        _answers.decode(answers) if len(answers) > 2 else [],
        _asked.decode(asked) if len(asked) > 2 else [],
        None if notes is None else _notes.decode(notes),
    )


def decode_deliveries(rows: list[tuple[Any, ...]]) -> list[Delivery]:
    """Decodes the rows of a journal; columns after the notes are ignored."""
    # One call of the decoder for all rows is cheaper than one for each.
    answers = _all_answers(b"[%b]" % b",".join([row[2] for row in rows]))
    asked = _all_asked(b"[%b]" % b",".join([row[3] for row in rows]))
    return [
        Delivery(row[0], row[1], given, said, None if row[4] is None else _notes.decode(row[4]))
        for row, given, said in zip(rows, answers, asked, strict=True)
    ]


def fold_delivery(opened: dict[int, AskedQuery], delivery: Delivery) -> None:
    """Updates the open queries with one more delivery."""
    for answer in delivery.answers:
        opened.pop(answer.q, None)
    notes = delivery.notes
    if notes is not None:
        for q in notes.withdrawn:
            opened.pop(q, None)
        if notes.outcome is not None:
            opened.clear()
    for query in delivery.asked:
        opened[query.q] = AskedQuery(query, delivery.n, delivery.at)


def find_open_queries(deliveries: Iterable[Delivery]) -> dict[int, AskedQuery]:
    """The queries that are open after these deliveries, oldest first."""
    opened: dict[int, AskedQuery] = {}
    for delivery in deliveries:
        fold_delivery(opened, delivery)
    return opened


def find_first_open_delivery(opened: dict[int, AskedQuery], n: int) -> int:
    """The earliest delivery that has an open query; n + 1 if there is none."""
    for first in opened.values():
        return first.n
    return n + 1


def get_restart(delivery: Delivery) -> Restart | None:
    """The restart after this delivery, if there is one."""
    return None if delivery.notes is None else delivery.notes.restart


def get_new_budget(delivery: Delivery) -> Budget | None:
    """The budget that changed with this delivery, if it did."""
    return None if delivery.notes is None else delivery.notes.budget


def split_at_last_restart(deliveries: list[Delivery]) -> tuple[Delivery | None, list[Delivery]]:
    """The delivery of the last restart, if there was one, and the deliveries after it."""
    for after, delivery in enumerate(reversed(deliveries)):
        notes = delivery.notes
        if notes is not None and notes.restart is not None:
            return delivery, deliveries[len(deliveries) - after :]
    return None, deliveries


class ExpectedReply(msgspec.Struct):
    """One delivery for replay, and the delivery whose recorded reply it must produce."""

    given: Delivery
    reply: Delivery

    @property
    def budget(self) -> Budget | None:
        """The budget that the program gets with the delivery, if it changed."""
        return get_new_budget(self.reply)


def pair_replies(deliveries: list[Delivery]) -> Iterator[ExpectedReply]:
    """Pairs each delivery with its final reply: its own, or that of the last retry after it."""
    place = 0
    while place < len(deliveries):
        expected, place = pair_reply_at(deliveries, place)
        yield expected


def pair_reply_at(deliveries: list[Delivery], place: int) -> tuple[ExpectedReply, int]:
    """The delivery at an index with its final reply, and the index of the next delivery."""
    given = reply = deliveries[place]
    place += 1
    while place < len(deliveries) and _is_retry(deliveries[place]):
        reply = deliveries[place]
        place += 1
    return ExpectedReply(given, reply), place


def find_next_noted(deliveries: list[Delivery], place: int) -> int:
    """The index of the first delivery, from this one on, that has notes or a retry after it."""
    for found in range(place, len(deliveries)):
        if deliveries[found].notes is not None:
            return found - 1 if found > place and _is_retry(deliveries[found]) else found
    return len(deliveries)


def _is_retry(delivery: Delivery) -> bool:
    return delivery.notes is not None and delivery.notes.retry


def compare_reply(
    expected: ExpectedReply, reply: ProgramReply, known: int, strict: bool
) -> list[int]:
    """Returns the queries whose wording changed; raises `Diverged` if their shape did.

    `known` is the number of earlier queries: a retry lists those that are still open again.
    """
    recorded = expected.reply
    step = expected.given.n
    outcome = recorded.notes.outcome if recorded.notes is not None else None
    again = reply.notes is not None and reply.notes.restart is not None
    if again or get_restart(recorded) is not None:
        _compare_restarts(step, recorded, outcome, reply, again)
        return []
    if outcome is not None or reply.outcome is not None:
        _compare_ends(step, recorded, outcome, reply)
        return []
    asked = recorded.asked
    if asked and asked[0].q < known:
        asked = [query for query in asked if query.q >= known]
    changed: list[int] = []
    if len(asked) != len(reply.asked):
        _raise_first_difference(step, asked, reply.asked)
    for old, new in zip(asked, reply.asked, strict=True):
        if old != new:
            if _other_shape(old, new):
                raise Diverged(step, describe_query(old), describe_query(new))
            if has_new_wording(old, new):
                if strict:
                    raise Diverged(
                        step,
                        describe_query(old),
                        describe_query(new) + " with another wording (strict)",
                    )
                changed.append(old.q)
    return changed


def _compare_ends(
    step: int, recorded: Delivery, outcome: Outcome | None, reply: ProgramReply
) -> None:
    if outcome is None:
        raise Diverged(step, _all(recorded.asked), describe_outcome(reply.outcome))
    if reply.outcome is None:
        raise Diverged(step, describe_outcome(outcome), _all(reply.asked))
    if type(outcome) is not type(reply.outcome):
        raise Diverged(step, describe_outcome(outcome), describe_outcome(reply.outcome))


def _compare_restarts(
    step: int, recorded: Delivery, outcome: Outcome | None, reply: ProgramReply, again: bool
) -> None:
    """Raises `Diverged` unless the program restarts both times, or restarts where it was recorded
    to spin (an endless chain of restarts is recorded as a failure).
    """
    if again and (
        get_restart(recorded) is not None or getattr(outcome, "kind", "") == Spinning.code
    ):
        return
    asked = _all(reply.asked) if reply.outcome is None else describe_outcome(reply.outcome)
    was = _all(recorded.asked) if outcome is None else describe_outcome(outcome)
    raise Diverged(step, was if again else _RESTARTS, _RESTARTS if again else asked)


def _raise_first_difference(step: int, recorded: list[Query], asked: list[Query]) -> None:
    """Raises `Diverged` for two lists of different length, with the first difference."""
    for old, new in zip(recorded, asked, strict=False):
        if _other_shape(old, new):
            raise Diverged(step, describe_query(old), describe_query(new))
    shorter = min(len(recorded), len(asked))
    raise Diverged(step, _all(recorded[shorter:]), _all(asked[shorter:]))


def _other_shape(old: Query, new: Query) -> bool:
    if old.key != new.key or old.kind != new.kind:
        return True
    return old.schema != new.schema and not is_same_json(_bare(old.schema), _bare(new.schema))


def _bare(schema: JSON) -> JSON:
    """A schema without its descriptions: they are wording, not shape."""
    if isinstance(schema, list):
        return [_bare(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: part if name in _VALUES else _bare(part)
        for name, part in schema.items()
        if name not in _DESCRIPTIONS or isinstance(part, dict)
    }


def _all(queries: list[Query]) -> str:
    if not queries:
        return "no question here"
    return describe_query(queries[0]) + (
        f" and {len(queries) - 1} more" if len(queries) > 1 else ""
    )


def describe_query(query: Query) -> str:
    """A query in one line, for errors and listings."""
    words = query.prompt or query.name
    if not words and query.messages:
        words = f"{len(query.messages)} messages"
    shown = words if len(words) <= 60 else words[:57] + "…"
    shape = (
        f" returning {query.schema.get('title') or query.schema.get('type') or 'a value'}"
        if query.schema
        else ""
    )
    return f"{query.kind} {shown!r} at {query.key}{shape}"


def describe_outcome(outcome: Any) -> str:
    """An outcome in a few words."""
    if isinstance(outcome, Raised):
        return f"the end, with an error: {outcome.error:.200}"
    return {"Returned": "the end, with a value", "Stopped": "a cancel"}.get(
        type(outcome).__name__, "no end"
    )


def is_asking(opened: Mapping[int, AskedQuery], working: Collection[int]) -> bool:
    """Whether a question without a mark is open that belongs in the inbox and has no row there."""
    if len(working) >= len(opened):
        return False
    return any(is_unnoticed(entry.query) for q, entry in opened.items() if q not in working)
