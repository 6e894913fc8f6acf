"""Tests of accepted input: starts, answers and signals through a front, with or without the
program.
"""

from __future__ import annotations

import asyncio

import pytest

from everhold.core.query import Query
from everhold.core.session import OUTSIDE, WORKERS
from everhold.core.status import Accepted, Paused
from everhold.errors import AnswerConflict, KeyConflict, NotAllowed, SessionEnded
from everhold.testing.conformance.mover_fleet import Fleet, MoverContractBase
from everhold.testing.conformance.mover_programs import (
    EFFECT_LOG,
    StampingModel,
    approves,
    asks,
    batch,
    beside,
    errands,
    hears,
    make_edition,
)


class MoverAcceptContract(MoverContractBase):
    """Starts, answers, signals, approvals."""

    # ---- starts

    async def test_a_session_is_started(self, fleet: Fleet) -> None:
        """A mover starts a session that a front accepted, and runs its calls."""
        await fleet.movers()

        session = await fleet.begin(errands(name="a", count=3))

        assert (await fleet.finish(session)).result == ["a-0", "a-1", "a-2"]

    async def test_a_session_is_accepted_before_there_is_a_mover(self, fleet: Fleet) -> None:
        """It waits, and the first mover starts it."""
        session = await fleet.begin(errands(name="a"))
        assert (await fleet.status(session)).state == "running"

        await fleet.movers()

        assert (await fleet.finish(session)).result == ["a-0"]

    async def test_many_sessions_are_started(self, fleet: Fleet) -> None:
        """Each of them ends, and each call runs once."""
        await fleet.movers()

        sessions = [await fleet.begin(errands(name=f"n{number}", count=2)) for number in range(20)]

        ends = [await fleet.finish(session) for session in sessions]
        assert [end.result for end in ends] == [
            [f"n{number}-0", f"n{number}-1"] for number in range(20)
        ]
        assert set(EFFECT_LOG.once.values()) == {1}

    async def test_a_taken_key(self, fleet: Fleet) -> None:
        """The same start under the same key returns the same session; a different start is
        refused.
        """
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
        """Of many concurrent starts under one key one creates the session, and all return it."""
        movers = await fleet.movers()

        found = await asyncio.gather(
            *(mover.start(errands(name="a"), key="mine") for mover in movers for _ in range(5))
        )

        assert len({status.session_id for status in found}) == 1
        await fleet.finish(found[0].session_id)
        assert EFFECT_LOG.begun == {"a-0": 1}

    # ---- answers

    async def test_a_session_pauses(self, fleet: Fleet) -> None:
        """Each process sees its open question, and no mover claims it."""
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
        """It is acknowledged without the program, and delivered by a process with the program."""
        await fleet.movers()
        front = await fleet.front()
        session = await fleet.begin(asks(name="a"))

        first = await fleet.asked(session, "a first?")
        assert await front.answer(first.queries[0], "1") == Accepted(first.session_id, 0)
        second = await fleet.asked(session, "a second?")
        await front.answer(second.queries[0], "2")

        assert (await fleet.finish(session)).result == ["1", "a", "2"]

    async def test_an_answer_where_the_program_is(self, fleet: Fleet) -> None:
        """A mover that accepts an answer itself makes the step at once."""
        mover, *_ = await fleet.movers()
        session = await fleet.begin(asks(name="a"))

        first = await fleet.asked(session, "a first?")
        await mover.answer(first.queries[0], "1")
        second = await fleet.asked(session, "a second?")

        assert (await mover.answer(second.queries[0], "2")).state == "completed"
        assert (await fleet.finish(session)).result == ["1", "a", "2"]

    async def test_a_partial_batch(self, fleet: Fleet) -> None:
        """Some answers of a batch are recorded, the others stay open, and the last answer ends
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
        """The same answer again changes nothing, another is a conflict, before and after
        delivery.
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
        """Every process gives the same answers: the session receives each once."""
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
        """It is delivered while the effect still runs, and the program continues."""
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
        """A person answers it through a front without the program; its inbox lists it under the
        addressee.
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
        """They are kept, also equal ones, and received in order; from a front with or without the
        program.
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
        """Each acknowledged signal is received, also if several arrive before the first is
        delivered.
        """
        await fleet.movers()
        front = await fleet.front(programs=programs)
        session = await fleet.begin(hears(count=5))

        await fleet.hears(session, "news")
        for value in ("a", "a", "b", "a", "a"):
            await front.signal(session, "news", value)

        assert (await fleet.finish(session)).result == ["a", "a", "b", "a", "a"]

    async def test_signals_before_there_is_a_mover(self, fleet: Fleet) -> None:
        """They are kept for a session that has not started."""
        front = await fleet.front()
        session = await fleet.begin(hears(count=3))
        for value in (1, 1, 2):
            await front.signal(session, "news", value)

        await fleet.movers()

        assert (await fleet.finish(session)).result == [1, 1, 2]

    async def test_signals_from_everywhere_at_once(self, fleet: Fleet) -> None:
        """Exactly the acknowledged signals are received, in the order of each sender."""
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
        """It stays accepted beside the open question; after the end, signals are refused."""
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


