"""The verbs of sessions, for every front: start, answer, signal, cancel, set_budget, retry, fork,
delete.

A verb finds the session in memory or rebuilds it, makes one step, and returns the new status. If
this process does not have the program, the verb stores the input (`accept`). A process that has the
program delivers it with a move (`move`).

A verb that has started completes even if its caller is cancelled: see `shielded`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from everhold.core.budget import Budget, BudgetChange
from everhold.core.codec import JSON, is_same_json, to_plain
from everhold.core.intake import (
    INPUT,
    MAX_INPUT_BYTES,
    IntakeItem,
    ItemKind,
    Receipt,
    require_input_fits,
)
from everhold.core.journal import AskedQuery, Delivery, find_open_queries, get_new_budget
from everhold.core.lease import TTL, LeaseTimings
from everhold.core.metrics import Metrics
from everhold.core.observer import Observer, Observers
from everhold.core.query import (
    SENT_BY_NAME,
    FailedAttempt,
    Kind,
    Query,
    QueryAnswer,
    Usage,
    parse_query_number,
)
from everhold.core.retry import Retry
from everhold.core.session import (
    WORKERS,
    Birth,
    Head,
    Seed,
    SessionEvent,
    SessionId,
    SessionState,
    apply_event,
    get_budget,
)
from everhold.core.status import Accepted, Finished, OpenQuery, Paused, Running, Status, Stopped
from everhold.engine import session_view
from everhold.engine.accept import (
    BUDGET_LETTER,
    Acceptance,
    Signal,
    make_tombstone_marker,
)
from everhold.engine.answer_check import (
    AnswerCheck,
    GivenAnswer,
    list_answerable,
    settle_late_answer,
)
from everhold.engine.answer_policy import AnswerPolicy
from everhold.engine.children import child_id, is_process_query, load_child_answer
from everhold.engine.effects import (
    CallSubstitute,
    EffectDispatcher,
    ServicesFactory,
    fit_answer_value,
)
from everhold.engine.journal_reader import find_last_handed
from everhold.engine.leases import Leases
from everhold.engine.live_session import (
    LiveSession,
    NoExecution,
    change_budget,
    rebuild_session,
)
from everhold.engine.liveness import Presence, get_machine_id, make_lease_owner
from everhold.engine.move import PROGRAM_ABSENT_ERRORS, SessionMoves
from everhold.engine.reconcile import Reconciler
from everhold.engine.serving import Serving
from everhold.engine.session_cache import SessionCache
from everhold.engine.session_view import compute_session_stats, make_finished_status
from everhold.engine.shielded import ShieldedCalls
from everhold.engine.step import Stepper, StepResult
from everhold.engine.unknown_effects import apply_rerun_decision
from everhold.errors import (
    BadStep,
    EverholdError,
    IllegalMove,
    KeyConflict,
    KeyDeleted,
    NoOpenQuery,
    Outdated,
    Overtaken,
    SessionEnded,
    StillNeeded,
    UnknownQuery,
    UnknownSession,
)
from everhold.ports.answerer import WAIT, Answerer
from everhold.ports.mover import Mover, Next
from everhold.ports.program import Clock, ProgramHost
from everhold.ports.program_identity import is_same_program
from everhold.ports.store import (
    DELETED_KEYS,
    FROM_OPEN,
    FROM_RESTART,
    SessionRecord,
    Store,
    WorkerRecord,
)
from everhold.ports.value_verbs import ValueVerbs

log = logging.getLogger("everhold")
T = TypeVar("T")

#: Seconds that a closing process tries to release its leases while the store is unavailable.
CLOSE_TIMEOUT: Final = 5.0
#: Plain steps in a row after which other tasks of the event loop run.
PLAIN_STEPS_PER_LOOP_TURN: Final = 16
#: The same, where each step waits for the disk.
FSYNCED_STEPS_PER_LOOP_TURN: Final = 2


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an engine beside its store, programs and clock."""

    llm: str = WORKERS  # who answers model questions of sessions that this engine starts
    on_unavailable: str = WAIT  # what to do with model questions that no model here can answer
    observers: tuple[Observer, ...] = ()
    cache: int = 1000  # sessions held in memory
    idle: float = 3 * 3600.0  # seconds after which an idle session leaves memory
    ttl: float = TTL  # seconds that a lease lives
    max_input: int = MAX_INPUT_BYTES  # bytes of one input of a conversation
    retry: Retry | None = None  # the default of model questions and safe calls
    timeout: float | None = None  # seconds of one attempt, by default


