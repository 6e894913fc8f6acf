"""Accepted, moved, delivered: starts, answers and signals that come through a front without the
program.
"""

from __future__ import annotations

import asyncio

import pytest

from everhold.core.status import Accepted, Paused
from everhold.errors import AnswerConflict, KeyConflict, SessionEnded
from everhold.testing.conformance.mover_fleet import Fleet
from everhold.testing.conformance.mover_harness import MoverContractBase
from everhold.testing.conformance.mover_programs import (
    EFFECT_LOG,
    approves,
    asks,
    batch,
    beside,
    errands,
    hears,
)


class MoverAcceptContract(MoverContractBase):
    """Starts, answers, signals, approvals."""

    # ---- starts

    async def test_a_session_is_started(self, fleet: Fleet) -> None:
        """A session that a front accepted is begun by a mover, and its calls are made."""
        await fleet.movers()

        session = await fleet.begin(errands(name="a", count=3))

        assert (await fleet.finish(session)).result == ["a-0", "a-1", "a-2"]

    async def test_a_session_is_accepted_before_there_is_a_mover(self, fleet: Fleet) -> None:
        """It waits, and is begun by the first mover."""
        session = await fleet.begin(errands(name="a"))
        assert (await fleet.status(session)).state == "running"

        await fleet.movers()

        assert (await fleet.finish(session)).result == ["a-0"]

    async def test_many_sessions_are_started(self, fleet: Fleet) -> None:
        """Each of them ends, and each call is made once."""
        await fleet.movers()

        sessions = [await fleet.begin(errands(name=f"n{number}", count=2)) for number in range(20)]

        ends = [await fleet.finish(session) for session in sessions]
        assert [end.result for end in ends] == [
            [f"n{number}-0", f"n{number}-1"] for number in range(20)
        ]
        assert set(EFFECT_LOG.once.values()) == {1}

    async def test_a_taken_key(self, fleet: Fleet) -> None:
        """The same start under the same key is the same session; another one is refused."""
        mover, *_ = await fleet.movers()

        session = await fleet.begin(errands(name="a"), key="mine")
        with pytest.raises(KeyConflict):
            await fleet.begin(errands(name="b"), key="mine")
        again = await mover.start(errands(name="a"), key="mine")
        with pytest.raises(KeyConflict):
            await mover.start(errands(name="b"), key="mine")

        assert again.session_id == session
        await fleet.finish(session)
        assert EFFECT_LOG.begun == {"a-0": 1}

    async def test_one_key_at_once(self, fleet: Fleet) -> None:
        """Of many starts under one key, one makes the session, and all name it."""
        movers = await fleet.movers()

        found = await asyncio.gather(
            *(mover.start(errands(name="a"), key="mine") for mover in movers for _ in range(5))
        )

        assert len({status.session_id for status in found}) == 1
        await fleet.finish(found[0].session_id)
        assert EFFECT_LOG.begun == {"a-0": 1}

    # ---- answers

    async def test_a_session_pauses(self, fleet: Fleet) -> None:
        """Each process sees what it waits for, and nobody takes it up."""
        places = [*await fleet.movers(), await fleet.front()]
        session = await fleet.begin(asks(name="a"))

        await fleet.asked(session, "a first?")

        for place in places:
            found = await place.status(session)
            assert isinstance(found, Paused) and [query.prompt for query in found.queries] == [
                "a first?"
            ]
            assert [query.session_id for query in await place.inbox()] == [session]
        fleet.left.add(session)

    async def test_an_answer(self, fleet: Fleet) -> None:
        """It is acknowledged without the program, and delivered where the program is."""
        await fleet.movers()
        front = await fleet.front()
        session = await fleet.begin(asks(name="a"))

        first = await fleet.asked(session, "a first?")
        assert await front.answer(first.queries[0], "1") == Accepted(first.session_id, 0)
        second = await fleet.asked(session, "a second?")
        await front.answer(second.queries[0], "2")

        assert (await fleet.finish(session)).result == ["1", "a", "2"]

    async def test_an_answer_where_the_program_is(self, fleet: Fleet) -> None:
        """A mover that takes an answer itself makes the step at once."""
        mover, *_ = await fleet.movers()
        session = await fleet.begin(asks(name="a"))

        first = await fleet.asked(session, "a first?")
        await mover.answer(first.queries[0], "1")
        second = await fleet.asked(session, "a second?")

        assert (await mover.answer(second.queries[0], "2")).state == "completed"
        assert (await fleet.finish(session)).result == ["1", "a", "2"]

    async def test_a_partial_batch(self, fleet: Fleet) -> None:
        """What is answered of a batch is answered; the rest stays open, and the last answer ends
        it.
        """
        await fleet.movers()
        front = await fleet.front()
        session = await fleet.begin(batch(size=4))

        await fleet.asked(session, "number 0?", "number 1?", "number 2?", "number 3?")
        assert await front.answer(session, "c", query_id="q-2") == Accepted(session, 3)
        await fleet.asked(session, "number 0?", "number 1?", "number 3?")
        await front.answer_many(session, {"q-0": "a", "q-3": "d"})
        await fleet.asked(session, "number 1?")
        await front.answer(session, "b")

        assert (await fleet.finish(session)).result == ["a", "b", "c", "d"]

    @pytest.mark.parametrize("moves", [False, True], ids=["accepted", "delivered"])
    async def test_a_duplicate_answer(self, fleet: Fleet, moves: bool) -> None:
        """The same again changes nothing, another is a conflict; before the first is delivered and
        after.
        """
        front, mover = await fleet.front(), await fleet.mover()
        session = await fleet.begin(batch(size=2))
        asked = await fleet.asked(session, "number 0?", "number 1?")
        if not moves:
            await fleet.leave(mover)

        await front.answer(asked.queries[0], "a")
        if moves:
            await fleet.until(lambda: self._is_delivered(fleet, session))
        await front.answer(asked.queries[0], "a")
        with pytest.raises(AnswerConflict):
            await front.answer(asked.queries[0], "other")

        if not moves:
            await fleet.mover()
        await front.answer(asked.queries[1], "b")
        assert (await fleet.finish(session)).result == ["a", "b"]
        await front.answer(asked.queries[1], "b")
        with pytest.raises(AnswerConflict):
            await front.answer(asked.queries[1], "other")

    async def _is_delivered(self, fleet: Fleet, session: str) -> bool:
        return (await (await fleet.front()).store.load(session)).head.mail == 0

    async def test_answers_from_everywhere_at_once(self, fleet: Fleet) -> None:
        """Each process gives the same answers: the session receives each once."""
        places = [*await fleet.movers(), await fleet.front(), await fleet.front(programs=True)]
        session = await fleet.begin(batch(size=6))
        asked = await fleet.asked(session, *(f"number {number}?" for number in range(6)))

        await asyncio.gather(
            *(
                place.answer(query, f"for {query.prompt}")
                for query in asked.queries
                for place in places
            )
        )

        assert (await fleet.finish(session)).result == [
            f"for number {number}?" for number in range(6)
        ]

    async def test_an_answer_beside_a_running_effect(self, fleet: Fleet) -> None:
        """It is delivered while the effect still runs, and what follows from it is done."""
        await fleet.movers()
        EFFECT_LOG.hold("a")
        session = await fleet.begin(beside(name="a"))

        await fleet.until(lambda: EFFECT_LOG.begun["a"])
        asked = await fleet.asked(session, "a?")
        await (await fleet.front()).answer(asked.queries[0], "now")
        await fleet.until(lambda: EFFECT_LOG.ended["a-heard"])

        assert not EFFECT_LOG.ended["a"]
        EFFECT_LOG.free("a")
        assert (await fleet.finish(session)).result == ["now", "a-heard", "a"]

    async def test_an_approval(self, fleet: Fleet) -> None:
        """A person answers it through a front without the program, where it is in the inbox under
        its addressee.
        """
        await fleet.movers()
        front = await fleet.front()
        session = await fleet.begin(approves(name="a"))

        await fleet.asked(session, "Sure?")
        (asked,) = await front.inbox(to="boss")
        await front.answer(asked, True, by={"user": "ada"})

        assert (await fleet.finish(session)).result == [True, "a"]

    # ---- signals

    @pytest.mark.parametrize("programs", [False, True], ids=["without", "with"])
    async def test_signals_before_they_are_asked(self, fleet: Fleet, programs: bool) -> None:
        """They are kept, equal ones too, and received in the order sent; from a front with and
        without the program.
        """
        await fleet.movers()
        front = await fleet.front(programs=programs)
        session = await fleet.begin(hears(count=5, first="ready?"))

        asked = await fleet.asked(session, "ready?")
        for value in (1, 1, 2, 1, 1):
            await front.signal(session, "news", value)
        await front.answer(asked.queries[0], "yes")

        assert (await fleet.finish(session)).result == [1, 1, 2, 1, 1]

    @pytest.mark.parametrize("programs", [False, True], ids=["without", "with"])
    async def test_signals_after_they_are_asked(self, fleet: Fleet, programs: bool) -> None:
        """Each that is acknowledged is received, also where several come before the first is
        delivered.
        """
        await fleet.movers()
        front = await fleet.front(programs=programs)
        session = await fleet.begin(hears(count=5))

        await fleet.asked(session, "")
        for value in ("a", "a", "b", "a", "a"):
            await front.signal(session, "news", value)

        assert (await fleet.finish(session)).result == ["a", "a", "b", "a", "a"]

    async def test_signals_before_there_is_a_mover(self, fleet: Fleet) -> None:
        """They are kept for a session that has not begun."""
        front = await fleet.front()
        session = await fleet.begin(hears(count=3))
        for value in (1, 1, 2):
            await front.signal(session, "news", value)

        await fleet.movers()

        assert (await fleet.finish(session)).result == [1, 1, 2]

    async def test_signals_from_everywhere_at_once(self, fleet: Fleet) -> None:
        """So many are received as were acknowledged, and those of each sender in its order."""
        senders = [*await fleet.movers(), await fleet.front(), await fleet.front(programs=True)]
        session = await fleet.begin(hears(count=5 * len(senders)))

        async def send(number: int) -> None:
            for value in range(5):
                await senders[number].signal(session, "news", [number, value])

        await asyncio.gather(*(send(number) for number in range(len(senders))))

        found = (await fleet.finish(session)).result
        for number in range(len(senders)):
            assert [value for sender, value in found if sender == number] == list(range(5))

    async def test_a_signal_that_nobody_waits_for_leaves_a_session_as_it_is(
        self, fleet: Fleet
    ) -> None:
        """It stays accepted beside the question that is open; after the end, signals are
        refused.
        """
        await fleet.movers()
        front = await fleet.front()
        session = await fleet.begin(asks(name="a"))
        await fleet.asked(session, "a first?")

        await front.signal(session, "other", 1)

        asked = await fleet.asked(session, "a first?")
        await front.answer(asked.queries[0], "1")
        asked = await fleet.asked(session, "a second?")
        await front.answer(asked.queries[0], "2")
        assert (await fleet.finish(session)).result == ["1", "a", "2"]
        with pytest.raises(SessionEnded):
            await front.signal(session, "other", 2)
