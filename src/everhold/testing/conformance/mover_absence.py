"""What is here and what is there: programs, models, and editions of the code."""

from __future__ import annotations

from everhold.core.query import Query
from everhold.core.session import OUTSIDE, WORKERS
from everhold.core.status import Paused
from everhold.errors import NotAllowed
from everhold.testing.conformance.mover_fleet import Fleet
from everhold.testing.conformance.mover_harness import MoverContractBase
from everhold.testing.conformance.mover_programs import (
    EFFECT_LOG,
    StampingModel,
    asks,
    batch,
    beside,
    errands,
    hears,
    make_edition,
)


class MissingCodeContract(MoverContractBase):
    """Programs, models and code that differ from process to process."""

    # ---- programs

    async def test_a_program_absent_here_and_present_there(self, fleet: Fleet) -> None:
        """A mover that lacks it leaves the session to one that has it, and works for others
        meanwhile.
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
        """A mover that lacks it keeps what comes, and the other one delivers it."""
        lacks, _ = await fleet.mover(without=[hears]), await fleet.mover()
        session = await fleet.begin(hears(count=4))
        await fleet.asked(session, "")

        for value in (1, 1, 2, 1):
            await lacks.signal(session, "news", value)

        assert (await fleet.finish(session)).result == [1, 1, 2, 1]

    async def test_a_program_that_is_absent_is_not_offered_again(self, fleet: Fleet) -> None:
        """A mover that lacks it does not try again and again while nothing happens to the
        session.
        """
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
        """A session that was begun where there is no model is answered where there is one."""
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
        """A question that was parked before there was a model is answered when there is one,
        once.
        """
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
        """Its question stays open for others; it is not asked again at each look."""
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
        """Beside movers with a model, a session that says "outside" is answered by nobody but its
        host.
        """
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
        """Only questions to models are its host's: what it left to be done is done, and its
        questions stay.
        """
        model = StampingModel()
        host = await fleet.front(programs=True, llm=None)
        host.engine.sessions.stepper.leaving = True  # its calls are left to others
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
        """Where the code has changed, a session stays as it is, and what comes for it; rolled back,
        it goes on.
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
        """While a deploy goes round, each session goes on where its code is."""
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
        """A call that ends where its program diverged is recorded; rolled back, the program resumes
        with it.
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