class Engine:
    """Moves the sessions of one store in this process. It owns the parts it is made of."""

    def __init__(
        self,
        store: Store,
        host: ProgramHost,
        clock: Clock,
        answerers: Mapping[Kind, Answerer],
        mover: Mover,
        options: EngineOptions,
        *,
        services: ServicesFactory | None = None,
        substitute: CallSubstitute | None = None,
        verbs: Mapping[str, ValueVerbs] | None = None,
        refuse: Callable[[], None],
    ) -> None:
        worker = f"w-{secrets.token_hex(8)}"
        wakeup = asyncio.Event()
        unbegun: set[str] = set()
        self.store = store
        self.clock = clock
        self.host = host
        self.max_input = options.max_input  # bytes of one input of a conversation
        self.serving = Serving(mover)
        self.policy = AnswerPolicy(answerers, options.llm, self.serving, options.on_unavailable)
        self.presence = Presence(store, clock, worker, LeaseTimings(options.ttl))
        owner = make_lease_owner(WorkerRecord(worker, get_machine_id(), os.getpid()))
        self.leases = Leases(store, owner, clock, self.presence, self.serving)
        stepper = Stepper(store, clock, self.policy, self.presence, self.serving, verbs)
        observers = Observers(options.observers)
        self.sessions = SessionCache(
            store, host, stepper, observers, self, self.serving, wakeup, cache=options.cache
        )
        self.acceptance = Acceptance(self.sessions, clock)
        self.effects = EffectDispatcher(
            self.sessions,
            self.policy,
            self.presence,
            self.serving,
            clock,
            keep_outcome=self.acceptance.outcome,
            services=services,
            substitute=substitute,
            retry=options.retry,
            timeout=options.timeout,
        )
        self.moves = SessionMoves(
            self.sessions,
            self.effects,
            self.leases,
            self.presence,
            self.serving,
            clock,
            unbegun,
            options.max_input,
        )
        self.reconciler = Reconciler(
            self.sessions,
            self.effects,
            self.moves,
            self.leases,
            self.policy,
            self.presence,
            self.serving,
            clock,
            wakeup=wakeup,
            unbegun=unbegun,
            idle=options.idle,
        )
        self.shielded = ShieldedCalls(refuse, store.where)
        self._in_place = 0  # plain steps since other tasks ran
        fsynced = store.durability == "power"
        self._turns = FSYNCED_STEPS_PER_LOOP_TURN if fsynced else PLAIN_STEPS_PER_LOOP_TURN

    async def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work of another part to its end, even if its caller is cancelled. Then wake
        reconciliation.
        """

        async def whole() -> T:
            done = await work
            self.sessions.poke()
            return done

        return await self.shielded.run(whole())

    # ---- what follows from a step (`StepFollower`)

    def start_work(self, live: LiveSession, said: StepResult) -> None:
        """Start the work that a commit marked as started."""
        self.effects.start(live, said)

    def run_after_commit(self, session_id: str, effects: list[Callable[[], Any]]) -> None:
        """Run these functions after a commit, in order."""
        self.effects.later(session_id, effects)

    # ---- leaving

    def leave(self) -> None:
        """Start no new work. New queries are left for other processes."""
        self.serving.leave()

    async def release(self) -> None:
        """Release all leases and this process's worker row.

        If the store is unavailable, the leases expire by themselves.
        """
        self.serving.release()
        if not self.presence.withdraw():
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self.leases.leave()
                await self.presence.release()
        except (EverholdError, TimeoutError) as error:
            words = str(error) or "the store is unavailable"
            log.warning(
                "could not release the leases of this process; they will expire: %s",
                words,
            )

    # ---- start

    async def start(self, birth: Birth) -> Status:
        """Start a session. Its birth and its first pause are one commit."""
        self.policy.ask(birth)
        return await self.shielded.run(self._start(birth))

    async def accept(self, birth: Birth, signals: Sequence[Signal] = ()) -> Status:
        """Record a session, and the signals that it receives first, without loading its program. A
        process that has the program starts it.
        """
        await self.shielded.run(self.acceptance.start(birth, signals))
        return await self.status(birth.id)

    async def _start(self, birth: Birth) -> Status:
        async def attempt() -> Status:
            head = Head(0, 0, SessionState.RUNNING, -1, 0, None, birth.created_at, Metrics())
            live = LiveSession(birth, head, self.sessions.host.begin(birth, head.metrics))
            live.lock.take()  # free: no other task knows the session yet
            self.sessions.keep(live)
            try:
                return self._after(live, await self.sessions.step(live, [], birth=birth))
            except BaseException:
                self.sessions.drop(live)
                raise
            finally:
                live.lock.release()

        return await self.sessions.insisting(attempt)

    async def again(self, key: str, birth: Birth, *, renew: bool = False) -> SessionId | None:
        """The session that already has this key.

        Raises `KeyConflict` if it was started with another program or other arguments, and
        `KeyDeleted` if it was deleted, unless `renew` allows the key to be used again.
        """
        found = await self.store.find(key)
        if found is None:
            if not renew:
                await self.refuse_deleted(key)
            return None
        old = (await self.store.load(found, since=-1)).birth
        if not is_same_program(old.program, birth.program):
            raise KeyConflict(key, found, "program")
        if not is_same_json(old.args, birth.args):
            raise KeyConflict(key, found, "arguments")
        return found

    async def refuse_deleted(self, key: str) -> None:
        """Raise `KeyDeleted` if the session with this key was deleted and no session has it now."""
        was, _ = await self.store.value(DELETED_KEYS, key)
        if was is not None and await self.store.find(key) is None:
            raise KeyDeleted(key, str(was[0]))

    # ---- answer

    async def answer_open(self, asked: OpenQuery, value: Any, usage: Usage | None) -> Status:
        """Answer one query. A model's answer to a session in memory takes the fast path."""
        live = self.sessions.cached(asked.session_id)
        if live is not None:
            entry = live.opened.get(asked.query.q)
            if entry is not None and self._is_free(live, entry.query):
                answer = QueryAnswer(
                    entry.query.q, fit_answer_value(entry.query, value), None, usage
                )
                if live.lock.take():
                    done = self._plain(live, entry.query, answer)
                    if type(done) is Query:
                        self._in_place += 1
                        if self._in_place >= self._turns:
                            self._in_place = 0
                            await asyncio.sleep(0)  # let other tasks run
                        head = live.head
                        asked_next = (OpenQuery(live.id, done, head.updated_at),)
                        return Paused(live.id, asked_next, None, (), head.metrics.progress)
                    status = await self.shielded.run(self._finished(live, done))  # type: ignore[arg-type]
                    if status is not None:
                        return status
        return await self.answer(asked.session_id, [GivenAnswer(asked.id, value, None, usage)])

    def _plain(
        self, live: LiveSession, query: Query, answer: QueryAnswer
    ) -> Query | Coroutine[Any, Any, Query | StepResult]:
        """Make a plain step; the session's lock is held. Returns the next question if the step is
        committed, else a coroutine that finishes it.
        """
        sessions = self.sessions
        done: Query | Coroutine[Any, Any, Query | StepResult] | None = None
        try:
            if sessions.observed:
                done = sessions.step(live, [answer])
            else:
                done = sessions.stepper.plain(live, query, answer)
                if type(done) is Query:
                    sessions.after_plain(live, done)
        except Overtaken:
            sessions.drop(live)
            done = _overtaken(live)
        finally:
            if done is None or type(done) is Query:
                live.lock.release()
        return done

    async def _finished(
        self, live: LiveSession, step: Coroutine[Any, Any, Query | StepResult]
    ) -> Status | None:
        """Finish a step and release the session's lock. Returns None if another process committed
        first.
        """
        sessions = self.sessions
        try:
            done = await step
            if not sessions.observed:
                sessions.after_plain(live, done)
            if type(done) is Query:
                asked = (OpenQuery(live.id, done, live.head.updated_at),)
                return Paused(live.id, asked, progress=live.head.metrics.progress)
            return self._after(live, done)  # type: ignore[arg-type]
        except Overtaken:
            sessions.drop(live)
            return None
        finally:
            live.lock.release()

    def _is_free(self, live: LiveSession, query: Query) -> bool:
        """Whether the answer to this query may take the fast path."""
        head = live.head
        return (
            query.kind is Kind.LLM
            and len(live.opened) == 1
            and head.due_at is None
            and head.state is SessionState.PAUSED
            and not live.letters
            and not live.noticed  # the answer removes its inbox row
            and not live.stale
            and not live.execution.remote
            and live.execution.keep is None
        )

    async def answer(
        self, session_id: str, given: Sequence[GivenAnswer], by: dict[str, JSON] | None = None
    ) -> Status:
        """Deliver answers to the program and return the session's status."""
        return await self.shielded.run(self._answer(session_id, given, by))

    async def _answer(
        self, session_id: str, given: Sequence[GivenAnswer], by: dict[str, JSON] | None
    ) -> Status:
        async def act(live: LiveSession) -> Status:
            answers, late = map(
                live.kept,
                AnswerCheck(live.id, live.head, live.opened, live.working).check(given, by),
            )
            if late:
                record = await self.store.load(session_id)
                if record.head.revision != live.head.revision:
                    raise Overtaken(session_id, live.head.revision)
                for answer in late:
                    settle_late_answer(session_id, record.head, answer, record.deliveries)
                if not answers:
                    return self._standing(live)
            rerun = [a for a in answers if live.opened[a.q].query.kind is Kind.CALL]
            if rerun:
                return await self._decided(live, answers)
            return self._after(live, await self.sessions.step(live, answers))

        try:
            return await self._moving(session_id, act)
        except PROGRAM_ABSENT_ERRORS:
            pass
        except _Ended as ended:
            return self._settled(ended.record, given, by)
        try:
            return await self.acceptance.answers(session_id, given, by)
        except SessionEnded:  # another process ended it just now
            return self._settled(await self.store.load(session_id), given, by)

    def _settled(
        self, record: SessionRecord, given: Sequence[GivenAnswer], by: dict[str, JSON] | None
    ) -> Status:
        """The status of an ended session. Raises if an answer differs from the recorded one."""
        for answer in self._all_late(record, given, by):
            settle_late_answer(record.birth.id, record.head, answer, record.deliveries)
        return make_finished_status(record)

    async def _moving(self, session_id: str, act: Callable[[LiveSession], Awaitable[T]]) -> T:
        """Deliver everything accepted for a session, then act on it. Raises `_Ended` if it has
        ended.

        An error of `act` is raised only if the session in memory is current. Else the session is
        rebuilt and `act` runs again.
        """

        async def guarded(live: LiveSession) -> T:
            if not live.head.ended:
                await self.moves.deliver(live)
            if live.head.ended:
                whole = await self.store.load(session_id)
                if whole.head.ended:
                    raise _Ended(whole)
                raise Overtaken(session_id, live.head.revision)  # it was retried just now
            try:
                return await act(live)
            except Overtaken:
                raise
            except EverholdError:
                if not live.stale and await self._has_moved(live):
                    raise Overtaken(live.id, live.head.revision) from None
                raise

        return await self.sessions.on(session_id, guarded)

    async def _has_moved(self, live: LiveSession) -> bool:
        """Whether another process has moved a session since it was loaded here."""
        return (await self.store.load(live.id, since=FROM_OPEN)).head.revision != live.head.revision

    async def _decided(self, live: LiveSession, answers: list[QueryAnswer]) -> Status:
        """Apply the decisions of people about effects with an unknown outcome."""
        plain_ones: list[QueryAnswer] = []
        for answer in answers:
            if live.opened[answer.q].query.kind is not Kind.CALL or answer.error is not None:
                plain_ones.append(answer)
            elif "rerun" in answer.value:
                await self.effects.again(live, answer.q)
            else:
                plain_ones.append(apply_rerun_decision(answer))
        if plain_ones:
            return self._after(live, await self.sessions.step(live, plain_ones))
        return self._standing(live)

    def _all_late(
        self, record: SessionRecord, given: Sequence[GivenAnswer], by: dict[str, JSON] | None
    ) -> list[QueryAnswer]:
        late = []
        for one in given:
            if one.query_id is None:
                raise NoOpenQuery(record.birth.id, record.head.state)
            q = parse_query_number(one.query_id)
            if q is None:
                raise UnknownQuery(record.birth.id, one.query_id)
            error = None if one.error is None else {"code": "error", "message": one.error}
            late.append(QueryAnswer(q, one.value, error, one.usage, by))
        return late

    # ---- signal, cancel

    async def signal(
        self, session_id: str, name: str, value: JSON, key: str | None = None
    ) -> Status:
        """Send a signal, once per key. It is stored until the program receives it."""
        signal = Signal(name, to_plain(value, "the signal"), key)
        self._check_input(signal)
        status, _ = await self.shielded.run(self._signal(session_id, signal))
        return await self.status(session_id) if status is None else status

    async def send(self, session_id: str, signal: Signal) -> bool:
        """Send a signal with a key. Returns False if it was sent before."""
        to_plain(signal.value, "the signal")
        self._check_input(signal)
        return (await self.shielded.run(self._signal(session_id, signal)))[1]

    def _check_input(self, signal: Signal) -> None:
        """Refuse a signal that brings a conversation an input above the limit."""
        match signal.value:
            case {"id": str(), "content": content} if signal.name == INPUT:
                require_input_fits(content, self.max_input)

    async def _signal(self, session_id: str, signal: Signal) -> tuple[Status | None, bool]:
        """Deliver a signal if the program waits for it in this process, else store it.

        Returns the status, if it was delivered, and whether the signal is new.
        """

        async def act(live: LiveSession) -> tuple[Status | None, bool]:
            if signal.key is not None and await self.acceptance.was_sent(session_id, signal):
                return None, False
            receiver = signal.receiver(live.opened)
            if receiver is None:
                raise _Keep
            answers = live.kept([QueryAnswer(receiver.q, fit_answer_value(receiver, signal.value))])
            said = await self.sessions.step(live, answers, intake=make_tombstone_marker(signal))
            return self._after(live, said), True

        try:
            return await self._moving(session_id, act)
        except _Ended as ended:
            # this signal may have ended the session
            if signal.key is not None and await self.acceptance.was_sent(session_id, signal):
                return None, False
            raise SessionEnded(session_id, ended.record.head.state, "sent a signal") from None
        except (_Keep, *PROGRAM_ABSENT_ERRORS):
            return None, await self.acceptance.signal(session_id, signal)

    async def hand(
        self, session_id: str, said: dict[str, JSON], revision: int | None = None
    ) -> bool:
        """Deliver an input to an agent if no turn runs and its intake is empty. Returns whether it
        was delivered. Raises `Outdated` if the session is not at this revision.
        """
        require_input_fits(said.get("content"), self.max_input)
        return await self.shielded.run(self._hand(session_id, said, revision))

    async def _hand(self, session_id: str, said: dict[str, JSON], revision: int | None) -> bool:
        async def act(live: LiveSession) -> bool:
            if revision is not None and live.head.revision != revision:
                raise Outdated(f"session {session_id!r}", revision, live.head.revision)
            return await self.moves.hand(live, said)

        try:
            return await self._moving(session_id, act)
        except _Ended as ended:
            raise SessionEnded(session_id, ended.record.head.state, "sent anything") from None
        except PROGRAM_ABSENT_ERRORS:
            return False

    async def let_in(self, session_id: str, item: IntakeItem) -> Receipt:
        """Accept an input or a command for a conversation."""
        if item.kind is ItemKind.INPUT and isinstance(item.body, dict):
            require_input_fits(item.body.get("content"), self.max_input)
        return await self.shielded.run(self.acceptance.item(session_id, item))

    async def move(self, session_id: str) -> Next:
        """Move a session at a caller's request: answerers of this process may answer it."""
        birth = (await self.store.load(session_id, since=FROM_OPEN)).birth
        self.policy.ask(birth)
        self.sessions.suspect(session_id)
        return await self.shielded.run(self.moves.move(session_id, asked=True))

    async def cancel(
        self, session_id: str, reason: str, by: dict[str, JSON] | None = None
    ) -> Status:
        """Cancel a session and its children. The program gets one CancelledError."""
        return await self.shielded.run(self._cancel(session_id, reason, by))

    async def _cancel(self, session_id: str, reason: str, by: dict[str, JSON] | None) -> Status:
        async def act(live: LiveSession) -> Status:
            return self._after(live, await self.sessions.step(live, [], cancel=reason, by=by))

        try:
            return await self._moving(session_id, act)
        except _Ended as ended:
            if ended.record.head.state is SessionState.CANCELLED:
                return make_finished_status(ended.record)
            raise SessionEnded(session_id, ended.record.head.state, "cancelled") from None
        except PROGRAM_ABSENT_ERRORS:
            return await self._cancel_unseen(session_id, reason, by)

    async def _cancel_unseen(
        self, session_id: str, reason: str, by: dict[str, JSON] | None
    ) -> Status:
        """Cancel a session whose program is not here. The program gets no CancelledError."""
        while True:
            record = await self.store.load(session_id)
            if record.head.ended:
                return make_finished_status(record)
            live = LiveSession(record.birth, record.head, NoExecution(record.deliveries))
            live.opened = find_open_queries(record.deliveries)
            live.letters = record.letters
            try:
                await self.sessions.end(live, Stopped(reason), cancel=reason, by=by)
            except Overtaken:
                continue
            return make_finished_status(await self.store.load(session_id))

    # ---- budget

    async def set_budget(
        self, session_id: str, change: BudgetChange, by: dict[str, JSON] | None = None
    ) -> Status:
        """Change limits of a session's budget. A failed session is retried with them."""
        return await self.shielded.run(self._set_budget(session_id, change, by))

    async def _set_budget(
        self, session_id: str, change: BudgetChange, by: dict[str, JSON] | None
    ) -> Status:
        async def act(live: LiveSession) -> Status:
            budget = change_budget(live, change)
            if budget is None:
                return self._standing(live)
            return self._after(live, await self.sessions.step(live, [], budget=budget, by=by))

        while True:
            try:
                return await self._moving(session_id, act)
            except _Ended as ended:
                state = ended.record.head.state
            except PROGRAM_ABSENT_ERRORS:
                await self.acceptance.budget(session_id, change, by)
                return await self.status(session_id)
            if state is not SessionState.FAILED:
                raise SessionEnded(session_id, state, "given a budget")
            try:
                return await self._retry(session_id, by, change)
            except IllegalMove:  # it was retried just now
                pass

    async def raise_budget(self, session_id: str, wanted: Budget) -> None:
        """Raise the limits of a session that are smaller than `wanted`; nothing if it has ended
        well. A failed session is retried.
        """
        record = await self.store.load(session_id, since=FROM_OPEN)
        present = get_budget(record.birth, record.head.metrics)
        change = {} if present is None else present.find_raises(wanted)
        if change and record.head.state not in (SessionState.COMPLETED, SessionState.CANCELLED):
            await self.set_budget(session_id, change)

    # ---- retry, fork, delete

    async def retry(
        self,
        session_id: str,
        by: dict[str, JSON] | None = None,
        budget: BudgetChange | None = None,
    ) -> Status:
        """Resume a failed session from its last delivery, with the current code, and with these
        changes of its budget.
        """
        return await self.shielded.run(self._retry(session_id, by, budget))

    async def _retry(
        self, session_id: str, by: dict[str, JSON] | None, change: BudgetChange | None
    ) -> Status:
        async def attempt() -> Status:
            record = await self.store.load(session_id, since=FROM_RESTART)
            apply_event(record.head.state, SessionEvent.RETRIED)
            last = find_last_handed(record.deliveries)
            before = SessionRecord(
                record.birth, record.head, record.deliveries[:last], record.letters, []
            )
            live = await rebuild_session(before, self.sessions.host, recount=True)
            letters = [letter for letter in record.letters if letter.kind == BUDGET_LETTER]
            changes = [*(letter.body["limits"] for letter in letters), change or {}]
            budget = get_new_budget(record.deliveries[-1])
            async with live.lock:
                said = await self.sessions.retry(
                    live,
                    record.deliveries[last],
                    await self._ended_children(live),
                    by=by,
                    budget=change_budget(live, *changes, since=budget) or budget,
                    read=[letter.id for letter in letters],
                )
                if said.outcome is None:
                    self.sessions.keep(live)
                    ended = await self._ended_children(
                        live
                    )  # a child may have ended during the retry
                    if ended:
                        said = await self.sessions.step(live, ended)
                return self._after(live, said)

        return await self.sessions.insisting(attempt)

    async def _ended_children(self, live: LiveSession) -> list[QueryAnswer]:
        """Answers from children that ended while their parent was failed."""
        children = [
            entry
            for entry in live.opened.values()
            if entry.query.kind is Kind.SESSION and not is_process_query(entry.query)
        ]
        ends = [await load_child_answer(self.store, live.birth, entry) for entry in children]
        return [end for end in ends if end is not None]

    async def fork(
        self,
        session_id: str,
        birth: Birth,
        at: int | None,
        given: GivenAnswer | None,
        budget: BudgetChange | None = None,
    ) -> Status:
        """Create a session that shares this journal up to step `at`. `given` replaces the answer of
        that step, and `budget` changes limits from there on.
        """
        record = await self.store.load(session_id)
        deliveries = record.deliveries
        if not deliveries:
            hint = "Wait until a process has started it, or fork its parent instead."
            raise BadStep(
                session_id,
                0 if at is None else at,
                "the session has not started, so it has no steps",
                hint,
            )
        # a session that was retried has several deliveries with an outcome
        before = [one.n for one in deliveries[:-1] if given is not None or not _ends(one)]
        last = max(before, default=-1) if _ends(deliveries[-1]) else record.head.n
        cut = last if at is None else at
        if type(cut) is not int or not 0 <= cut <= record.head.n:
            raise BadStep(session_id, cut, f"it has steps 0 to {record.head.n}")
        if given is not None:
            given = msgspec.structs.replace(
                given, query_id=_answered_there(session_id, deliveries[cut], given.query_id)
            )
            cut -= 1
        elif _ends(deliveries[cut]):
            raise BadStep(
                session_id, cut, "it is the session's end; fork before it, or replace its answer"
            )
        birth = msgspec.structs.replace(
            birth,
            origin=record.birth.id,
            origin_n=cut,
            seeds=[
                *(seed for seed in record.birth.seeds if seed.since <= cut),
                Seed(cut + 1, birth.seeds[0].seed),
            ],
        )
        self.policy.ask(birth)
        shared = deliveries[: cut + 1]
        return await self.shielded.run(
            self.sessions.insisting(lambda: self._branch(birth, shared, given, budget or {}))
        )

    async def _branch(
        self,
        birth: Birth,
        shared: list[Delivery],
        given: GivenAnswer | None,
        change: BudgetChange,
    ) -> Status:
        head = Head(
            0,
            0,
            SessionState.RUNNING,
            birth.origin_n,
            0,
            None,
            max(self.clock.now(), shared[-1].at),
            Metrics(),
        )
        live = await rebuild_session(
            SessionRecord(birth, head, shared, [], []), self.sessions.host, recount=True
        )
        answers = [] if given is None else [_instead(live, given)]
        async with live.lock:
            said = await self.sessions.branch(live, shared, answers, change_budget(live, change))
            if said.outcome is None:
                self.sessions.keep(live)
            return self._after(live, said)

    async def delete(self, session_id: str, by: dict[str, JSON] | None = None) -> int:
        """Delete a session. Returns how many steps remain because forks share them."""
        return await self.shielded.run(self._delete(session_id, by))

    async def _delete(self, session_id: str, by: dict[str, JSON] | None) -> int:
        while True:
            record = await self.store.load(session_id, since=-1)
            if record.birth.parent is not None and not record.head.ended:
                raise StillNeeded(
                    session_id, f"its parent {record.birth.parent} waits for it", "Cancel it first."
                )
            try:
                kept = await self.store.delete(
                    session_id, record.head.revision, **({} if by is None else {"by": by})
                )
            except Overtaken:
                continue
            live = self.sessions.cached(session_id)
            if live is not None:
                self.sessions.drop(live)
            return kept

    # ---- status and waiting

    async def status(self, session_id: str) -> Status:
        record = await self.store.load(session_id, since=-1)
        if record.head.ended:
            return make_finished_status(await self.store.load(session_id, since=record.head.n))
        opened = find_open_queries(record.deliveries)
        kept = {letter.body["q"] for letter in record.letters if letter.kind == "answer"}
        working = {effect.q: effect.worker for effect in record.effects}
        waiting = {q: entry for q, entry in opened.items() if q not in kept}
        referring = [
            entry.query
            for entry in waiting.values()
            if session_view.is_stored_by_reference(entry.query)
        ]
        if referring and not all(query.q in working for query in referring):
            for query in await self._in_full(session_id, record.head.revision, referring):
                waiting[query.q] = msgspec.structs.replace(waiting[query.q], query=query)
        failed = {one.q: one.failed for one in record.effects if one.failed is not None}
        return make_open_status(record.birth, record.head, waiting, working, failed)

    async def _in_full(self, session_id: str, revision: int, queries: list[Query]) -> list[Query]:
        """Questions that the journal has by reference; the program knows them best, if it is
        here.
        """
        live = self.sessions.cached(session_id)
        if live is not None and not live.stale and live.head.revision == revision:
            return [
                session_view.expand_query_from_effect(query, live.execution.effect(query.q))
                for query in queries
            ]
        return list(
            session_view.expand_queries_from_journal(
                queries, (await self.store.load(session_id)).deliveries
            ).values()
        )

    def _standing(self, live: LiveSession) -> Status:
        effect = live.execution.effect
        opened = live.opened
        for q, entry in live.opened.items():
            if session_view.is_stored_by_reference(entry.query) and q not in live.working:
                opened = {
                    **opened,
                    q: msgspec.structs.replace(
                        entry, query=session_view.expand_query_from_effect(entry.query, effect(q))
                    ),
                }
        return make_open_status(live.birth, live.head, opened, live.working, live.failed)

    def _after(self, live: LiveSession, said: StepResult) -> Status:
        """The status of a session after a step."""
        if said.outcome is not None:
            return Finished(
                live.id,
                said.outcome,
                compute_session_stats(live.birth, live.head, live.record),
                live.birth.key,
            )
        if not said.asked and said.answered and live.opened:
            remaining = live.remaining()
            if remaining:
                return Accepted(live.id, remaining)
        return self._standing(live)

    async def _adopt_parked(self, session_id: str) -> None:
        """Answer the parked model questions of a session, and of the children that it waits for."""
        try:
            record = await self.store.load(session_id, since=FROM_OPEN)
        except UnknownSession:
            return
        if record.head.parked:
            self.sessions.suspect(session_id)
            await self.shielded.run(self.moves.move(session_id, asked=True))
        for entry in find_open_queries(record.deliveries).values():
            if entry.query.kind is Kind.SESSION and not is_process_query(entry.query):
                await self._adopt_parked(child_id(record.birth, entry))

    async def wait(
        self, session_id: str, timeout: float | None, *, settled: bool = False
    ) -> Status:
        """Wait until the session has ended, or needs an answer or a signal from outside.

        With `settled`, wait only for the work of this process, its next attempts included, not for
        timers, children and other processes.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            with self.sessions.watched(
                session_id
            ) as changed:  # watch first, so that no change is missed
                if not settled or not (
                    self.sessions.jobs.get(session_id) or self.effects.is_waiting(session_id)
                ):
                    if not settled and self.policy.answers_models:
                        await self._adopt_parked(session_id)
                    status = await self.status(session_id)
                    if (
                        settled
                        or isinstance(status, Finished)
                        or (isinstance(status, Paused) and status.needs_outside)
                    ):
                        return status
                left = None if deadline is None else deadline - loop.time()
                if left is not None and left <= 0:
                    return await self.status(session_id)
                await asyncio.wait([changed], timeout=left)


def make_open_status(
    birth: Birth,
    head: Head,
    opened: dict[int, AskedQuery],
    working: dict[int, str],
    failed: Mapping[int, FailedAttempt],
) -> Status:
    """The status of a session that has not ended."""
    queries = tuple(
        OpenQuery(birth.id, entry.query, entry.at, head.blocked(entry.query.q))
        for entry in list_answerable(opened, working)
    )
    signals = (
        ()
        if len(queries) == len(opened)
        else tuple(one.query.name for one in opened.values() if one.query.kind in SENT_BY_NAME)
    )
    if head.state is SessionState.RUNNING:
        busy = _busy(birth, opened, working, failed)
        if queries and not head.mail:
            progress = head.metrics.progress
            return Paused(birth.id, queries, head.due_at, busy, progress, signals)
        busy = busy or ("its program, to take an accepted answer",)
        return Running(birth.id, busy, head.metrics.progress)
    return Paused(
        birth.id,
        queries,
        head.due_at,
        ()
        if queries
        else _busy(birth, opened, working, failed) or (() if signals else ("a timer",)),
        head.metrics.progress,
        signals,
    )


def _busy(
    birth: Birth,
    opened: dict[int, AskedQuery],
    working: dict[int, str],
    failed: Mapping[int, FailedAttempt],
) -> tuple[str, ...]:
    words = []
    for q in working:
        if q in opened:
            what = f"{opened[q].query.kind} {opened[q].query.name}".strip()
            before = failed.get(q)
            if before is not None:
                what = f"attempt {before.number + 1} of {before.of} of {what}"
            words.append(what)
    words += [
        f"child session {child_id(birth, entry)}"
        for entry in opened.values()
        if entry.query.kind is Kind.SESSION
    ]
    return tuple(words)


def _instead(live: LiveSession, given: GivenAnswer) -> QueryAnswer:
    """The answer that replaces a recorded one. Results of calls and children can be replaced,
    too.
    """
    q = parse_query_number(given.query_id or "")
    assert q is not None
    return QueryAnswer(q, fit_answer_value(live.opened[q].query, given.value))


def _ends(delivery: Delivery) -> bool:
    return delivery.notes is not None and delivery.notes.outcome is not None


def _answered_there(session_id: str, delivery: Delivery, query_id: str | None) -> str:
    """The query whose answer a fork replaces."""
    ids = [answer.id for answer in delivery.answers]
    if query_id is not None:
        if query_id in ids:
            return query_id
        raise BadStep(session_id, delivery.n, f"{query_id} was not answered there")
    if len(ids) == 1:
        return ids[0]
    if ids:
        raise BadStep(session_id, delivery.n, f"it has {len(ids)} answers; say which with query_id")
    raise BadStep(session_id, delivery.n, "nothing was answered there")


async def _overtaken(live: LiveSession) -> Query | StepResult:
    raise Overtaken(live.id, live.head.revision)


class _Ended(Exception):
    """The session has ended; carries its record."""

    def __init__(self, record: SessionRecord) -> None:
        self.record = record


class _Keep(Exception):
    """The program does not wait for this signal yet."""
