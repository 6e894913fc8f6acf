"""A session in memory: its execution, and what is known of it since the last commit.

A `LiveSession` is a cache. Everything in it can be made again from the store: `rebuild_session`
replays the journal, hands over the same deliveries in the same order, and compares what the program
asks with what is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from heapq import heappop, heappush
from typing import Any, Final, cast

import msgspec

from everhold.core.codec import JSON, to_plain
from everhold.core.journal import (
    AskedQuery,
    Delivery,
    ExpectedReply,
    ProgramReply,
    Restart,
    compare_reply,
    find_next_noted,
    fold_delivery,
    get_restart,
    pair_replies,
    pair_reply_at,
    split_at_last_restart,
)
from everhold.core.ledger import Ledger
from everhold.core.metrics import Metrics
from everhold.core.query import INNER, KINDS, MODEL_KINDS, NOTICED, Kind, Query, QueryAnswer
from everhold.core.session import WORKERS, Birth, Head, SessionId
from everhold.core.usage import TokenCost
from everhold.engine.intake_messages import apply_keep_to_input
from everhold.ports.program import (
    Execution,
    OutOfProcessExecution,
    ProgramHost,
    RestartableExecution,
)
from everhold.ports.store import Letter, SessionRecord

_NONE: Final[frozenset[int]] = frozenset()
_NO_VERSIONS: Final[dict[str, int]] = {}
#: Deliveries that are replayed before the loop is given a turn.
REPLAY_BATCH: Final = 256


class SessionLock(asyncio.Lock):
    """The right to move a session, one at a time."""

    def take(self) -> bool:
        """Take it without waiting; False if somebody has it or waits for it."""
        if self._locked or self._waiters:
            return False
        self._locked: bool = True
        return True

    def release(self) -> None:
        """Give it back."""
        if self._waiters:
            super().release()
        else:
            self._locked = False


class LiveSession:
    __slots__ = (
        "before",
        "birth",
        "execution",
        "expiries",
        "expiring",
        "head",
        "id",
        "inner",
        "letters",
        "lock",
        "noticed",
        "opened",
        "others",
        "outdated",
        "record",
        "reworded",
        "stale",
        "timer",
        "turns",
        "used_at",
        "working",
    )

    def __init__(self, birth: Birth, head: Head, execution: Execution) -> None:
        self.id = birth.id
        self.birth = birth
        self.head = head
        self.execution = execution
        self.lock = SessionLock()
        self.opened: dict[int, AskedQuery] = {}
        self.expiring: dict[int, AskedQuery] = {}  # those of them that expire
        self.expiries: list[tuple[float, int]] = []  # when, as a heap; some of them are gone
        self.inner: set[int] = set()  # those that nobody outside can ever answer
        self.noticed: set[int] = set()  # those with a row in the inbox
        self.working: dict[int, str] = {}  # those somebody works on: the worker
        # open queries of a life before: their children are born, their effects started
        self.before: Set[int] = _NONE
        self.letters: list[Letter] = []
        self.timer: float | None = None  # the program's earliest timer
        self.record: dict[str, Any] = {}
        self.reworded: list[int] = []
        self.turns = 0  # of an agent: how many have settled
        self.stale = False
        self.others: list[SessionId] = []  # sessions to which its last move delivered something
        self.outdated = False  # whether something was recorded for it that it does not know of
        self.used_at = 0.0

    def fold(self, delivery: Delivery) -> None:
        """Take one more delivery into account."""
        opened = self.opened
        notes = delivery.notes
        fold_delivery(opened, delivery)
        if self.expiring or self.inner:
            self._leave([answer.q for answer in delivery.answers])
            if notes is not None:
                self._leave(
                    notes.withdrawn if notes.outcome is None else [*self.expiring, *self.inner]
                )
        for query in delivery.asked:
            if query.q in opened:
                if query.expires_at is not None:
                    self.expiring[query.q] = opened[query.q]
                    heappush(self.expiries, (query.expires_at, query.q))
                if query.kind in INNER:
                    self.inner.add(query.q)
        if notes is not None:
            self.record.update(notes.record)
            if notes.settled is not None:
                self.turns = notes.settled.turn

    def shut(self) -> None:
        """Take nothing for open: what is follows anew."""
        self.opened.clear()
        self.expiring.clear()
        self.inner.clear()

    def _leave(self, gone: list[int]) -> None:
        for q in gone:
            self.expiring.pop(q, None)
            self.inner.discard(q)

    def due(self) -> float | None:
        """The moment at which the session moves by itself: a timer, or the expiry of a query."""
        expiries = self.expiries
        while expiries and expiries[0][1] not in self.expiring:
            heappop(expiries)
        if not expiries or (self.timer is not None and self.timer <= expiries[0][0]):
            return self.timer
        return expiries[0][0]

    def remaining(self) -> int:
        """How many open queries somebody outside can answer now."""
        return len(self.opened) - len(self.working) - len(self.inner)

    def kept(self, answers: list[QueryAnswer], kind: Kind | None = None) -> list[QueryAnswer]:
        """What somebody outside answered, or sent, as the program wants it written down."""
        keep = self.execution.keep
        if keep is None:
            return answers
        return [_written(answer, keep, kind or self._kind(answer.q)) for answer in answers]

    def _kind(self, q: int) -> Kind:
        """What a query asks for; one that is not open is taken for words, to compare an answer
        given twice.
        """
        return self.opened[q].query.kind if q in self.opened else Kind.INPUT

    def drop(self) -> None:
        """Forget the execution; whoever waits for the lock will see that it is stale."""
        self.stale = True
        self.execution.drop()


class NoExecution:
    """Stands in for the execution of a program that is not here; it knows what the answers cost,
    for a parent.
    """

    def __init__(self, deliveries: Sequence[Delivery] = ()) -> None:
        self.spent = Ledger()
        for delivery in deliveries:
            for answer in delivery.answers:
                self.spent.add("", answer.usage)

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


def _written(answer: QueryAnswer, keep: Callable[[JSON], JSON], kind: Kind) -> QueryAnswer:
    if kind is Kind.SIGNAL and answer.error is None:
        return msgspec.structs.replace(answer, value=apply_keep_to_input(answer.value, keep))
    if not KINDS[kind].rewritten:
        return answer
    if answer.error is not None:
        words = str(keep(answer.error.get("message", "")))
        return msgspec.structs.replace(answer, error={**answer.error, "message": words})
    return msgspec.structs.replace(answer, value=to_plain(keep(answer.value), "the answer"))


def is_replayable(record: SessionRecord) -> bool:
    """Whether a record holds all that `rebuild_session` needs: its deliveries begin with the first
    one, or with a restart.
    """
    first = record.deliveries[0] if record.deliveries else None
    return record.head.n < 0 if first is None else first.n == 0 or get_restart(first) is not None


async def rebuild_session(
    record: SessionRecord, host: ProgramHost, *, strict: bool | None = None, recount: bool = False
) -> LiveSession:
    """A session back in memory. Raises `Diverged` if the program asks something else than it did.

    What the session cost is known from its head; it is counted again where only a part of it is
    rebuilt, or where a budget makes the program ask for it.
    """
    counting = recount or record.birth.budget is not None
    meter = Metrics() if counting else record.head.metrics
    restarted, deliveries = split_at_last_restart(record.deliveries)
    if restarted is not None and counting:
        meter = _restart(restarted).metrics.copy()
    execution = host.begin(record.birth, meter)
    if restarted is not None:
        restartable = cast(RestartableExecution, execution)
        execution = restartable.again(_restart(restarted), meter)
        meter.begun = restarted.n
    live = LiveSession(record.birth, record.head, execution)
    strictly = execution.program.strict if strict is None else strict
    replay = _Replay(live, meter if counting else None, strictly)
    if restarted is not None:
        replay.after(restarted)
    try:
        if execution.remote:
            await replay.there(deliveries)
        else:
            await replay.here(deliveries)
    except BaseException:
        execution.drop()
        raise
    live.head.metrics = meter
    live.letters = record.letters
    live.working = {effect.q: effect.worker for effect in record.effects}
    for q, entry in live.opened.items():
        query = entry.query
        if is_noticed(query.kind, query.to) or (query.kind is Kind.CALL and q not in live.working):
            live.noticed.add(q)
    return live


def _restart(delivery: Delivery) -> Restart:
    found = get_restart(delivery)
    assert found is not None
    return found


class _Replay:
    """Hands a live session its deliveries again. What it cost is counted where there is a meter."""

    def __init__(self, live: LiveSession, meter: Metrics | None, strict: bool) -> None:
        self._live = live
        self._meter = meter
        self._strict = strict
        self._known = 0  # queries asked so far

    def after(self, restarted: Delivery) -> None:
        """Begin where the program began again: what it asked and recorded before that is known."""
        self._known = _restart(restarted).q
        self._live.fold(Delivery(restarted.n, restarted.at, notes=restarted.notes))

    async def here(self, deliveries: list[Delivery]) -> None:
        place = self._part(deliveries, 0)
        while place < len(deliveries):
            await asyncio.sleep(0)
            place = self._part(deliveries, place)

    def _part(self, deliveries: list[Delivery], place: int) -> int:
        """Hand over some deliveries from `place` on; returns the place of the next."""
        execution = self._live.execution
        end = min(place + REPLAY_BATCH, len(deliveries))
        with execution.entered():
            execution.replaying = True
            while place < end:
                if self._meter is None:
                    place = self._follow(deliveries, place, end)
                    if place >= end:
                        break
                expected, place = pair_reply_at(deliveries, place)
                recorded = expected.reply.notes
                execution.recorded_versions = {} if recorded is None else recorded.versions
                execution.recorded = recorded
                self._count(expected.given)
                self._take(expected, execution.advance(*make_advance_args(expected.given)))
            execution.replaying = place < len(deliveries)
        return place

    def _follow(self, deliveries: list[Delivery], place: int, end: int) -> int:
        """Take deliveries that are nothing but answers and queries; returns the place of the first
        that is more.

        Mostly the program asks what is recorded, word for word. Then only the last of them counts.
        """
        live = self._live
        execution = self._live.execution
        end = min(find_next_noted(deliveries, place), end)
        execution.recorded_versions = _NO_VERSIONS
        execution.recorded = None
        while place < end:
            given = deliveries[place]
            place, reply = execution.follow(deliveries, place, end - 1)
            reached = deliveries[place]
            if given is not reached:
                before = deliveries[place - 1]
                self._known = before.asked[-1].q + 1
                live.fold(Delivery(before.n, before.at, given.answers, before.asked))
            if reply.asked != reached.asked or reply.outcome is not None or not reply.asked:
                self._take(ExpectedReply(reached, reached), reply)
            else:
                self._known = reached.asked[-1].q + 1
                live.timer = reply.due
                live.fold(reached)
            place += 1
        return place

    async def there(self, deliveries: list[Delivery]) -> None:
        execution = cast(OutOfProcessExecution, self._live.execution)
        steps = list(pair_replies(deliveries))
        replies = await execution.replay_there(
            [make_advance_args(expected.given) for expected in steps]
        )
        for expected, reply in zip(steps, replies, strict=False):  # one that ended early is shorter
            self._count(expected.given)
            self._take(expected, reply)

    def _count(self, given: Delivery) -> None:
        if self._meter is not None:
            fired = given.notes is not None and given.notes.fired
            count_delivered_answers(self._meter, self._live.opened, given.answers, fired=fired)

    def _take(self, expected: ExpectedReply, reply: ProgramReply) -> None:
        live = self._live
        given = expected.given
        recorded = expected.reply
        known = self._known
        changed = compare_reply(expected, reply, known, self._strict)
        if reply.asked:
            self._known = reply.asked[-1].q + 1
        if changed:
            live.reworded += changed
        if self._meter is not None:
            self._meter.paused(query for query in recorded.asked if query.q >= known)
        live.timer = reply.due
        live.fold(given if given is recorded else Delivery(given.n, given.at, given.answers))
        if given is not recorded:
            live.shut()  # a retry lists everything that is open again
            live.fold(recorded)


def make_advance_args(given: Delivery) -> tuple[int, float, list[QueryAnswer], bool, str | None]:
    """What `advance` takes of a delivery."""
    notes = given.notes
    if notes is None:
        return given.n, given.at, given.answers, False, None
    return given.n, given.at, given.answers, notes.fired, notes.cancel


async def advance_execution(
    execution: Any, n: int, at: float, answers: list[QueryAnswer], fired: bool, cancel: str | None
) -> ProgramReply:
    """Hand one delivery over, to an execution here or in another process."""
    if execution.remote:
        return await execution.advance_there(n, at, answers, fired, cancel)  # type: ignore[no-any-return]
    with execution.entered():
        return execution.advance(n, at, answers, fired, cancel)  # type: ignore[no-any-return]


def count_delivered_answers(
    meter: Metrics, opened: dict[int, AskedQuery], answers: list[QueryAnswer], *, fired: bool
) -> list[tuple[Query, QueryAnswer, TokenCost | None]]:
    """Count what is handed over; returns each query with its answer and what that cost."""
    told = []
    waited = fired
    for answer in answers:
        entry = opened.get(answer.q)
        if entry is not None:
            query = entry.query
            waited = waited or query.kind is not Kind.STATE
            told.append((query, answer, meter.answered(query, answer)))
    if waited:
        meter.resumed()
    return told


def is_parked(birth: Birth, opened: Mapping[int, AskedQuery], working: Collection[int]) -> bool:
    """Whether a question to a model is open that workers may answer, and no process works on it.

    Work is always on open queries, so the common case, where all are worked on, needs no search.
    """
    if birth.llm != WORKERS or len(working) >= len(opened):
        return False
    for q, entry in opened.items():
        if entry.query.kind in MODEL_KINDS and entry.query.to is None and q not in working:
            return True
    return False


def is_noticed(kind: str, to: str | None) -> bool:
    """Whether a query of this kind has a row in the inbox of its own."""
    return to is not None or kind in NOTICED
