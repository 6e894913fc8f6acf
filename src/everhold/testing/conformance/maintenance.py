"""Tests of a store's maintenance: questions for notifications, sizes, `reclaim`, `verify`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everhold.core.query import Kind, Rerun
from everhold.core.session import SessionId, SessionState
from everhold.errors import UnknownSession
from everhold.ports.store import (
    Duty,
    Effect,
    Letter,
    Maintenance,
    QuestionFilter,
    ReclaimResult,
    Store,
    ValueWrite,
    make_asking_id,
    require_maintenance,
)
from everhold.testing.conformance.attachment import make_attachment
from everhold.testing.conformance.factories import (
    commit_end,
    commit_fork,
    commit_start,
    commit_step,
    commit_touch,
    make_notice,
    make_query,
)
from everhold.testing.conformance.harness import StoreContractBase, dump_store


def maintain(store: Store) -> Maintenance:
    """The maintenance of a store, which must have one."""
    return require_maintenance(store, "MaintenanceContract")


async def list_questions(store: Store, **wanted: Any) -> list[tuple[str, int]]:
    """Session and number of the open questions for people."""
    return [
        (birth.id, query.q)
        for birth, query, _ in await maintain(store).asking(QuestionFilter(**wanted))
    ]


class QuestionListContract(StoreContractBase):
    """`asking` lists the open questions for people, except those with a duty."""

    async def test_who_is_asked_gets_birth_query_and_moment(self, store: Store) -> None:
        """Each row has the session, the query and the time, as in the inbox."""
        query = make_query(0, Kind.APPROVAL, to="ada", args={"amount": 3})
        record = await commit_start(store, "s-1", query, created_at=1234.5)

        assert await maintain(store).asking(QuestionFilter()) == [(record.birth, query, 1234.5)]

    async def test_what_is_for_people(self, store: Store) -> None:
        """Questions that only people answer, questions with an addressee, and unknown effects;
        nothing for models or programs.
        """
        kinds = [Kind.LLM, Kind.APPROVAL, Kind.INPUT, Kind.SIGNAL, Kind.TOOL]
        await commit_start(store, "s-1", *(make_query(q, kind) for q, kind in enumerate(kinds)))
        await commit_start(
            store,
            "s-2",
            *(make_query(q, kind, to="ada") for q, kind in enumerate(kinds)),
            created_at=1001.0,
        )
        record = await commit_start(
            store, "s-3", make_query(0, Kind.CALL, rerun=Rerun.ASK), created_at=1002.0
        )
        record = await commit_touch(store, record, effects=[Effect(0, "w", 1.0)])
        await commit_touch(
            store, record, closed=[0], notices=[make_notice(make_query(0, Kind.CALL), at=1111.0)]
        )

        found = await list_questions(store)

        assert found == [("s-1", 1), ("s-1", 2), *(("s-2", q) for q in range(5)), ("s-3", 0)]

    async def test_what_is_wanted(self, store: Store) -> None:
        """The filter: kinds, people, one session, a limit."""
        people = ["ada", "ben", "ada\0"]
        await commit_start(
            store, "s-1", *(make_query(q, Kind.APPROVAL, to=to) for q, to in enumerate(people))
        )
        await commit_start(
            store, "s-2", make_query(0, Kind.INPUT), make_query(1, Kind.SIGNAL), created_at=1001.0
        )

        assert await list_questions(store, kinds=(Kind.INPUT,)) == [("s-2", 0)]
        assert await list_questions(store, kinds=(Kind.SIGNAL, Kind.INPUT)) == [
            ("s-2", 0),
            ("s-2", 1),
        ]
        assert await list_questions(store, to=("ada", "nobody")) == [("s-1", 0)]
        assert await list_questions(store, to=("ada\0", "ben")) == [("s-1", 1), ("s-1", 2)]
        assert await list_questions(store, session=SessionId("s-2")) == [("s-2", 0)]
        assert await list_questions(store, session=SessionId("s-9")) == []
        assert await list_questions(store, limit=2) == [("s-1", 0), ("s-1", 1)]
        assert await list_questions(store, limit=0) == []

    async def test_the_first_asked_is_first(self, store: Store) -> None:
        """The order of the questions, whatever the order of the sessions."""
        record = await commit_start(store, "s-1", make_query(0))
        await commit_start(store, "s-2", make_query(0, Kind.INPUT), created_at=1500.0)
        await commit_step(
            store, record, answers={0: "a"}, asked=[make_query(1, Kind.INPUT)], at=1600.0
        )

        assert await list_questions(store) == [("s-2", 0), ("s-1", 1)]

    async def test_what_is_answered_is_not_asked(self, store: Store) -> None:
        """A question is not listed if its answer waits, if it is being worked on, or if the session
        has ended.
        """
        queries = [make_query(q, Kind.INPUT) for q in range(4)]
        record = await commit_start(store, "s-1", *queries)
        record = await commit_step(store, record, answers={0: "a"}, withdrawn=[1])
        letter = Letter("answer", {"q": 2, "value": "b"}, 5.0)
        record = await commit_touch(
            store, record, letters=[letter, Letter("signal", {"q": 3}, 5.0)], tip={"mail": 2}
        )
        assert await list_questions(store) == [("s-1", 3)]
        record = await commit_touch(
            store, record, effects=[Effect(3, "w", 1.0)], tip={"state": SessionState.RUNNING}
        )
        assert await list_questions(store) == []

        await commit_end(store, await commit_start(store, "s-2", make_query(0, Kind.INPUT)))
        assert await list_questions(store) == []

    @pytest.mark.parametrize(
        "at", [1234.5, 1700000000.123, 1700000000.9996, 1794815993.2706666, 0.0]
    )
    async def test_what_a_duty_sees_to(self, store: Store, at: float) -> None:
        """A duty hides one question of one kind; the same question asked again is listed."""
        record = await commit_start(
            store, "s-1", make_query(0, Kind.INPUT), make_query(1, Kind.INPUT), created_at=at
        )
        await store.undertake([Duty("tell:desk", make_asking_id("s-1", 0, at), {"x": 1})])

        assert await list_questions(store, without="tell:desk") == [("s-1", 1)]
        assert await list_questions(store, without="tell:door") == [("s-1", 0), ("s-1", 1)]
        again = make_notice(make_query(0, Kind.INPUT), at=at + 0.001001)
        await commit_touch(store, record, closed=[0], notices=[again])
        assert sorted(await list_questions(store, without="tell:desk")) == [("s-1", 0), ("s-1", 1)]


class ReclaimContract(StoreContractBase):
    """`size` and `reclaim`."""

    async def test_the_size_of_a_session_is_what_would_go_with_it(self, store: Store) -> None:
        """Its steps and attachments, without those that another session reads."""
        record = await commit_start(store, "s-1", make_query(0))
        empty = await maintain(store).size("s-1")
        assert empty > 0
        record = await commit_step(store, record, answers={0: "a" * 1000}, asked=[make_query(1)])
        assert 1000 < await maintain(store).size("s-1") - empty < 1500
        await store.attach("s-1", make_attachment(b"b" * 5000), b"b" * 5000, 1.0)
        assert 6000 < await maintain(store).size("s-1") - empty < 6500

        await commit_start(store, "s-2")
        await store.attach("s-2", make_attachment(b"b" * 5000), b"b" * 5000, 1.0)
        assert 1000 < await maintain(store).size("s-1") - empty < 1500
        await commit_fork(store, record, "s-3", 1)
        assert await maintain(store).size("s-1") == 0
        with pytest.raises(UnknownSession):
            await maintain(store).size("s-9")

    async def test_there_is_nothing_to_reclaim(self, store: Store) -> None:
        """MA3: deleting a session deletes everything that no other session reads, so nothing is
        left to reclaim.
        """
        record = await commit_start(store, "s-1", make_query(0))
        await store.attach("s-1", make_attachment(b"early"), b"early", 1.0)
        record = await commit_step(
            store, record, answers={0: "a"}, asked=[make_query(1, Kind.INPUT)]
        )
        await commit_fork(store, record, "s-2", 1)
        record = await commit_end(store, record)
        await store.attach("s-1", make_attachment(b"late"), b"late", 2.0)
        await store.delete("s-1", record.head.revision)
        before = await dump_store(store)

        assert await maintain(store).reclaim() == ReclaimResult()
        assert await maintain(store).reclaim() == ReclaimResult()
        assert await dump_store(store) == before
        assert (await store.attachment("s-2", make_attachment(b"early").id))[1] == b"early"

    async def test_what_is_kept_meanwhile_stays(self, store: Store) -> None:
        """Bytes that are stored during a reclaim or a delete of equal bytes stay."""
        await commit_start(store, "s-0")
        for turn in range(6):
            gone = await commit_end(store, await commit_start(store, f"s-1{turn}"))
            await store.attach(gone.birth.id, make_attachment(b"same"), b"same", 1.0)
            await commit_start(store, f"s-2{turn}")

            await asyncio.gather(
                store.delete(gone.birth.id, gone.head.revision),
                maintain(store).reclaim(),
                store.attach(f"s-2{turn}", make_attachment(b"same"), b"same", 1.0),
                maintain(store).reclaim(),
            )

            assert (await store.attachment(f"s-2{turn}", make_attachment(b"same").id))[1] == b"same"
        assert await maintain(store).verify() == []


class VerifyContract(StoreContractBase):
    """`verify` and `stats`."""

    async def test_an_eventful_life_is_sound(self, store: Store) -> None:
        """`verify` finds nothing after every kind of operation."""
        record = await commit_start(
            store,
            "s-1",
            make_query(0),
            make_query(1, Kind.CALL),
            make_query(2, Kind.APPROVAL),
            key="mine",
        )
        record = await commit_touch(
            store, record, effects=[Effect(1, "w", 1.0)], writes=[ValueWrite("n", "k", [1], 0)]
        )
        fork = await commit_fork(store, record, "s-2", 0)
        letter = Letter("answer", {"q": 0, "value": "a"}, 1.0, to=SessionId("s-2"))
        record = await commit_step(
            store,
            record,
            answers={1: "done"},
            withdrawn=[2],
            asked=[make_query(3)],
            letters=[letter],
        )
        ended = await commit_end(store, record)
        fork = await store.load("s-2")
        read = [letter.id for letter in fork.letters]
        await commit_step(store, fork, answers={0: "a"}, read=read, tip={"mail": 0})
        await store.delete("s-1", ended.head.revision)

        assert await maintain(store).verify() == []

    async def test_verify_tells_how_far_it_is(self, store: Store) -> None:
        """`verify` reports its progress for every session, up to the last."""
        for name in ("s-1", "s-2", "s-3"):
            await commit_start(store, name)
        told: list[tuple[int, int]] = []

        await maintain(store).verify(lambda done, total: told.append((done, total)))

        assert told == [(1, 3), (2, 3), (3, 3)]

    async def test_stats_have_the_format(self, store: Store) -> None:
        """`stats` contains the format of the store."""
        assert maintain(store).stats()["format"] >= 1


class MaintenanceContract(QuestionListContract, ReclaimContract, VerifyContract):
    """What a store with maintenance promises in addition to `StoreContract`."""
