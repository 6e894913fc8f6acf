"""One step of a session: delivers to the program, runs it to its next pause, commits once.

Rules
  1. The steps of a session are serial: the program advances again only after the result of the last
     commit is known.
  2. A refused commit discards the execution in memory. Nothing computed from it is used again.
  3. External work starts only after the commit of everything the program knew. The same commit
     marks the work as started.
  4. Queries that the store can answer (durable values, stored signals) are answered within the
     step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.intake import Intake
from everhold.core.journal import (
    AskedQuery,
    Delivery,
    DeliveryNotes,
    ProgramReply,
    find_first_open_delivery,
    get_restart,
    is_asking,
)
from everhold.core.progress import Progress
from everhold.core.query import (
    IN_STORE,
    MODEL_KINDS,
    ON_UNAVAILABLE,
    Kind,
    Query,
    QueryAnswer,
    Rerun,
    is_noticed,
    is_unnoticed,
)
from everhold.core.session import Birth, Head, SessionEvent, SessionId, SessionState, apply_event
from everhold.core.status import Outcome, Raised
from everhold.engine import children, unknown_effects
from everhold.engine.answer_policy import AnswerPolicy
from everhold.engine.children import child_id, make_awaited_child_birth
from everhold.engine.durable_values import DurableValues
from everhold.engine.live_session import (
    LiveSession,
    advance_execution,
    count_delivered_answers,
    is_parked,
    is_partly_answered,
)
from everhold.engine.liveness import Presence
from everhold.engine.serving import Serving
from everhold.errors import Spinning, UsageError
from everhold.ports.program import Clock, RestartableExecution
from everhold.ports.store import NO_WORKER, Change, Effect, Letter, Notice, Store
from everhold.ports.value_verbs import ValueVerbs

#: Letters that a session does not need after its end, not even if it is retried.
_PAST: Final = frozenset({"start", "cancel"})
#: Deliveries within one step after which other tasks of the event loop run.
DELIVERIES_PER_LOOP_TURN: Final = 16
#: Deliveries one step may hold before the program counts as spinning.
MAX_STEP_DELIVERIES: Final = 10_000
#: Restarts in one step, without a signal received, after which the program counts as spinning.
MAX_RESTARTS: Final = 100


class StepResult(msgspec.Struct):
    """What a step changed, for its caller and for observers."""

    asked: list[Query]
    answered: list[tuple[Query, QueryAnswer, Any]]
    outcome: Outcome | None
    dispatch: list[Query]  # queries this process now works on
    closed: list[int] = []  # queries whose inbox row or work mark is removed
    others: list[SessionId] = []  # other sessions that got a letter or were created
    settled: bool = False  # a turn of an agent settled
    resumed: bool = False  # the program did more than wait for the rest of several answers
    progress: Progress | None = None  # what the program reported last in this step


class StepInProgress(msgspec.Struct):
    """A running step: deliveries and replies since the last commit."""

    at: float
    read: list[int]  # letters that this step delivers
    birth: Birth | None
    said: StepResult
    deliveries: list[Delivery] = []
    letters: list[Letter] = []
    values: DurableValues | None = None
    processes: children.ProcessActions | None = None  # begins, signals and stops of child processes
    restarts: int = 0  # in a row
    raised: bool = False  # retried or forked: a light commit would not write enough of the head
    intake: Callable[[Intake], object] | None = None  # a change of the intake in the same commit


class Stepper:
    """Makes steps on live sessions. `AnswerPolicy` says which queries this process answers."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        policy: AnswerPolicy,
        presence: Presence,
        serving: Serving,
        verbs: Mapping[str, ValueVerbs] | None = None,
    ) -> None:
        self._store = store
        self._verbs = verbs  # of features, on durable values; by namespace
        self._clock = clock
        self._policy = policy
        self._presence = presence
        self._serving = serving
        # running commits that hold marks, by session
        self._marking: Counter[str] = Counter()
        self._level = store.durability

    async def step(
        self,
        live: LiveSession,
        answers: list[QueryAnswer],
        *,
        fired: bool = False,
        cancel: str | None = None,
        read: list[int] | None = None,
        birth: Birth | None = None,
        intake: Callable[[Intake], object] | None = None,
        by: dict[str, JSON] | None = None,
        budget: Budget | None = None,
    ) -> StepResult:
        """Deliver `answers` and the rest, commit, and update the session in memory."""
        current = StepInProgress(
            self._now(live.head), read or [], birth, StepResult([], [], None, []), intake=intake
        )
        if cancel is not None:
            current.letters = await children.make_cancel_letters(self._store, live.id, current.at)
        try:
            quick = await self._hand_over(live, current, answers, fired, cancel, budget)
            if by is not None:
                notes = current.deliveries[0].notes
                assert notes is not None  # only a cancel and a new budget have `by`
                notes.by = by
            if quick:
                await self._go_on(live, current, quick)
            await self._commit(live, current)
        except BaseException:
            live.drop()
            raise
        return current.said

    async def _hand_over(
        self,
        live: LiveSession,
        current: StepInProgress,
        answers: list[QueryAnswer],
        fired: bool = False,
        cancel: str | None = None,
        budget: Budget | None = None,
    ) -> list[Query]:
        """Make one delivery. Returns the new queries that the store may answer."""
        if budget is not None:
            live.head.metrics.budget = budget
        current.said.answered += count_delivered_answers(
            live.head.metrics, live.opened, answers, fired=fired
        )
        n = live.head.n + len(current.deliveries) + 1
        reply = await advance_execution(
            live.execution, n, current.at, answers, fired, cancel, budget
        )
        return self._take(
            live,
            current,
            Delivery(n, current.at, answers, reply.asked, _notes(reply, fired, cancel, budget)),
            reply,
        )

    def _take(
        self, live: LiveSession, current: StepInProgress, delivery: Delivery, reply: ProgramReply
    ) -> list[Query]:
        """Record a delivery and the program's reply in the session in memory."""
        current.deliveries.append(delivery)
        notes = delivery.notes
        if notes is not None and notes.restart is not None and current.restarts >= MAX_RESTARTS:
            notes.restart, notes.outcome = None, _spinning(delivery.n)
            reply.outcome = notes.outcome
        if reply.withdrawn:
            current.letters = [*current.letters, *_given_up(live, reply.withdrawn, current.at)]
        live.fold(delivery)
        live.timer = reply.due
        if not is_partly_answered(delivery, live.opened):
            current.said.resumed = True
        elif delivery.answers and any(
            query.kind is not Kind.STATE
            for query, _, _ in current.said.answered[-len(delivery.answers) :]
        ):
            live.head.metrics.rounds -= 1  # counted when the last of the answers arrives
        if notes is not None:
            if notes.settled is not None:
                current.said.settled = True
            if notes.progress is not None:
                current.said.progress = notes.progress
                live.head.metrics.progress = notes.progress.shorten()
            if notes.restart is not None:
                return self._restart(live, current, notes)
        if reply.outcome is not None:
            current.said.outcome = reply.outcome
            return []
        if not reply.asked:
            return []
        live.head.metrics.paused(reply.asked)
        current.said.asked += reply.asked
        return [query for query in reply.asked if query.kind in IN_STORE]

    def _restart(
        self, live: LiveSession, current: StepInProgress, notes: DeliveryNotes
    ) -> list[Query]:
        """Restart the program by an empty delivery. Returns what `_hand_over` returns."""
        assert notes.restart is not None
        notes.record = dict(live.record)  # complete: readers start at a restart
        n = live.head.n + len(current.deliveries) + 1
        meter = live.head.metrics
        meter.begun = n - 1
        current.restarts += 1
        current.said.asked = []  # a restart withdraws them
        live.execution = execution = cast(RestartableExecution, live.execution).again(
            notes.restart, meter
        )
        with execution.entered():
            reply = execution.advance(n, current.at, [], False, None)
        return self._take(
            live,
            current,
            Delivery(n, current.at, [], reply.asked, _notes(reply, False, None)),
            reply,
        )

    async def _go_on(self, live: LiveSession, current: StepInProgress, quick: list[Query]) -> None:
        """Answer the program from the store until it asks something else."""
        current.values = current.values or DurableValues(self._store, self._verbs, current.at)
        while quick and current.said.outcome is None:
            if not len(current.deliveries) % DELIVERIES_PER_LOOP_TURN:
                await asyncio.sleep(0)
            if len(current.deliveries) >= MAX_STEP_DELIVERIES:
                raise Spinning(f"{MAX_STEP_DELIVERIES:,} reads and writes of durable values")
            answers, read = await self._quick(live, current, quick, current.values)
            if not answers:
                return
            if read:
                current.read = current.read + read
                current.restarts = 0
            quick = await self._hand_over(live, current, answers)

    def plain(
        self, live: LiveSession, query: Query, answer: QueryAnswer
    ) -> Query | Coroutine[Any, Any, Query | StepResult]:
        """The fast path: one model answer is delivered, and one model question comes back.

        The caller has checked that `query` is the only open query, that the session has no letters,
        deadlines or running work, and that its execution is in this process. Returns the next
        question if the step is committed. Else returns a coroutine that finishes the step: the
        commit has to wait, or the reply is more than one model question.
        """
        head = live.head
        meter = live.head.metrics
        answers = [answer]
        at = self._clock.now()
        n = head.n + 1
        if at < head.updated_at:
            at = head.updated_at
        spent = meter.answered(query, answer)
        meter.rounds += 1
        try:
            execution = live.execution
            if execution.bare:
                reply = execution.advance(n, at, answers, False, None)
            else:
                with execution.entered():
                    reply = execution.advance(n, at, answers, False, None)
            asked = reply.asked
            if len(asked) != 1 or not _is_plain(reply, asked[0]) or self._policy.answers_plain_llm:
                return self._not_plain(
                    live, Delivery(n, at, answers, asked), reply, (query, answer, spent)
                )
            following = asked[0]
            meter.paused(asked)
            live.opened = {following.q: AskedQuery(following, n, at)}
            fence = head.revision
            head.revision = fence + 1
            head.n = head.open_from = n
            head.updated_at = at
            change = Change(live.id, head, (Delivery(n, at, answers, asked),), light=True)
            if self._store.commit_now(change, fence):
                return following
            return self._land_plain(live, change, fence, following)
        except BaseException:
            live.drop()
            raise

    async def _land_plain(
        self, live: LiveSession, change: Change, fence: int, following: Query
    ) -> Query | StepResult:
        try:
            await self._store.commit(change, fence)
        except BaseException:
            live.drop()
            raise
        return following

    async def _not_plain(
        self,
        live: LiveSession,
        delivery: Delivery,
        reply: ProgramReply,
        told: tuple[Query, QueryAnswer, Any],
    ) -> StepResult:
        """Finish a step whose reply is more than one model question."""
        current = StepInProgress(delivery.at, [], None, StepResult([], [told], None, []))
        try:
            delivery.notes = _notes(reply, False, None)
            quick = self._take(live, current, delivery, reply)
            if quick:
                await self._go_on(live, current, quick)
            await self._commit(live, current)
        except BaseException:
            live.drop()
            raise
        return current.said

    def _now(self, head: Head) -> float:
        at = self._clock.now()
        # the time of a session never decreases, even if the clock does
        return at if at > head.updated_at else head.updated_at

    async def end(
        self,
        live: LiveSession,
        outcome: Outcome,
        cancel: str | None,
        by: dict[str, JSON] | None = None,
    ) -> StepResult:
        """End a session without running its program."""
        current = StepInProgress(self._now(live.head), [], None, StepResult([], [], outcome, []))
        if cancel is None:
            current.letters = self._cancelled_children(live, current.at)
        else:
            current.letters = await children.make_cancel_letters(self._store, live.id, current.at)
        current.deliveries = [
            Delivery(
                live.head.n + 1,
                current.at,
                [],
                [],
                DeliveryNotes(cancel=cancel, outcome=outcome, by=by),
            )
        ]
        live.fold(current.deliveries[0])
        try:
            await self._commit(live, current)
        except BaseException:
            live.drop()
            raise
        return current.said

    async def retry(
        self,
        live: LiveSession,
        failed: Delivery,
        ends: list[QueryAnswer],
        by: dict[str, JSON] | None = None,
        budget: Budget | None = None,
        read: list[int] | None = None,
    ) -> StepResult:
        """Repeat the delivery that failed. The new reply is appended and replaces the failure.

        `ends` are the outcomes of children that ended while their parent was failed.
        """
        head = live.head
        notes = failed.notes or DeliveryNotes()
        current = StepInProgress(self._now(head), read or [], None, StepResult([], [], None, []))
        count_delivered_answers(head.metrics, live.opened, failed.answers, fired=notes.fired)
        if budget is not None:
            head.metrics.budget = budget
        reply = await advance_execution(
            live.execution, failed.n, failed.at, failed.answers, notes.fired, None, budget
        )
        current.letters = _given_up(live, reply.withdrawn, current.at)
        live.fold(
            Delivery(
                failed.n,
                failed.at,
                failed.answers,
                reply.asked,
                DeliveryNotes(withdrawn=reply.withdrawn),
            )
        )
        again = [] if reply.outcome is not None else [entry.query for entry in live.opened.values()]
        reply.notes = reply.notes or DeliveryNotes()
        reply.withdrawn = []
        delivery = Delivery(head.n + 1, current.at, [], again, _notes(reply, False, None, budget))
        assert delivery.notes is not None
        delivery.notes.retry = True
        delivery.notes.by = by
        live.shut()
        self._take(live, current, delivery, reply)
        if delivery.notes.restart is None:
            current.said.asked = list(again)
        live.before = {query.q for query in again} - {query.q for query in reply.asked}
        head.state = apply_event(head.state, SessionEvent.RETRIED)
        current.raised = True
        return await self._begin_again(live, current, ends)

    async def branch(
        self,
        live: LiveSession,
        shared: list[Delivery],
        answers: list[QueryAnswer],
        budget: Budget | None = None,
    ) -> StepResult:
        """Make the first commit of a fork: it asks all open queries again, except the answered
        ones.
        """
        values = DurableValues(self._store, self._verbs, live.head.updated_at)
        await values.inherit(shared, live.id)
        current = StepInProgress(
            live.head.updated_at, [], live.birth, StepResult([], [], None, []), values=values
        )
        current.said.asked = [entry.query for entry in live.opened.values()]
        live.before = {query.q for query in current.said.asked if query.kind is Kind.CALL}
        return await self._begin_again(
            live, current, answers, get_restart(shared[-1]) is not None, budget
        )

    async def _begin_again(
        self,
        live: LiveSession,
        current: StepInProgress,
        answers: list[QueryAnswer],
        unbegun: bool = False,
        budget: Budget | None = None,
    ) -> StepResult:
        live.noticed.clear()
        live.working.clear()
        live.failed.clear()
        known = {answer.q for answer in answers}
        opened = [live.opened[q].query for q in sorted(live.opened) if q not in known]
        answers = [answer for answer in answers if answer.q in live.opened]
        answers += [
            unknown_effects.make_unknown_answer(query)
            for query in opened
            if query.q in live.before and query.rerun is Rerun.NEVER
        ]
        quick = [query for query in opened if query.kind in IN_STORE]
        try:
            if answers or unbegun or budget is not None:
                quick += await self._hand_over(live, current, answers, budget=budget)
            await self._go_on(live, current, [query for query in quick if query.q in live.opened])
            await self._commit(live, current)
        except BaseException:
            live.drop()
            raise
        return current.said

    async def _commit(self, live: LiveSession, current: StepInProgress) -> None:
        change = self._change(live, current)
        if not change.effects:
            await self._store.commit(change, change.head.revision - 1)
        else:
            await self._presence.introduce()
            with self.marking(live.id):
                await self._store.commit(change, change.head.revision - 1)
        if current.values is not None:
            current.values.committed()  # without an await: see `marking`

    @contextmanager
    def marking(self, session_id: str) -> Iterator[None]:
        """Note that a commit with marks is running.

        The committer starts the marked work without an await after the commit, so that no other
        task can see a mark without its work.
        """
        self._marking[session_id] += 1
        try:
            yield
        finally:
            self._marking[session_id] -= 1
            if not self._marking[session_id]:
                del self._marking[session_id]

    def is_marking(self, session_id: str) -> bool:
        """Whether a mark may be stored while its work has not started in this process yet."""
        return session_id in self._marking

    def _cancelled_children(self, live: LiveSession, at: float) -> list[Letter]:
        """Cancel letters to the children that a session waits for, when the session is ended from
        outside.
        """
        return [
            Letter(
                "cancel", f"its parent {live.id} was cancelled", at, to=child_id(live.birth, entry)
            )
            for entry in live.opened.values()
            if entry.query.kind is Kind.SESSION
        ]

    async def _quick(
        self, live: LiveSession, current: StepInProgress, quick: list[Query], values: DurableValues
    ) -> tuple[list[QueryAnswer], list[int]]:
        """Answer new queries from the store. Also returns the letters that were used."""
        answers = []
        read = []
        for query in quick:
            if query.kind is Kind.SESSION:
                if children.is_process_query(query):
                    current.processes = current.processes or children.ProcessActions(
                        self._store, live, current.at
                    )
                    answers.append(await current.processes.answer(query))
                continue
            if query.kind is Kind.STATE:
                try:
                    answers.append(QueryAnswer(query.q, await values.answer(query)))
                except UsageError as error:  # such as BadValue; the program gets it
                    answers.append(
                        QueryAnswer(query.q, error={"code": error.code, "message": str(error)})
                    )
                continue
            for letter in live.letters:
                if found := children.read_signal_values(letter, query.name):
                    answers += live.kept([QueryAnswer(query.q, found[0])], Kind.SIGNAL)
                    live.letters.remove(letter)
                    read.append(letter.id)
                    break
        return answers, read

    def _change(self, live: LiveSession, current: StepInProgress) -> Change:
        head = live.head
        opened = live.opened
        said = current.said
        deliveries = current.deliveries
        before = (head.state, head.due_at, head.mail, head.attempts, head.parked, head.asking)
        head.revision += 1
        head.n = deliveries[-1].n if deliveries else head.n
        head.updated_at = current.at
        head.attempts = 0
        head.mail -= len(current.read)
        change = Change(
            live.id,
            head,
            deliveries,
            current.birth,
            read=current.read,
            letters=current.letters,
            intake=current.intake,
        )
        extra = (
            bool(current.read or current.letters)
            or current.birth is not None
            or current.raised
            or current.intake is not None
        )
        if current.read:
            live.letters = [letter for letter in live.letters if letter.id not in current.read]
        if head.metrics.blocked is not None:
            head.block(opened)
        if live.noticed or live.working:
            change.closed = said.closed = self._closed(live, deliveries)
            extra = extra or bool(change.closed)
        answers_llm = self._policy.answers_plain_llm
        place = [
            q
            for q in said.asked
            if (q.kind not in MODEL_KINDS or _is_placed(q) or answers_llm) and q.q in opened
        ]
        if place:
            self._place(live, change, said, place, current.at)
            extra = True
        if current.processes is not None and (
            current.processes.births or current.processes.letters
        ):
            change.births = [*change.births, *current.processes.births]
            change.letters = [*change.letters, *current.processes.letters]
            extra = True
        change.durable = self._durable(change, said)
        if said.outcome is not None:
            self._end(live, change, said.outcome, current.at)
            extra = True
        else:
            head.open_from = find_first_open_delivery(opened, head.n)
            head.due_at = live.due() if live.expiries or live.failed else live.timer
            busy = (live.works() if live.failed else live.working) or (
                live.letters and any(letter.kind != "signal" for letter in live.letters)
            )
            head.state = SessionState.RUNNING if busy else SessionState.PAUSED
            # only a new question of such a kind can set one of the hints
            new = current.raised or current.birth is not None or _asks_outside(said.asked)
            if head.parked or new:
                head.parked = is_parked(live.birth, opened, live.working)
            if head.asking or new:
                head.asking = is_asking(opened, live.working)
        if current.values is not None:
            change.writes = current.values.writes()
            extra = extra or bool(change.writes)
        change.light = not extra and before == (
            head.state,
            head.due_at,
            head.mail,
            head.attempts,
            head.parked,
            head.asking,
        )
        said.others = [letter.to for letter in change.letters if letter.to is not None]
        return change

    def _closed(self, live: LiveSession, deliveries: list[Delivery]) -> list[int]:
        """The answered or withdrawn queries that have an inbox row or a mark; both are removed."""
        gone = [answer.q for delivery in deliveries for answer in delivery.answers]
        gone += [
            q
            for delivery in deliveries
            if delivery.notes is not None
            for q in delivery.notes.withdrawn
        ]
        closed = [q for q in gone if q in live.noticed or q in live.working]
        for q in closed:
            live.noticed.discard(q)
            live.working.pop(q, None)
            if live.failed:
                live.failed.pop(q, None)
        return closed

    def _place(
        self, live: LiveSession, change: Change, said: StepResult, asked: list[Query], at: float
    ) -> None:
        """Assign each new query to its answerer: a child, this process, or the inbox."""
        births = []
        letters = []
        effects = []
        notices = []
        for query in asked:
            q = query.q
            if query.kind is Kind.SESSION:
                if q not in live.before:
                    birth, head = make_awaited_child_birth(live.birth, live.opened[q], at)
                    births.append((birth, head))
                    letters.append(Letter("start", None, at, to=birth.id))
            elif q in live.before and unknown_effects.is_unsafe_to_rerun(query):
                live.noticed.add(q)
                notices.append(
                    Notice(q, query.kind, query.to, at, unknown_effects.make_rerun_question(query))
                )
            elif query.kind is Kind.CALL or (
                self._policy.is_inline(query) and self._policy.may_answer(live.birth, query)
            ):
                leaving = self._serving.leaving
                worker = NO_WORKER if leaving else self._presence.worker
                live.working[q] = worker
                effects.append(Effect(q, worker, at))
                if not leaving:
                    said.dispatch.append(query)
            elif is_noticed(query.kind, query.to):
                live.noticed.add(q)
                notices.append(Notice(q, query.kind, query.to, at, query))
        change.births = births
        change.effects = effects
        change.notices = notices
        change.letters = [*change.letters, *letters]

    def _durable(self, change: Change, said: StepResult) -> bool:
        """Whether this commit must survive a power failure, at any durability level."""
        if said.dispatch and any(query.rerun is not Rerun.SAFE for query in said.dispatch):
            return True
        if self._level != "mixed":
            return False
        return bool(change.effects) or any(
            query.kind not in MODEL_KINDS for query, _, _ in said.answered
        )

    def _end(self, live: LiveSession, change: Change, outcome: Outcome, at: float) -> None:
        head = live.head
        event = {"Returned": SessionEvent.COMPLETED, "Raised": SessionEvent.FAILED}.get(
            type(outcome).__name__, SessionEvent.CANCELLED
        )
        head.state = apply_event(head.state, event)
        live.working.clear()
        live.failed.clear()
        live.noticed.clear()
        # a failed session keeps its letters, because a retry delivers them
        kept = [
            letter
            for letter in live.letters
            if event is SessionEvent.FAILED and letter.kind not in _PAST
        ]
        change.read = [*change.read, *(letter.id for letter in live.letters if letter not in kept)]
        live.letters = kept
        head.open_from, head.due_at, head.mail = head.n + 1, None, len(kept)
        head.parked = head.asking = False
        last = change.deliveries[-1].notes
        if live.record and last is not None:
            last.record = dict(live.record)  # complete: a status reads only the last delivery
        if live.birth.parent is not None:
            change.letters = [*change.letters, children.make_end_letter(live, outcome, at)]


