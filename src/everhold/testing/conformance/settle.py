"""What happens to an intake in the commit of a step: it lands with the journal, or neither does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everhold.core.intake import Cancel, Claim, Intake, ItemState
from everhold.core.lease import Fence, Taken
from everhold.core.query import Kind
from everhold.core.session import SessionId, State
from everhold.errors import (
    BadArguments,
    ClaimLost,
    InputConflict,
    LeaseLost,
    Overtaken,
    UnknownSession,
)
from everhold.ports.store import Effect, Letter, Record, Store, Write
from everhold.testing.conformance.factories import (
    ask,
    begin,
    birth,
    branch,
    head,
    start,
    step,
    touch,
)
from everhold.testing.conformance.harness import Room, everything, refusals
from everhold.testing.conformance.intake_lanes import (
    claimed,
    kept,
    on,
    put,
    said,
    taken_over,
    task,
    waiting,
    working,
)
from everhold.testing.conformance.lease import BOB, Clock, lease_of, take, taken


async def claiming(store: Store) -> tuple[Clock, Fence, Claim, Record]:
    """A session in which two inputs and a task wait, and who has claimed the first."""
    clock, fence = await working(store, said("i-1"), said("i-2", turn=1), task("i-3"))
    record = await store.load("s-1")
    await store.commit(step(record, asked=[ask(0)]), record.head.revision)
    claim = await claimed(store, lambda intake: intake.claim_next(fence, "c"))
    await begin(store, "s-2")
    return clock, fence, claim, await store.load("s-1")


def whole(record: Record) -> dict[str, Any]:
    """Something of everything that a change can hold."""
    child = birth("s-3", parent="s-1", created_at=2000.0)
    return {
        "answers": {0: "a"},
        "asked": [ask(1, Kind.APPROVAL), ask(2, Kind.CALL)],
        "effects": [Effect(2, "ada", 1.0)],
        "letters": [
            Letter("signal", "own", 5.0),
            Letter("signal", "other", 5.0, to=SessionId("s-2")),
        ],
        "writes": [Write("n", "k", ["v"], 0)],
        "births": [(child, head(state=State.RUNNING))],
        "tip": {"mail": 1},
    }


class SettleRoom(Room):
    """`Change.intake`."""

    async def test_all_lands_together(self, store: Store) -> None:
        """QW21, TI13: Journal, letters, values, children, what was accepted, what was not, and the
        lease, at once.
        """
        _, fence, claim, record = await claiming(store)

        def settle(intake: Intake) -> None:
            intake.complete(claim, {"step": 2})
            intake.defer(1)
            intake.release(fence)

        await store.commit(step(record, intake=settle, **whole(record)), record.head.revision)

        found = await store.load("s-1")
        assert (found.head.n, len(found.letters), len(found.effects)) == (2, 1, 1)
        assert (await store.load("s-2")).head.mail == 1
        assert (await store.load("s-3")).birth.parent == "s-1"
        assert await store.value("n", "k") == (["v"], 1)
        items = await kept(store)
        assert (items["i-1"].state, items["i-1"].end) == (ItemState.COMPLETED, {"step": 2})
        assert (items["i-2"].deferred, items["i-3"].waits) == (True, True)
        assert isinstance(await take(store, BOB, "t-9"), Taken)

    async def test_a_lost_claim_undoes_all(self, store: Store) -> None:
        """QW16, QW22, LE5: After a successor has claimed again, the predecessor's commit changes
        nothing at all.
        """
        clock, _, claim, record = await claiming(store)
        second = await taken_over(store, clock)
        await claimed(store, lambda intake: intake.claim_next(second, "d"))
        before = await everything(store)

        with pytest.raises(ClaimLost):
            change = step(record, intake=lambda intake: intake.complete(claim), **whole(record))
            await store.commit(change, record.head.revision)

        assert await everything(store) == before
        assert await store.load("s-1") == record
        with pytest.raises(UnknownSession):
            await store.load("s-3")

    async def test_a_claim_that_nobody_made(self, store: Store) -> None:
        """C16, C18: What was not claimed, or never came, is ended by no commit, though who tries
        has the lease.
        """
        _, fence, claim, record = await claiming(store)
        before = await everything(store)
        unclaimed = Claim(claim.id, claim.token, fence.generation, (said("i-2", turn=1),))
        unknown = Claim("i-9-1", "c", fence.generation, (said("i-9"),))

        for made in (unclaimed, unknown):
            with pytest.raises(ClaimLost):
                change = step(
                    record, intake=lambda intake, made=made: intake.complete(made), **whole(record)
                )
                await store.commit(change, record.head.revision)

        assert await everything(store) == before

    @pytest.mark.parametrize("first", ["cancel", "claim"])
    async def test_a_cancel_and_a_claim_at_once(self, store: Store, first: str) -> None:
        """S29: Whichever comes first, each item is taken back or handed over, and everybody is told
        the same.
        """
        _, fence = await working(store, *(said(f"i-{n}") for n in range(6)))
        record = await store.load("s-1")

        async def take_back(n: int) -> bool:
            (found,) = await on(store, lambda intake: intake.cancel([f"i-{n}"]), f"i-{n}")
            return found.outcome is Cancel.CANCELLED

        async def hand_over(n: int) -> list[str]:
            claim = await on(store, lambda intake: intake.claim_next(fence, f"c-{n}", 1))
            return [] if claim is None else [item.id for item in claim.items]

        acts = [
            (take_back(n), hand_over(n)) if first == "cancel" else (hand_over(n), take_back(n))
            for n in range(6)
        ]
        done = await asyncio.gather(*(act for pair in acts for act in pair))

        handed = [id for one in done if isinstance(one, list) for id in one]
        back = [one for one in done if isinstance(one, bool) and one]
        items = await kept(store)
        assert len(handed) + len(back) == 6 and len({*handed}) == len(handed)
        assert sorted(handed) == sorted(id for id, item in items.items() if item.waits)
        assert await store.load("s-1") == record

    async def test_a_lost_lease_undoes_all(self, store: Store) -> None:
        """QW22, LE11: A guard in a commit refuses the whole of it."""
        clock, fence, _, record = await claiming(store)
        await taken_over(store, clock)
        before = await everything(store)

        with pytest.raises(LeaseLost):
            change = step(record, intake=lambda intake: intake.guard(fence), **whole(record))
            await store.commit(change, record.head.revision)

        assert await everything(store) == before

    async def test_a_refused_commit_leaves_the_intake_alone(self, store: Store) -> None:
        """QW22: An old revision, or a value that moved on: what the act did is undone, and the
        claim is still held.
        """
        _, fence, claim, record = await claiming(store)
        before = await everything(store)

        def settle(intake: Intake) -> None:
            intake.complete(claim)
            intake.release(fence)

        late = step(record, answers={0: "a"}, intake=settle)
        with pytest.raises(Overtaken):
            await store.commit(late, record.head.revision - 1)
        stale = step(record, answers={0: "a"}, intake=settle, writes=[Write("n", "k", [1], 7)])
        with pytest.raises(Overtaken):
            await store.commit(stale, record.head.revision)

        assert await everything(store) == before
        assert await waiting(store) == ["i-2", "i-3"]

    async def test_the_same_commit_again(self, store: Store) -> None:
        """QW23, TI10: It is overtaken by itself; what it ended stays ended, once."""
        _, _, claim, record = await claiming(store)

        def settle(intake: Intake) -> None:
            intake.complete(claim, {"step": 2})

        await store.commit(step(record, answers={0: "a"}, intake=settle), record.head.revision)
        before = await everything(store)

        with pytest.raises(Overtaken):
            await store.commit(step(record, answers={0: "a"}, intake=settle), record.head.revision)
        with pytest.raises(ClaimLost):
            after = await store.load("s-1")
            await store.commit(step(after, intake=settle), after.head.revision)
        assert await everything(store) == before

    async def test_one_refused_act_harms_nobody(self, store: Store) -> None:
        """QW22: Among many commits at once each is taken or refused by itself."""
        Clock(store)
        records = [await begin(store, f"s-{n}", ask(0)) for n in range(6)]

        def act(n: int, intake: Intake) -> None:
            if n % 2:
                raise BadArguments("act", "no")
            intake.enqueue(said(f"i-{n}"))

        changes = [
            step(one, answers={0: n}, intake=lambda intake, n=n: act(n, intake))
            for n, one in enumerate(records)
        ]
        refused = await refusals(*(store.commit(change, 1) for change in changes))

        assert [type(error) for error in refused] == [type(None), BadArguments] * 3
        assert [(await store.load(f"s-{n}")).head.n for n in range(6)] == [1, 0] * 3
        assert [await waiting(store, id=f"s-{n}") for n in range(6)] == [
            ["i-0"],
            [],
            ["i-2"],
            [],
            ["i-4"],
            [],
        ]

    async def test_a_new_session_with_something_in_its_intake(self, store: Store) -> None:
        """QW21, FA2: It is born with what waits for it; a fork waits for nothing of its
        origin's.
        """
        Clock(store)
        change = start("s-1", ask(0))
        change.intake = lambda intake: (intake.enqueue(said("i-1")), intake.take(BOB, "t", 10.0))
        await store.commit(change, 0)

        assert await waiting(store) == ["i-1"]
        lease = await lease_of(store)
        assert lease is not None and lease.owner == BOB
        await branch(store, await store.load("s-1"), "s-2", 0)
        assert (await kept(store, "s-2"), await lease_of(store, "s-2")) == ({}, None)

    async def test_a_session_that_is_not_born_has_no_intake(self, store: Store) -> None:
        """QW22: Where the act refuses, there is no session; it may be born later, with an intake of
        its own.
        """
        Clock(store)
        change = start("s-1", ask(0), key="mine")
        change.intake = lambda intake: intake.guard(Fence(BOB, "t", 1))

        with pytest.raises(LeaseLost):
            await store.commit(change, 0)
        with pytest.raises(UnknownSession):
            await store.load("s-1")
        assert await store.find("mine") is None
        await begin(store, "s-1", key="mine")
        assert await kept(store) == {}

    async def test_an_act_sees_the_session_as_it_will_be(self, store: Store) -> None:
        """TI1: Its state after the commit, everything that waits, and what has ended and is
        named.
        """
        _, _, claim, record = await claiming(store)
        await put(store, said("i-4", key="k"), said("i-5", key="l"))
        await on(store, lambda intake: intake.cancel(["k", "l"]))
        seen: list[Any] = []

        def look(intake: Intake) -> None:
            seen[:] = [intake.session_id, intake.state, intake.now, sorted(intake.items)]

        change = step(
            record, answers={0: "a"}, tip={"state": State.RUNNING}, intake=look, named=["k"]
        )
        await store.commit(change, record.head.revision)

        assert seen == ["s-1", State.RUNNING, 1000.0, ["i-1", "i-2", "i-3", "i-4"]]
        assert (await kept(store))["i-1"].hold == claim.items[0].hold

    async def test_a_key_in_a_commit(self, store: Store) -> None:
        """QW1, TI2: What is handed over at once leaves a tombstone: its key is known, and never
        another's.
        """
        Clock(store)
        record = await begin(store, "s-1", ask(0))
        item = said("i-1", key="k")
        change = step(
            record,
            answers={0: "a"},
            named=["k"],
            intake=lambda intake: intake.mark(item, {"step": 1}),
        )
        await store.commit(change, 1)

        assert not (await on(store, lambda intake: intake.enqueue(item), "k")).new
        record = await store.load("s-1")
        before = await everything(store)
        for other, refusal in ((item, ClaimLost), (said("i-2", key="k"), InputConflict)):
            change = touch(
                record, named=["k"], intake=lambda intake, other=other: intake.mark(other)
            )
            with pytest.raises(refusal):
                await store.commit(change, record.head.revision)
        assert await everything(store) == before

    async def test_acts_and_commits_at_once(self, store: Store) -> None:
        """QW21: Inputs that come while steps commit are neither lost nor counted twice."""
        clock, fence = await working(store)
        clock.now += 1

        async def one_step(n: int) -> None:
            record = await store.load("s-1")
            claim = await on(store, lambda intake: intake.claim_next(fence, f"c-{n}"))
            act = None if claim is None else lambda intake: intake.complete(claim)
            await store.commit(step(record, intake=act), record.head.revision)

        async def steps() -> None:
            for n in range(8):
                await one_step(n)

        await asyncio.gather(
            steps(), *(put(store, said(f"i-{n}", key=f"k-{n}")) for n in range(12))
        )

        found = await kept(store)
        assert [item.seq for item in found.values()] == list(range(1, 13))
        assert (await store.load("s-1")).head.n == 8
        assert await taken(store, token="t-9") is not None
        assert await store.verify() == []
