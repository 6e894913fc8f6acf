"""Tests of faults and stops: duplicated or lost requests, an unavailable store, movers that die,
cancellation.

In each test the running stories must reach their end, and `Fleet` checks the rest.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from everhold.core.query import Kind
from everhold.core.session import SessionState
from everhold.core.status import Finished, Raised, Stopped
from everhold.errors import StoreUnavailable
from everhold.testing.conformance.mover_fleet import (
    TTL,
    Fleet,
    FleetRuntime,
    MoverContractBase,
    Send,
)
from everhold.testing.conformance.mover_programs import (
    EFFECT_LOG,
    UNKNOWN,
    StampingModel,
    asks,
    beside,
    errands,
    expect_story_result,
    hears,
    is_fully_known,
    lasts,
    story,
)


async def begin_stories(fleet: Fleet, count: int) -> dict[str, str]:
    """Start stories through a front, and send the signal of each; session by name."""
    front = await fleet.front()
    sessions = {
        f"n{number}": await fleet.begin(story(name=f"n{number}")) for number in range(count)
    }
    for name, session in sessions.items():
        await front.signal(session, "news", f"news for {name}")
    return sessions


async def approve_until_ended(
    fleet: Fleet, sessions: dict[str, str], meanwhile: Any = None
) -> dict[str, Finished]:
    """Answer approvals and advance the clock until all have ended; returns the outcomes."""
    front = await fleet.front()
    ends: dict[str, Finished] = {}

    async def all_ended() -> bool:
        for query in await front.inbox(kind=Kind.APPROVAL):
            await front.answer(query, True)
        if meanwhile is not None:
            await meanwhile()
        for name, session in sessions.items():
            if name not in ends and isinstance(found := await fleet.status(session), Finished):
                ends[name] = found
        return len(ends) == len(sessions)

    await fleet.until(all_ended, tick=5.0)
    return ends


def assert_expected_stories(ends: dict[str, Finished]) -> None:
    """Assert that each story returned its normal result."""
    assert {name: end.result for name, end in ends.items()} == {
        name: expect_story_result(name) for name in ends
    }


class MoverFaultContract(MoverContractBase):
    """Faults between accepting and moving."""

    async def test_stories_without_a_fault(self, fleet: Fleet) -> None:
        """The baseline for the other tests of this class."""
        await fleet.movers(llm=StampingModel())

        assert_expected_stories(await approve_until_ended(fleet, await begin_stories(fleet, 4)))

    # ---- requests for moves

    async def test_requests_are_doubled(self, fleet: Fleet) -> None:
        """Each request arrives five times: nothing runs twice."""

        def five_times(send: Send) -> Send:
            def sends(session_id: str, *, at: float | None = None) -> None:
                for _ in range(5):
                    send(session_id, at=at)

            return sends

        await fleet.movers(llm=StampingModel(), send=five_times)

        assert_expected_stories(await approve_until_ended(fleet, await begin_stories(fleet, 4)))

    @pytest.mark.parametrize("seed", [1, 2])
    async def test_requests_are_lost(self, fleet: Fleet, seed: int) -> None:
        """Three of ten requests are lost: reconciliation finds their sessions."""
        dice = random.Random(seed)

        def sometimes(send: Send) -> Send:
            def sends(session_id: str, *, at: float | None = None) -> None:
                if dice.random() >= 0.3:
                    send(session_id, at=at)

            return sends

        movers = await fleet.movers(llm=StampingModel(), send=sometimes)

        async def look() -> None:
            for mover in movers:
                mover.engine.reconciler.poke()

        assert_expected_stories(
            await approve_until_ended(fleet, await begin_stories(fleet, 6), look)
        )

    # ---- two movers

    async def test_two_movers_on_one_session_at_once(self, fleet: Fleet) -> None:
        """Both move it all the time, ignoring leases: the fence decides, and nothing runs twice."""
        movers = [await fleet.mover(llm=StampingModel()) for _ in range(2)]
        sessions = await begin_stories(fleet, 2)

        async def both() -> None:
            moves = (
                mover.engine.moves.move(session, leased=True)
                for session in sessions.values()
                for mover in movers
            )
            await asyncio.gather(*moves)

        assert_expected_stories(await approve_until_ended(fleet, sessions, both))

    # ---- the store

    @pytest.mark.parametrize("rounds", [1, 8])
    async def test_the_store_is_away_for_a_while(self, fleet: Fleet, rounds: int) -> None:
        """Four times every call of each mover fails for a while: then all sessions resume, and
        nothing is unknown.
        """
        movers = await fleet.movers(llm=StampingModel())
        sessions = await begin_stories(fleet, 3)
        passed = itertools.count()

        async def away() -> None:
            now = next(passed)
            for mover in movers:
                mover.line.is_cut = now < 80 and now % 20 < rounds

        ends = await approve_until_ended(fleet, sessions, away)
        for mover in movers:
            mover.line.is_cut = False
        assert_expected_stories(ends)

    async def test_the_store_is_away_while_an_effect_ends(self, fleet: Fleet) -> None:
        """Its outcome is kept until it can be written; the effect does not run again."""
        movers = await fleet.movers()
        EFFECT_LOG.hold("a-0")
        session = await fleet.begin(errands(name="a", count=2))
        await fleet.until(lambda: EFFECT_LOG.begun["a-0"])

        for mover in movers:
            mover.line.is_cut = True
        EFFECT_LOG.free("a-0")
        await fleet.until(lambda: EFFECT_LOG.ended["a-0"])
        for mover in movers:
            mover.line.is_cut = False

        assert (await fleet.finish(session, tick=1.0)).result == ["a-0", "a-1"]

    async def test_the_store_is_away_for_a_front(self, fleet: Fleet) -> None:
        """Unacknowledged input can be sent again; acknowledged input is received once."""
        await fleet.movers()
        front, other = await fleet.front(), await fleet.front(programs=True)
        session = await fleet.begin(hears(count=3))
        await fleet.hears(session, "news")

        for place in (front, other):
            place.line.is_cut = True
            with pytest.raises(StoreUnavailable):
                await place.signal(session, "news", "refused")
            place.line.is_cut = False
        for value in (1, 1, 2):
            await other.signal(session, "news", value)

        assert (await fleet.finish(session)).result == [1, 1, 2]

    # ---- deaths

    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_a_mover_dies_at_each_of_its_commits(self, fleet: Fleet, when: str) -> None:
        """Before the commit lands, or right after it: another mover resumes, and no call with
        rerun="never" runs twice.
        """
        commit = 0
        died = True
        while died:
            commit += 1
            doomed = await fleet.mover(llm=StampingModel())
            died = await self._dies_at(fleet, doomed, commit, when)
        assert commit > 8

    async def _dies_at(self, fleet: Fleet, doomed: FleetRuntime, commit: int, when: str) -> bool:
        """Run a story with a mover that dies at this commit, and end it with another; False if
        there were fewer commits.
        """
        fatal = asyncio.Event()

        def seen(number: int, moment: str) -> None:
            if (number, moment) == (commit, when):
                doomed.line.is_cut = True
                fatal.set()

        doomed.line.seen = seen
        name = f"{when}-{commit}"
        session = await fleet.begin(story(name=name))
        await (await fleet.front()).signal(session, "news", f"news for {name}")
        ended = asyncio.ensure_future(approve_until_ended(fleet, {name: session}))
        await asyncio.wait(
            [ended, death := asyncio.ensure_future(fatal.wait())], return_when="FIRST_COMPLETED"
        )
        death.cancel()
        await fleet.kill(doomed)
        heir = await fleet.mover(llm=StampingModel())
        end = (await ended)[name]
        assert end.result == expect_story_result(name) or not is_fully_known(end.result), end
        await fleet.leave(heir)
        return fatal.is_set()

    @pytest.mark.parametrize("commits", [1, 3, 6])
    async def test_all_movers_die_at_once(self, fleet: Fleet, commits: int) -> None:
        """New movers finish their sessions, and those that were accepted without a mover."""
        doomed = await fleet.movers(llm=StampingModel())
        sessions = await begin_stories(fleet, 3)
        await fleet.until(lambda: sum(mover.line.commits for mover in doomed) >= commits)
        for mover in doomed:
            mover.line.is_cut = True
        for mover in doomed:
            await fleet.kill(mover)
        sessions |= {"late": await fleet.begin(story(name="late"))}
        await (await fleet.front()).signal(sessions["late"], "news", "news for late")

        await fleet.movers(llm=StampingModel())

        ends = await approve_until_ended(fleet, sessions)
        assert all(
            end.result == expect_story_result(name) or not is_fully_known(end.result)
            for name, end in ends.items()
        ), ends
        assert ends["late"].result == expect_story_result("late")

    async def test_a_mover_stands_still(self, fleet: Fleet) -> None:
        """As after SIGSTOP: another takes over; when the first wakes up, its outcome is refused and
        it continues.
        """
        still = await fleet.mover()
        EFFECT_LOG.hold("a-safe")
        session = await fleet.begin(lasts(name="a-safe"))
        await fleet.until(lambda: EFFECT_LOG.begun["a-safe"])
        still.line.is_cut = True
        fleet.clock.advance(TTL + 1)

        other = await fleet.mover()
        await fleet.until(functools.partial(self._was_begun, 2))
        still.line.is_cut = False
        EFFECT_LOG.free("a-safe")

        assert (await fleet.finish(session, tick=1.0)).result == "a-safe"
        await fleet.leave(other)
        assert (await fleet.finish(await fleet.begin(errands(name="b")), tick=1.0)).result == [
            "b-0"
        ]

    @staticmethod
    def _was_begun(times: int) -> bool:
        return EFFECT_LOG.begun["a-safe"] == times

    async def test_poison(self, fleet: Fleet) -> None:
        """After three movers died on a session, it is failed, and the next mover survives."""
        EFFECT_LOG.hold("a-safe")
        session = await fleet.begin(lasts(name="a-safe"))
        for times in (1, 2, 3):
            doomed = await fleet.mover()
            await fleet.until(functools.partial(self._was_begun, times))
            await fleet.kill(doomed)

        await fleet.movers()

        end = await fleet.finish(session)
        assert isinstance(end.outcome, Raised) and end.outcome.kind == "poison"
        assert (EFFECT_LOG.begun["a-safe"], EFFECT_LOG.stopped["a-safe"]) == (3, 3)
        assert (await fleet.finish(await fleet.begin(errands(name="b")))).result == ["b-0"]


def _external(claim: str) -> Any:
    @pytest.mark.skip(reason="needs an external engine")
    def test(self: ExternalEngineContract) -> None: ...

    test.__doc__ = claim
    return test


class ExternalEngineContract:
    """Tests for an external engine, such as a Restate server; there is none yet."""

    test_the_engine_is_killed = _external("It is killed and started again: every session ends.")
    test_the_engine_and_all_movers_are_killed = _external(
        "All are killed and started again: every session ends."
    )
    test_the_engine_is_down_while_fronts_accept = _external(
        "What is accepted for 10 s meanwhile is moved afterwards."
    )
    test_the_data_of_the_engine_is_lost = _external(
        "The store has all that is needed: every session ends."
    )
    test_a_deployment_is_removed_in_flight = _external(
        "Requests to it are given up, and made again elsewhere."
    )
    test_nothing_is_pending_in_the_engine = _external(
        "When all sessions have ended, it holds nothing."
    )


#: Who cancels: the mover that works, a front with the program, a front without it.
WHO = ["mover", "front with the program", "front without the program"]


async def _canceller(fleet: Fleet, who: str, mover: FleetRuntime) -> FleetRuntime:
    return mover if who == "mover" else await fleet.front(programs="without" not in who)


class MoverStopContract(MoverContractBase):
    """Cancellation and graceful stops."""

    # ---- cancelling

    @pytest.mark.parametrize("who", WHO)
    async def test_a_paused_session_is_cancelled(self, fleet: Fleet, who: str) -> None:
        """It ends with the reason, whichever process cancels, and no question stays open."""
        mover, *_ = await fleet.movers()
        session = await fleet.begin(asks(name="a"))
        await fleet.asked(session, "a first?")

        end = await (await _canceller(fleet, who, mover)).cancel(session, "enough")

        assert end.state == SessionState.CANCELLED
        assert (await fleet.finish(session)).outcome == Stopped("enough")
        assert await mover.inbox() == []

    @pytest.mark.parametrize("who", WHO)
    async def test_a_running_session_is_cancelled(self, fleet: Fleet, who: str) -> None:
        """The effect is stopped, also if another process cancels, and nothing follows it."""
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
        """A session that waits for an answer and runs an effect ends, and the effect is stopped."""
        mover, *_ = await fleet.movers()
        EFFECT_LOG.hold("a")
        session = await fleet.begin(beside(name="a"))
        await fleet.until(lambda: EFFECT_LOG.begun["a"])
        await fleet.asked(session, "a?")

        await (await _canceller(fleet, who, mover)).cancel(session, "enough")

        await fleet.until(lambda: EFFECT_LOG.stopped["a"])
        assert (await fleet.finish(session)).state == SessionState.CANCELLED

    async def test_a_session_that_nobody_has_begun_is_cancelled(self, fleet: Fleet) -> None:
        """A later mover does not start it."""
        session = await fleet.begin(errands(name="a"))

        await (await fleet.front()).cancel(session, "enough")
        await fleet.movers()
        await fleet.finish(await fleet.begin(errands(name="b")))

        assert (await fleet.finish(session)).state == SessionState.CANCELLED
        assert not EFFECT_LOG.begun["a-0"]

    # ---- leaving

    async def test_leaving_hands_over(self, fleet: Fleet) -> None:
        """Running calls finish and commit, another mover starts the rest, and nothing is
        unknown.
        """
        leaver = await fleet.mover()
        EFFECT_LOG.hold("a-0")
        session = await fleet.begin(errands(name="a", count=3))
        await fleet.until(lambda: EFFECT_LOG.begun["a-0"])

        leaving = asyncio.ensure_future(fleet.leave(leaver))
        await fleet.until(lambda: leaver.engine.serving.leaving)
        EFFECT_LOG.free("a-0")
        await leaving
        await fleet.movers()

        assert (await fleet.finish(session)).result == ["a-0", "a-1", "a-2"]

    async def test_leaving_while_another_is_there(self, fleet: Fleet) -> None:
        """The other mover takes over by itself."""
        leaver, _ = await fleet.mover(), await fleet.mover()
        sessions = [await fleet.begin(errands(name=f"n{number}", count=6)) for number in range(6)]
        await fleet.until(lambda: len(EFFECT_LOG.begun) > 6)

        await fleet.leave(leaver)

        for number, session in enumerate(sessions):
            assert (await fleet.finish(session)).result == [f"n{number}-{k}" for k in range(6)]

    async def test_leaving_waits_no_longer_than_its_grace(self, fleet: Fleet) -> None:
        """A call that does not end in time is stopped; its outcome is unknown to the next mover."""
        leaver = await fleet.mover()
        EFFECT_LOG.hold("a-0")
        session = await fleet.begin(errands(name="a", count=2))
        await fleet.until(lambda: EFFECT_LOG.begun["a-0"])

        await fleet.leave(leaver, 0.0)
        await fleet.movers()

        assert (await fleet.finish(session)).result == [UNKNOWN, "a-1"]
        assert EFFECT_LOG.stopped["a-0"] == 1

    async def test_what_is_accepted_while_a_mover_leaves(self, fleet: Fleet) -> None:
        """The next mover delivers it."""
        leaver, front = await fleet.mover(), await fleet.front()
        EFFECT_LOG.hold("a")
        session = await fleet.begin(beside(name="a"))
        await fleet.until(lambda: EFFECT_LOG.begun["a"])
        asked = await fleet.asked(session, "a?")

        leaving = asyncio.ensure_future(fleet.leave(leaver))
        await fleet.until(lambda: leaver.engine.serving.leaving)
        await front.answer(asked.queries[0], "now")
        EFFECT_LOG.free("a")
        await leaving
        await fleet.movers()

        assert (await fleet.finish(session)).result == ["now", "a-heard", "a"]

    # ---- callers that are cancelled

    async def _given_up(self, after: int, verb: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Call a verb, and cancel the call after this many turns of the loop."""
        task = asyncio.ensure_future(verb())
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def test_a_caller_that_starts_is_cancelled(self, fleet: Fleet) -> None:
        """At any await: under its key one session starts, ends, and runs its call once."""
        mover, *_ = await fleet.movers()

        for after in range(12):
            name = f"n{after}"
            call = errands(name=f"n{after}", count=2)
            await self._given_up(after, lambda call=call, name=name: mover.start(call, key=name))  # type: ignore[misc]
            session = (await mover.start(call, key=name)).session_id
            assert (await fleet.finish(session)).result == [f"{name}-0", f"{name}-1"]

    async def test_a_caller_that_answers_is_cancelled(self, fleet: Fleet) -> None:
        """At any await, in any process: the same answer again is accepted, and the session
        resumes.
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
        """Its signal is received at most once, every acknowledged signal is received, and the
        session resumes.

        A signal of a cancelled caller may still be sent later than signals that were sent after it.
        """
        places = [*await fleet.movers(), await fleet.front(), await fleet.front(programs=True)]

        for after in range(12):
            place = places[after % len(places)]
            session = await fleet.begin(hears(count=2))
            await fleet.hears(session, "news")
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