def _given_up(live: LiveSession, withdrawn: list[int], at: float) -> list[Letter]:
    """Cancel letters to the bound children of withdrawn queries."""
    entries = [
        live.opened[q]
        for q in withdrawn
        if q in live.opened and (live.opened[q].query.options or {}).get("bound")
    ]
    return [
        Letter("cancel", f"{live.id} gave up waiting", at, to=child_id(live.birth, entry))
        for entry in entries
    ]


def _is_placed(query: Query) -> bool:
    """Whether a model question says more about who answers it than a plain one."""
    options = query.options
    return query.to is not None or (
        options is not None and ("model" in options or ON_UNAVAILABLE in options)
    )


def _asks_outside(asked: list[Query]) -> bool:
    return any(is_unnoticed(query) for query in asked)


def _is_plain(reply: ProgramReply, asked: Query) -> bool:
    return (
        asked.kind is Kind.LLM
        and not _is_placed(asked)
        and asked.expires_at is None
        and reply.due is None
        and reply.notes is None
        and not reply.withdrawn
    )


def _spinning(n: int) -> Raised:
    """The outcome of a program that restarts again and again without a pause."""
    return Raised(f"Spinning: {Spinning(f'{MAX_RESTARTS} restarts')}", Spinning.code, "", n)


def _notes(
    reply: ProgramReply, fired: bool, cancel: str | None, budget: Budget | None = None
) -> DeliveryNotes | None:
    """The notes of a delivery: everything beside answers and queries. None if there are none."""
    notes = reply.notes
    if notes is None:
        if (
            not fired
            and cancel is None
            and budget is None
            and not reply.withdrawn
            and reply.outcome is None
        ):
            return None
        notes = DeliveryNotes()
    notes.fired = fired
    notes.cancel = cancel
    notes.withdrawn = reply.withdrawn
    notes.outcome = reply.outcome
    notes.budget = budget
    return notes
