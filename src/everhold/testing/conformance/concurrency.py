"""What `commit` promises when many commit at the same time: one refusal harms nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everhold.errors import BadValue, KeyConflict, Overtaken, StoreError
from everhold.ports.store import SessionFilter, Store, ValueWrite
from everhold.testing.conformance.commit import STALE
from everhold.testing.conformance.factories import (
    commit_start,
    commit_step,
    commit_touch,
    make_query,
    make_start,
    make_step,
)
from everhold.testing.conformance.harness import (
    OpenStore,
    StoreContractBase,
    collect_refusals,
    using_store,
    wait_in_time,
)


class ConcurrentCommitContract(StoreContractBase):
    """Commits of many tasks at the same time."""

    @pytest.mark.parametrize("late", STALE)
    async def test_one_refusal_harms_nobody(self, store: Store, late: Any) -> None:
        """Of twenty changes committed at once one is late: it is refused, and nineteen land."""
        records = [await commit_start(store, f"s-{n:02}", make_query(0)) for n in range(20)]
        await commit_step(store, records[7], answers={0: "first"})
        changes = [make_step(record, answers={0: "a"}, asked=[make_query(1)]) for record in records]
        changes[7] = late(records[7])

        refused = await collect_refusals(*(store.commit(change, 1) for change in changes))

        assert [n for n, error in enumerate(refused) if error is not None] == [7]
        assert isinstance(refused[7], Overtaken)
        for n, record in enumerate(records):
            found = await store.load(record.birth.id)
            assert found.deliveries[1].answers[0].value == ("first" if n == 7 else "a")
            assert found.head.revision == 2

    @pytest.mark.parametrize("light", [False, True])
    async def test_one_bad_number_harms_nobody(self, store: Store, light: bool) -> None:
        """A change that would rewrite the journal is refused alone."""
        records = [await commit_start(store, f"s-{n}", make_query(0)) for n in range(5)]
        changes = [make_step(record, answers={0: "a"}, light=light) for record in records]
        changes[2].deliveries[0].n = 0

        refused = await collect_refusals(*(store.commit(change, 1) for change in changes))

        assert [isinstance(error, StoreError) for error in refused] == [
            False,
            False,
            True,
            False,
            False,
        ]
        assert [(await store.load(f"s-{n}")).head.revision for n in range(5)] == [2, 2, 1, 2, 2]

    async def test_one_taken_key_harms_nobody(self, store: Store) -> None:
        """Of ten sessions started at once two have the same key: one of these is refused."""
        changes = [make_start(f"s-{n}", key="same" if n in (3, 6) else None) for n in range(10)]

        refused = await collect_refusals(*(store.commit(change, 0) for change in changes))

        assert [type(error) for error in refused if error is not None] == [KeyConflict]
        assert len(await store.list(SessionFilter())) == 9
        assert await store.find("same") in ("s-3", "s-6")

    @pytest.mark.parametrize("light", [False, True])
    async def test_one_bad_text_harms_nobody(self, store: Store, light: bool) -> None:
        """A change with text that nobody can write raises `BadValue`, alone; the store goes on."""
        records = [await commit_start(store, f"s-{n}", make_query(0)) for n in range(5)]
        changes = [
            make_step(one, answers={0: "\ud800" if n == 2 else "a"}, light=light)
            for n, one in enumerate(records)
        ]

        refused = await wait_in_time(
            collect_refusals(*(store.commit(change, 1) for change in changes))
        )

        assert [type(error) for error in refused] == [
            type(None),
            type(None),
            BadValue,
            type(None),
            type(None),
        ]
        assert [(await store.load(f"s-{n}")).head.revision for n in range(5)] == [2, 2, 1, 2, 2]
        with pytest.raises(BadValue):
            await store.commit(changes[2], 1)
        await commit_step(store, records[2], answers={0: "good"})

    @pytest.mark.parametrize("light", [False, True])
    async def test_one_who_gives_up_harms_nobody(self, store: Store, light: bool) -> None:
        """If a task is cancelled while it commits, its change lands or not, whole; the others
        land.
        """
        records = [await commit_start(store, f"s-{n}", make_query(0)) for n in range(5)]
        changes = [make_step(one, answers={0: "a"}, light=light) for one in records]
        tasks = [asyncio.create_task(store.commit(change, 1)) for change in changes]
        await asyncio.sleep(0)

        tasks[2].cancel()
        await wait_in_time(collect_refusals(*tasks))

        found = [await store.load(f"s-{n}") for n in range(5)]
        assert [len(one.deliveries) for one in found] == [one.head.revision for one in found]
        assert [one.head.revision for n, one in enumerate(found) if n != 2] == [2, 2, 2, 2]

    async def test_nobody_waits_for_a_closed_store(self, open_store: OpenStore) -> None:
        """A commit that is under way when the store is closed has landed or is refused."""
        async with using_store(open_store()) as store:
            records = [await commit_start(store, f"s-{n}", make_query(0)) for n in range(3)]
            tasks = [
                asyncio.create_task(store.commit(make_step(one, answers={0: "a"}), 1))
                for one in records
            ]
            await asyncio.sleep(0)

        refused = await wait_in_time(collect_refusals(*tasks))

        assert [error for error in refused if not isinstance(error, StoreError | None)] == []

    async def test_one_of_many_wins(self, store: Store) -> None:
        """Of twenty changes computed from the same revision exactly one lands, whole."""
        record = await commit_start(store, "s-1", make_query(0))
        changes = [
            make_step(record, answers={0: n}, writes=[ValueWrite("n", str(n), [n], 0)])
            for n in range(20)
        ]

        refused = await collect_refusals(*(store.commit(change, 1) for change in changes))

        won = refused.index(None)
        assert [type(error) for error in refused] == [
            type(None) if n == won else Overtaken for n in range(20)
        ]
        assert (await store.load("s-1")).deliveries[1].answers[0].value == won
        assert await store.keys("n") == [str(won)]

    async def test_increments_are_not_lost(self, store: Store) -> None:
        """Sessions that count in one durable value, trying again when overtaken, lose no count."""

        async def count(id: str) -> None:
            record = await commit_start(store, id)
            left = 3
            for _ in range(1000):
                if not left:
                    break
                value, version = await store.value("n", "counter")
                write = ValueWrite("n", "counter", [(value or [0])[0] + 1], version)
                try:
                    record = await commit_touch(store, record, writes=[write])
                    left -= 1
                except Overtaken:
                    await asyncio.sleep(0)

        await asyncio.gather(*(count(f"s-{n}") for n in range(8)))

        assert await store.value("n", "counter") == ([24], 24)

    async def test_a_session_is_read_at_one_moment(self, store: Store) -> None:
        """While steps land, a reader always sees head and journal of the same revision."""
        record = await commit_start(store, "s-1", make_query(0))

        async def write() -> None:
            last = record
            for q in range(30):
                last = await commit_step(store, last, answers={q: q}, asked=[make_query(q + 1)])
                await asyncio.sleep(0)

        async def read() -> None:
            for _ in range(30):
                seen = await store.load("s-1")
                assert [one.n for one in seen.deliveries] == list(range(seen.head.n + 1))
                assert seen.head.revision == seen.head.n + 1
                await asyncio.sleep(0)

        await asyncio.gather(write(), read(), read())
