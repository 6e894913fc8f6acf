"""The suites as a whole: what every store, every durable store and every mover promises.

    from everhold.testing.conformance import MoverContract, WorkerFleet

    class TestMyMover(MoverContract):
        @pytest.fixture
        def open_fleet(self, tmp_path):
            return lambda: WorkerFleet(lambda: SQLiteStore(tmp_path / "db"))

`open_fleet` is a fixture that returns a function without arguments. The function makes a `Fleet`,
and the fleet starts the movers that are tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from everhold.core.lease import LeaseGranted, LeaseOwner
from everhold.core.query import Kind
from everhold.errors import ClaimLost, KeyConflict, Overtaken, UnknownSession
from everhold.ports.attachment import Attachment
from everhold.ports.store import (
    DELETED_KEYS,
    Duty,
    Effect,
    Letter,
    SessionFilter,
    Store,
    ValueWrite,
    WorkerRecord,
)
from everhold.testing.conformance.attachment import AttachmentContract
from everhold.testing.conformance.claim import ClaimContract
from everhold.testing.conformance.commit import CommitContract, ConcurrentCommitContract
from everhold.testing.conformance.duty import DutyContract
from everhold.testing.conformance.factories import (
    commit_end,
    commit_fork,
    commit_start,
    commit_step,
    commit_touch,
    list_session_ids,
    make_query,
    make_start,
    make_step,
)
from everhold.testing.conformance.fork import DeleteContract, ForkContract
from everhold.testing.conformance.harness import (
    OpenStore,
    collect_refusals,
    dump_store,
    find_problems,
    using_store,
    wait_in_time,
)
from everhold.testing.conformance.intake import (
    EnqueueContract,
    act_on_intake,
    enqueue_items,
    list_all_items,
    list_waiting,
    make_input,
    make_task,
)
from everhold.testing.conformance.lease import (
    BOB,
    LeaseContract,
    StoreClock,
    get_current_lease,
    take_free_lease,
    try_take_lease,
)
from everhold.testing.conformance.mover_accept import MissingCodeContract, MoverAcceptContract
from everhold.testing.conformance.mover_family import MoverFamilyContract
from everhold.testing.conformance.mover_fault import (
    ExternalEngineContract,
    MoverFaultContract,
    MoverStopContract,
)
from everhold.testing.conformance.mover_fleet import OpenFleet
from everhold.testing.conformance.mover_time import MoverTimeContract
from everhold.testing.conformance.reading import InboxContract, ListContract, LoadContract
from everhold.testing.conformance.settle import SettleContract
from everhold.testing.conformance.unmoved import LetterContract, UnmovedContract, WorkerRowsContract
from everhold.testing.conformance.value import ValueContract

__all__ = ["DurableStoreContract", "MoverContract", "OpenFleet", "OpenStore", "StoreContract"]


class StoreContract(
    CommitContract,
    ConcurrentCommitContract,
    LoadContract,
    ListContract,
    ForkContract,
    DeleteContract,
    InboxContract,
    LetterContract,
    UnmovedContract,
    WorkerRowsContract,
    ValueContract,
    AttachmentContract,
    LeaseContract,
    EnqueueContract,
    ClaimContract,
    SettleContract,
    DutyContract,
):
    """What every store promises."""


async def fill_store(store: Store) -> None:
    """Fill a store with records of every kind."""
    record = await commit_start(
        store,
        "s-1",
        make_query(0),
        make_query(1, Kind.APPROVAL),
        make_query(2, Kind.CALL),
        key="mine",
    )
    record = await commit_touch(
        store, record, effects=[Effect(2, "ada", 1.0)], writes=[ValueWrite("n", "k", ["v"], 0)]
    )
    record = await commit_step(
        store, record, answers={0: "é\0"}, asked=[make_query(3)], tip={"due_at": 50.5}
    )
    await commit_fork(store, record, "s-2", 1)
    await commit_end(store, await commit_start(store, "s-3"))
    letters = [Letter("signal", {"a": [1]}, 5.5)]
    await commit_touch(store, await commit_start(store, "s-4"), letters=letters, tip={"mail": 1})
    await store.attach("s-1", Attachment(sha256(b"\0").hexdigest(), 1, "image/png"), b"\0", 1.0)
    await store.beat(WorkerRecord("ada", "host", 7, 99.5))
    await enqueue_items(
        store,
        make_input("i-1", key="k\0"),
        make_task("i-2", available_at=5000.0),
        make_input("i-3"),
    )
    fence = await take_free_lease(store, ttl=1e6)
    claim = await act_on_intake(store, lambda intake: intake.claim_next(fence, "c", 1))
    await act_on_intake(store, lambda intake: intake.cancel(["i-3"], "é"))
    assert claim is not None
    await store.undertake([Duty("n", "a\0", {"x": [1, 2.5]}, 5.5), Duty("n", "b", 1)])


async def list_all_workers(store: Store) -> list[WorkerRecord]:
    """All workers, with their ages set to zero."""
    return [msgspec.structs.replace(one, age=0.0) for one in await store.workers()]


class DurableStoreContract(StoreContract):
    """What a durable store promises in addition."""

    async def test_what_was_committed_survives(self, open_store: OpenStore) -> None:
        """A store that was closed and opened again has the same data."""
        async with using_store(open_store()) as first:
            await fill_store(first)
            before = await dump_store(first), await list_all_workers(first)

        async with using_store(open_store()) as second:
            assert (await dump_store(second), await list_all_workers(second)) == before
            assert await find_problems(second) == []

    async def test_what_was_committed_survives_a_death(self, open_store: OpenStore) -> None:
        """A store that was never closed can be opened by the next process."""
        async with using_store(open_store()) as first:
            await fill_store(first)
            before = await dump_store(first), await list_all_workers(first)

            async with using_store(open_store()) as second:
                assert (await dump_store(second), await list_all_workers(second)) == before
                assert await find_problems(second) == []

    async def test_a_refused_change_leaves_no_trace(self, open_store: OpenStore) -> None:
        """After opening again, nothing of a refused change is there."""
        async with using_store(open_store()) as first:
            record = await commit_start(first, "s-1", make_query(0))
            writes = [ValueWrite("n", "first", [1], 0), ValueWrite("n", "second", [1], 7)]
            with pytest.raises(Overtaken):
                await first.commit(make_step(record, answers={0: "a"}, writes=writes), 1)

        async with using_store(open_store()) as second:
            assert await second.load("s-1") == record
            assert await second.keys("n") == []

    async def test_numbers_go_on(self, open_store: OpenStore) -> None:
        """After opening again, numbers of letters and versions of values are not reused."""
        async with using_store(open_store()) as first:
            record = await commit_touch(
                first,
                await commit_start(first, "s-1"),
                letters=[Letter("signal", 1, 1.0)],
                tip={"mail": 1},
            )
            number = record.letters[0].id
            writes = [ValueWrite("n", "k", [1], 0)]
            record = await commit_touch(
                first, record, read=[number], writes=writes, tip={"mail": 0}
            )
            record = await commit_touch(first, record, writes=[ValueWrite("n", "k", None, 1)])

        async with using_store(open_store()) as second:
            record = await commit_touch(
                second, record, letters=[Letter("signal", 2, 1.0)], tip={"mail": 1}
            )
            assert record.letters[0].id > number
            assert await second.value("n", "k") == (None, 2)

    async def test_a_durable_change_survives(self, open_store: OpenStore) -> None:
        """After opening again, a change marked durable is there, alone or among others."""
        async with using_store(open_store()) as first:
            records = [await commit_start(first, f"s-{n}", make_query(0)) for n in range(5)]
            changes = [
                make_step(one, answers={0: n}, durable=n == 2) for n, one in enumerate(records)
            ]
            await asyncio.gather(*(first.commit(change, 1) for change in changes))
            await commit_step(first, await first.load("s-0"), durable=True)

            async with using_store(open_store()) as second:
                assert [(await second.load(f"s-{n}")).head.n for n in range(5)] == [2, 1, 1, 1, 1]

    async def test_closing_loses_nothing(self, open_store: OpenStore) -> None:
        """After opening again, every commit that was acknowledged during close is there."""
        async with using_store(open_store()) as first:
            records = [await commit_start(first, f"s-{n}", make_query(0)) for n in range(5)]
            tasks = [
                asyncio.create_task(first.commit(make_step(one, answers={0: "a"}), 1))
                for one in records
            ]
            await asyncio.sleep(0)
        refused = await wait_in_time(collect_refusals(*tasks))

        async with using_store(open_store()) as second:
            landed = [(await second.load(f"s-{n}")).head.revision == 2 for n in range(5)]
            assert landed == [error is None for error in refused]

    async def test_two_at_once_see_each_other(self, open_store: OpenStore) -> None:
        """What one handle commits the other reads at once."""
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            record = await commit_start(one, "s-1", make_query(0, Kind.INPUT), key="mine")

            assert await two.load("s-1") == record
            assert await two.find("mine") == "s-1"
            assert await dump_store(two) == await dump_store(one)

            record = await commit_step(two, record, answers={0: "a"}, asked=[make_query(1)])

            assert await one.load("s-1") == record
            assert await dump_store(one) == await dump_store(two)

    async def test_a_fence_holds_between_two(self, open_store: OpenStore) -> None:
        """Of two handles that read the same revision, the second to commit is overtaken."""
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            record = await commit_start(one, "s-1", make_query(0))
            won = await commit_step(two, record, answers={0: "two"})

            with pytest.raises(Overtaken):
                await one.commit(make_step(record, answers={0: "one"}), 1)
            with pytest.raises(Overtaken):
                await one.delete("s-1", 1)

            assert await one.load("s-1") == won

    async def test_a_key_holds_between_two(self, open_store: OpenStore) -> None:
        """A key taken through one handle is taken for the other, until the session is deleted."""
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            await commit_start(one, "s-1", key="mine")
            with pytest.raises(KeyConflict):
                await two.commit(make_start("s-2", key="mine"), 0)

            await one.delete("s-1", 1)

            with pytest.raises(UnknownSession):
                await two.load("s-1")
            assert (await two.value(DELETED_KEYS, "mine"))[0] == ["s-1"]
            await commit_start(two, "s-2", key="mine")
            assert await one.find("mine") == "s-2"
        async with using_store(open_store()) as again:
            assert (await again.value(DELETED_KEYS, "mine"))[0] == ["s-1"]

    async def test_a_version_holds_between_two(self, open_store: OpenStore) -> None:
        """A value written through one handle overtakes the other."""
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            first, second = await commit_start(one, "s-1"), await commit_start(two, "s-2")
            await commit_touch(one, first, writes=[ValueWrite("n", "k", [1], 0)])

            with pytest.raises(Overtaken):
                await commit_touch(two, second, writes=[ValueWrite("n", "k", [2], 0)])

            assert await two.value("n", "k") == ([1], 1)

    async def test_both_write_at_once(self, open_store: OpenStore) -> None:
        """Two handles that commit for different sessions at the same time lose nothing."""

        async def walk(store: Store, id: str) -> None:
            record = await commit_start(store, id, make_query(0))
            for q in range(10):
                record = await commit_step(store, record, answers={q: q}, asked=[make_query(q + 1)])
                await asyncio.sleep(0)

        async with using_store(open_store()) as one, using_store(open_store()) as two:
            await asyncio.gather(*(walk(store, f"s-{n}") for n, store in enumerate([one, two] * 5)))

            found = await one.list(SessionFilter())
            assert sorted(list_session_ids(found)) == [f"s-{n}" for n in range(10)]
            assert {summary.head.n for summary in found} == {10}
            assert await find_problems(two) == []

    async def test_one_of_two_wins(self, open_store: OpenStore) -> None:
        """Of ten changes through each of two handles, from one revision, exactly one lands."""
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            record = await commit_start(one, "s-1", make_query(0))
            stores = [one, two] * 10
            changes = [make_step(record, answers={0: n}) for n in range(20)]

            refused = await collect_refusals(
                *(store.commit(change, 1) for store, change in zip(stores, changes, strict=True))
            )

            won = refused.index(None)
            assert [type(error) for error in refused] == [
                type(None) if n == won else Overtaken for n in range(20)
            ]
            assert (await two.load("s-1")).deliveries[1].answers[0].value == won

    @pytest.mark.parametrize(
        "write",
        [
            lambda store: commit_start(store, "s-1"),
            lambda store: store.beat(WorkerRecord("ada", "host", 7, 99.5)),
            lambda store: store.delete("s-0", 1),
            lambda store: enqueue_items(store, make_input("i-1"), id="s-0"),
            lambda store: store.undertake([Duty("n", "a", 1)]),
        ],
        ids=["commit", "beat", "delete", "enqueue", "duty"],
    )
    async def test_another_has_written(
        self, open_store: OpenStore, write: Callable[[Store], Any]
    ) -> None:
        """`changed` reports to each handle, once, that the other has written."""
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            await commit_start(one, "s-0")
            await one.changed()
            await two.changed()

            await write(two)

            assert [await one.changed(), await one.changed()] == [True, False]
            assert await two.changed() is False

    async def test_a_lease_holds_between_two(self, open_store: OpenStore) -> None:
        """LE10, FA8: of many attempts through two handles exactly one succeeds, and both handles
        see the holder.
        """
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            await commit_start(one)
            owners = [LeaseOwner(f"w-{n}", "1") for n in range(10)]

            found = await asyncio.gather(
                *(
                    try_take_lease(store, owner, owner.name, ttl=1e6)
                    for store, owner in zip([one, two] * 5, owners, strict=True)
                )
            )

            (winner,) = [answer.lease for answer in found if isinstance(answer, LeaseGranted)]
            assert await get_current_lease(one) == await get_current_lease(two) == winner
            assert await two.keep(winner.owner, 50.0) == ["s-1"]

    async def test_a_claim_holds_between_two(self, open_store: OpenStore) -> None:
        """QW3, QW16, FA8: of two concurrent claims through two handles one succeeds; a takeover
        through one is known to the other.
        """
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            clock = StoreClock(one, two)
            record = await commit_start(one, "s-1", make_query(0))
            await enqueue_items(one, make_input("i-1"))
            fence = await take_free_lease(two)

            found = await asyncio.gather(
                *(
                    act_on_intake(store, lambda intake, n=n: intake.claim_next(fence, f"c-{n}"))  # type: ignore[misc]
                    for n, store in enumerate([one, two] * 4)
                )
            )
            (claim,) = [each for each in found if each is not None]
            assert await list_waiting(one) == await list_waiting(two) == []

            clock.now += 100
            second = await take_free_lease(two, BOB, "t-2")
            assert (
                await act_on_intake(two, lambda intake: intake.claim_next(second, "d")) is not None
            )
            with pytest.raises(ClaimLost):
                await one.commit(
                    make_step(record, answers={0: 1}, intake=lambda intake: intake.complete(claim)),
                    1,
                )
            assert await one.load("s-1") == await two.load("s-1") == record

    async def test_what_is_sent_through_two(self, open_store: OpenStore) -> None:
        """QW1, TI1, TI3: A key is one item through both handles; all concurrent items are stored,
        each with its number.
        """
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            await commit_start(one)
            await asyncio.gather(
                *(
                    enqueue_items(store, make_input(f"i-{n // 2}", key=f"k-{n // 2}"))
                    for n, store in enumerate([one, two] * 10)
                )
            )

            found = await list_all_items(two)
            assert sorted(found) == sorted(f"i-{n}" for n in range(10))
            assert [item.seq for item in found.values()] == list(range(1, 11))

    async def test_one_of_two_does_it(self, open_store: OpenStore) -> None:
        """QW3, FA8: of ten changes of one duty through each of two handles, exactly one lands."""
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            await one.undertake([Duty("n", "a", 0)])

            refused = await collect_refusals(
                *(
                    store.undertake([Duty("n", "a", n, None, 1)])
                    for n, store in enumerate([one, two] * 10)
                )
            )

            won = refused.index(None)
            assert [type(error) for error in refused] == [
                type(None) if n == won else Overtaken for n in range(20)
            ]
            assert await two.duty("n", "a") == Duty("n", "a", won, None, 2)

    async def test_one_clock_for_both(self, open_store: OpenStore) -> None:
        """LE9, LE12: both handles use the same time, and it continues from one to the other."""
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            await commit_start(one)
            seen = [
                await store.intake("s-1", lambda intake: intake.now) for store in [one, two] * 5
            ]

            assert seen == sorted(seen)

    async def test_who_listens_hears_in_time(self, open_store: OpenStore) -> None:
        """A listener is notified, or finds by polling at the announced interval, that the other has
        written.
        """
        async with using_store(open_store()) as one, using_store(open_store()) as two:
            woken = asyncio.Event()
            patience = one.listen(lambda first: woken.set())
            await one.changed()
            await commit_start(two, "s-1")

            try:
                # clock: too late is as good as in time
                await asyncio.wait_for(woken.wait(), patience)
            except TimeoutError:
                pass

            assert await one.changed()


class MoverContract(
    MoverAcceptContract,
    MoverTimeContract,
    MoverFamilyContract,
    MoverStopContract,
    MissingCodeContract,
    MoverFaultContract,
    ExternalEngineContract,
):
    """What every mover promises."""
