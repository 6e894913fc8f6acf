"""Tests of letters, of `unmoved` and `next_due`, and of worker rows: which sessions need a move."""

from __future__ import annotations

from typing import Final

import pytest

from everhold.core.query import FailedAttempt, Kind, Usage
from everhold.core.session import SessionId, SessionState
from everhold.core.status import Raised, Returned, Stopped
from everhold.errors import Overtaken
from everhold.ports.store import NO_WORKER, Change, Effect, Letter, Store, WorkerRecord
from everhold.testing.conformance.factories import (
    commit_end,
    commit_start,
    commit_step,
    commit_touch,
    make_birth,
    make_head,
    make_query,
    make_start,
    make_step,
)
from everhold.testing.conformance.harness import (
    StoreContractBase,
    list_due,
    list_orphans,
    list_parked,
)


def make_letter(id: str, body: object = None) -> Letter:
    """A letter to another session."""
    return Letter("signal", body, 1000.0, to=SessionId(id))


class LetterContract(StoreContractBase):
    """Letters land with the change that sends them."""

    async def test_a_letter_to_oneself(self, store: Store) -> None:
        """A letter without addressee goes into the session's own intake; the head is stored as
        given.
        """
        record = await commit_start(store, "s-1", make_query(0))
        letters = [Letter("answer", {"q": 0, "value": "a\0"}, 5.5), Letter("cancel", None, 6.5)]

        found = await commit_touch(
            store, record, letters=letters, tip={"mail": 2, "state": SessionState.RUNNING}
        )

        assert [(one.kind, one.body, one.at) for one in found.letters] == [
            ("answer", {"q": 0, "value": "a\0"}, 5.5),
            ("cancel", None, 6.5),
        ]
        assert (found.head.mail, found.head.revision, found.head.state) == (
            2,
            2,
            SessionState.RUNNING,
        )

    @pytest.mark.parametrize("state", [SessionState.PAUSED, SessionState.RUNNING])
    async def test_a_letter_to_another(self, store: Store, state: SessionState) -> None:
        """It goes into the intake of the other session, which is now running, one revision higher,
        with mail.
        """
        other = await commit_start(store, "s-2", make_query(0), state=state)

        await commit_touch(
            store, await commit_start(store, "s-1"), letters=[make_letter("s-2", {"x": [1]})]
        )

        found = await store.load("s-2")
        assert [(one.kind, one.body, one.at) for one in found.letters] == [
            ("signal", {"x": [1]}, 1000.0)
        ]
        assert (found.head.mail, found.head.revision, found.head.state) == (
            1,
            2,
            SessionState.RUNNING,
        )
        assert found.deliveries == other.deliveries
        assert (await store.load("s-1")).letters == []

    async def test_a_letter_overtakes_the_other_writer(self, store: Store) -> None:
        """A commit must have seen the letters of its session."""
        other = await commit_start(store, "s-2", make_query(0))
        await commit_touch(store, await commit_start(store, "s-1"), letters=[make_letter("s-2")])

        with pytest.raises(Overtaken):
            await store.commit(make_step(other, answers={0: "a"}), 1)

    async def test_several_letters(self, store: Store) -> None:
        """All letters are counted, and read in order of arrival."""
        await commit_start(store, "s-2")

        sender = await commit_touch(
            store,
            await commit_start(store, "s-1"),
            letters=[make_letter("s-2", 1), make_letter("s-2", 2)],
        )
        await commit_touch(store, sender, letters=[make_letter("s-2", 3)])

        found = await store.load("s-2")
        assert [one.body for one in found.letters] == [1, 2, 3]
        assert (found.head.mail, found.head.revision) == (3, 4)

    async def test_letters_have_numbers(self, store: Store) -> None:
        """Each letter has its own number, which is never reused."""
        record = await commit_start(store, "s-1")
        seen = []
        for n in range(3):
            record = await commit_touch(
                store, record, letters=[Letter("signal", n, 1.0)], tip={"mail": 1}
            )
            seen += [one.id for one in record.letters]
            record = await commit_touch(store, record, read=[record.letters[0].id], tip={"mail": 0})

        assert len(set(seen)) == 3
        assert 0 not in seen

    async def test_a_read_letter_is_gone(self, store: Store) -> None:
        """`read` removes exactly the delivered letters."""
        record = await commit_start(store, "s-1")
        letters = [Letter("signal", n, 1.0) for n in range(3)]
        record = await commit_touch(store, record, letters=letters, tip={"mail": 3})

        record = await commit_touch(
            store, record, read=[record.letters[0].id, record.letters[2].id], tip={"mail": 1}
        )

        assert [one.body for one in record.letters] == [1]

    async def test_letters_of_others_are_not_read(self, store: Store) -> None:
        """`read` removes letters of this session only."""
        await commit_start(store, "s-2")
        sender = await commit_touch(
            store, await commit_start(store, "s-1"), letters=[make_letter("s-2")]
        )
        number = (await store.load("s-2")).letters[0].id

        await commit_touch(store, sender, read=[number])

        assert len((await store.load("s-2")).letters) == 1

    @pytest.mark.parametrize("outcome", [Returned(1), Raised("no"), Stopped()])
    async def test_the_ended_get_no_letters(
        self, store: Store, outcome: Returned | Raised | Stopped
    ) -> None:
        """A letter to a session that has ended is dropped; its sender's change lands."""
        ended = await commit_end(store, await commit_start(store, "s-2"), outcome)

        sender = await commit_touch(
            store,
            await commit_start(store, "s-1"),
            letters=[make_letter("s-2"), make_letter("s-none")],
        )

        assert sender.head.revision == 2
        assert await store.load("s-2") == ended

    async def test_a_refused_change_sends_nothing(self, store: Store) -> None:
        """Letters of a refused change are never visible."""
        other, sender = await commit_start(store, "s-2"), await commit_start(store, "s-1")

        with pytest.raises(Overtaken):
            await store.commit(
                Change(sender.birth.id, sender.head, letters=[make_letter("s-2")]), 7
            )

        assert await store.load("s-2") == other

    async def test_a_letter_to_a_child_of_the_same_change(self, store: Store) -> None:
        """A change can start a child and send it a letter."""
        first = make_start("s-1")
        first.births, first.letters = (
            [(make_birth("s-2"), make_head())],
            [make_letter("s-2", "hello")],
        )

        await store.commit(first, 0)

        assert [one.body for one in (await store.load("s-2")).letters] == ["hello"]

    async def test_an_end_tells_the_parent(self, store: Store) -> None:
        """A child's end and the letter to its parent land together."""
        await commit_start(store, "s-1", make_query(0, Kind.SESSION))
        child = await commit_start(store, "s-2", make_query(0), parent="s-1", parent_query=0)

        await commit_step(
            store,
            child,
            answers={0: "a"},
            outcome=Returned(1),
            letters=[make_letter("s-1", {"q": 0})],
        )

        parent = await store.load("s-1")
        assert (parent.head.state, parent.head.mail) == (SessionState.RUNNING, 1)
        assert await list_due(store, 0.0, 9) == ["s-1"]


