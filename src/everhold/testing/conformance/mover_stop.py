"""What stops: sessions that are cancelled, movers that leave, callers that are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from everhold.core.session import SessionState
from everhold.core.status import Stopped
from everhold.testing.conformance.mover_fleet import Fleet, FleetRuntime
from everhold.testing.conformance.mover_harness import MoverContractBase
from everhold.testing.conformance.mover_programs import (
    EFFECT_LOG,
    UNKNOWN,
    asks,
    beside,
    errands,
    hears,
)

#: Who cancels: the mover that works, a front with the program, a front without it.
WHO = ["mover", "front with the program", "front without the program"]


async def _canceller(fleet: Fleet, who: str, mover: FleetRuntime) -> FleetRuntime:
    return mover if who == "mover" else await fleet.front(programs="without" not in who)


class MoverStopContract(MoverContractBase):
    """Cancelling, leaving."""

    # ---- cancelling

    @pytest.mark.parametrize("who", WHO)
    async def test_a_paused_session_is_cancelled(self, fleet: Fleet, who: str) -> None:
        """It ends with the reason, whoever cancels it, and nothing is open any more."""
        mover, *_ = await fleet.movers()
        session = await fleet.begin(asks(name="a"))
        await fleet.asked(session, "a first?")

        end = await (await _canceller(fleet, who, mover)).cancel(session, "enough")

        assert end.state == SessionState.CANCELLED
        assert (await fleet.finish(session)).outcome == Stopped("enough")
        assert await mover.inbox() == []

    @pytest.mark.parametrize("who", WHO)
    async def test_a_running_session_is_cancelled(self, fleet: Fleet, who: str) -> None:
        """The effect is stopped, also when another process cancels, and nothing follows it."""
        mover, *_ = await fleet.movers()
        EFFECT_LOG.hold("a-0")
        session = await fleet.begin(errands(name="a", count=2))
        await fleet.until(lambda: EFFECT_LOG.begun["a-0"])

        await (await _canceller(fleet, who, mover)).cancel(session, "enough")

        await fleet.until(lambda: EFFECT_LOG.stopped["a-0"])
        assert (await fleet.finish(session)).state == SessionState.CANCELLED
        assert (EFFECT_LOG.ended["a-0"], EFFECT_LOG.begun["a-1"]) == (0, 0)

    @pytest.mark.parametrize("who", WHO)
    async def test_a_session_is_cancelled_beside_an_effect(self, fleet: Fleet, who: str) -> None:
        """One that waits for an answer and runs an effect ends, and the effect is stopped."""
        mover, *_ = await fleet.movers()
        EFFECT_LOG.hold("a")
        session = await fleet.begin(beside(name="a"))
        await fleet.until(lambda: EFFECT_LOG.begun["a"])
        await fleet.asked(session, "a?")

        await (await _canceller(fleet, who, mover)).cancel(session, "enough")

        await fleet.until(lambda: EFFECT_LOG.stopped["a"])
        assert (await fleet.finish(session)).state == SessionState.CANCELLED

    async def test_a_session_that_nobody_has_begun_is_cancelled(self, fleet: Fleet) -> None:
        """A mover that comes later begins nothing."""
        session = await fleet.begin(errands(name="a"))

        await (await fleet.front()).cancel(session, "enough")
        await fleet.movers()
        await fleet.finish(await fleet.begin(errands(name="b")))

        assert (await fleet.finish(session)).state == SessionState.CANCELLED
        assert not EFFECT_LOG.begun["a-0"]

    # ---- leaving

    async def test_leaving_hands_over(self, fleet: Fleet) -> None:
        """What runs gets to its commit, what has not begun is begun by another, and nothing is
        unknown.
        """
        leaver = await fleet.mover()
        EFFECT_LOG.hold("a-0")
        session = await fleet.begin(errands(name="a", count=3))
        await fleet.until(lambda: EFFECT_LOG.begun["a-0"])

        leaving = asyncio.ensure_future(fleet.leave(leaver))
        await fleet.until(lambda: leaver.engine.sessions.stepper.leaving)
        EFFECT_LOG.free("a-0")
        await leaving
        await fleet.movers()

        assert (await fleet.finish(session)).result == ["a-0", "a-1", "a-2"]

    async def test_leaving_while_another_is_there(self, fleet: Fleet) -> None:
        """The other one takes over without being asked."""
        leaver, _ = await fleet.mover(), await fleet.mover()
        sessions = [await fleet.begin(errands(name=f"n{number}", count=6)) for number in range(6)]
        await fleet.until(lambda: len(EFFECT_LOG.begun) > 6)

        await fleet.leave(leaver)

        for number, session in enumerate(sessions):
            assert (await fleet.finish(session)).result == [f"n{number}-{k}" for k in range(6)]

    async def test_leaving_waits_no_longer_than_its_grace(self, fleet: Fleet) -> None:
        """What does not end in time is stopped; whether it happened is unknown to whoever comes
        next.
        """
        leaver = await fleet.mover()
        EFFECT_LOG.hold("a-0")
        session = await fleet.begin(errands(name="a", count=2))
        await fleet.until(lambda: EFFECT_LOG.begun["a-0"])

        await fleet.leave(leaver, 0.0)
        await fleet.movers()

        assert (await fleet.finish(session)).result == [UNKNOWN, "a-1"]
        assert EFFECT_LOG.stopped["a-0"] == 1

    async def test_what_is_accepted_while_a_mover_leaves(self, fleet: Fleet) -> None:
        """It is delivered by the next one."""
        leaver, front = await fleet.mover(), await fleet.front()
        EFFECT_LOG.hold("a")
        session = await fleet.begin(beside(name="a"))
        await fleet.until(lambda: EFFECT_LOG.begun["a"])
        asked = await fleet.asked(session, "a?")

        leaving = asyncio.ensure_future(fleet.leave(leaver))
        await fleet.until(lambda: leaver.engine.sessions.stepper.leaving)
        await front.answer(asked.queries[0], "now")
        EFFECT_LOG.free("a")
        await leaving
        await fleet.movers()

        assert (await fleet.finish(session)).result == ["now", "a-heard", "a"]

    # ---- callers that are cancelled

    async def _given_up(self, after: int, verb: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Call a verb, and cancel the call after so many turns of the loop."""
        task = asyncio.ensure_future(verb())
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def test_a_caller_that_starts_is_cancelled(self, fleet: Fleet) -> None:
        """At whatever await: under its key the session is begun once, ends, and its call is made
        once.
        """
        mover, *_ = await fleet.movers()

        for after in range(12):
            name = f"n{after}"
            call = errands(name=f"n{after}", count=2)
            await self._given_up(after, lambda call=call, name=name: mover.start(call, key=name))  # type: ignore[misc]
            session = (await mover.start(call, key=name)).session_id
            assert (await fleet.finish(session)).result == [f"{name}-0", f"{name}-1"]

    async def test_a_caller_that_answers_is_cancelled(self, fleet: Fleet) -> None:
        """At whatever await, in whatever process: the same answer again is taken, and the session
        goes on.
        """
        places = [*await fleet.movers(), await fleet.front(), await fleet.front(programs=True)]

        for after in range(12):
            place = places[after % len(places)]
            session = await fleet.begin(asks(name=f"n{after}"))
            for prompt in (f"n{after} first?", f"n{after} second?"):
                (query,) = (await fleet.asked(session, prompt)).queries
                await self._given_up(
                    after,
                    lambda query=query, place=place: place.answer(query, "yes"),  # type: ignore[misc]
                )
                await place.answer(query, "yes")
            assert (await fleet.finish(session)).result == ["yes", f"n{after}", "yes"]

    async def test_a_caller_that_signals_or_waits_is_cancelled(self, fleet: Fleet) -> None:
        """What it sent is received once or never, whatever was acknowledged is received, and all
        goes on.

        What was given up may still be sent later, after what was sent then.
        """
        places = [*await fleet.movers(), await fleet.front(), await fleet.front(programs=True)]

        for after in range(12):
            place = places[after % len(places)]
            session = await fleet.begin(hears(count=2))
            await fleet.asked(session, "")
            await self._given_up(
                after,
                lambda place=place, session=session: place.signal(session, "news", "maybe"),  # type: ignore[misc]
            )
            await self._given_up(after, lambda place=place, session=session: place.wait(session))  # type: ignore[misc]
            for value in ("sure", "late"):
                try:
                    await place.signal(session, "news", value)
                except Exception as error:
                    assert value == "late" and getattr(error, "code", "") == "session_ended", error
            received = (await fleet.finish(session)).result
            assert received in (["maybe", "sure"], ["sure", "maybe"], ["sure", "late"])
