"""A runtime for tests: in memory, on a clock that a test moves, and with nothing that happens by itself.

There is no caretaker in the background: `settle` does what it would do, until nothing moves any more. So a test sees
the same on a busy machine. Ids and dice are numbered, not drawn: they fall the same in every run of a test.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from everhold.core.budget import Budget
from everhold.core.query import FOR_PEOPLE, Answer, Kind, Query
from everhold.core.session import Birth, Seed, mint
from everhold.ports.program import Answerer, Call
from everhold.ports.store import Record, Store
from everhold.runtime import Runtime
from everhold.testing.answers import Recorded, StandIns, handed, standing
from everhold.testing.clock import ManualClock

#: Seconds after the moment of a timer at which it is surely due.
AFTER = 0.001


class StillClock(ManualClock):
    """A manual clock on which the runtime's own patience (before it tries a call again) takes no time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class House(Runtime):
    """The runtime of one test, or of one life between two crashes."""

    def __init__(self, store: Store, clock: StillClock, stand_ins: StandIns) -> None:
        super().__init__(store, clock=clock, recover=False, idle=1e12)
        self.still = clock
        self.stand_ins = stand_ins
        self.called: list[Query] = []  # the calls that were run, in order
        self._born = 0
        self._answerers: dict[Kind, Answerer] = self._dispatch._answerers  # type: ignore[assignment]
        self._plainly = self._dispatch._outcome
        self._dispatch._outcome = self._outcome  # type: ignore[method-assign]

    def answer_with(self, answerer: Answerer | None, *, people: bool) -> None:
        """Who answers from now on: models' questions, and with `people` those for people too."""
        self._answerers.clear()
        if answerer is not None:
            kinds = {Kind.LLM, *FOR_PEOPLE} if people else {Kind.LLM}
            self._answerers.update(dict.fromkeys(kinds, answerer))
        self._sessions._stepper._llm = answerer is not None

    async def adopt(self) -> None:
        """Let whoever answers now take what was open before."""
        for info in await self.sessions(state=("running", "paused"), limit=10_000):
            self._claim(info.session_id, info.program)
            await self._runner.pump_quietly(info.session_id)
        await self.settle()

    async def settle(self) -> None:
        """Let everything happen that happens by itself now."""
        while True:
            if self._dispatch.tasks:
                await asyncio.wait(set(self._dispatch.tasks))
            elif not await self._caretaker.move():
                return

    async def skip(self, seconds: float) -> None:
        """Let time pass; timers fire on the way, each at its moment."""
        end = self.still.now() + seconds
        await self.settle()
        passed = -1.0
        while (due := await self.store.next_due()) is not None and passed < due < end:
            passed = due
            self._to(due + AFTER)
            await self.settle()
        self._to(end)
        await self.settle()

    def _to(self, moment: float) -> None:
        if moment > self.still.now():
            self.still.advance(moment - self.still.now())

    async def records(self) -> list[Record]:
        """Every session as it is stored, oldest first."""
        found = await self.sessions(limit=10_000)
        return [await self.store.load(info.session_id) for info in reversed(found)]

    def forget(self) -> None:
        """Drop everything from memory, as a restart does."""
        for live in self._sessions.all():
            self._sessions.drop(live)

    async def die(self) -> None:
        """End as a process that is killed: nothing more is written, and others learn that it is gone."""
        tasks = list(self._dispatch.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.forget()
        await self.store.release(self._dispatch.worker)

    # ---- instead of what the runtime does

    def _birth(
        self,
        call: Call[Any],
        key: str | None,
        title: str,
        labels: Mapping[str, str] | None,
        metadata: Mapping[str, str] | None,
        budget: Budget | Mapping[str, int] | None,
    ) -> Birth:
        birth = super()._birth(call, key, title, labels, metadata, budget)
        self._born += 1
        birth = msgspec.structs.replace(
            birth, id=mint(birth.created_at, self._born), seeds=[Seed(0, f"{self._born:024x}")]
        )
        self._claim(birth.id, birth.program)
        return birth

    def _claim(self, session_id: str, program: str) -> None:
        for answerer in self._answerers.values():
            if isinstance(answerer, Recorded):
                answerer.claim(session_id, program)

    async def _outcome(self, session_id: str, query: Query, effect: Callable[[], Any] | None) -> Answer:
        if query.kind is Kind.CALL:
            self.called.append(query)
            stand_in = self._stand_in(session_id, query)
            if stand_in is not None:
                partial: Any = effect
                effect = functools.partial(stand_in, *partial.args, **partial.keywords)
        return await self._plainly(session_id, query, effect)

    def _stand_in(self, session_id: str, query: Query) -> Callable[..., Any] | None:
        if found := self.stand_ins.find(query):
            return standing(found[0])
        for answerer in self._answerers.values():
            if isinstance(answerer, Recorded) and (answer := answerer.find(query, session_id)) is not None:
                recorded = answer
                return lambda *args, **kwargs: handed(recorded).value
        return None


def named(queries: Collection[Query]) -> list[str]:
    """The names of calls as their author wrote them."""
    return [query.name.rpartition(":")[2] for query in queries]