class MissingCodeContract(MoverContractBase):
    """Programs, models and code versions that differ between processes."""

    # ---- programs

    async def test_a_program_absent_here_and_present_there(self, fleet: Fleet) -> None:
        """A mover without the program leaves the session to one with it, and moves other
        sessions.
        """
        lacks = await fleet.mover(without=[asks])
        session = await fleet.begin(asks(name="a"))
        await fleet.until(lambda: lacks.gave_up(session))
        assert (await fleet.finish(await fleet.begin(errands(name="b")))).result == ["b-0"]

        await fleet.mover()
        front = await fleet.front()
        for prompt in ("a first?", "a second?"):
            (query,) = (await fleet.asked(session, prompt)).queries
            await front.answer(query, prompt)

        assert (await fleet.finish(session)).result == ["a first?", "a", "a second?"]

    async def test_a_program_absent_where_signals_come(self, fleet: Fleet) -> None:
        """A mover without the program stores the signals, and another one delivers them."""
        lacks, _ = await fleet.mover(without=[hears]), await fleet.mover()
        session = await fleet.begin(hears(count=4))
        await fleet.hears(session, "news")

        for value in (1, 1, 2, 1):
            await lacks.signal(session, "news", value)

        assert (await fleet.finish(session)).result == [1, 1, 2, 1]

    async def test_a_program_that_is_absent_is_not_offered_again(self, fleet: Fleet) -> None:
        """A mover without the program does not try again while the session does not change."""
        lacks = await fleet.mover(without=[asks])
        session = await fleet.begin(asks(name="a"))
        await fleet.until(lambda: lacks.gave_up(session))

        for number in range(5):
            await fleet.finish(await fleet.begin(errands(name=f"n{number}")))

        assert len([each for each, _ in lacks.moves if each == session]) <= 3
        await fleet.leave(lacks)
        fleet.left.add(session)

    # ---- models

    async def test_a_model_absent_here_and_present_there(self, fleet: Fleet) -> None:
        """A process with a model answers a session that was started by one without."""
        model = StampingModel()
        front = await fleet.front(programs=True)
        mover, *_ = await fleet.movers(llm=model)

        status = await front.start(batch(size=3), key="mine")
        if not fleet.adopts:  # one that is merely open answers what it is asked to move
            await mover.start(batch(size=3), key="mine")

        assert (await front.store.load(status.session_id)).birth.llm == WORKERS
        said = [f"answer to number {number}?" for number in range(3)]
        assert (await fleet.finish(status.session_id)).result == said
        assert sorted(model.asked) == [f"number {number}?" for number in range(3)]

    async def test_a_model_that_comes_later(self, fleet: Fleet) -> None:
        """A question that was parked without a model is answered once a model is there, once."""
        without = await fleet.mover()
        session = await fleet.begin(batch(size=2), key="mine")
        await fleet.asked(session, "number 0?", "number 1?")
        await fleet.leave(without)

        model = StampingModel()
        mover, *_ = await fleet.movers(llm=model)
        if not fleet.adopts:
            await mover.start(batch(size=2), key="mine")

        assert (await fleet.finish(session)).result == [
            "answer to number 0?",
            "answer to number 1?",
        ]
        assert len(model.asked) == 2

    async def test_a_model_that_cannot_answer_is_asked_once(self, fleet: Fleet) -> None:
        """Its question stays open for others; the same model is not asked again at each poll."""
        asked: list[str] = []

        async def unconfigured(query: Query) -> str:
            asked.append(query.prompt)
            raise NotAllowed("there is no key", "Set one.")

        mover = await fleet.mover(llm=unconfigured)
        session = await fleet.begin(batch(size=1), key="mine")
        await fleet.until(lambda: asked)
        for number in range(3):
            await fleet.finish(await fleet.begin(errands(name=f"n{number}")))  # it looks meanwhile
        await fleet.asked(session, "number 0?")
        assert asked == ["number 0?"]
        await fleet.leave(mover)

        able, *_ = await fleet.movers(llm=StampingModel())
        if not fleet.adopts:
            await able.start(batch(size=1), key="mine")
        assert (await fleet.finish(session)).result == ["answer to number 0?"]

    async def test_a_host_answers_its_own_session(self, fleet: Fleet) -> None:
        """Movers with a model never answer a session that is answered outside."""
        model = StampingModel()
        await fleet.movers(llm=model)
        host = await fleet.front(programs=True, llm=None)

        status = await host.start(asks(name="mine"))
        session = status.session_id
        assert (await host.store.load(session)).birth.llm == OUTSIDE
        for prompt in ("mine first?", "mine second?"):
            # movers have looked, and answered what is theirs
            await fleet.finish(await fleet.begin(batch(size=1)))
            (query,) = (await fleet.asked(session, prompt)).queries
            await host.answer(query, prompt)

        assert (await fleet.finish(session)).result == ["mine first?", "mine", "mine second?"]
        assert set(model.asked) == {"number 0?"}

    async def test_calls_of_a_host_session_are_made_by_movers(self, fleet: Fleet) -> None:
        """Movers run its calls; only its model questions stay for the host."""
        model = StampingModel()
        host = await fleet.front(programs=True, llm=None)
        host.engine.serving.leaving = True  # its calls are left to others
        status = await host.start(beside(name="a"), wait=0)

        await fleet.movers(llm=model)
        await fleet.until(lambda: EFFECT_LOG.ended["a"])
        await fleet.finish(await fleet.begin(batch(size=1)))

        (query,) = (await fleet.asked(status.session_id, "a?")).queries
        assert model.asked == ["number 0?"]
        await (await fleet.front()).answer(query, "by hand")
        assert (await fleet.finish(status.session_id)).result == ["by hand", "a-heard", "a"]

    # ---- code

    async def test_divergence(self, fleet: Fleet) -> None:
        """A session whose code has changed stays as it is, with its queued input; after a rollback
        it resumes.
        """
        before = make_edition("same")
        after = make_edition("other")
        old, front = await fleet.mover(editions={before.ref: before}), await fleet.front()
        session = await fleet.begin(before(name="a"))
        (query,) = (await fleet.asked(session, "Same?")).queries
        await fleet.until(lambda: EFFECT_LOG.ended["a"])
        await fleet.asked(session, "Same?")
        await fleet.leave(old)

        new = await fleet.mover(editions={before.ref: after})
        await front.answer(query, "yes")
        await fleet.until(lambda: new.gave_up(session))
        assert (await fleet.status(session)).state == "running"
        await fleet.leave(new)
        await fleet.movers(editions={before.ref: before})

        assert (await fleet.finish(session)).result == ["yes", "a", "a-after"]

    async def test_two_editions_at_once(self, fleet: Fleet) -> None:
        """During a deploy each session moves in a process with its code."""
        before = make_edition("same")
        after = make_edition("other")
        old, front = await fleet.mover(editions={before.ref: before}), await fleet.front()
        session = await fleet.begin(before(name="a"))
        (query,) = (await fleet.asked(session, "Same?")).queries
        new = await fleet.mover(editions={before.ref: after})

        await front.answer(query, "yes")

        assert (await fleet.finish(session)).result == ["yes", "a", "a-after"]
        await fleet.leave(old)
        session = await fleet.begin(before(name="b"))
        (query,) = (await fleet.asked(session, "Other?")).queries
        await new.answer(query, True)
        assert (await fleet.finish(session)).result == ["True", "", "b-after"]

    async def test_an_outcome_while_the_code_diverges_is_kept(self, fleet: Fleet) -> None:
        """The outcome of a call whose program diverged is recorded; after a rollback the program
        resumes with it.
        """
        before = make_edition("same")
        after = make_edition("other")
        mover, front = await fleet.mover(editions={before.ref: before}), await fleet.front()
        EFFECT_LOG.hold("a")
        session = await fleet.begin(before(name="a"))
        await fleet.until(lambda: EFFECT_LOG.begun["a"])
        (query,) = (await fleet.asked(session, "Same?")).queries

        mover.editions[before.ref] = after
        await front.answer(query, "yes")
        await fleet.until(lambda: mover.gave_up(session))
        EFFECT_LOG.free("a")
        await fleet.until(lambda: self._is_unmarked(fleet, session))
        status = await fleet.status(session)
        assert (EFFECT_LOG.ended["a"], isinstance(status, Paused) and bool(status.queries)) == (
            1,
            False,
        )
        await fleet.leave(mover)
        await fleet.movers(editions={before.ref: before})

        assert (await fleet.finish(session)).result == ["yes", "a", "a-after"]
        assert EFFECT_LOG.begun["a"] == 1

    async def _is_unmarked(self, fleet: Fleet, session: str) -> bool:
        return not (await (await fleet.front()).store.load(session)).effects
