"""Tests of time: timers, expiries, long effects, and budgets."""

from __future__ import annotations

import pytest

from everhold.core.status import Paused
from everhold.errors import QueryClosed
from everhold.ports.store import SessionFilter
from everhold.testing.conformance.mover_fleet import TTL, Fleet, MoverContractBase
from everhold.testing.conformance.mover_programs import (
    EFFECT_LOG,
    StampingModel,
    errands,
    expires,
    hurries,
    sleeps,
    spends,
)


class MoverTimeContract(MoverContractBase):
    """Timers, expiries, long effects, budgets."""

    async def _waits(self, fleet: Fleet, session: str) -> None:
        """Wait until a session waits for a timer."""

        async def waits() -> bool:
            found = await fleet.status(session)
            return isinstance(found, Paused) and found.until is not None

        await fleet.until(waits)

    async def test_a_timer(self, fleet: Fleet) -> None:
        """It fires at its time, once."""
        await fleet.movers()
        session = await fleet.begin(sleeps(name="a", seconds=60))
        await self._waits(fleet, session)
        assert not EFFECT_LOG.begun

        fleet.clock.advance(61)

        assert (await fleet.finish(session)).result == "a"

    async def test_timers_fire_in_their_order(self, fleet: Fleet) -> None:
        """A timer with an earlier time fires first, even if it was set later."""
        await fleet.movers()
        late = await fleet.begin(sleeps(name="late", seconds=90))
        await self._waits(fleet, late)
        early = await fleet.begin(sleeps(name="early", seconds=30))
        await self._waits(fleet, early)

        fleet.clock.advance(31)
        await fleet.finish(early)
        assert not EFFECT_LOG.begun["late"]
        fleet.clock.advance(60)

        await fleet.finish(late)

    async def test_a_timer_that_came_due_while_there_was_no_mover(self, fleet: Fleet) -> None:
        """The next mover fires it."""
        mover = await fleet.mover()
        session = await fleet.begin(sleeps(name="a", seconds=60))
        await self._waits(fleet, session)
        await fleet.leave(mover)
        fleet.clock.advance(61)

        await fleet.movers()

        assert (await fleet.finish(session)).result == "a"

    async def test_a_timer_beaten_by_an_answer(self, fleet: Fleet) -> None:
        """An answer that was accepted in time counts, even if no mover delivers it before the timer
        is due.
        """
        mover, front = await fleet.mover(), await fleet.front()
        early, late = [await fleet.begin(hurries(seconds=60)) for _ in range(2)]
        asked = [await fleet.asked(session, "quick?") for session in (early, late)]
        await fleet.leave(mover)

        fleet.clock.advance(30)
        await front.answer(asked[0].queries[0], "in time")
        fleet.clock.advance(60)
        await front.answer(asked[1].queries[0], "after it")
        await fleet.movers()

        assert (await fleet.finish(early)).result == "in time"
        assert (await fleet.finish(late)).result == "too late"

    async def test_an_answer_leaves_no_timer(self, fleet: Fleet) -> None:
        """A session whose question was answered in time ends once, whatever the clock does
        later.
        """
        await fleet.movers()
        session = await fleet.begin(hurries(seconds=60))
        asked = await fleet.asked(session, "quick?")

        await (await fleet.front()).answer(asked.queries[0], "in time")
        end = await fleet.finish(session)
        fleet.clock.advance(100)
        await fleet.finish(await fleet.begin(errands(name="a")))  # movers have looked since

        assert (end.result, await fleet.status(session)) == ("in time", end)

    async def test_expiry_with_a_default(self, fleet: Fleet) -> None:
        """The default becomes the answer; another answer is too late."""
        await fleet.movers()
        front = await fleet.front()
        session = await fleet.begin(expires(seconds=60))
        asked = await fleet.asked(session, "Name?")

        fleet.clock.advance(61)

        assert (await fleet.finish(session)).result == "nobody"
        with pytest.raises(QueryClosed):
            await front.answer(asked.queries[0], "somebody")
        assert await front.inbox() == []

    async def test_an_effect_longer_than_a_slice(self, fleet: Fleet) -> None:
        """It continues where it started, however long it runs: its mover renews the lease."""
        await fleet.movers()
        EFFECT_LOG.hold("a-0")
        session = await fleet.begin(errands(name="a", count=2))
        await fleet.until(lambda: EFFECT_LOG.begun["a-0"])

        for _ in range(10):
            fleet.clock.advance(TTL * 0.35)
            await fleet.until(lambda: self._are_heard(fleet))

        assert (EFFECT_LOG.begun["a-0"], EFFECT_LOG.stopped["a-0"]) == (1, 0)
        EFFECT_LOG.free("a-0")
        assert (await fleet.finish(session)).result == ["a-0", "a-1"]

    async def _are_heard(self, fleet: Fleet) -> bool:
        workers = await (await fleet.front()).store.workers()
        return bool(workers) and all(worker.age < TTL * 0.35 for worker in workers)

    async def test_a_budget(self, fleet: Fleet) -> None:
        """It counts across moves: the program cannot ask more than it allows."""
        model = StampingModel()
        await fleet.movers(llm=model)

        session = await fleet.begin(spends(), budget={"max_llm_calls": 3})

        said = [f"answer to round {number}?" for number in range(3)]
        assert (await fleet.finish(session)).result == [*said, "no budget"]
        assert model.asked == [f"round {number}?" for number in range(3)]

    async def test_a_budget_that_fronts_spend(self, fleet: Fleet) -> None:
        """Answers from outside count like those of a model."""
        await fleet.movers()
        front = await fleet.front()

        session = await fleet.begin(spends(), budget={"max_llm_calls": 2})
        for number in range(2):
            asked = await fleet.asked(session, f"round {number}?")
            await front.answer(asked.queries[0], "well")

        assert (await fleet.finish(session)).result == ["well", "well", "no budget"]
        assert [row.head.metrics.begun for row in await front.store.list(SessionFilter())] == [0]
