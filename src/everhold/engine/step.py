"""One step: hand something over, let the program go on to its next pause, commit all of it at once.

Rules
  1. A session's steps happen one after another: the next advance never starts before this commit is
     known.
  2. A refused commit drops the live execution; nothing that was computed from it is used again.
  3. Nothing outside starts before the commit that holds everything the program knew. The mark that
     it was started rides in that commit.
  4. What the store itself can answer (durable values, kept signals) is answered within the step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import msgspec

from everhold.core.intake import Intake
from everhold.core.journal import (
    AskedQuery,
    Delivery,
    DeliveryNotes,
    ProgramReply,
    find_first_open_delivery,
    get_restart,
)
from everhold.core.query import IN_STORE, MODEL_KINDS, Kind, Query, QueryAnswer, Rerun
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
    is_noticed,
    is_parked,
)
from everhold.engine.liveness import Presence
from everhold.engine.serving import Serving
from everhold.errors import BadValue, Spinning
from everhold.ports.program import Clock, RestartableExecution
from everhold.ports.store import NO_WORKER, Change, Effect, Letter, Notice, Store

#: Letters that say nothing to a session that has ended, also if it is retried.
_PAST: Final = frozenset({"start", "cancel"})
#: Deliveries of one step after which the loop is given a turn.
DELIVERIES_PER_LOOP_TURN: Final = 16
#: Deliveries one step may hold before the program counts as spinning.
MAX_STEP_DELIVERIES: Final = 10_000
#: Times a program may begin again in one step, with no signal received, before it counts as
#: spinning.
MAX_RESTARTS: Final = 100


class StepResult(msgspec.Struct):
    """What a step led to, for whoever called and for observers."""

    asked: list[Query]
    answered: list[tuple[Query, QueryAnswer, Any]]
    outcome: Outcome | None
    dispatch: list[Query]  # queries this process now works on
    closed: list[int] = []  # queries on which nobody works any more
    others: list[SessionId] = []  # sessions to which something was delivered, or that were born
    settled: bool = False  # a turn of an agent has


class StepInProgress(msgspec.Struct):
    """A step that is under way: what was handed over and said since the last commit."""

    at: float
    read: list[int]  # letters that were handed over
    birth: Birth | None
    said: StepResult
    deliveries: list[Delivery] = []
    letters: list[Letter] = []
    values: DurableValues | None = None
    deeds: children.ProcessActions | None = None  # what is done about processes
    restarts: int = 0  # in a row
    raised: bool = False  # from a failure: more of the head changes than a light commit writes
    intake: Callable[[Intake], object] | None = None  # what happens to the lanes in the same moment


class Stepper:
    """Makes steps on live sessions. `AnswerPolicy` says which queries this process answers."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        policy: AnswerPolicy,
        presence: Presence,
        serving: Serving,
    ) -> None:
        self._store = store
        self._clock = clock
        self._policy = policy
        self._presence = presence
        self._serving = serving
        # commits with marks that are on their way, by session
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
    ) -> StepResult:
        """Hand over `answers` (and more), commit, and bring the live session up to date."""
        way = StepInProgress(
            self._now(live.head), read or [], birth, StepResult([], [], None, []), intake=intake
        )
        if cancel is not None:
            way.letters = await children.make_cancel_letters(self._store, live.id, way.at)
        try:
            quick = await self._hand_over(live, way, answers, fired, cancel)
            if quick:
                await self._go_on(live, way, quick)
            await self._commit(live, way)
        except BaseException:
            live.drop()
            raise
        return way.said

    async def _hand_over(
        self,
        live: LiveSession,
        way: StepInProgress,
        answers: list[QueryAnswer],
        fired: bool = False,
        cancel: str | None = None,
    ) -> list[Query]:
        """One delivery; returns the queries asked in return that the store may be able to
        answer.
        """
        way.said.answered += count_delivered_answers(
            live.head.metrics, live.opened, answers, fired=fired
        )
        n = live.head.n + len(way.deliveries) + 1
        reply = await advance_execution(live.execution, n, way.at, answers, fired, cancel)
        return self._take(
            live,
            way,
            Delivery(n, way.at, answers, reply.asked, _notes(reply, fired, cancel)),
            reply,
        )

    def _take(
        self, live: LiveSession, way: StepInProgress, delivery: Delivery, reply: ProgramReply
    ) -> list[Query]:
        """Take a delivery and the program's reply into account."""
        way.deliveries.append(delivery)
        notes = delivery.notes
        if notes is not None and notes.restart is not None and way.restarts >= MAX_RESTARTS:
            notes.restart, notes.outcome = None, _spinning(delivery.n)
            reply.outcome = notes.outcome
        if reply.withdrawn:
            way.letters = [*way.letters, *_given_up(live, reply.withdrawn, way.at)]
        live.fold(delivery)
        live.timer = reply.due
        if notes is not None:
            if notes.settled is not None:
                way.said.settled = True
            if notes.restart is not None:
                return self._restart(live, way, notes)
        if reply.outcome is not None:
            way.said.outcome = reply.outcome
            return []
        if not reply.asked:
            return []
        live.head.metrics.paused(reply.asked)
        way.said.asked += reply.asked
        return [query for query in reply.asked if query.kind in IN_STORE]

    def _restart(self, live: LiveSession, way: StepInProgress, notes: DeliveryNotes) -> list[Query]:
        """Let the program begin again, which is a delivery of nothing; returns what `_hand_over`
        does.
        """
        assert notes.restart is not None
        notes.record = dict(live.record)  # whole: nobody looks further back
        n = live.head.n + len(way.deliveries) + 1
        meter = live.head.metrics
        meter.begun = n - 1
        way.restarts += 1
        way.said.asked = []  # all of it is withdrawn
        live.execution = execution = cast(RestartableExecution, live.execution).again(
            notes.restart, meter
        )
        with execution.entered():
            reply = execution.advance(n, way.at, [], False, None)
        return self._take(
            live, way, Delivery(n, way.at, [], reply.asked, _notes(reply, False, None)), reply
        )

    async def _go_on(self, live: LiveSession, way: StepInProgress, quick: list[Query]) -> None:
        """Answer from the store as long as the program asks what the store can answer."""
        way.values = way.values or DurableValues(self._store)
        while quick and way.said.outcome is None:
            if not len(way.deliveries) % DELIVERIES_PER_LOOP_TURN:
                await asyncio.sleep(0)
            if len(way.deliveries) >= MAX_STEP_DELIVERIES:
                raise Spinning(f"{MAX_STEP_DELIVERIES:,} reads and writes of durable values")
            answers, read = await self._quick(live, way, quick, way.values)
            if not answers:
                return
            if read:
                way.read = way.read + read
                way.restarts = 0
            quick = await self._hand_over(live, way, answers)

    def plain(
        self, live: LiveSession, query: Query, answer: QueryAnswer
    ) -> Query | Coroutine[Any, Any, Query | StepResult]:
        """A model's words in, one question to a model out: how most steps go, in as few moves as
        possible.

        `query` is the only one open, nothing else concerns the session, and its execution is in
        this process. Returns the next question, if the step has landed; else what finishes it: the
        commit has to wait, or the program says more than that.
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
        """Finish a step that turned out to be more than a plain one."""
        way = StepInProgress(delivery.at, [], None, StepResult([], [told], None, []))
        try:
            delivery.notes = _notes(reply, False, None)
            quick = self._take(live, way, delivery, reply)
            if quick:
                await self._go_on(live, way, quick)
            await self._commit(live, way)
        except BaseException:
            live.drop()
            raise
        return way.said

    def _now(self, head: Head) -> float:
        at = self._clock.now()
        # a clock going backwards does not turn time
        return at if at > head.updated_at else head.updated_at

    async def end(self, live: LiveSession, outcome: Outcome, cancel: str | None) -> StepResult:
        """End a session without asking its program."""
        way = StepInProgress(self._now(live.head), [], None, StepResult([], [], outcome, []))
        if cancel is None:
            way.letters = self._cancelled_children(live, way.at)
        else:
            way.letters = await children.make_cancel_letters(self._store, live.id, way.at)
        way.deliveries = [
            Delivery(live.head.n + 1, way.at, [], [], DeliveryNotes(cancel=cancel, outcome=outcome))
        ]
        live.fold(way.deliveries[0])
        try:
            await self._commit(live, way)
        except BaseException:
            live.drop()
            raise
        return way.said

    async def retry(
        self, live: LiveSession, failed: Delivery, ends: list[QueryAnswer]
    ) -> StepResult:
        """Hand over a delivery that failed once more; its new reply is appended and stands from now
        on.

        `ends` are those of children that ended while their parent was failed.
        """
        head = live.head
        notes = failed.notes or DeliveryNotes()
        way = StepInProgress(self._now(head), [], None, StepResult([], [], None, []))
        count_delivered_answers(head.metrics, live.opened, failed.answers, fired=notes.fired)
        reply = await advance_execution(
            live.execution, failed.n, failed.at, failed.answers, notes.fired, None
        )
        way.letters = _given_up(live, reply.withdrawn, way.at)
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
        delivery = Delivery(head.n + 1, way.at, [], again, _notes(reply, False, None))
        assert delivery.notes is not None
        delivery.notes.retry = True
        live.shut()
        self._take(live, way, delivery, reply)
        if delivery.notes.restart is None:
            way.said.asked = list(again)
        live.before = {query.q for query in again} - {query.q for query in reply.asked}
        head.state = apply_event(head.state, SessionEvent.RETRIED)
        way.raised = True
        return await self._begin_again(live, way, ends)

    async def branch(
        self, live: LiveSession, shared: list[Delivery], answers: list[QueryAnswer]
    ) -> StepResult:
        """Give a fork its first commit: what is open is asked again in its own name, except what is
        answered.
        """
        values = DurableValues(self._store)
        await values.inherit(shared, live.id)
        way = StepInProgress(
            live.head.updated_at, [], live.birth, StepResult([], [], None, []), values=values
        )
        way.said.asked = [entry.query for entry in live.opened.values()]
        live.before = {query.q for query in way.said.asked if query.kind is Kind.CALL}
        return await self._begin_again(
            live, way, answers, unbegun=get_restart(shared[-1]) is not None
        )

    async def _begin_again(
        self,
        live: LiveSession,
        way: StepInProgress,
        answers: list[QueryAnswer],
        unbegun: bool = False,
    ) -> StepResult:
        live.noticed.clear()
        live.working.clear()
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
            if answers or unbegun:
                quick += await self._hand_over(live, way, answers)
            await self._go_on(live, way, [query for query in quick if query.q in live.opened])
            await self._commit(live, way)
        except BaseException:
            live.drop()
            raise
        return way.said

    async def _commit(self, live: LiveSession, way: StepInProgress) -> None:
        change = self._change(live, way)
        if not change.effects:
            await self._store.commit(change, change.head.revision - 1)
            return
        await self._presence.introduce()
        with self.marking(live.id):
            await self._store.commit(change, change.head.revision - 1)

    @contextmanager
    def marking(self, session_id: str) -> Iterator[None]:
        """Marks are on their way. Who commits them begins the work at once when they have landed,
        without an await.
        """
        self._marking[session_id] += 1
        try:
            yield
        finally:
            self._marking[session_id] -= 1
            if not self._marking[session_id]:
                del self._marking[session_id]

    def is_marking(self, session_id: str) -> bool:
        """Whether a mark may be stored whose work this process is just about to begin."""
        return session_id in self._marking

    def _cancelled_children(self, live: LiveSession, at: float) -> list[Letter]:
        """What is told to the children that a session waits for when it ends by no will of its
        own.
        """
        return [
            Letter(
                "cancel", f"its parent {live.id} was cancelled", at, to=child_id(live.birth, entry)
            )
            for entry in live.opened.values()
            if entry.query.kind is Kind.SESSION
        ]

    async def _quick(
        self, live: LiveSession, way: StepInProgress, quick: list[Query], values: DurableValues
    ) -> tuple[list[QueryAnswer], list[int]]:
        """Answers the store has for what was just asked."""
        answers = []
        read = []
        for query in quick:
            if query.kind is Kind.SESSION:
                if children.is_process_query(query):
                    way.deeds = way.deeds or children.ProcessActions(self._store, live, way.at)
                    answers.append(await way.deeds.answer(query))
                continue
            if query.kind is Kind.STATE:
                try:
                    answers.append(QueryAnswer(query.q, await values.answer(query)))
                except BadValue as error:
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

    def _change(self, live: LiveSession, way: StepInProgress) -> Change:
        head = live.head
        opened = live.opened
        said = way.said
        deliveries = way.deliveries
        before = (head.state, head.due_at, head.mail, head.attempts, head.parked)
        head.revision += 1
        head.n = deliveries[-1].n if deliveries else head.n
        head.updated_at = way.at
        head.attempts = 0
        head.mail -= len(way.read)
        change = Change(
            live.id,
            head,
            deliveries,
            way.birth,
            read=way.read,
            letters=way.letters,
            intake=way.intake,
        )
        extra = (
            bool(way.read or way.letters)
            or way.birth is not None
            or way.raised
            or way.intake is not None
        )
        if way.read:
            live.letters = [letter for letter in live.letters if letter.id not in way.read]
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
            self._place(live, change, said, place, way.at)
            extra = True
        if way.deeds is not None and (way.deeds.births or way.deeds.letters):
            change.births = [*change.births, *way.deeds.births]
            change.letters = [*change.letters, *way.deeds.letters]
            extra = True
        change.durable = self._durable(change, said)
        if said.outcome is not None:
            self._end(live, change, said.outcome, way.at)
            extra = True
        else:
            head.open_from = find_first_open_delivery(opened, head.n)
            head.due_at = live.due() if live.expiries else live.timer
            busy = live.working or (
                live.letters and any(letter.kind != "signal" for letter in live.letters)
            )
            head.state = SessionState.RUNNING if busy else SessionState.PAUSED
            # a model question that nobody works on appears only by being asked
            new = way.raised or way.birth is not None or _asks_model(said.asked)
            if head.parked or new:
                head.parked = is_parked(live.birth, opened, live.working)
        if way.values is not None:
            change.writes = way.values.writes()
            extra = extra or bool(change.writes)
        change.light = not extra and before == (
            head.state,
            head.due_at,
            head.mail,
            head.attempts,
            head.parked,
        )
        said.others = [letter.to for letter in change.letters if letter.to is not None]
        return change

    def _closed(self, live: LiveSession, deliveries: list[Delivery]) -> list[int]:
        """The queries that leave the inbox, or on which nobody works any more."""
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
        return closed

    def _place(
        self, live: LiveSession, change: Change, said: StepResult, asked: list[Query], at: float
    ) -> None:
        """Say who sees to the queries that were asked: a child, this process, or somebody
        outside.
        """
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
        """Whether this commit must survive power loss, whatever the store does with others."""
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
        live.noticed.clear()
        # for a retry
        kept = [
            letter
            for letter in live.letters
            if event is SessionEvent.FAILED and letter.kind not in _PAST
        ]
        change.read = [*change.read, *(letter.id for letter in live.letters if letter not in kept)]
        live.letters = kept
        head.open_from, head.due_at, head.mail, head.parked = head.n + 1, None, len(kept), False
        last = change.deliveries[-1].notes
        if live.record and last is not None:
            last.record = dict(live.record)  # whole, so that the end alone tells what was recorded
        if live.birth.parent is not None:
            change.letters = [*change.letters, children.make_end_letter(live, outcome, at)]


def _given_up(live: LiveSession, withdrawn: list[int], at: float) -> list[Letter]:
    """What is told to children that live only as long as somebody waits for them."""
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
    """Whether a question to a model says whose it is: a person's, or a model's that it names."""
    return query.to is not None or (query.options is not None and "model" in query.options)


def _asks_model(asked: list[Query]) -> bool:
    return any(query.kind in MODEL_KINDS for query in asked)


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
    """The end of a program that begins again and again, and never pauses."""
    return Raised(f"Spinning: {Spinning(f'{MAX_RESTARTS} restarts')}", Spinning.code, "", n)


def _notes(reply: ProgramReply, fired: bool, cancel: str | None) -> DeliveryNotes | None:
    """What a delivery holds beside answers and queries."""
    notes = reply.notes
    if notes is None:
        if not fired and cancel is None and not reply.withdrawn and reply.outcome is None:
            return None
        notes = DeliveryNotes()
    notes.fired = fired
    notes.cancel = cancel
    notes.withdrawn = reply.withdrawn
    notes.outcome = reply.outcome
    return notes