#: The head of a session that has a letter which concerns it.
MAIL: Final = {"mail": 1, "state": SessionState.RUNNING}


class UnmovedContract(StoreContractBase):
    """`unmoved` and `next_due` find the sessions that need a move."""

    async def test_a_moment_comes(self, store: Store) -> None:
        """A session is due at its time and after it, not before."""
        await commit_touch(store, await commit_start(store, "s-1"), tip={"due_at": 50.0})

        assert await list_due(store, 49.999, 9) == []
        assert await list_due(store, 50.0, 9) == ["s-1"]
        assert await list_due(store, 51.0, 9) == ["s-1"]

    async def test_the_longest_due_is_first(self, store: Store) -> None:
        """The session that is due longest comes first, also with a limit."""
        for id, at in [("s-1", 30.0), ("s-2", 10.0), ("s-3", 20.0), ("s-4", 90.0)]:
            await commit_touch(store, await commit_start(store, id), tip={"due_at": at})

        assert await list_due(store, 50.0, 9) == ["s-2", "s-3", "s-1"]
        assert await list_due(store, 50.0, 2) == ["s-2", "s-3"]
        assert await list_due(store, 50.0, 0) == []

    async def test_letters_wait_in_one_line_with_moments(self, store: Store) -> None:
        """The session that waits longest comes first, for letters and timers alike."""
        for id, at in [("s-1", 30.0), ("s-2", 10.0)]:
            await commit_touch(store, await commit_start(store, id), tip={"due_at": at})
        for id, at in [("s-3", 20.0), ("s-4", 40.0)]:
            await commit_touch(
                store, await commit_start(store, id), letters=[Letter("signal", 1, at)], tip=MAIL
            )

        assert await list_due(store, 50.0, 9) == ["s-2", "s-3", "s-1", "s-4"]
        assert await list_due(store, 50.0, 2) == ["s-2", "s-3"]

    async def test_the_longest_orphaned_is_first(self, store: Store) -> None:
        """The session that lost its worker first comes first."""
        for id, since in [("s-1", 3.0), ("s-2", 1.0), ("s-3", 2.0)]:
            record = await commit_start(store, id, make_query(0, Kind.CALL))
            await commit_touch(store, record, effects=[Effect(0, "ada", since)])

        assert await list_orphans(store, set()) == ["s-2", "s-3", "s-1"]

    async def test_letters_are_due_at_once(self, store: Store) -> None:
        """A session with letters is due whatever the time, until they are read."""
        record = await commit_start(store, "s-1")
        record = await commit_touch(store, record, letters=[Letter("answer", 1, 70.0)], tip=MAIL)
        assert await list_due(store, 0.0, 9) == ["s-1"]

        await commit_touch(store, record, read=[record.letters[0].id], tip={"mail": 0})

        assert await list_due(store, 0.0, 9) == []

    async def test_signals_that_a_paused_session_does_not_wait_for_need_no_move(
        self, store: Store
    ) -> None:
        """They are kept, but `unmoved` does not report the session for them."""
        record = await commit_start(store, "s-1")
        record = await commit_touch(
            store,
            record,
            letters=[Letter("signal", 1, 70.0)],
            tip={"mail": 1, "state": SessionState.PAUSED},
        )

        assert await list_due(store, 100.0, 9) == []
        assert [one.body for one in record.letters] == [1]

    async def test_parked_questions_are_found_while_they_are_parked(self, store: Store) -> None:
        """A session with a question for workers is found by a search for such sessions."""
        record = await commit_touch(store, await commit_start(store, "s-1"), tip={"parked": True})
        assert await list_parked(store) == ["s-1"]
        assert await store.unmoved(0.0, set()) == []
        record = await commit_step(store, record, answers={0: "a"}, asked=[make_query(1)])
        assert record.head.parked and await list_parked(store) == ["s-1"]

        await commit_touch(store, record, tip={"parked": False})
        assert await list_parked(store) == []

    async def test_the_same_need_is_told_in_the_same_words(self, store: Store) -> None:
        """An unchanged session is reported unchanged; a change of the session is visible."""
        record = await commit_touch(store, await commit_start(store, "s-1"), tip={"due_at": 1.0})
        first = await store.unmoved(2.0, set())
        assert first == await store.unmoved(3.0, set()) and [one.why for one in first] == ["timer"]

        await commit_touch(store, record)

        assert await store.unmoved(3.0, set()) != first

    async def test_due_once_for_two_reasons(self, store: Store) -> None:
        """A session that is due and has letters is listed once."""
        record = await commit_start(store, "s-1")

        await commit_touch(
            store, record, letters=[Letter("signal", 1, 1.0)], tip={**MAIL, "due_at": 1.0}
        )

        assert await list_due(store, 5.0, 9) == ["s-1"]

    async def test_the_ended_are_never_due(self, store: Store) -> None:
        """An ended session is never due, whatever its head says."""
        record = await commit_start(store, "s-1")
        tip = {"due_at": 1.0, "mail": 1}

        await commit_step(
            store, record, outcome=Returned(1), letters=[Letter("signal", 1, 1.0)], tip=tip
        )

        assert await list_due(store, 5.0, 9) == []
        assert await store.next_due() is None

    async def test_the_next_moment(self, store: Store) -> None:
        """`next_due` is the earliest time of all sessions, past or future; None if there is
        none.
        """
        assert await store.next_due() is None
        records = [await commit_start(store, f"s-{n}") for n in range(3)]
        for record, at in zip(records, (30.5, 10.25, None), strict=True):
            await commit_touch(store, record, tip={"due_at": at})

        assert await store.next_due() == 10.25

    async def test_a_moment_can_be_taken_back(self, store: Store) -> None:
        """A head without a time is no longer due."""
        record = await commit_touch(store, await commit_start(store, "s-1"), tip={"due_at": 1.0})

        await commit_touch(store, record, tip={"due_at": None})

        assert (await list_due(store, 5.0, 9), await store.next_due()) == ([], None)

    async def test_effects_of_the_dead(self, store: Store) -> None:
        """A session is an orphan while an effect belongs to a worker that is not alive."""
        record = await commit_start(
            store, "s-1", make_query(0, Kind.CALL), make_query(1, Kind.CALL)
        )
        effects = [Effect(0, "ada", 1.0), Effect(1, "bob", 2.0)]
        record = await commit_touch(store, record, effects=effects)

        assert record.effects == effects
        assert await list_orphans(store, {"ada", "bob"}) == []
        assert await list_orphans(store, {"ada"}) == await list_orphans(store, set()) == ["s-1"]

    async def test_what_nobody_has_begun_is_an_orphan(self, store: Store) -> None:
        """A mark without a worker waits for any worker."""
        record = await commit_start(store, "s-1", make_query(0, Kind.CALL))
        record = await commit_touch(store, record, effects=[Effect(0, NO_WORKER, 1.0)])

        assert record.effects == [Effect(0, NO_WORKER, 1.0)]
        assert await list_orphans(store, {"ada"}) == ["s-1"]

        await commit_touch(store, record, effects=[Effect(0, "ada", 2.0)])
        assert await list_orphans(store, {"ada"}) == []

    async def test_a_mark_keeps_its_failed_attempt(self, store: Store) -> None:
        """It is read as it was written, replaced with the mark, and gone with it. The session is
        due at the time of the next attempt.
        """
        record = await commit_start(
            store, "s-1", make_query(0, Kind.CALL), make_query(1, Kind.CALL)
        )
        usage = Usage(prompt_tokens=3, model="m")
        failed = FailedAttempt(1, 5, "no\x00 route ü 😀", 2.0, 14.5, usage)
        waits = Effect(0, NO_WORKER, 14.5, failed)
        record = await commit_touch(
            store, record, effects=[waits, Effect(1, "ada", 2.0)], tip={"due_at": 14.5}
        )

        assert record.effects == [waits, Effect(1, "ada", 2.0)]
        assert await list_due(store, 14.0, 9) == []
        assert (await list_due(store, 15.0, 9), await store.next_due()) == (["s-1"], 14.5)

        begun = Effect(0, "ada", 15.0, failed)
        record = await commit_touch(store, record, effects=[begun], tip={"due_at": None})
        assert record.effects == [begun, Effect(1, "ada", 2.0)]

        record = await commit_step(store, record, answers={0: "done"})
        assert record.effects == [Effect(1, "ada", 2.0)]
        again = Effect(0, "bob", 16.0)
        assert again in (await commit_touch(store, record, effects=[again])).effects

    async def test_a_recorded_outcome_is_no_orphan(self, store: Store) -> None:
        """The change that records the outcome removes the mark."""
        record = await commit_start(
            store, "s-1", make_query(0, Kind.CALL), make_query(1, Kind.CALL)
        )
        record = await commit_touch(
            store, record, effects=[Effect(0, "ada", 1.0), Effect(1, "ada", 1.0)]
        )

        record = await commit_step(store, record, answers={0: "done"})

        assert record.effects == [Effect(1, "ada", 1.0)]
        assert (await commit_step(store, record, answers={1: "done"})).effects == []
        assert await list_orphans(store, set()) == []

    async def test_an_effect_can_change_hands(self, store: Store) -> None:
        """A second mark for a query replaces the first."""
        record = await commit_start(store, "s-1", make_query(0, Kind.CALL))
        record = await commit_touch(store, record, effects=[Effect(0, "ada", 1.0)])

        record = await commit_touch(store, record, effects=[Effect(0, "bob", 2.0)])

        assert record.effects == [Effect(0, "bob", 2.0)]
        assert await list_orphans(store, {"bob"}) == []


