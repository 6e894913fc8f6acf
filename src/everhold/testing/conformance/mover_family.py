"""Tests of related sessions and conversations: children, background programs, retries, forks,
inputs.
"""

from __future__ import annotations

from everhold.core.session import SessionState
from everhold.core.status import Raised
from everhold.testing.conformance.mover_fleet import Fleet, MoverContractBase
from everhold.testing.conformance.mover_programs import (
    EFFECT_LOG,
    StampingModel,
    asks,
    clerk,
    hears,
    make_edition,
    parent,
    starts,
)


class MoverFamilyContract(MoverContractBase):
    """Children, background programs, retries, forks, conversations."""

    async def _child(self, fleet: Fleet, session: str) -> str:
        """Wait for the child of a session."""
        front = await fleet.front()
        (found,) = await fleet.until(lambda: front.sessions(parent=session))
        return str(found.session_id)

    async def test_a_child_ends(self, fleet: Fleet) -> None:
        """Its parent resumes with its result."""
        await fleet.movers()

        session = await fleet.begin(parent(name="a", how="ends"))

        assert (await fleet.finish(session)).result == ["a-0", "a-parent"]

    async def test_a_child_fails(self, fleet: Fleet) -> None:
        """Its parent gets the error, and resumes."""
        await fleet.movers()

        session = await fleet.begin(parent(name="a", how="fails"))

        assert (await fleet.finish(session)).result == ["child failed", "a-parent"]
        assert (await fleet.status(await self._child(fleet, session))).state == SessionState.FAILED

    async def test_a_child_is_cancelled(self, fleet: Fleet) -> None:
        """By a front without the program: its parent gets the error, and resumes."""
        await fleet.movers()
        session = await fleet.begin(parent(name="a", how="asks"))
        child = await self._child(fleet, session)
        await fleet.asked(child, "a first?")

        await (await fleet.front()).cancel(child, "not needed")

        assert (await fleet.finish(session)).result == ["child failed", "a-parent"]

    async def test_a_child_is_cancelled_with_its_parent(self, fleet: Fleet) -> None:
        """Cancelling the parent ends the child, whichever process cancels."""
        await fleet.movers()
        session = await fleet.begin(parent(name="a", how="asks"))
        child = await self._child(fleet, session)
        await fleet.asked(child, "a first?")

        await (await fleet.front()).cancel(session, "not needed")

        assert (await fleet.finish(child)).state == SessionState.CANCELLED

    async def test_a_child_is_answered(self, fleet: Fleet) -> None:
        """The inbox lists its questions like others, and its end reaches its parent."""
        await fleet.movers()
        front = await fleet.front()
        session = await fleet.begin(parent(name="a", how="asks"))
        child = await self._child(fleet, session)

        for prompt in ("a first?", "a second?"):
            asked = await fleet.asked(child, prompt)
            await front.answer(asked.queries[0], prompt)

        assert (await fleet.finish(session)).result == ["a first?", "a", "a second?", "a-parent"]

    async def test_a_background_program_notifies_its_parent(self, fleet: Fleet) -> None:
        """Its end is a signal to its parent, received once."""
        await fleet.movers()

        session = await fleet.begin(starts(name="a"))

        assert (await fleet.finish(session)).result == ["the errand", "completed", ["a-0"]]

    # ---- the journal as a tape

    async def test_a_program_error_and_retry(self, fleet: Fleet) -> None:
        """The error ends the session; after a fix, a retry resumes from there, and nothing runs
        twice.
        """
        broken = make_edition("broken")
        fixed = make_edition("same")
        mover, front = await fleet.mover(editions={broken.ref: broken}), await fleet.front()
        session = await fleet.begin(broken(name="a"))
        asked = await fleet.asked(session, "Same?")
        await fleet.until(lambda: EFFECT_LOG.ended["a"])
        await front.answer(asked.queries[0], "yes")
        end = await fleet.finish(session)
        assert isinstance(end.outcome, Raised) and end.outcome.kind == "ValueError"
        await fleet.leave(mover)

        mover, *_ = await fleet.movers(editions={fixed.ref: fixed})
        await mover.retry(session)

        assert (await fleet.finish(session)).result == ["yes", "a", "a-after"]

    async def test_a_fork(self, fleet: Fleet) -> None:
        """It shares the earlier steps, and both continue separately."""
        mover, *_ = await fleet.movers()
        front = await fleet.front()
        session = await fleet.begin(asks(name="a"))
        asked = await fleet.asked(session, "a first?")
        await front.answer(asked.queries[0], "1")
        await fleet.asked(session, "a second?")

        fork = (await mover.fork(session)).session_id
        for one, words in ((fork, "for the fork"), (session, "for the session")):
            asked = await fleet.asked(one, "a second?")
            await front.answer(asked.queries[0], words)

        assert (await fleet.finish(session)).result == ["1", "a", "for the session"]
        assert (await fleet.finish(fork)).result == ["1", "a", "for the fork"]
        assert EFFECT_LOG.begun["a"] == 1

    async def test_a_fork_does_not_receive_signals_of_its_origin(self, fleet: Fleet) -> None:
        """An accepted but unreceived signal belongs to the session it was sent to."""
        mover, *_ = await fleet.movers()
        front = await fleet.front()
        session = await fleet.begin(hears(count=1, first="ready?"))
        await fleet.asked(session, "ready?")
        await front.signal(session, "news", "for the session")

        fork = (await mover.fork(session)).session_id
        for one in (session, fork):
            asked = await fleet.asked(one, "ready?")
            await front.answer(asked.queries[0], "yes")

        assert (await fleet.finish(session)).result == ["for the session"]
        await fleet.hears(fork, "news")
        await front.signal(fork, "news", "for the fork")
        assert (await fleet.finish(fork)).result == ["for the fork"]

    # ---- conversations

    async def test_an_input_while_a_turn_runs(self, fleet: Fleet) -> None:
        """It is accepted at once, waits for the running turn, and becomes the next turn, once."""
        await fleet.movers(llm=StampingModel())
        front = await fleet.front(programs=True)
        EFFECT_LOG.hold("paper 1")
        session = await front.session(clerk, "desk")
        fleet.left.add(session.id)

        await session.enqueue("paper 1", key="first")
        await fleet.until(lambda: EFFECT_LOG.begun["paper 1"])
        receipt = await session.enqueue("paper 2", key="second")
        again = await session.enqueue("paper 2", key="second")

        assert (receipt.new, again.new, EFFECT_LOG.begun["paper 2"]) == (True, False, 0)
        EFFECT_LOG.free("paper 1")
        turns = await fleet.until(lambda: self._turns(session, 2))
        assert [turn.input for turn in turns] == ["first", "second"]
        assert (EFFECT_LOG.begun["paper 1"], EFFECT_LOG.begun["paper 2"]) == (1, 1)
        assert await session.intake() == []

    async def test_an_input_for_the_turn_that_runs(self, fleet: Fleet) -> None:
        """It enters that turn at its next checkpoint, although its tool runs in another process."""
        await fleet.movers(llm=StampingModel())
        front = await fleet.front(programs=True)
        EFFECT_LOG.hold("paper 1")
        session = await front.session(clerk, "desk")
        fleet.left.add(session.id)

        await session.enqueue("paper 1", key="first")
        await fleet.until(lambda: EFFECT_LOG.begun["paper 1"])
        await session.enqueue("paper 2", key="second", at="after_work")
        await fleet.until(lambda: self._is(session, "completed"))
        assert not EFFECT_LOG.ended["paper 1"]
        EFFECT_LOG.free("paper 1")

        (turn,) = await fleet.until(lambda: self._turns(session, 1))
        assert (turn.input, list(turn.taken)) == ("first", ["second"])
        assert (EFFECT_LOG.begun["paper 1"], EFFECT_LOG.begun["paper 2"]) == (1, 1)

    async def test_a_conversation_whose_session_is_cancelled_fails_what_waits(
        self, fleet: Fleet
    ) -> None:
        """An input that waits for a turn that never ends fails with the reason; no move is left."""
        await fleet.movers(llm=StampingModel())
        front = await fleet.front(programs=True)
        EFFECT_LOG.hold("paper 1")
        session = await front.session(clerk, "desk")
        await session.enqueue("paper 1", key="first")
        await fleet.until(lambda: EFFECT_LOG.begun["paper 1"])
        await session.enqueue("paper 2", key="second")

        await front.cancel(session.id, "closed")

        await fleet.until(lambda: EFFECT_LOG.stopped["paper 1"])
        await fleet.until(lambda: self._is(session, "failed"))
        assert not EFFECT_LOG.begun["paper 2"]

    async def _turns(self, session: object, count: int) -> object:
        found = await session.turns()  # type: ignore[attr-defined]
        return found if len(found) >= count else None

    async def _is(self, session: object, state: str) -> bool:
        """Whether the second input is in this state."""
        items = await session.intake(all=True)  # type: ignore[attr-defined]
        return {item.id: str(item.state) for item in items}.get("second") == state
