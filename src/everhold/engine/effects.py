"""Runs effects: the calls of programs, and queries that an answerer of this process answers.

Rules
  1. Work starts after the commit that marks it as started. The commit of its outcome removes the
     mark.
  2. If the worker of a mark is dead, the outcome is unknown. The `rerun` of the call decides.
  3. An error is an answer: the program receives it. An answer that does not fit the schema is an
     error, too.
  4. With a retry policy, a failed attempt is no answer yet: it is stored with the mark, which waits
     without a worker for the next attempt. Any process may start that, also after a crash. The
     journal has one answer, of the last attempt.
  5. A call with another `rerun` than "safe" is not tried again after a timeout: nobody knows
     whether it acted.

A running effect may also ask the session's model (`DirectCompletions`) and store attachments
(`StoreAttachments`).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from everhold.core.codec import JSON, to_plain
from everhold.core.graph import extract_text
from everhold.core.journal import is_asking
from everhold.core.ledger import Ledger
from everhold.core.query import (
    METERED,
    TEXT_KINDS,
    Blocked,
    FailedAttempt,
    Kind,
    Query,
    QueryAnswer,
    Rerun,
    Usage,
    format_answer_error,
    is_noticed,
)
from everhold.core.retry import Retry, convert_older_retries, read_retry_after
from everhold.core.schema import encode_value_as, parse_answer
from everhold.core.session import SessionState, get_budget
from everhold.core.status import Raised
from everhold.core.tool import KEPT_WHOLE
from everhold.core.usage import parse_usage, price_exchange
from everhold.engine import unknown_effects
from everhold.engine.answer_policy import AnswerPolicy
from everhold.engine.limits import Job, LimiterClosed
from everhold.engine.live_session import LiveSession, apply_keep_to_answer, is_parked
from everhold.engine.liveness import (
    Presence,
    is_worker_alive,
)
from everhold.engine.serving import Serving
from everhold.engine.session_cache import SessionCache
from everhold.engine.step import StepResult
from everhold.errors import (
    AnswerFailed,
    BadArguments,
    BadSetting,
    BudgetExceeded,
    EverholdError,
    MissingExtra,
    NotAllowed,
    Poison,
    ProviderMismatch,
    ProviderUnavailable,
    ProviderUnconfigured,
    ReadOnlyStore,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    UnknownSession,
    words_of,
)
from everhold.ports.answerer import Answer, Answerer
from everhold.ports.attachment import CURRENT_ATTACHMENTS, Attachment
from everhold.ports.exception_reader import describe_exception
from everhold.ports.program import (
    INTERRUPTS,
    Clock,
    KeptEffect,
    KeptErrors,
    ProgramEffect,
    convert_interrupt,
    is_raised_by_code,
)
from everhold.ports.signature import get_return_type
from everhold.ports.store import NO_WORKER, Change, Effect, Notice, SessionRecord, Store
from everhold.ports.stream import Delta, DeltaKind, publish_delta
from everhold.ports.tool import COMPLETER
from everhold.ports.tool_services import CURRENT_SERVICES, SessionServices


class DirectCompletions:
    """Model completions within one effect, and their usage."""

    def __init__(
        self,
        session_id: str,
        answerer: Answerer | None,
        answered: Callable[[Query, object], QueryAnswer],
    ) -> None:
        self._session_id = session_id
        self._answerer = answerer
        self._answered = answered
        self.spent = Ledger()

    async def complete(self, query: Query) -> JSON:
        if self._answerer is None:
            raise AnswerFailed("no model is configured", ProviderUnconfigured.code)
        try:
            answer = self._answered(query, await self._answerer.answer(query, self._session_id))
        except AnswerFailed:
            raise
        # some of these errors leave a query open; a completion has no query to leave open
        except EverholdError as error:
            raise AnswerFailed(str(error), error.code) from error
        self.spent.add("", answer.usage)
        if answer.error is not None:
            failed = AnswerFailed(answer.error["message"], answer.error["code"])
            failed.exception = answer.exception
            raise failed
        return (
            answer.value
            if query.schema is not None or isinstance(answer.value, str)
            else extract_text(answer.value)
        )


class StoreAttachments:
    def __init__(self, store: Store, clock: Clock, session_id: str) -> None:
        self._store = store
        self._clock = clock
        self._session_id = session_id

    async def keep(self, made: Attachment, data: bytes) -> None:
        await self._store.attach(self._session_id, made, data, self._clock.now())

    async def read(self, id: str) -> tuple[Attachment, bytes]:
        return await self._store.attachment(self._session_id, id)


log = logging.getLogger("everhold")
T = TypeVar("T")

#: Processes that may die while they run a session, before it fails as poison.
DEATHS: Final = 3
#: Seconds until the write of an outcome is retried.
WRITE_RETRY_DELAY: Final = 1.0


#: Errors of an answerer that cannot answer. The query stays open, or fails if `AnswerPolicy` says
#: so. Raised by a `call`, they are its answer.
CANNOT_ANSWER_ERRORS: Final = (
    NotAllowed,
    BadSetting,
    MissingExtra,
    ProviderMismatch,
    ProviderUnavailable,
    ProviderUnconfigured,
)
#: Errors of a store that cannot be written now; a later write may succeed.
STORE_AWAY_ERRORS: Final = (StoreBusy, StoreFull, StoreUnavailable, ReadOnlyStore)


#: Characters of an error message that are stored.
MAX_STORED_ERROR_CHARS: Final = 20_000
#: Characters of the error of a failed attempt that are stored.
MAX_ATTEMPT_CHARS: Final = 1000


#: Takes a session, a query and its function; returns the function to call instead.
CallSubstitute = Callable[[str, Query, Callable[[], Any]], Callable[[], Any]]


#: Takes a session and an answer; records the answer and returns whether it did.
OutcomeKeeper = Callable[[str, QueryAnswer], Awaitable[bool]]
#: Takes a session and a query; returns the services that its work may use.
ServicesFactory = Callable[[str, Query], SessionServices]


class EffectAttempt(msgspec.Struct, frozen=True):
    """One attempt at a query: its limits, and the failed attempt before it."""

    retry: Retry | None = None
    timeout: float | None = None
    failed: FailedAttempt | None = None

    @property
    def number(self) -> int:
        return 1 if self.failed is None else self.failed.number + 1

    @property
    def is_last(self) -> bool:
        return self.retry is None or self.number >= self.retry.attempts

    def add_usage(self, usage: Usage | None) -> Usage | None:
        """The usage of this attempt and of those before it."""
        if self.failed is None or self.failed.usage is None:
            return usage
        ledger = Ledger()
        ledger.add("", self.failed.usage)
        ledger.add("", usage)
        return ledger.usage

    def complete(self, answer: QueryAnswer) -> QueryAnswer:
        """The answer with the attempts that it took."""
        if self.failed is None:
            return answer
        return msgspec.structs.replace(
            answer, attempts=self.number, usage=self.add_usage(answer.usage)
        )


class _AttemptFailed(Exception):
    """An attempt failed and may be followed by another. Carries the answer if it is not."""

    def __init__(self, answer: QueryAnswer, retry_after: float) -> None:
        self.answer = answer
        self.retry_after = retry_after


class _TimedOut(Exception):
    """An attempt took longer than its limit. Carries the error for the program."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class EffectDispatcher:
    def __init__(
        self,
        sessions: SessionCache,
        policy: AnswerPolicy,
        presence: Presence,
        serving: Serving,
        clock: Clock,
        *,
        keep_outcome: OutcomeKeeper,
        services: ServicesFactory | None = None,
        substitute: CallSubstitute | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
    ) -> None:
        self._sessions = sessions
        self._policy = policy
        self._presence = presence
        self._serving = serving
        self._clock = clock
        self._worker = presence.worker
        self._keep = keep_outcome  # records an outcome that its program cannot receive now
        self._services = services
        self._substitute = substitute  # replaces the functions of calls, in tests
        self._retry = retry  # the defaults of this runtime
        self._timeout = timeout
        # waits for the next attempt at a query, by session and query; no worker waits like this
        self.waits: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        # the tasks that have no outcome yet; only these may be cancelled
        self.doing: set[asyncio.Task[Any] | None] = set()
        # work that started here and whose outcome is not recorded
        self._begun: set[tuple[str, int]] = set()
        self._tails: dict[str, asyncio.Task[Any]] = {}  # the last task of `later`, by session

    # ---- work

    def start(self, live: LiveSession, said: StepResult) -> None:
        """Start the work that a commit marked as started."""
        for query in said.dispatch:
            effect = live.execution.effect(query.q)
            self._begin(live, query, effect)

    def _begin(self, live: LiveSession, query: Query, effect: Callable[[], Any] | None) -> None:
        job = Job(live.id, live.birth.program, query.name or query.kind)
        attempt = self._make_attempt(live, query, effect)
        task = asyncio.get_running_loop().create_task(self._work(job, query, effect, attempt))
        self._sessions.jobs.setdefault(live.id, {})[query.q] = task
        self.tasks.add(task)
        task.add_done_callback(functools.partial(self._work_done, (str(live.id), query.q)))

    def _make_attempt(
        self, live: LiveSession, query: Query, effect: Callable[[], Any] | None
    ) -> EffectAttempt:
        """The attempt that starts now. The limits of the query come first, then the defaults of its
        program, then those of this runtime.
        """
        retry, timeout = query.retry, query.timeout
        if query.options is not None and retry is None and query.kind is Kind.CALL:
            retry, timeout = read_older_limits(query)
        program = live.execution.program
        default = program.retry or self._retry
        default_timeout = self._timeout if program.timeout is None else program.timeout
        if (default or default_timeout is not None) and takes_defaults(query, effect):
            retry = retry or default
            timeout = default_timeout if timeout is None else timeout
        failed = live.failed.get(query.q) if live.failed else None
        if retry is None and timeout is None and failed is None:
            return _ONLY_ATTEMPT
        return EffectAttempt(retry, timeout, failed)

    def _work_done(self, what: tuple[str, int], task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        jobs = self._sessions.jobs
        session_id, q = what
        # cancelled, but not by its session: the query has no work any more
        if jobs.get(session_id, {}).get(q) is task:
            self._job_ended(session_id, q)
        elif task.cancelled():  # the query was withdrawn
            self._begun.discard(what)

    def _job_ended(self, session_id: str, q: int) -> None:
        jobs = self._sessions.jobs.get(session_id, {})
        jobs.pop(q, None)
        if not jobs:
            self._sessions.jobs.pop(session_id, None)
        self._sessions.changed(session_id)

    def later(self, session_id: str, effects: list[Callable[[], Any]]) -> None:
        """Run functions after a commit, in a task of their own. Those of one session run in
        order.
        """
        task = asyncio.get_running_loop().create_task(
            self._after(self._tails.get(session_id), effects)
        )
        self._tails[session_id] = task
        self.tasks.add(task)
        task.add_done_callback(functools.partial(self._tail_done, session_id))

    def _tail_done(self, session_id: str, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if self._tails.get(session_id) is task:
            del self._tails[session_id]

    async def _after(
        self, before: asyncio.Task[Any] | None, effects: list[Callable[[], Any]]
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        for effect in effects:
            try:
                await run_effect(effect)
            except Exception:
                log.exception("a function scheduled for after a commit failed")

    async def _work(
        self, job: Job, query: Query, effect: Callable[[], Any] | None, attempt: EffectAttempt
    ) -> None:
        session_id = job.session
        task = asyncio.current_task()
        CURRENT_ATTACHMENTS.set(StoreAttachments(self._sessions.store, self._clock, session_id))
        if self._services is not None:
            CURRENT_SERVICES.set(self._services(session_id, query))
        retry_after: float | None = None
        try:
            answer = await self._done(task, job, query, effect, attempt)
        # a future that raised GeneratorExit raises it in this frame, past the handlers below
        except GeneratorExit as error:
            if is_dropped(task):
                raise
            answer = apply_keep_to_error(make_error_answer(query, error), effect)
        except LimiterClosed:
            return await self._unmark(session_id, query, self._hand_back)
        except _AttemptFailed as error:
            answer, retry_after = error.answer, error.retry_after
        except CANNOT_ANSWER_ERRORS as error:
            answer = apply_keep_to_error(make_error_answer(query, error), effect)
            if not self._policy.fails(query):
                return await self._leave_open(session_id, query, error, answer)
            if answer.error is not None and error.hint:
                answer.error["hint"] = error.hint
        # The program resumes outside the handlers, so that no error of ours is the context of its
        # own, and without the call's arguments: on replay nothing holds them.
        del effect
        if attempt.failed is not None:
            answer = attempt.complete(answer)
        if retry_after is None or not await self._try_again(
            session_id, query, attempt, answer, retry_after
        ):
            await self.deliver(session_id, answer)

    async def _leave_open(
        self, session_id: str, query: Query, error: EverholdError, kept: QueryAnswer
    ) -> None:
        """Leave a query that this process cannot answer to others, and say why. `kept` has what may
        be stored of the error.
        """
        if self._serving.worker is None:  # a worker reports it itself, once
            log.warning(
                "q-%d of session %s cannot be answered here and stays open: %s",
                query.q,
                session_id,
                error,
            )
        self._policy.refuse(session_id, query.q)
        message = (kept.error or {}).get("message", "")
        why = Blocked(error.code, message, error.hint, self._clock.now(), kept.exception)
        await self._unmark(session_id, query, functools.partial(self._park, why))

    async def _done(
        self,
        task: asyncio.Task[Any] | None,
        job: Job,
        query: Query,
        effect: Callable[[], Any] | None,
        attempt: EffectAttempt,
    ) -> QueryAnswer:
        """Wait for the job limiter, then run the work. It may be cancelled until it has an
        outcome.
        """
        self.doing.add(task)
        try:
            gate = self._serving.gate
            if gate is None:
                return await self._outcome(job.session, query, effect, attempt)
            async with gate.entered(job):
                return await self._outcome(job.session, query, effect, attempt)
        finally:
            self.doing.discard(task)

    def _park(self, why: Blocked, live: LiveSession, query: Query, change: Change) -> None:
        """Leave a query that this process cannot answer open for other processes and people, with
        the reason.
        """
        del live.working[query.q]
        live.failed.pop(query.q, None)
        live.head.block(live.opened, query.q, why)
        change.closed = [query.q]
        if is_noticed(query.kind, query.to):
            live.noticed.add(query.q)
            change.notices = [Notice(query.q, query.kind, query.to, live.opened[query.q].at, query)]

    def _hand_back(self, live: LiveSession, query: Query, change: Change) -> None:
        """Leave work that did not start here for other processes."""
        live.working[query.q] = NO_WORKER
        failed = live.failed.get(query.q)
        change.effects = [Effect(query.q, NO_WORKER, self._clock.now(), failed)]
        change.durable = True

    async def _unmark(
        self, session_id: str, query: Query, how: Callable[[LiveSession, Query, Change], None]
    ) -> None:
        """Remove this process's mark from a query that stays open."""

        async def act(live: LiveSession) -> None:
            if live.working.get(query.q) != self._worker:
                return
            head = live.head
            change = Change(live.id, live.head)
            how(live, query, change)
            fence = head.revision
            head.revision = head.revision + 1
            await self._commit(live, change, fence)

        self._begun.discard((session_id, query.q))  # it did not start
        self._sessions.jobs.get(session_id, {}).pop(query.q, None)
        try:
            await self._insisting(session_id, query.q, act)
        finally:
            self._job_ended(session_id, query.q)

    # ---- the next attempt

    async def _try_again(
        self,
        session_id: str,
        query: Query,
        attempt: EffectAttempt,
        answer: QueryAnswer,
        retry_after: float,
    ) -> bool:
        """Store a failed attempt, and let the next one start after a wait. Returns False if none
        may follow: then the failure is the answer.
        """
        retry = attempt.retry
        assert retry is not None

        async def act(live: LiveSession) -> bool:
            if live.working.get(query.q) != self._worker:
                self._begun.discard((session_id, query.q))
                return True  # withdrawn, or claimed by another process
            now = self._clock.now()
            wait = max(retry.compute_wait(attempt.number, random.random), retry_after)
            next_at = now + wait
            if query.expires_at is not None and next_at >= query.expires_at:
                return False
            if query.kind in METERED and not self._may_ask_again(live, attempt, answer.usage):
                return False
            known = FailedAttempt(
                attempt.number,
                retry.attempts,
                format_answer_error(answer)[:MAX_ATTEMPT_CHARS],
                now,
                next_at,
                answer.usage,
            )
            live.failed[query.q] = known
            live.working[query.q] = NO_WORKER
            change = Change(live.id, live.head)
            change.effects = [Effect(query.q, NO_WORKER, next_at, known)]
            change.durable = unknown_effects.is_unsafe_to_rerun(query)
            fence = live.head.revision
            live.head.revision = fence + 1
            live.head.attempts = 0
            await self._commit(live, change, fence)
            log.info(
                "q-%d of session %s: attempt %d of %d failed, the next one starts in %.3g s: %s",
                *(query.q, session_id, known.number, known.of, wait, known.error),
            )
            if self._sessions.observed:
                self._sessions.observers.attempt_failed(live.id, query, known)
            # not before it is stored: a mark without a task would be resolved as lost work
            self._begun.discard((session_id, query.q))
            self._job_ended(session_id, query.q)
            self._wait_for_attempt(session_id, query.q, next_at)
            return True

        if query.kind in METERED:
            publish_delta(session_id, query.id, Delta(DeltaKind.RESET))
        try:
            return await self._until_written(
                session_id, query.q, lambda: self._sessions.on(session_id, act)
            )
        except UnknownSession:
            return True  # it was deleted
        except Exception:
            log.exception("a failed attempt of session %s could not be stored", session_id)
            return False

    def _may_ask_again(
        self, live: LiveSession, attempt: EffectAttempt, spent: Usage | None
    ) -> bool:
        """Whether the budget of a session allows one more question to a model, after attempts that
        spent this.
        """
        budget = get_budget(live.birth, live.head.metrics)
        if budget is None:
            return True
        meter = live.head.metrics
        # what failed attempts cost is counted with the answer that follows
        failures = [
            (one.number, one.usage)
            for q, one in live.failed.items()
            if live.opened[q].query.kind in METERED and one is not attempt.failed
        ]
        asked = meter.llm_calls + attempt.number - 1 + sum(number for number, _ in failures)
        costs = (price_exchange(usage, 0, 0) for usage in (spent, *(used for _, used in failures)))
        tokens = meter.tokens + sum(cost.prompt + cost.response for cost in costs)
        elapsed = int((self._clock.now() - live.birth.created_at) * 1000)
        try:
            budget.check(1, llm_calls=asked, elapsed_ms=elapsed, tokens=tokens)
        except BudgetExceeded:
            return False
        return True

    def _wait_for_attempt(self, session_id: str, q: int, at: float) -> None:
        """Start the next attempt at a query at this time. A worker releases the session meanwhile;
        any other process waits, as for work of its own, unless it is closing.
        """
        if self._serving.worker is not None:
            self._serving.send(session_id, at)
        if self._serving.worker is not None or self._serving.leaving:
            return
        what = session_id, q
        task = asyncio.get_running_loop().create_task(self._start_at(session_id, q, at))
        self.waits[what] = task
        task.add_done_callback(functools.partial(self._waited, what))

    def _waited(self, what: tuple[str, int], task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self.waits.get(what) is task:
            del self.waits[what]
        self._sessions.changed(what[0])

    async def _start_at(self, session_id: str, q: int, at: float) -> None:
        async def act(live: LiveSession) -> None:
            if live.waits_for_attempt(q) and not live.head.ended and not self._serving.leaving:
                await self._presence.introduce()
                await self._take_up(live, [q], live.head.attempts)

        await self._clock.sleep(at - self._clock.now())
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)  # from here on it writes, and is not interrupted
        try:
            await self._insisting(session_id, q, act)
        except EverholdError as error:  # a move finds it, as it is due
            log.warning("q-%d of session %s is not tried again here: %s", q, session_id, error)

    def stop_waits(self) -> None:
        """Leave the next attempts to other processes."""
        for task in set(self.waits.values()) - self.tasks:
            task.cancel()

    def is_waiting(self, session_id: str) -> bool:
        """Whether this process waits to start the next attempt at a query of a session."""
        live = self._sessions.cached(session_id)
        return live is not None and any(
            (session_id, q) in self.waits for q in live.failed if live.waits_for_attempt(q)
        )

    # ---- the outcome

    async def deliver(self, session_id: str, answer: QueryAnswer) -> None:
        """Deliver the outcome of a query that this process worked on.

        Another process's answer is never overwritten. While the store is unavailable or full, the
        delivery is retried, because only this process knows the outcome.
        """

        async def act(live: LiveSession) -> None:
            if answer.q not in live.opened or live.head.ended:
                return
            if live.working.get(answer.q, self._worker) == self._worker:
                await self._sessions.step(live, [answer])
            else:
                log.warning(
                    "q-%d of session %s was claimed by another process; its outcome is discarded",
                    answer.q,
                    session_id,
                )

        try:
            await self._insisting(session_id, answer.q, act)
        except UnknownSession:
            pass  # it was deleted
        except Exception as error:
            await self._keep_outcome(session_id, answer, error)
        else:
            self._begun.discard((session_id, answer.q))
        finally:
            self._job_ended(session_id, answer.q)

    async def _keep_outcome(self, session_id: str, answer: QueryAnswer, why: Exception) -> None:
        """Record an outcome that the program in this process cannot receive; a later move delivers
        it.

        If that fails, too, the outcome is unknown, as if the process had died.
        """
        try:
            recorded = await self._until_written(
                session_id, answer.q, lambda: self._keep(session_id, answer)
            )
        except Exception:
            log.exception(
                "the outcome of q-%d of session %s could not be recorded", answer.q, session_id
            )
            return
        self._begun.discard((session_id, answer.q))
        if recorded:
            log.warning(
                "the outcome of q-%d of session %s is recorded, but not delivered: %s",
                answer.q,
                session_id,
                why,
            )

    async def _insisting(
        self, session_id: str, q: int, act: Callable[[LiveSession], Awaitable[None]]
    ) -> None:
        """Write a fact about a query that only this process knows. Retries until the store is
        available.
        """
        await self._until_written(session_id, q, lambda: self._sessions.on(session_id, act))

    async def _until_written(self, session_id: str, q: int, write: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await write()
            except STORE_AWAY_ERRORS as error:
                log.warning(
                    "the outcome of q-%d of session %s could not be written; retrying: %s",
                    q,
                    session_id,
                    error,
                )
            await self._clock.sleep(WRITE_RETRY_DELAY)

    async def _outcome(
        self,
        session_id: str,
        query: Query,
        effect: Callable[[], Any] | None,
        attempt: EffectAttempt,
    ) -> QueryAnswer:
        self._begun.add((session_id, query.q))
        asking = DirectCompletions(session_id, self._policy.model, make_checked_answer)
        COMPLETER.set(asking)
        said: Any = None
        try:
            if query.kind is Kind.CALL:
                if effect is None:
                    raise AnswerFailed(f"{query.name} is not known to this process")
                act = effect
                if self._substitute is not None:
                    act = self._substitute(session_id, query, effect)
                value = await self._call(query, act, attempt.timeout)
                return apply_keep(QueryAnswer(query.q, value, usage=asking.spent.usage), effect)
            asked = query if effect is None else restore_full_query(query, effect())
            answerer = self._policy.answerer(query.kind)
            if attempt is _ONLY_ATTEMPT:
                said = await answerer.answer(asked, session_id)
            else:
                said = await _ask_within(answerer, asked, session_id, attempt)
            answer = apply_keep(make_checked_answer(query, said), effect)
            if answer.error is None:
                return answer
            said_error = AnswerFailed(answer.error["message"], answer.error["code"])
            return self._settle_failure(attempt, answer, said_error)
        except (GeneratorExit, _AttemptFailed):  # this task is being closed, or tries again
            raise
        except BaseException as error:  # every error becomes the answer that the program waits for
            timed_out = isinstance(error, _TimedOut)
            if isinstance(error, _TimedOut):
                error = error.error
            if isinstance(error, INTERRUPTS):
                if not is_raised_by_code(error):
                    raise
                error = convert_interrupt(error)
            given_up = isinstance(error, asyncio.CancelledError) and is_cancelled()
            if given_up or (
                isinstance(error, CANNOT_ANSWER_ERRORS) and query.kind is not Kind.CALL
            ):
                raise
            usage = asking.spent.usage if said is None else read_usage(said)
            answer = apply_keep_to_error(make_error_answer(query, error, usage), effect)
            if timed_out and unknown_effects.is_unsafe_to_rerun(query):
                return answer
            return self._settle_failure(attempt, answer, error)

    def _settle_failure(
        self, attempt: EffectAttempt, answer: QueryAnswer, error: BaseException
    ) -> QueryAnswer:
        """The answer of a failed attempt; raises `_AttemptFailed` if another one may follow."""
        if attempt.is_last or attempt.retry is None or not attempt.retry.is_retried(error):
            return answer
        raise _AttemptFailed(answer, read_retry_after(error))

    async def _call(self, query: Query, effect: Callable[[], Any], timeout: float | None) -> Any:
        """Run the function of a call, within the time of one attempt.

        A function in a thread cannot be stopped: it runs on, and its result is ignored.
        """
        try:
            async with asyncio.timeout(timeout) as limit:
                value = await run_effect(effect)
        except TimeoutError:
            if not limit.expired():
                raise
            words = f"{query.name} took longer than {timeout:g} s"
            raise _TimedOut(TimeoutError(words)) from None
        returned = get_return_type(getattr(effect, "func", effect))
        return encode_value_as(value, returned, f"the result of {query.name}")

    # ---- after a death

    def idle(self, record: SessionRecord) -> list[str]:
        """This process's id, if the session has a mark of this process without a task; else
        nothing.
        """
        jobs = self._sessions.jobs.get(record.birth.id, {})
        return (
            [self._worker]
            if any(one.worker == self._worker and one.q not in jobs for one in record.effects)
            else []
        )

    async def resolve(self, live: LiveSession) -> None:
        """Resolve marks without a running task: their process died, or this process has no task for
        them.

        The session's lock is held. A process that closed cleanly does not count as a death. Work
        that this process marked and did not start is started.
        """
        jobs = self._sessions.jobs.get(live.id, {})
        mine = [q for q, worker in live.working.items() if worker == self._worker and q not in jobs]
        if mine and self._sessions.stepper.is_marking(live.id):
            mine = []  # their commit has just landed; `start` follows
        others = {worker for worker in live.working.values() if worker != self._worker}
        if not mine and not others:
            return
        known = (
            {worker.id: is_worker_alive(worker) for worker in await self._presence.workers()}
            if others
            else {}
        )
        orphaned = [
            q for q, worker in live.working.items() if worker in others and not known.get(worker)
        ]
        now = self._clock.now()
        orphaned = [
            q
            for q in (*mine, *orphaned)
            if q in live.opened and not (live.waits_for_attempt(q) and live.failed[q].next_at > now)
        ]
        if not orphaned or live.head.ended:
            return
        await self._presence.introduce()
        deaths = live.head.attempts + any(live.working[q] in known for q in orphaned)
        if deaths >= DEATHS:
            await self._poisoned(live)
            return
        for q in mine:
            if (live.id, q) not in self._begun:
                live.working[q] = NO_WORKER
        taken_over = any(live.working[q] not in (NO_WORKER, self._worker) for q in orphaned)
        if taken_over and self._serving.worker is not None:
            self._serving.worker.took_over(live.birth)
        await self._take_up(live, orphaned, deaths)

    async def adopt(self, live: LiveSession, *, asked: bool) -> None:
        """Start to answer open queries without a mark, if this process can. The session's lock is
        held.

        A process that is not a worker does so only if a caller `asked` for a move of the session.
        """
        if not (asked or self._serving.adopts) or live.head.ended:
            return
        parked = [
            q
            for q, entry in live.opened.items()
            if q not in live.working
            and not self._policy.is_refused(live.id, q)
            and self._policy.is_inline(entry.query)
            and self._policy.may_answer(live.birth, entry.query)
        ]
        if parked:
            await self._presence.introduce()
            await self._take_up(live, parked, live.head.attempts)

    async def _take_up(self, live: LiveSession, orphaned: list[int], deaths: int) -> None:
        head = live.head
        now = self._clock.now()
        change = Change(live.id, head, durable=True)
        again: list[Query] = []
        unknown: list[QueryAnswer] = []
        for q in orphaned:
            query = live.opened[q].query
            if unknown_effects.is_unsafe_to_rerun(query) and live.working.get(q) != NO_WORKER:
                if query.rerun is Rerun.NEVER:
                    unknown.append(unknown_effects.make_unknown_answer(query))
                else:
                    self._ask(live, change, query, now)
            elif query.kind is Kind.CALL or self._policy.is_inline(query):
                failed = live.failed.get(q)
                change.effects = [*change.effects, Effect(q, self._worker, now, failed)]
                live.working[q] = self._worker
                again.append(query)
            else:
                change.closed = [*change.closed, q]
                live.working.pop(q)
                live.failed.pop(q, None)
        fence = head.revision
        head.revision = fence + 1
        head.attempts = deaths
        await self._commit(live, change, fence)
        self._begun.difference_update((live.id, q) for q in orphaned)
        for query in again:
            self._begin(live, query, live.execution.effect(query.q))
        if unknown:
            await self._sessions.step(live, unknown)
        self._sessions.changed(live.id)

    def _ask(self, live: LiveSession, change: Change, query: Query, now: float) -> None:
        """Put the query into the inbox: a person decides whether its effect runs again."""
        change.closed = [*change.closed, query.q]
        change.notices = [
            *change.notices,
            Notice(query.q, query.kind, query.to, now, unknown_effects.make_rerun_question(query)),
        ]
        live.working.pop(query.q)
        live.failed.pop(query.q, None)
        live.noticed.add(query.q)

    async def again(self, live: LiveSession, q: int) -> None:
        """Run an effect again, as a person decided. The session's lock is held."""
        await self._presence.introduce()
        head = live.head
        query = live.opened[q].query
        change = Change(live.id, head, durable=True, closed=[q])
        change.effects = [Effect(q, self._worker, self._clock.now())]
        live.noticed.discard(q)
        live.working[q] = self._worker
        fence = head.revision
        head.revision = head.revision + 1
        await self._commit(live, change, fence)
        self._begin(live, query, live.execution.effect(q))

    async def _commit(self, live: LiveSession, change: Change, fence: int) -> None:
        change.head.state = SessionState.RUNNING if live.works() else SessionState.PAUSED
        change.head.due_at = live.due()
        change.head.parked = is_parked(live.birth, live.opened, live.working)
        change.head.asking = is_asking(live.opened, live.working)
        try:
            with self._sessions.stepper.marking(live.id):
                await self._sessions.store.commit(change, fence)
        except BaseException:
            live.drop()
            raise

    async def _poisoned(self, live: LiveSession) -> None:
        error = Poison(DEATHS)
        await self._sessions.end(live, Raised(str(error), error.code, "", live.head.n))


#: An attempt without limits, at a query that was not tried before.
_ONLY_ATTEMPT: Final = EffectAttempt()


def read_older_limits(query: Query) -> tuple[Retry | None, float | None]:
    """The retry policy of a call without one of its own, and the seconds of one attempt: calls in
    older databases have them among their options.
    """
    options = query.options or {}
    return convert_older_retries(options.get("retries")), options.get("timeout", query.timeout)


def takes_defaults(query: Query, effect: Callable[[], Any] | None) -> bool:
    """Whether the default limits of a program and runtime apply: to model questions, and to safe
    calls that a program or a model asked for, not to those of everhold itself.
    """
    if query.kind in METERED:
        return True
    while isinstance(effect, KeptEffect):
        effect = effect.effect
    return query.rerun is Rerun.SAFE and isinstance(effect, ProgramEffect)


async def _ask_within(
    answerer: Answerer, asked: Query, session_id: str, attempt: EffectAttempt
) -> Any:
    """Ask an answerer, within the limits of one attempt."""
    if attempt.retry is not None:  # then the answerer does not retry by itself
        asked = msgspec.structs.replace(asked, retry=attempt.retry)
    try:
        async with asyncio.timeout(attempt.timeout) as limit:
            return await answerer.answer(asked, session_id)
    except TimeoutError:
        if not limit.expired():
            raise
        words = f"no answer within {attempt.timeout:g} s"
        raise _TimedOut(AnswerFailed(words, "timeout")) from None


def is_cancelled() -> bool:
    """Whether the current task is being cancelled, and not only something that it awaits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def is_dropped(task: asyncio.Task[Any] | None) -> bool:
    """Whether a GeneratorExit closes the task: then it is not the running task.

    An awaited future may raise GeneratorExit, too; then the task is running.
    """
    loop = asyncio._get_running_loop()
    return loop is None or asyncio.current_task(loop) is not task


async def run_effect(effect: Callable[[], Any]) -> Any:
    """Run an async function on the event loop, any other in a thread."""
    function = getattr(effect, "func", effect)
    if inspect.iscoroutinefunction(function):
        return await effect()
    # a pool thread keeps its last arguments alive, so it gets a box that both sides empty
    box: list[Any] = [effect]
    await asyncio.to_thread(_contained, box)
    found, error = box.pop()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame
    return await found if inspect.isawaitable(found) else found


def _contained(box: list[Any]) -> None:
    """Replace the function in the box by its result and its error."""
    try:
        box.append((box.pop()(), None))
    except INTERRUPTS as error:  # an interrupt raised in a thread must not end the process
        box.append((None, convert_interrupt(error)))
    except StopIteration as error:  # cannot pass through a coroutine
        found = RuntimeError(f"StopIteration: {error.value}")
        box.append((None, found.with_traceback(error.__traceback__)))
    except BaseException as error:
        box.append((None, error))


def restore_full_query(query: Query, whole: Query) -> Query:
    """A query that is stored by reference, with its full contents."""
    return msgspec.structs.replace(whole, q=query.q, key=query.key, args=query.args)


def make_checked_answer(query: Query, said: Any) -> QueryAnswer:
    """The checked answer from what an answerer returned. Raises if it does not fit."""
    usage: Usage | None = None
    if isinstance(said, QueryAnswer):
        if said.error is not None:
            return QueryAnswer(query.q, None, said.error, said.usage, exception=said.exception)
        return QueryAnswer(query.q, fit_answer_value(query, said.value), usage=said.usage)
    if isinstance(said, Answer):
        said, usage = said.value, None if said.usage is None else parse_usage(said.usage)
    return QueryAnswer(query.q, fit_answer_value(query, said), usage=usage)


def apply_keep(answer: QueryAnswer, effect: Callable[[], Any] | None) -> QueryAnswer:
    """The answer as the effect's `keep` rewrites it for the journal."""
    if not isinstance(effect, KeptEffect):
        return answer
    if answer.error is None and isinstance(effect, KeptErrors):
        return answer
    return apply_keep_to_answer(answer, effect.keep)


def apply_keep_to_error(answer: QueryAnswer, effect: Callable[[], Any] | None) -> QueryAnswer:
    """The error as `keep` rewrites it for the journal; if `keep` fails, the failure of `keep`."""
    try:
        return apply_keep(answer, effect)
    except EverholdError as error:
        return msgspec.structs.replace(answer, error=encode_stored_error(error), exception=None)


def read_usage(said: Any) -> Usage | None:
    """The usage of an answer that cannot be recorded: it was spent all the same."""
    if isinstance(said, QueryAnswer):
        return said.usage
    try:
        return parse_usage(said.usage) if isinstance(said, Answer) and said.usage else None
    except BadArguments:
        return None


def fit_answer_value(query: Query, value: Any) -> Any:
    """The value as it is stored. Raises `AnswerRefused` or `BadValue` if it does not fit the
    query.
    """
    if query.schema is None and (query.kind not in TEXT_KINDS or query.args is not None):
        return to_plain(value, "the answer")
    if type(value) is str and query.schema is None:
        return value if value.isascii() else to_plain(value, "the answer")
    return parse_answer(to_plain(value, "the answer"), query.schema)


def make_error_answer(
    query: Query, error: BaseException, usage: Usage | None = None
) -> QueryAnswer:
    """An error as the answer of a query, with the frames of the code that raised it."""
    told = encode_stored_error(error)
    return QueryAnswer(query.q, error=told, usage=usage, exception=describe_exception(error))


def encode_stored_error(error: BaseException) -> dict[str, str]:
    """The stored form of an error: its code and its message."""
    code = error.code if isinstance(error, EverholdError) else type(error).__name__
    if isinstance(error, AnswerFailed) and error.kind:
        code = error.kind
    words = words_of(error)
    return {
        "code": code,
        "message": (words if code in KEPT_WHOLE else words[:MAX_STORED_ERROR_CHARS]) or code,
    }
