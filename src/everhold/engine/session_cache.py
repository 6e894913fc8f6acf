"""The cache of sessions in memory: loads, rebuilds and drops them, and notifies waiting tasks.

The cache is bounded; the least recently used sessions leave it first. If another process has
committed a step of a session, the session is rebuilt here and the action runs again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol, TypeVar

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.journal import Delivery
from everhold.core.observer import Observers
from everhold.core.query import Query, QueryAnswer
from everhold.core.session import SessionState
from everhold.core.status import Outcome, Raised, Returned, is_idle_expired
from everhold.engine.children import has_relevant_letters
from everhold.engine.live_session import LiveSession, NoExecution, is_replayable, rebuild_session
from everhold.engine.serving import Serving
from everhold.engine.step import Stepper, StepResult
from everhold.errors import Overtaken
from everhold.ports.program import ProgramHost
from everhold.ports.store import FROM_RESTART, SessionRecord, Store

log = logging.getLogger("everhold")
T = TypeVar("T")


class StepFollower(Protocol):
    """Runs the work that follows from a step."""

    def start_work(self, live: LiveSession, said: StepResult) -> None:
        """Start the work that a commit marked as started."""

    def run_after_commit(self, session_id: str, effects: list[Callable[[], Any]]) -> None:
        """Run these functions after a commit, in order."""


class SessionCache:
    def __init__(
        self,
        store: Store,
        host: ProgramHost,
        stepper: Stepper,
        observers: Observers,
        follower: StepFollower,
        serving: Serving,
        wakeup: asyncio.Event,
        *,
        cache: int,
    ) -> None:
        self.store = store
        self.host = host
        self.observers = observers
        self.observed = bool(observers)
        self._follower = follower
        self._serving = serving
        self._wakeup = wakeup  # wakes reconciliation
        self._asks_people = False  # whether this process sends notifications
        self.stepper = stepper
        # running work of this process, by session and query
        self.jobs: dict[str, dict[int, asyncio.Task[Any]]] = {}
        self._lives: OrderedDict[str, LiveSession] = OrderedDict()
        self._loading: dict[str, asyncio.Lock] = {}
        self._watchers: dict[str, list[asyncio.Future[None]]] = {}
        self.suspects: set[str] = set()  # sessions in memory that another process may have moved
        self.awaited = asyncio.Event()  # set while any task waits for a session
        self._cache = cache

    # ---- in memory

    def cached(self, session_id: str) -> LiveSession | None:
        live = self._lives.get(session_id)
        if live is not None:
            self._lives.move_to_end(session_id)
        return live

    async def live(self, session_id: str, record: SessionRecord | None = None) -> LiveSession:
        """The session in memory. If needed, it is rebuilt from `record`, or from the store.

        Raises what `rebuild_session` raises. An ended session is not rebuilt, because its program
        may have changed since; it gets no execution.
        """
        live = self.cached(session_id)
        if live is not None:
            return live
        lock = self._loading.setdefault(session_id, asyncio.Lock())
        try:
            async with lock:
                live = self.cached(session_id)
                if live is None:
                    if record is None or not is_replayable(record):
                        record = await self.store.load(session_id, since=FROM_RESTART)
                    if record.head.ended:
                        return LiveSession(record.birth, record.head, NoExecution())
                    live = await rebuild_session(record, self.host)
                    self.keep(live)
                return live
        finally:
            if not lock.locked():
                self._loading.pop(session_id, None)

    def keep(self, live: LiveSession) -> None:
        self._lives[live.id] = live
        excess = len(self._lives) - self._cache
        if excess > 0:
            idle = (
                other
                for other in self._lives.values()
                if other is not live and not other.lock.locked()
            )
            for other in list(islice(idle, excess)):
                self.drop(other)

    def drop(self, live: LiveSession) -> None:
        """Remove a session from memory. Its running work continues and loads it again."""
        if self._lives.get(live.id) is live:
            del self._lives[live.id]
        live.drop()

    def overtaken(self, session_id: str, revision: int) -> None:
        """Remove a session whose stored revision is another one, unless it is in use."""
        live = self._lives.get(session_id)
        if live is not None and live.head.revision != revision and not live.lock.locked():
            self.drop(live)

    def suspect(self, session_id: str) -> None:
        """Note that another process may have moved a session. The next move compares its
        revision.
        """
        if session_id in self._lives:
            self.suspects.add(session_id)

    def outdate(self, session_id: str) -> None:
        """Remove a session from memory because the store has something newer."""
        live = self._lives.get(session_id)
        if live is not None:
            if live.lock.locked():
                live.outdated = True  # in use: the next action rebuilds it
            else:
                self.drop(live)

    def idle(self, now: float, ttl: float) -> list[LiveSession]:
        """Sessions that have not moved for `ttl` seconds and are not in use."""
        lives = self._lives.values()
        return [
            live
            for live in lives
            if is_idle_expired(live.head.updated_at, now, ttl) and not live.lock.locked()
        ]

    def all(self) -> list[LiveSession]:
        return list(self._lives.values())

    # ---- moving one

    async def on(
        self,
        session_id: str,
        act: Callable[[LiveSession], Awaitable[T]],
        record: SessionRecord | None = None,
    ) -> T:
        """Run `act` with the session's lock held. Retries if another process committed first.

        `record` is the session, if the caller has just loaded it.
        """
        tries = 0
        while True:
            live = await self.live(session_id, record)
            record = None
            async with live.lock:
                if live.stale or live.outdated:
                    self.drop(live)
                    continue
                try:
                    return await act(live)
                except Overtaken:
                    self.drop(live)
                    tries += 1
                except BaseException:
                    if live.stale:
                        self.drop(live)
                    raise
            await asyncio.sleep(min(0.001 * tries, 0.05))

    async def insisting(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run an attempt that builds its own live session. Retries if another process committed
        first.
        """
        tries = 0
        while True:
            try:
                return await attempt()
            except Overtaken:
                tries += 1
            await asyncio.sleep(min(0.001 * tries, 0.05))

    def after_plain(self, live: LiveSession, done: Query | StepResult) -> None:
        """Follow up a step of `Stepper.plain`. If only the next question is new, wakes the waiting
        tasks.
        """
        if type(done) is StepResult:
            self._follow_up(live, done, None)
            return
        self._do_after(live)
        if live.id in self._watchers:
            self.changed(live.id)

    async def step(self, live: LiveSession, answers: list[QueryAnswer], **more: Any) -> StepResult:
        """Make one step, start its work and notify. The session's lock is held."""
        due = live.head.due_at
        said = await self.stepper.step(live, answers, **more)
        self._follow_up(live, said, due)
        return said

    def _follow_up(self, live: LiveSession, said: StepResult, due: float | None) -> None:
        """Start the work of a step, request moves, and notify observers and waiting tasks."""
        jobs = self.jobs.get(live.id)
        if jobs:
            for q in said.closed if said.outcome is None else list(jobs):
                task = jobs.pop(q, None)
                if task is not None and task is not asyncio.current_task():
                    task.cancel()
        self._do_after(live)
        if said.dispatch:
            self._follower.start_work(live, said)
        if self.observed:
            self._notify_observers(
                live, said
            )  # before the drop, so that observers can still find the session
        if said.outcome is not None:
            self.drop(live)
            self.jobs.pop(live.id, None)
        self._request_moves(live, said, due)
        if live.id in self._watchers:
            self.changed(live.id)

    def _request_moves(self, live: LiveSession, said: StepResult, due: float | None) -> None:
        """Request the moves that follow from a commit: of this session, and of those that got its
        letters.
        """
        head = live.head
        for other in said.others:
            self.outdate(other)
            self.send(other)
        live.others += said.others
        if said.settled:
            self._serving.turn_settled(live.id)
        if head.mail and not head.ended and has_relevant_letters(live):
            self.send(live.id)
        elif head.state in (SessionState.FAILED, SessionState.CANCELLED):
            self.send(live.id)  # a move fails its queued input
        if head.due_at is not None and head.due_at != due:
            self.send(live.id, at=head.due_at)
        if self._asks_people and any(query.q in live.noticed for query in said.asked):
            self.poke()

    async def end(
        self,
        live: LiveSession,
        outcome: Outcome,
        *,
        cancel: str | None = None,
        by: dict[str, JSON] | None = None,
    ) -> None:
        """End a session without running its program. The session's lock is held."""
        said = await self.stepper.end(live, outcome, cancel, by)
        for task in self.jobs.pop(live.id, {}).values():
            task.cancel()
        if self.observed:
            self._notify_observers(live, said)
        self.drop(live)
        self._request_moves(live, said, live.head.due_at)
        self.changed(live.id)

    async def retry(
        self,
        live: LiveSession,
        failed: Delivery,
        ends: list[QueryAnswer],
        **more: Any,
    ) -> StepResult:
        """Repeat the last delivery of a failed session. The session's lock is held."""
        said = await self.stepper.retry(live, failed, ends, **more)
        self._follow_up_rebuilt(live, said)
        return said

    async def branch(
        self,
        live: LiveSession,
        shared: list[Delivery],
        answers: list[QueryAnswer],
        budget: Budget | None,
    ) -> StepResult:
        """Make the first commit of a fork. The session's lock is held."""
        said = await self.stepper.branch(live, shared, answers, budget)
        self._follow_up_rebuilt(live, said)
        return said

    def _do_after(self, live: LiveSession) -> None:
        if live.execution.after:
            self._follower.run_after_commit(live.id, live.execution.take_after())

    def _follow_up_rebuilt(self, live: LiveSession, said: StepResult) -> None:
        self._do_after(live)
        if said.dispatch:
            self._follower.start_work(live, said)
        if self.observed:
            self._notify_observers(live, said)
        if said.outcome is not None:
            self.drop(live)
        self._request_moves(live, said, None)
        self.send(live.id)
        self.changed(live.id)

    def _notify_observers(self, live: LiveSession, said: StepResult) -> None:
        observers = self.observers
        session_id = live.id
        remaining = len(live.opened) - len(said.asked)
        for query, answer, cost in said.answered:
            observers.answered(session_id, query, answer, cost)
            if remaining > 0 and not said.asked:
                observers.partly_answered(session_id, query, answer, remaining)
        if said.answered and said.resumed:
            observers.resumed(session_id)
        if said.progress is not None:
            observers.progressed(session_id, said.progress)
        outcome = said.outcome
        metrics = live.head.metrics
        if outcome is None:
            if said.asked:
                observers.paused(session_id, said.asked)
        elif isinstance(outcome, Returned):
            observers.completed(session_id, outcome.value, metrics)
        elif isinstance(outcome, Raised):
            observers.failed(session_id, outcome.error, metrics)
        else:
            observers.cancelled(session_id, outcome.reason, metrics)

    # ---- requesting moves

    def send(self, session_id: str, at: float | None = None) -> None:
        """Request a move; see `Mover.send`."""
        self._serving.send(session_id, at)

    def poke(self) -> None:
        """Wake reconciliation for a look."""
        self._wakeup.set()

    def wake_for_people(self) -> None:
        """From now on, wake reconciliation when a query gets an inbox row."""
        self._asks_people = True

    # ---- waiting for changes

    def changed(self, session_id: str | None = None) -> None:
        """Wake the tasks that wait for this session; without an id, for any session."""
        ids = list(self._watchers) if session_id is None else [session_id]
        for each in ids:
            for future in self._watchers.pop(each, ()):
                if not future.done():
                    future.set_result(None)

    async def next_change(self, session_id: str, timeout: float | None) -> None:
        """Wait until the session may have changed."""
        with self.watched(session_id) as future:
            if timeout is None:
                await future
            else:
                await asyncio.wait([future], timeout=timeout)

    @contextmanager
    def watched(self, session_id: str) -> Iterator[asyncio.Future[None]]:
        """A future that is done when the session may have changed after this call."""
        future = asyncio.get_running_loop().create_future()
        self._watchers.setdefault(session_id, []).append(future)
        self.awaited.set()
        try:
            yield future
        finally:
            waiting = self._watchers.get(session_id)
            if waiting and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._watchers[session_id]
            if not self._watchers:
                self.awaited.clear()
