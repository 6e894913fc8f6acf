"""A session in memory: its execution, its open queries and its head as of the last commit.

A `LiveSession` is a cache; `rebuild_session` restores it from the store. It replays the journal:
the same deliveries in the same order. It compares each query of the program with the recorded one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from heapq import heappop, heappush
from typing import Any, Final, cast

import msgspec

from everhold.core.budget import Budget, BudgetChange
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
from everhold.core.query import (
    INNER,
    KINDS,
    MODEL_KINDS,
    FailedAttempt,
    Kind,
    Query,
    QueryAnswer,
    is_noticed,
)
from everhold.core.session import WORKERS, Birth, Head, SessionId, get_budget
from everhold.core.usage import TokenCost
from everhold.engine.intake_messages import apply_keep_to_input
from everhold.exception_info import map_texts
from everhold.ports.program import (
    AdvanceArgs,
    Execution,
    OutOfProcessExecution,
    ProgramHost,
    RestartableExecution,
)
from everhold.ports.store import NO_WORKER, Letter, SessionRecord

_NONE: Final[frozenset[int]] = frozenset()
_NO_VERSIONS: Final[dict[str, int]] = {}
#: Deliveries that are replayed before other tasks of the event loop run.
REPLAY_BATCH: Final = 256


class SessionLock(asyncio.Lock):
    """Serializes the moves of a session in this process.

    Uncontended, it is taken and released without a coroutine. Both methods read the private fields
    of `asyncio.Lock`, so that `async with` works on the same lock.
    """

    def take(self) -> bool:
        """Take the lock without waiting. False if it is held or another task waits for it."""
        if self._locked or self._waiters:
            return False
        self._locked: bool = True
        return True

    def release(self) -> None:
        """Release the lock; the first waiting task gets it."""
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
        "facts",
        "failed",
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
        self.expiring: dict[int, AskedQuery] = {}  # open queries that expire
        self.expiries: list[
            tuple[float, int]
        ] = []  # a heap of their times; may hold closed queries
        self.inner: set[int] = set()  # open queries that only the engine answers
        self.noticed: set[int] = set()  # open queries with an inbox row
        self.working: dict[int, str] = {}  # open queries with a mark, and its worker
        self.failed: dict[int, FailedAttempt] = {}  # the last failed attempts of these
        # queries asked before a retry or in the origin of a fork: their effects may have started
        self.before: Set[int] = _NONE
        self.letters: list[Letter] = []
        self.timer: float | None = None  # the program's earliest timer
        self.record: dict[str, Any] = {}
        self.facts: dict[str, JSON] = {}  # the program's recorded facts: see `AgentContext.fact`
        self.reworded: list[int] = []
        self.turns = 0  # settled turns of an agent
        self.stale = False
        self.others: list[SessionId] = []  # sessions that got a letter in its last move
        self.outdated = False  # the store has something newer than this
        self.used_at = 0.0

    def fold(self, delivery: Delivery) -> None:
        """Update the open queries with one more delivery."""
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
            if notes.facts:
                self.facts.update(notes.facts)
            if notes.settled is not None:
                self.turns = notes.settled.turn

    def shut(self) -> None:
        """Forget the open queries. The next delivery lists them all again."""
        self.opened.clear()
        self.expiring.clear()
        self.inner.clear()

    def _leave(self, gone: list[int]) -> None:
        for q in gone:
            self.expiring.pop(q, None)
            self.inner.discard(q)

    def deadline(self) -> float | None:
        """When the next timer or expiry of the session is due."""
        expiries = self.expiries
        while expiries and expiries[0][1] not in self.expiring:
            heappop(expiries)
        if not expiries or (self.timer is not None and self.timer <= expiries[0][0]):
            return self.timer
        return expiries[0][0]

    def due(self) -> float | None:
        """When the session has to be moved: its next timer, expiry or attempt."""
        due = self.deadline()
        for q, failed in self.failed.items():
            if self.working.get(q) == NO_WORKER and (due is None or failed.next_at < due):
                due = failed.next_at
        return due

    def waits_for_attempt(self, q: int) -> bool:
        """Whether a query waits for its next attempt, which no process has started."""
        return q in self.failed and self.working.get(q) == NO_WORKER

    def works(self) -> bool:
        """Whether work of the session is in progress: a mark that is not a wait for an attempt."""
        return any(not self.waits_for_attempt(q) for q in self.working)

    def remaining(self) -> int:
        """How many open queries wait for an answer from outside."""
        return len(self.opened) - len(self.working) - len(self.inner)

    def kept(self, answers: list[QueryAnswer], kind: Kind | None = None) -> list[QueryAnswer]:
        """Answers from outside, as the program's `keep` rewrites them for the journal."""
        keep = self.execution.keep
        if keep is None:
            return answers
        return [_written(answer, keep, kind or self._kind(answer.q)) for answer in answers]

    def _kind(self, q: int) -> Kind:
        """The kind of a query. One that is not open counts as `input`: its answer is only compared
        with the recorded one.
        """
        return self.opened[q].query.kind if q in self.opened else Kind.INPUT

    def drop(self) -> None:
        """Discard the execution. Tasks that wait for the lock see `stale`."""
        self.stale = True
        self.execution.drop()