class WorkerRowsContract(StoreContractBase):
    """Rows of live workers."""

    async def test_a_worker_lives_until_released(self, store: Store) -> None:
        """A beat makes a row or renews it; `release` removes it, and only it."""
        store.use_clock(lambda: 100.5)
        ada = WorkerRecord("ada", "host-1", 11, 2.5)
        bob = WorkerRecord("bob", "host-2", 12)
        for worker in (bob, WorkerRecord("ada", "host-0", 10), ada):
            await store.beat(worker)
        assert await store.workers() == [ada, bob]

        await store.release("ada")

        assert await store.workers() == [bob]

    async def test_a_worker_ages_until_its_next_beat(self, store: Store) -> None:
        """Its age is counted from its last beat; each has a time to live of its own."""
        now = 1000.0
        store.use_clock(lambda: now)
        await store.beat(WorkerRecord("ada", "host-1", 11, 2.5))
        now += 2.0
        # what it says of its age says nothing
        await store.beat(WorkerRecord("bob", "host-1", 12, 30.0, age=99.0))
        now += 0.5
        assert [(one.id, one.age, one.expired) for one in await store.workers()] == [
            ("ada", 2.5, True),
            ("bob", 0.5, False),
        ]

        await store.beat(WorkerRecord("ada", "host-1", 11, 2.5))

        assert [one.age for one in await store.workers()] == [0.0, 0.5]

    async def test_workers_live_by_the_clock_of_the_store(self, store: Store) -> None:
        """A clock that is set back makes no worker older than it is, and none younger than new."""
        now = 1000.0
        store.use_clock(lambda: now)
        await store.beat(WorkerRecord("ada", "host-1", 11))
        now = 10.0

        assert [one.age for one in await store.workers()] == [0.0]

        store.use_clock(None)
        await store.beat(WorkerRecord("ada", "host-1", 11))
        (found,) = await store.workers()
        assert 0.0 <= found.age < 60.0

    async def test_a_stranger_can_be_released(self, store: Store) -> None:
        """Releasing an unknown worker changes nothing."""
        await store.release("nobody")

        assert await store.workers() == []
