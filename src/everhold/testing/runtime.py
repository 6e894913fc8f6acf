"""A runtime for tests: in memory, on a manual clock, without background work.

Reconciliation does not run in the background: `settle` does its work until nothing moves any more.
So a test behaves the same on a busy machine. Ids and random numbers are counted, not drawn, so that
they are the same in every run of a test.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Collection
from typing import Any

from everhold.core.query import MODEL_KINDS, SCRIPTED_KINDS, Query
from everhold.core.session import Birth
from everhold.ports.answerer import Answerer
from everhold.ports.program import Call
from everhold.ports.store import SessionRecord, Store
from everhold.runtime import Runtime
from everhold.testing.answers import RecordedAnswers, StandIns, give_recorded_answer, make_stand_in
from everhold.testing.clock import ManualClock

#: Seconds after the moment of a timer at which it is surely due.
AFTER = 0.001


class StillClock(ManualClock):
    """A manual clock on which the runtime's own delays, such as those between retries, take no
    time.
    """

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class RuntimeForTests(Runtime):
    """The runtime of one test, or of one life between two crashes."""

    def __init__(self, store: Store, clock: StillClock, stand_ins: StandIns) -> None:
        numbers = itertools.count(1)
        super().__init__(
            store,
            clock=clock,
            recover=False,
            idle=1e12,
            dice=lambda bits: next(numbers),
            substitute=self._instead,
        )
        self.still = clock
        self.stand_ins = stand_ins
        self.called: list[Query] = []  # the calls that were run, in order
        self._recorded: RecordedAnswers | None = None

    def answer_with(self, answerer: Answerer | None, *, people: bool) -> None:
        """Set the answerer for model questions, and with `people` also for people's questions."""
        kinds = SCRIPTED_KINDS if people else MODEL_KINDS
        found = {kind: answerer for kind in kinds if answerer is not None}
        self.engine.policy.answer_with(found, addressed=people)
        self._recorded = answerer if isinstance(answerer, RecordedAnswers) else None

    async def adopt(self) -> None:
        """Let the present answerer answer the questions that were already open."""
        for info in await self.sessions(state=("running", "paused"), limit=10_000):
            self._claim(info.session_id, info.program)
            await self.engine.move(info.session_id)
        await self.settle()

    async def settle(self) -> None:
        """Run everything that is due now until nothing moves any more."""
        while True:
            await self.rest()
            if not await self.engine.reconciler.move():
                return

    async def rest(self) -> None:
        """Wait until running effects, and verbs whose callers were cancelled, have ended."""
        effects = self.engine.effects
        while tasks := {*effects.tasks, *effects.waits.values(), *self.engine.shielded.tasks}:
            await asyncio.wait(tasks)

    async def skip(self, seconds: float) -> None:
        """Advance the clock; timers on the way fire in order, each at its time."""
        end = self.still.now() + seconds
        await self.settle()
        passed = -1.0
        while (due := await self._due(passed)) is not None and due < end:
            passed = due
            self._to(due + AFTER)
            await self.settle()
        self._to(end)
        await self.settle()

    async def _due(self, after: float) -> float | None:
        """The earliest time after `after` at which a timer or a duty is due."""
        moments = [await self.store.next_due(), await self.store.next_duty(after)]
        return min((at for at in moments if at is not None and at > after), default=None)

    def _to(self, moment: float) -> None:
        if moment > self.still.now():
            self.still.advance(moment - self.still.now())

    async def records(self) -> list[SessionRecord]:
        """Load every session as it is stored, oldest first."""
        found = await self.sessions(limit=10_000)
        return [await self.store.load(info.session_id) for info in reversed(found)]

    def forget(self) -> None:
        """Remove every session from memory, as a restart does."""
        for live in self.engine.sessions.all():
            self.engine.sessions.drop(live)

    async def die(self) -> None:
        """End like a killed process: write nothing more, and let others see that it is gone."""
        effects = self.engine.effects
        tasks = [*effects.tasks, *effects.waits.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.forget()
        await self.store.release(self.engine.presence.worker)

    # ---- instead of what the runtime does

    def _birth(self, call: Call[Any], *more: Any) -> Birth:
        birth = super()._birth(call, *more)
        self._claim(birth.id, birth.program)
        return birth

    def _claim(self, session_id: str, program: str) -> None:
        if self._recorded is not None:
            self._recorded.claim(session_id, program)

    def _instead(
        self, session_id: str, query: Query, effect: Callable[[], Any]
    ) -> Callable[[], Any]:
        """Replace an effect by its stand-in, or by its recorded answer; otherwise return it
        unchanged.
        """
        self.called.append(query)
        if found := self.stand_ins.find(query):
            partial: Any = effect
            return functools.partial(make_stand_in(found[0]), *partial.args, **partial.keywords)
        answer = None if self._recorded is None else self._recorded.find(query, session_id)
        return effect if answer is None else lambda: give_recorded_answer(answer).value


def list_call_names(queries: Collection[Query]) -> list[str]:
    """The names of called functions, without their modules."""
    return [query.name.rpartition(":")[2] for query in queries]