class NoExecution:
    """Replaces the execution of a program that is not here. It has the usage of the answers, which
    a parent needs.
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
    return apply_keep_to_answer(answer, keep)


def apply_keep_to_answer(answer: QueryAnswer, keep: Callable[[JSON], JSON]) -> QueryAnswer:
    """An answer with its value, or the texts of its error, as `keep` rewrites them."""
    if answer.error is None:
        return msgspec.structs.replace(answer, value=to_plain(keep(answer.value), "the answer"))
    exception = answer.exception
    return msgspec.structs.replace(
        answer,
        error={**answer.error, "message": str(keep(answer.error.get("message", "")))},
        exception=None if exception is None else map_texts(exception, lambda text: str(keep(text))),
    )


def is_replayable(record: SessionRecord) -> bool:
    """Whether `rebuild_session` can use a record: its deliveries begin with step 0 or a restart."""
    first = record.deliveries[0] if record.deliveries else None
    return record.head.n < 0 if first is None else first.n == 0 or get_restart(first) is not None


async def rebuild_session(
    record: SessionRecord, host: ProgramHost, *, strict: bool | None = None, recount: bool = False
) -> LiveSession:
    """Rebuild a session in memory from its record. Raises `Diverged` if the program asks something
    else than recorded.

    Usage is read from the head. It is counted again if only a part of the session is rebuilt, or if
    the session has a budget.
    """
    counting = recount or get_budget(record.birth, record.head.metrics) is not None
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
    meter.blocked = record.head.metrics.blocked
    meter.progress = record.head.metrics.progress or meter.progress
    live.head.metrics = meter
    live.letters = record.letters
    live.working = {effect.q: effect.worker for effect in record.effects}
    live.failed = {one.q: one.failed for one in record.effects if one.failed is not None}
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
    """Replays deliveries in a live session. Counts usage if it has a meter."""

    def __init__(self, live: LiveSession, meter: Metrics | None, strict: bool) -> None:
        self._live = live
        self._meter = meter
        self._strict = strict
        self._known = 0  # queries asked so far

    def after(self, restarted: Delivery) -> None:
        """Begin at a restart. It holds everything that the program needs from before."""
        self._known = _restart(restarted).q
        self._live.fold(Delivery(restarted.n, restarted.at, notes=restarted.notes))

    async def here(self, deliveries: list[Delivery]) -> None:
        place = self._part(deliveries, 0)
        while place < len(deliveries):
            await asyncio.sleep(0)
            place = self._part(deliveries, place)

    def _part(self, deliveries: list[Delivery], place: int) -> int:
        """Replay a batch of deliveries from `place` on. Returns the place of the next one."""
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
                recorded = expected.reply
                notes = recorded.notes
                execution.recorded_versions = {} if notes is None else notes.versions
                execution.recorded = recorded
                self._count(expected)
                self._take(expected, execution.advance(*make_advance_args(expected)))
            execution.replaying = place < len(deliveries)
        return place

    def _follow(self, deliveries: list[Delivery], place: int, end: int) -> int:
        """Replay deliveries without notes. Returns the place of the first one with notes.

        The fast path of replay: the execution compares the queries itself. It returns at the first
        difference, or after the last delivery.
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
        replies = await execution.replay_there([make_advance_args(expected) for expected in steps])
        for expected, reply in zip(
            steps, replies, strict=False
        ):  # a program that ended early gave fewer replies
            self._count(expected)
            self._take(expected, reply)

    def _count(self, expected: ExpectedReply) -> None:
        meter = self._meter
        if meter is not None:
            count_replayed_answers(meter, self._live.opened, expected)
            notes = expected.reply.notes
            if notes is not None and notes.progress is not None:
                meter.progress = notes.progress.shorten()

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
            live.shut()  # a retry lists all open queries again
            live.fold(recorded)


