"""What a store says to whoever keeps house: who has to be told, what a session weighs, what nobody
needs any more.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everhold.core.query import Kind, Rerun
from everhold.core.session import SessionId, State
from everhold.errors import UnknownSession
from everhold.ports.store import Asking, Duty, Effect, Letter, Reclaimed, Store, asking_id
from everhold.testing.conformance.attachment import made
from everhold.testing.conformance.factories import ask, begin, branch, end, mark, move, notice
from everhold.testing.conformance.harness import Room, everything


async def asked(store: Store, **wanted: Any) -> list[tuple[str, int]]:
    """Session and number of the questions for people."""
    return [(birth.id, query.q) for birth, query, _ in await store.asking(Asking(**wanted))]


class AskingRoom(Room):
    """`asking` names the open questions for people, but for those that a duty takes care of."""

    async def test_who_is_asked_gets_birth_query_and_moment(self, store: Store) -> None:
        """As in the inbox."""
        query = ask(0, Kind.APPROVAL, to="ada", args={"amount": 3})
        record = await begin(store, "s-1", query, created_at=1234.5)

        assert await store.asking(Asking()) == [(record.birth, query, 1234.5)]

    async def test_what_is_for_people(self, store: Store) -> None:
        """What only people answer, what is addressed, and what became of an effect; no model's or
        program's part.
        """
        kinds = [Kind.LLM, Kind.APPROVAL, Kind.INPUT, Kind.SIGNAL, Kind.TOOL]
        await begin(store, "s-1", *(ask(q, kind) for q, kind in enumerate(kinds)))
        await begin(
            store,
            "s-2",
            *(ask(q, kind, to="ada") for q, kind in enumerate(kinds)),
            created_at=1001.0,
        )
        record = await begin(store, "s-3", ask(0, Kind.CALL, rerun=Rerun.ASK), created_at=1002.0)
        record = await mark(store, record, effects=[Effect(0, "w", 1.0)])
        await mark(store, record, closed=[0], notices=[notice(ask(0, Kind.CALL), at=1111.0)])

        found = await asked(store)

        assert found == [("s-1", 1), ("s-1", 2), *(("s-2", q) for q in range(5)), ("s-3", 0)]

    async def test_what_is_wanted(self, store: Store) -> None:
        """Some kinds, some people, one session, so many."""
        people = ["ada", "ben", "ada\0"]
        await begin(store, "s-1", *(ask(q, Kind.APPROVAL, to=to) for q, to in enumerate(people)))
        await begin(store, "s-2", ask(0, Kind.INPUT), ask(1, Kind.SIGNAL), created_at=1001.0)

        assert await asked(store, kinds=(Kind.INPUT,)) == [("s-2", 0)]
        assert await asked(store, kinds=(Kind.SIGNAL, Kind.INPUT)) == [("s-2", 0), ("s-2", 1)]
        assert await asked(store, to=("ada", "nobody")) == [("s-1", 0)]
        assert await asked(store, to=("ada\0", "ben")) == [("s-1", 1), ("s-1", 2)]
        assert await asked(store, session=SessionId("s-2")) == [("s-2", 0)]
        assert await asked(store, session=SessionId("s-9")) == []
        assert await asked(store, limit=2) == [("s-1", 0), ("s-1", 1)]
        assert await asked(store, limit=0) == []

    async def test_the_first_asked_is_first(self, store: Store) -> None:
        """Whatever the order in which sessions were begun."""
        record = await begin(store, "s-1", ask(0))
        await begin(store, "s-2", ask(0, Kind.INPUT), created_at=1500.0)
        await move(store, record, answers={0: "a"}, asked=[ask(1, Kind.INPUT)], at=1600.0)

        assert await asked(store) == [("s-2", 0), ("s-1", 1)]

    async def test_what_is_answered_is_not_asked(self, store: Store) -> None:
        """Also where the answer waits, where somebody works on it, and where the session has
        ended.
        """
        queries = [ask(q, Kind.INPUT) for q in range(4)]
        record = await begin(store, "s-1", *queries)
        record = await move(store, record, answers={0: "a"}, withdrawn=[1])
        letter = Letter("answer", {"q": 2, "value": "b"}, 5.0)
        record = await mark(
            store, record, letters=[letter, Letter("signal", {"q": 3}, 5.0)], tip={"mail": 2}
        )
        assert await asked(store) == [("s-1", 3)]
        record = await mark(
            store, record, effects=[Effect(3, "w", 1.0)], tip={"state": State.RUNNING}
        )
        assert await asked(store) == []

        await end(store, await begin(store, "s-2", ask(0, Kind.INPUT)))
        assert await asked(store) == []

    @pytest.mark.parametrize(
        "at", [1234.5, 1700000000.123, 1700000000.9996, 1794815993.2706666, 0.0]
    )
    async def test_what_a_duty_sees_to(self, store: Store, at: float) -> None:
        """Of that kind, and for that very asking: the same question asked again is another."""
        record = await begin(store, "s-1", ask(0, Kind.INPUT), ask(1, Kind.INPUT), created_at=at)
        await store.undertake([Duty("tell:desk", asking_id("s-1", 0, at), {"x": 1})])

        assert await asked(store, without="tell:desk") == [("s-1", 1)]
        assert await asked(store, without="tell:door") == [("s-1", 0), ("s-1", 1)]
        again = notice(ask(0, Kind.INPUT), at=at + 0.001001)
        await mark(store, record, closed=[0], notices=[again])
        assert sorted(await asked(store, without="tell:desk")) == [("s-1", 0), ("s-1", 1)]


class ReclaimRoom(Room):
    """`size` and `reclaim`."""

    async def test_the_size_of_a_session_is_what_would_go_with_it(self, store: Store) -> None:
        """Its steps and its attachments, and nothing that another reads."""
        record = await begin(store, "s-1", ask(0))
        empty = await store.size("s-1")
        assert empty > 0
        record = await move(store, record, answers={0: "a" * 1000}, asked=[ask(1)])
        assert 1000 < await store.size("s-1") - empty < 1500
        await store.attach("s-1", made(b"b" * 5000), b"b" * 5000, 1.0)
        assert 6000 < await store.size("s-1") - empty < 6500

        await begin(store, "s-2")
        await store.attach("s-2", made(b"b" * 5000), b"b" * 5000, 1.0)
        assert 1000 < await store.size("s-1") - empty < 1500
        await branch(store, record, "s-3", 1)
        assert await store.size("s-1") == 0
        with pytest.raises(UnknownSession):
            await store.size("s-9")

    async def test_there_is_nothing_to_reclaim(self, store: Store) -> None:
        """MA3: Deleting a session takes with it all that nobody else reads; nothing is left,
        however often one asks.
        """
        record = await begin(store, "s-1", ask(0))
        await store.attach("s-1", made(b"early"), b"early", 1.0)
        record = await move(store, record, answers={0: "a"}, asked=[ask(1, Kind.INPUT)])
        await branch(store, record, "s-2", 1)
        record = await end(store, record)
        await store.attach("s-1", made(b"late"), b"late", 2.0)
        await store.delete("s-1", record.head.revision)
        before = await everything(store)

        assert await store.reclaim() == Reclaimed()
        assert await store.reclaim() == Reclaimed()
        assert await everything(store) == before
        assert (await store.attachment("s-2", made(b"early").id))[1] == b"early"

    async def test_what_is_kept_meanwhile_stays(self, store: Store) -> None:
        """Whoever keeps something while others reclaim, and delete what had the same bytes, has it
        afterwards.
        """
        await begin(store, "s-0")
        for turn in range(6):
            gone = await end(store, await begin(store, f"s-1{turn}"))
            await store.attach(gone.birth.id, made(b"same"), b"same", 1.0)
            await begin(store, f"s-2{turn}")

            await asyncio.gather(
                store.delete(gone.birth.id, gone.head.revision),
                store.reclaim(),
                store.attach(f"s-2{turn}", made(b"same"), b"same", 1.0),
                store.reclaim(),
            )

            assert (await store.attachment(f"s-2{turn}", made(b"same").id))[1] == b"same"
        assert await store.verify() == []
