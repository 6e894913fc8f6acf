"""Tests of an intake change inside a commit: it lands with the journal, or neither does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everhold.core.intake import CancelOutcome, Claim, Intake, ItemState
from everhold.core.lease import Fence, LeaseGranted
from everhold.core.query import Kind
from everhold.core.session import SessionId, SessionState
from everhold.errors import (
    BadArguments,
    ClaimLost,
    InputConflict,
    LeaseLost,
    Overtaken,
    UnknownSession,
)
from everhold.ports.store import Effect, Letter, SessionRecord, Store, ValueWrite
from everhold.testing.conformance.factories import (
    commit_fork,
    commit_start,
    make_birth,
    make_head,
    make_query,
    make_start,
    make_step,
    make_touch,
)
from everhold.testing.conformance.harness import (
    StoreContractBase,
    collect_refusals,
    dump_store,
    find_problems,
)
from everhold.testing.conformance.intake import (
    act_on_intake,
    claim_existing,
    enqueue_items,
    list_all_items,
    list_waiting,
    make_input,
    make_task,
    start_working,
    take_over_lease,
)
from everhold.testing.conformance.lease import (
    BOB,
    StoreClock,
    get_current_lease,
    take_free_lease,
    try_take_lease,
)


async def start_claiming(store: Store) -> tuple[StoreClock, Fence, Claim, SessionRecord]:
    """Start a session with two queued inputs and a task, and claim the first."""
    clock, fence = await start_working(
        store, make_input("i-1"), make_input("i-2", turn=1), make_task("i-3")
    )
    record = await store.load("s-1")
    await store.commit(make_step(record, asked=[make_query(0)]), record.head.revision)
    claim = await claim_existing(store, lambda intake: intake.claim_next(fence, "c"))
    await commit_start(store, "s-2")
    return clock, fence, claim, await store.load("s-1")


def make_full_change(record: SessionRecord) -> dict[str, Any]:
    """A change with a value in every field."""
    child = make_birth("s-3", parent="s-1", created_at=2000.0)
    return {
        "answers": {0: "a"},
        "asked": [make_query(1, Kind.APPROVAL), make_query(2, Kind.CALL)],
        "effects": [Effect(2, "ada", 1.0)],
        "letters": [
            Letter("signal", "own", 5.0),
            Letter("signal", "other", 5.0, to=SessionId("s-2")),
        ],
        "writes": [ValueWrite("n", "k", ["v"], 0)],
        "births": [(child, make_head(state=SessionState.RUNNING))],
        "tip": {"mail": 1},
    }


class SettleContract(StoreContractBase):
    """`Change.intake`."""

    async def test_all_lands_together(self, store: Store) -> None:
        """QW21, TI13: journal, letters, values, children, completed and returned items, and the
        lease land at once.
        """
        _, fence, claim, record = await start_claiming(store)

        def settle(intake: Intake) -> None:
            intake.complete(claim, {"step": 2})
            intake.defer(1)
            intake.release(fence)

        await store.commit(
            make_step(record, intake=settle, **make_full_change(record)), record.head.revision
        )

        found = await store.load("s-1")
        assert (found.head.n, len(found.letters), len(found.effects)) == (2, 1, 1)
        assert (await store.load("s-2")).head.mail == 1
        assert (await store.load("s-3")).birth.parent == "s-1"
        assert await store.value("n", "k") == (["v"], 1)
        items = await list_all_items(store)
        assert (items["i-1"].state, items["i-1"].end) == (ItemState.COMPLETED, {"step": 2})
        assert (items["i-2"].deferred, items["i-3"].waits) == (True, True)
        assert isinstance(await try_take_lease(store, BOB, "t-9"), LeaseGranted)

    async def test_a_lost_claim_undoes_all(self, store: Store) -> None:
        """QW16, QW22, LE5: after a successor has claimed again, the predecessor's commit changes
        nothing.
        """
        clock, _, claim, record = await start_claiming(store)
        second = await take_over_lease(store, clock)
        await claim_existing(store, lambda intake: intake.claim_next(second, "d"))
        before = await dump_store(store)

        with pytest.raises(ClaimLost):
            change = make_step(
                record, intake=lambda intake: intake.complete(claim), **make_full_change(record)
            )
            await store.commit(change, record.head.revision)

        assert await dump_store(store) == before
        assert await store.load("s-1") == record
        with pytest.raises(UnknownSession):
            await store.load("s-3")

    async def test_a_claim_that_nobody_made(self, store: Store) -> None:
        """C16, C18: A commit cannot end unclaimed or unknown items, even under a valid lease."""
        _, fence, claim, record = await start_claiming(store)
        before = await dump_store(store)
        unclaimed = Claim(claim.id, claim.token, fence.generation, (make_input("i-2", turn=1),))
        unknown = Claim("i-9-1", "c", fence.generation, (make_input("i-9"),))

        for made in (unclaimed, unknown):
            with pytest.raises(ClaimLost):
                change = make_step(
                    record,
                    intake=lambda intake, made=made: intake.complete(made),
                    **make_full_change(record),
                )
                await store.commit(change, record.head.revision)

        assert await dump_store(store) == before

    @pytest.mark.parametrize("first", ["cancel", "claim"])
    async def test_a_cancel_and_a_claim_at_once(self, store: Store, first: str) -> None:
        """S29: whichever comes first, each item is cancelled or delivered, and all callers see the
        same result.
        """
        _, fence = await start_working(store, *(make_input(f"i-{n}") for n in range(6)))
        record = await store.load("s-1")

        async def take_back(n: int) -> bool:
            (found,) = await act_on_intake(
                store, lambda intake: intake.cancel([f"i-{n}"]), f"i-{n}"
            )
            return found.outcome is CancelOutcome.CANCELLED

        async def hand_over(n: int) -> list[str]:
            claim = await act_on_intake(store, lambda intake: intake.claim_next(fence, f"c-{n}", 1))
            return [] if claim is None else [item.id for item in claim.items]

        acts = [
            (take_back(n), hand_over(n)) if first == "cancel" else (hand_over(n), take_back(n))
            for n in range(6)
        ]
        done = await asyncio.gather(*(act for pair in acts for act in pair))

        handed = [id for one in done if isinstance(one, list) for id in one]
        back = [one for one in done if isinstance(one, bool) and one]
        items = await list_all_items(store)
        assert len(handed) + len(back) == 6 and len({*handed}) == len(handed)
        assert sorted(handed) == sorted(id for id, item in items.items() if item.waits)
        assert await store.load("s-1") == record

    async def test_a_lost_lease_undoes_all(self, store: Store) -> None:
        """QW22, LE11: A guard in a commit refuses the whole commit."""
        clock, fence, _, record = await start_claiming(store)
        await take_over_lease(store, clock)
        before = await dump_store(store)

        with pytest.raises(LeaseLost):
            change = make_step(
                record, intake=lambda intake: intake.guard(fence), **make_full_change(record)
            )
            await store.commit(change, record.head.revision)

        assert await dump_store(store) == before

    async def test_a_refused_commit_leaves_the_intake_alone(self, store: Store) -> None:
        """QW22: after an old revision or a changed value, the act is undone and the claim is still
        held.
        """
        _, fence, claim, record = await start_claiming(store)
        before = await dump_store(store)

        def settle(intake: Intake) -> None:
            intake.complete(claim)
            intake.release(fence)

        late = make_step(record, answers={0: "a"}, intake=settle)
        with pytest.raises(Overtaken):
            await store.commit(late, record.head.revision - 1)
        stale = make_step(
            record, answers={0: "a"}, intake=settle, writes=[ValueWrite("n", "k", [1], 7)]
        )
        with pytest.raises(Overtaken):
            await store.commit(stale, record.head.revision)

        assert await dump_store(store) == before
        assert await list_waiting(store) == ["i-2", "i-3"]

    async def test_the_same_commit_again(self, store: Store) -> None:
        """QW23, TI10: it is overtaken by itself; ended items stay ended, once."""
        _, _, claim, record = await start_claiming(store)

        def settle(intake: Intake) -> None:
            intake.complete(claim, {"step": 2})

        await store.commit(make_step(record, answers={0: "a"}, intake=settle), record.head.revision)
        before = await dump_store(store)

        with pytest.raises(Overtaken):
            await store.commit(
                make_step(record, answers={0: "a"}, intake=settle), record.head.revision
            )
        with pytest.raises(ClaimLost):
            after = await store.load("s-1")
            await store.commit(make_step(after, intake=settle), after.head.revision)
        assert await dump_store(store) == before

    async def test_one_refused_act_harms_nobody(self, store: Store) -> None:
        """QW22: of many concurrent commits each is accepted or refused separately."""
        StoreClock(store)
        records = [await commit_start(store, f"s-{n}", make_query(0)) for n in range(6)]

        def act(n: int, intake: Intake) -> None:
            if n % 2:
                raise BadArguments("act", "no")
            intake.enqueue(make_input(f"i-{n}"))

        changes = [
            make_step(one, answers={0: n}, intake=lambda intake, n=n: act(n, intake))
            for n, one in enumerate(records)
        ]
        refused = await collect_refusals(*(store.commit(change, 1) for change in changes))

        assert [type(error) for error in refused] == [type(None), BadArguments] * 3
        assert [(await store.load(f"s-{n}")).head.n for n in range(6)] == [1, 0] * 3
        assert [await list_waiting(store, id=f"s-{n}") for n in range(6)] == [
            ["i-0"],
            [],
            ["i-2"],
            [],
            ["i-4"],
            [],
        ]

    async def test_a_new_session_with_something_in_its_intake(self, store: Store) -> None:
        """QW21, FA2: A session can be created with queued items; a fork gets none of its origin's
        items.
        """
        StoreClock(store)
        change = make_start("s-1", make_query(0))
        change.intake = lambda intake: (
            intake.enqueue(make_input("i-1")),
            intake.take(BOB, "t", 10.0),
        )
        await store.commit(change, 0)

        assert await list_waiting(store) == ["i-1"]
        lease = await get_current_lease(store)
        assert lease is not None and lease.owner == BOB
        await commit_fork(store, await store.load("s-1"), "s-2", 0)
        assert (await list_all_items(store, "s-2"), await get_current_lease(store, "s-2")) == (
            {},
            None,
        )

    async def test_a_session_that_is_not_born_has_no_intake(self, store: Store) -> None:
        """QW22: if the act refuses, no session is created; a later start has its own intake."""
        StoreClock(store)
        change = make_start("s-1", make_query(0), key="mine")
        change.intake = lambda intake: intake.guard(Fence(BOB, "t", 1))

        with pytest.raises(LeaseLost):
            await store.commit(change, 0)
        with pytest.raises(UnknownSession):
            await store.load("s-1")
        assert await store.find("mine") is None
        await commit_start(store, "s-1", key="mine")
        assert await list_all_items(store) == {}

    async def test_an_act_sees_the_session_as_it_will_be(self, store: Store) -> None:
        """TI1: it sees the state after the commit, all waiting items, and named ended items."""
        _, _, claim, record = await start_claiming(store)
        await enqueue_items(store, make_input("i-4", key="k"), make_input("i-5", key="l"))
        await act_on_intake(store, lambda intake: intake.cancel(["k", "l"]))
        seen: list[Any] = []

        def look(intake: Intake) -> None:
            seen[:] = [intake.session_id, intake.state, intake.now, sorted(intake.items)]

        change = make_step(
            record, answers={0: "a"}, tip={"state": SessionState.RUNNING}, intake=look, named=["k"]
        )
        await store.commit(change, record.head.revision)

        assert seen == ["s-1", SessionState.RUNNING, 1000.0, ["i-1", "i-2", "i-3", "i-4"]]
        assert (await list_all_items(store))["i-1"].hold == claim.items[0].hold

    async def test_a_key_in_a_commit(self, store: Store) -> None:
        """QW1, TI2: an item that is delivered at once leaves its key, which cannot be reused."""
        StoreClock(store)
        record = await commit_start(store, "s-1", make_query(0))
        item = make_input("i-1", key="k")
        change = make_step(
            record,
            answers={0: "a"},
            named=["k"],
            intake=lambda intake: intake.mark(item, {"step": 1}),
        )
        await store.commit(change, 1)

        assert not (await act_on_intake(store, lambda intake: intake.enqueue(item), "k")).new
        record = await store.load("s-1")
        before = await dump_store(store)
        for other, refusal in ((item, ClaimLost), (make_input("i-2", key="k"), InputConflict)):
            change = make_touch(
                record, named=["k"], intake=lambda intake, other=other: intake.mark(other)
            )
            with pytest.raises(refusal):
                await store.commit(change, record.head.revision)
        assert await dump_store(store) == before

    async def test_acts_and_commits_at_once(self, store: Store) -> None:
        """QW21: inputs that arrive during commits are neither lost nor counted twice."""
        clock, fence = await start_working(store)
        clock.now += 1

        async def one_step(n: int) -> None:
            record = await store.load("s-1")
            claim = await act_on_intake(store, lambda intake: intake.claim_next(fence, f"c-{n}"))
            act = None if claim is None else lambda intake: intake.complete(claim)
            await store.commit(make_step(record, intake=act), record.head.revision)

        async def steps() -> None:
            for n in range(8):
                await one_step(n)

        await asyncio.gather(
            steps(), *(enqueue_items(store, make_input(f"i-{n}", key=f"k-{n}")) for n in range(12))
        )

        found = await list_all_items(store)
        assert [item.seq for item in found.values()] == list(range(1, 13))
        assert (await store.load("s-1")).head.n == 8
        assert await take_free_lease(store, token="t-9") is not None
        assert await find_problems(store) == []