def change_budget(
    live: LiveSession, *changes: BudgetChange, since: Budget | None = None
) -> Budget | None:
    """The session's budget after these changes; None if it stays the same.

    `since` is a newer budget than that of the session in memory.
    """
    before = since or live.execution.budget
    budget = before or Budget()
    for change in changes:
        budget = budget.changed(change)
    return None if budget == (before or Budget()) else budget


def make_advance_args(expected: ExpectedReply) -> AdvanceArgs:
    """The arguments of `Execution.advance` for a recorded delivery."""
    given = expected.given
    notes = given.notes
    if notes is None:
        return given.n, given.at, given.answers, False, None, expected.budget
    return given.n, given.at, given.answers, notes.fired, notes.cancel, expected.budget


async def advance_execution(
    execution: Any,
    n: int,
    at: float,
    answers: list[QueryAnswer],
    fired: bool,
    cancel: str | None,
    budget: Budget | None = None,
) -> ProgramReply:
    """Deliver to an execution in this process or in another one."""
    if execution.remote:
        return await execution.advance_there(n, at, answers, fired, cancel, budget)  # type: ignore[no-any-return]
    with execution.entered():
        return execution.advance(n, at, answers, fired, cancel, budget)  # type: ignore[no-any-return]


def count_delivered_answers(
    meter: Metrics, opened: dict[int, AskedQuery], answers: list[QueryAnswer], *, fired: bool
) -> list[tuple[Query, QueryAnswer, TokenCost | None]]:
    """Count the usage of answers. Returns each query with its answer and cost."""
    counted = []
    waited = fired
    for answer in answers:
        entry = opened.get(answer.q)
        if entry is not None:
            query = entry.query
            waited = waited or query.kind is not Kind.STATE
            counted.append((query, answer, meter.answered(query, answer)))
    if waited:
        meter.resumed()
    return counted


def count_replayed_answers(
    meter: Metrics, opened: dict[int, AskedQuery], expected: ExpectedReply
) -> None:
    """Count the usage of recorded answers, as `count_delivered_answers` did when they arrived, and
    apply a new budget.
    """
    given = expected.given
    meter.budget = expected.budget or meter.budget
    fired = given.notes is not None and given.notes.fired
    rounds = meter.rounds
    count_delivered_answers(meter, opened, given.answers, fired=fired)
    answered = {answer.q for answer in given.answers}
    if is_partly_answered(expected.reply, opened.keys() - answered):
        meter.rounds = rounds


def is_partly_answered(delivery: Delivery, opened: Collection[int]) -> bool:
    """Whether the program still waits for the rest of several answers, and did nothing else.

    `opened` are the queries that are open after the delivery. Such answers are no round of their
    own.
    """
    if delivery.asked or not opened:
        return False
    notes = delivery.notes
    return notes is None or not (
        notes.fired
        or notes.withdrawn
        or notes.outcome is not None
        or notes.settled is not None
        or notes.restart is not None
        or notes.cancel is not None
    )


def is_parked(birth: Birth, opened: Mapping[int, AskedQuery], working: Collection[int]) -> bool:
    """Whether a model question is open that workers may answer and that has no mark.

    Every mark is on an open query, so with as many marks as open queries there is nothing to
    search.
    """
    if birth.llm != WORKERS or len(working) >= len(opened):
        return False
    for q, entry in opened.items():
        if entry.query.kind in MODEL_KINDS and entry.query.to is None and q not in working:
            return True
    return False
