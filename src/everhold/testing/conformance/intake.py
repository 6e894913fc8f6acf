"""Tests of the lanes of an intake: order, keys, claims of one generation, ends that happen once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from everhold.core.intake import (
    Boundary,
    CancelOutcome,
    Claim,
    DeliveryPolicy,
    Intake,
    IntakeItem,
    ItemKind,
    ItemState,
    Lane,
    MergePolicy,
)
from everhold.core.lease import Fence
from everhold.errors import BadArguments, BadValue, ClaimLost, InputConflict, SessionEnded
from everhold.ports.store import Store
from everhold.testing.conformance.factories import commit_end, commit_start
from everhold.testing.conformance.harness import (
    StoreContractBase,
    dump_store,
    find_problems,
    list_ready,
)
from everhold.testing.conformance.lease import (
    BOB,
    TTL,
    StoreClock,
    release_by_fence,
    take_free_lease,
)

T = TypeVar("T")
EARLY = Boundary.AFTER_WORK
LATE = Boundary.BEFORE_COMPLETION


def make_input(id: str, **facts: Any) -> IntakeItem:
    """An input of a user."""
    return IntakeItem(id, ItemKind.INPUT, {"text": id}, **facts)


def make_task(id: str, **facts: Any) -> IntakeItem:
    """Work for a turn."""
    return IntakeItem(id, ItemKind.TASK, {"do": id}, **facts)


def make_joinable_task(id: str, merge: str = "m", **facts: Any) -> IntakeItem:
    """Work that may be merged with its neighbours."""
    return make_task(id, slot=MergePolicy.JOIN, merge=merge, **facts)


def make_command(id: str, **facts: Any) -> IntakeItem:
    """A command for the session."""
    return IntakeItem(id, ItemKind.COMMAND, {"name": id}, **facts)


async def act_on_intake(
    store: Store, act: Callable[[Intake], T], *named: str, id: str = "s-1"
) -> T:
    """Run a function on the intake of a session."""
    return await store.intake(id, act, named=named)


async def enqueue_items(store: Store, *items: IntakeItem, id: str = "s-1") -> None:
    """Enqueue items, one after the other."""
    for item in items:
        names = [item.key] if item.key is not None else []
        await store.intake(id, lambda intake, item=item: intake.enqueue(item), named=names)  # type: ignore[misc]


async def start_working(store: Store, *items: IntakeItem) -> tuple[StoreClock, Fence]:
    """Start a session with these items queued; returns its store's clock and the fence of a
    worker.
    """
    clock = StoreClock(store)
    await commit_start(store)
    await enqueue_items(store, *items)
    return clock, await take_free_lease(store)


async def take_over_lease(store: Store, clock: StoreClock) -> Fence:
    """Let the lease expire, and give it to another worker."""
    clock.now += TTL
    return await take_free_lease(store, BOB, "t-2")


async def claim_existing(store: Store, claim: Callable[[Intake], Claim | None]) -> Claim:
    """Claim an item that must exist."""
    found = await act_on_intake(store, claim)
    assert found is not None
    return found


async def list_waiting(store: Store, lane: Lane | None = None, id: str = "s-1") -> list[str]:
    return list_item_ids(await act_on_intake(store, lambda intake: intake.waiting(lane), id=id))


async def list_all_items(store: Store, id: str = "s-1") -> dict[str, IntakeItem]:
    """All items, including ended ones."""
    return await store.intake(id, lambda intake: dict(intake.items), whole=True)


def list_item_ids(found: Claim | Iterable[IntakeItem] | None) -> list[str]:
    return [item.id for item in (found.items if isinstance(found, Claim) else found or ())]


class EnqueueContract(StoreContractBase):
    """Enqueueing, reading and cancelling."""

    async def test_the_same_key_is_the_first_receipt(self, store: Store) -> None:
        """QW1, TI1: the first item with its first content is returned, also after it has ended; in
        another session the key is new.
        """
        clock, fence = await start_working(store, make_input("i-1", key="k\0é"))
        await commit_start(store, "s-2")
        again = IntakeItem("i-9", ItemKind.INPUT, {"text": "i-1"}, key="k\0é", turn=4)

        clock.now += 1
        first = await act_on_intake(store, lambda intake: intake.enqueue(again), "k\0é")
        claim = await claim_existing(store, lambda intake: intake.claim_next(fence, "c"))
        await act_on_intake(store, lambda intake: intake.complete(claim, {"step": 1}))
        second = await act_on_intake(store, lambda intake: intake.enqueue(again), "k\0é")
        other = await act_on_intake(store, lambda intake: intake.enqueue(again), "k\0é", id="s-2")

        assert (first.new, first.item) == (False, make_input("i-1", key="k\0é", seq=1, at=1000.0))
        assert (second.new, second.item.id, second.item.state) == (
            False,
            "i-1",
            ItemState.COMPLETED,
        )
        assert (other.new, other.item.id) == (True, "i-9")
        assert [*await list_all_items(store)] == ["i-1"]

    @pytest.mark.parametrize(
        "other",
        [
            IntakeItem("i-2", ItemKind.INPUT, {"text": "other"}, key="k"),
            IntakeItem("i-2", ItemKind.INPUT, {"text": "i-1"}, key="k", boundary=LATE),
            IntakeItem("i-2", ItemKind.COMMAND, {"text": "i-1"}, key="k"),
        ],
    )
    async def test_the_same_key_with_other_content(self, store: Store, other: IntakeItem) -> None:
        """TI2: other content, another boundary or kind are a conflict, and nothing changes; also
        after it has ended.
        """
        await start_working(store, make_input("i-1", key="k"))

        for _ in range(2):
            before = await dump_store(store)
            with pytest.raises(InputConflict):
                await act_on_intake(store, lambda intake: intake.enqueue(other), "k")
            assert await dump_store(store) == before
            await act_on_intake(store, lambda intake: intake.cancel(["k"]))

    async def test_a_wake_that_comes_again(self, store: Store) -> None:
        """QW26: it is one row, completed once; a repetition has no effect."""
        wake = IntakeItem("i-1", ItemKind.WAKE, {"of": "child"}, key="wake:child")
        _, fence = await start_working(store, wake, wake)
        claim = await claim_existing(store, lambda intake: intake.claim_work(fence, "c"))
        await act_on_intake(store, lambda intake: intake.complete(claim))
        await enqueue_items(store, wake)

        assert await list_waiting(store) == []
        assert await act_on_intake(store, lambda intake: intake.claim_work(fence, "c-2")) is None
        with pytest.raises(ClaimLost):
            await act_on_intake(store, lambda intake: intake.complete(claim), "i-1")

    async def test_a_key_has_to_be_named(self, store: Store) -> None:
        """TI1: an item under a key that was not loaded is refused, because an ended item may have
        the key.
        """
        StoreClock(store)
        await commit_start(store)

        with pytest.raises(BadArguments):
            await act_on_intake(store, lambda intake: intake.enqueue(make_input("i-1", key="k")))
        assert await list_all_items(store) == {}

    async def test_what_is_named_is_enough(self, store: Store) -> None:
        """TI1: with the names of the new items loaded, receipts, conflicts and ends are correct
        without other items.
        """
        await start_working(store, make_input("i-1", key="k"), make_input("i-2"))
        again = make_input("i-1", key="k")
        other = IntakeItem("i-3", ItemKind.INPUT, "other", key="k")

        async def alone(act: Callable[[Intake], T], *named: str) -> T:
            return await store.intake("s-1", act, named=named, only=True)

        assert [*await alone(lambda intake: dict(intake.items), "k")] == ["i-1"]
        assert not (await alone(lambda intake: intake.enqueue(again), "k", "i-1")).new
        with pytest.raises(InputConflict):
            await alone(lambda intake: intake.enqueue(other), "k", "i-3")
        with pytest.raises(BadArguments):
            await alone(lambda intake: intake.enqueue(make_input("i-3")), "k")
        with pytest.raises(BadArguments):
            await alone(lambda intake: intake.waiting(), "k")
        assert (await alone(lambda intake: intake.enqueue(make_input("i-3")), "i-3")).item.seq == 3
        assert [one.outcome for one in await alone(lambda intake: intake.cancel(["k"]), "k")] == [
            CancelOutcome.CANCELLED
        ]
        assert await list_waiting(store) == ["i-2", "i-3"]

    async def test_an_id_is_given_once(self, store: Store) -> None:
        """TI18: the id of an ended item is never reused, even if it was not loaded."""
        await start_working(store, make_input("i-1"))
        await act_on_intake(store, lambda intake: intake.cancel(["i-1"]))
        before = await dump_store(store)

        with pytest.raises(BadArguments):
            await act_on_intake(store, lambda intake: intake.enqueue(make_input("i-1")))
        assert await dump_store(store) == before
        assert not (
            await act_on_intake(store, lambda intake: intake.enqueue(make_input("i-1")), "i-1")
        ).new

    @pytest.mark.parametrize("item", [make_input("i-1", key=" "), make_input("")])
    async def test_a_blank_name(self, store: Store, item: IntakeItem) -> None:
        """TI1: an empty name is refused."""
        StoreClock(store)
        await commit_start(store)

        with pytest.raises(BadArguments):
            await act_on_intake(store, lambda intake: intake.enqueue(item), " ")
        assert await list_all_items(store) == {}

    @pytest.mark.parametrize("body", [{"x": float("nan")}, {"x": {1}}, "\ud800", 2**70])
    async def test_what_no_store_can_keep(self, store: Store, body: Any) -> None:
        """QW22: it is refused before anything of it is written."""
        StoreClock(store)
        await commit_start(store)
        before = await dump_store(store)

        with pytest.raises(BadValue):
            await act_on_intake(
                store, lambda intake: intake.enqueue(IntakeItem("i-1", ItemKind.TASK, body))
            )
        assert await dump_store(store) == before

    async def test_an_item_is_read_as_it_was_written(self, store: Store) -> None:
        """FA8, TI3: every field comes back, with any characters in its text."""
        facts: dict[str, Any] = {
            "key": "k\0\1🦉",
            "boundary": LATE,
            "when": DeliveryPolicy.IDLE,
            "available_at": 12.25,
        }
        body = {"text": "é\0\1", "n": [1, 2.5, None, True]}
        given = IntakeItem(
            "i\0-1", ItemKind.WAKE, body, slot=MergePolicy.JOIN, merge="m\0", turn=3, **facts
        )
        await start_working(store, given)

        (found,) = await act_on_intake(store, lambda intake: intake.waiting())
        assert found == IntakeItem(
            "i\0-1",
            ItemKind.WAKE,
            body,
            slot=MergePolicy.JOIN,
            merge="m\0",
            turn=3,
            seq=1,
            at=1000.0,
            **facts,
        )

    async def test_items_are_in_the_order_they_came(self, store: Store) -> None:
        """QW2, TI3: each lane is in order, whatever the names; sessions are independent."""
        await start_working(
            store, make_input("i-9"), make_task("i-3"), make_input("i-1"), make_command("i-2")
        )
        await commit_start(store, "s-2")
        await enqueue_items(store, make_input("i-5"), id="s-2")

        assert await list_waiting(store, Lane.INPUT) == ["i-9", "i-1"]
        assert await list_waiting(store, Lane.WORK) == ["i-3", "i-2"]
        assert await list_waiting(store, id="s-2") == ["i-5"]

    async def test_all_who_come_at_once_come_in(self, store: Store) -> None:
        """QW2, TI3: concurrent items each get their own number, and none is lost."""
        StoreClock(store)
        await commit_start(store)
        await asyncio.gather(
            *(enqueue_items(store, make_input(f"i-{n}", key=f"k-{n}")) for n in range(12))
        )

        found = await list_all_items(store)
        assert sorted(found) == sorted(f"i-{n}" for n in range(12))
        assert [item.seq for item in found.values()] == list(range(1, 13))

    async def test_the_same_key_at_once(self, store: Store) -> None:
        """QW1, TI1: of many identical concurrent items one is stored, and the others get its
        receipt.
        """
        StoreClock(store)
        await commit_start(store)
        item = make_input("i-1", key="k")

        found = await asyncio.gather(
            *(act_on_intake(store, lambda intake: intake.enqueue(item), "k") for _ in range(8))
        )

        assert sorted(one.new for one in found) == [False] * 7 + [True]
        assert [one.item.seq for one in found] == [1] * 8

    async def test_nothing_enters_what_has_ended(self, store: Store) -> None:
        """FA5: new items are refused; earlier ones can still be read."""
        StoreClock(store)
        record = await commit_start(store)
        await enqueue_items(store, make_input("i-1", key="k"))
        await commit_end(store, record)

        with pytest.raises(SessionEnded):
            await enqueue_items(store, make_input("i-2"))
        assert not (
            await act_on_intake(
                store, lambda intake: intake.enqueue(make_input("i-1", key="k")), "k"
            )
        ).new
        assert (
            await act_on_intake(store, lambda intake: intake.end_all({"code": "session_ended"}))
            == 1
        )
        assert (await list_all_items(store))["i-1"].state is ItemState.FAILED

    async def test_a_live_claim_hides_items(self, store: Store) -> None:
        """QW4, TI7: from the waiting list, not from the full list."""
        _, fence = await start_working(
            store, make_input("i-1"), make_input("i-2"), make_task("i-3")
        )
        await claim_existing(store, lambda intake: intake.claim_next(fence, "c", 1))

        assert await list_waiting(store) == ["i-2", "i-3"]
        assert [*await list_all_items(store)] == ["i-1", "i-2", "i-3"]

    @pytest.mark.parametrize("how", ["release", "expiry", "takeover"])
    async def test_a_claim_lives_as_long_as_its_lease(self, store: Store, how: str) -> None:
        """QW18: for readers, it ends with a release, an expiry or a takeover."""
        clock, fence = await start_working(store, make_input("i-1"))
        await claim_existing(store, lambda intake: intake.claim_next(fence, "c"))
        assert await list_waiting(store) == []

        if how == "release":
            await release_by_fence(store, fence)
        else:
            clock.now += TTL
            if how == "takeover":
                await take_free_lease(store, BOB, "t-2")

        assert await list_waiting(store) == ["i-1"]

    async def test_what_becomes_of_each_that_is_cancelled(self, store: Store) -> None:
        """QW5, TI4, TI5: five outcomes, by id or key, in the requested order, in one act; ids of a
        claim are returned.
        """
        _, fence = await start_working(
            store,
            make_input("i-1"),
            make_input("i-2", key="k\0"),
            make_input("i-3"),
            make_task("i-4"),
        )
        done = await claim_existing(store, lambda intake: intake.claim_next(fence, "c-1", 1))
        await act_on_intake(store, lambda intake: intake.complete(done))
        claim = await claim_existing(store, lambda intake: intake.claim_work(fence, "c-2"))
        await act_on_intake(store, lambda intake: intake.cancel(["i-3"], "enough"))
        asked = ["i-4", "i-0", "k\0", "i-1", "i-3"]

        found = await act_on_intake(store, lambda intake: intake.cancel(asked), *asked)

        outcomes = [
            CancelOutcome.CLAIMED,
            CancelOutcome.UNKNOWN,
            CancelOutcome.CANCELLED,
            CancelOutcome.COMPLETED,
            CancelOutcome.ALREADY,
        ]
        assert [(one.name, one.outcome) for one in found] == [*zip(asked, outcomes, strict=True)]
        assert found[0].item is not None and found[0].item.hold is not None
        assert (found[0].item.hold.claim, found[0].item.hold.generation) == (claim.id, 1)
        assert (await list_all_items(store))["i-3"].end == {"reason": "enough"}
        assert await list_waiting(store) == []

    async def test_what_was_given_back_can_be_cancelled(self, store: Store) -> None:
        """QW5: when it is no longer claimed."""
        _, fence = await start_working(store, make_task("i-1"))
        claim = await claim_existing(store, lambda intake: intake.claim_work(fence, "c"))
        first = await act_on_intake(store, lambda intake: intake.cancel(["i-1"]))
        await act_on_intake(store, lambda intake: intake.abandon(claim))
        second = await act_on_intake(store, lambda intake: intake.cancel(["i-1"]))

        assert [first[0].outcome, second[0].outcome] == [
            CancelOutcome.CLAIMED,
            CancelOutcome.CANCELLED,
        ]

    async def test_a_refusal_among_cancels_changes_nothing(self, store: Store) -> None:
        """TI5: cancelling is one act: a refusal undoes all of it."""
        await start_working(store, make_input("i-1"), make_input("i-2"))
        before = await dump_store(store)

        def act(intake: Intake) -> None:
            intake.cancel(["i-1"])
            intake.enqueue(make_input("i-3"))
            raise BadArguments("cancel", "on second thought")

        with pytest.raises(BadArguments, match="on second thought"):
            await act_on_intake(store, act)
        assert await dump_store(store) == before

    async def test_cancelling_from_one_on(self, store: Store) -> None:
        """TI6: the anchor and each later waiting item of its lane, each with its outcome; others
        stay.
        """
        before = (make_input("i-1"), make_input("i-2"), make_task("i-3"))
        _, fence = await start_working(
            store,
            make_input("i-0"),
            *before,
            make_input("i-4", key="k"),
            make_task("i-5"),
            make_input("i-6"),
        )
        old = await claim_existing(store, lambda intake: intake.claim_next(fence, "c", most=1))
        await act_on_intake(store, lambda intake: intake.complete(old))
        await enqueue_items(store, make_input("i-7"), make_input("i-8", turn=3))
        await act_on_intake(store, lambda intake: intake.cancel(["i-7"]))
        await claim_existing(store, lambda intake: intake.claim_boundary(fence, "d", 3, EARLY)[0])

        found = await act_on_intake(store, lambda intake: intake.cancel_from("k", "no more"), "k")

        assert found is not None and [(one.name, one.outcome) for one in found] == [
            ("i-4", CancelOutcome.CANCELLED),
            ("i-6", CancelOutcome.CANCELLED),
            ("i-8", CancelOutcome.CLAIMED),
        ]
        items = await list_all_items(store)
        ended = {name: item.state for name, item in items.items() if not item.waits}
        completed = {"i-0": ItemState.COMPLETED}
        assert ended == completed | dict.fromkeys(("i-4", "i-6", "i-7"), ItemState.CANCELLED)
        assert await list_waiting(store) == ["i-1", "i-2", "i-5"]

    async def test_cancelling_from_nowhere_on(self, store: Store) -> None:
        """TI6: A missing anchor has another result than an anchor with nothing to cancel, and
        nothing changes.
        """
        await start_working(store, make_input("i-1"), make_input("i-2"))
        await act_on_intake(store, lambda intake: intake.cancel(["i-2"]))
        before = await dump_store(store)

        assert (
            await act_on_intake(store, lambda intake: intake.cancel_from("nobody"), "nobody")
            is None
        )
        found = await act_on_intake(store, lambda intake: intake.cancel_from("i-2"), "i-2")
        assert found is not None and [one.outcome for one in found] == [CancelOutcome.ALREADY]
        assert await dump_store(store) == before

    async def test_a_look_changes_nothing(self, store: Store) -> None:
        """QW25, QW29: neither a read nor a claim that finds nothing changes anything; deferred work
        differs from no work.
        """
        _, fence = await start_working(
            store, make_task("i-1", when=DeliveryPolicy.IDLE), make_task("i-2", available_at=2000.0)
        )
        before = await dump_store(store)

        assert await act_on_intake(
            store, lambda intake: intake.claim_boundary(fence, "c", 1, EARLY)
        ) == (
            None,
            None,
        )
        assert await list_waiting(store, Lane.WORK) == ["i-1", "i-2"]
        assert await list_waiting(store, Lane.INPUT) == []
        assert await dump_store(store) == before

    async def test_who_has_to_be_seen_to(self, store: Store) -> None:
        """FA7: sessions with available items and no worker, the oldest first; also ended
        sessions.
        """
        clock = StoreClock(store)
        records = {id: await commit_start(store, id) for id in ("s-1", "s-2", "s-3", "s-4", "s-5")}
        assert await list_ready(store, 10) == []

        await enqueue_items(store, make_task("i", available_at=2000.0), id="s-1")
        await enqueue_items(store, make_input("i"), id="s-3")
        clock.now += 1
        await enqueue_items(store, make_input("i"), id="s-2")
        await enqueue_items(store, make_input("i"), id="s-4")
        await enqueue_items(store, make_input("i"), id="s-5")
        await take_free_lease(store, id="s-4")
        await commit_end(store, records["s-5"])

        assert await list_ready(store, 10) == ["s-3", "s-2", "s-5"]
        assert await list_ready(store, 1) == ["s-3"]
        clock.now = 2000.0
        assert await list_ready(store, 10) == ["s-1", "s-3", "s-2", "s-4", "s-5"]

    async def test_a_claim_keeps_its_session_in_sight(self, store: Store) -> None:
        """FA7: claimed items of a dead worker are found when its lease expires; ended items are
        not.
        """
        clock, fence = await start_working(store, make_input("i-1"))
        claim = await claim_existing(store, lambda intake: intake.claim_next(fence, "c"))
        assert await list_ready(store, 10) == []
        clock.now += TTL
        assert await list_ready(store, 10) == ["s-1"]

        await act_on_intake(store, lambda intake: intake.complete(claim))
        assert await list_ready(store, 10) == []

    async def test_what_waits_goes_with_its_session(self, store: Store) -> None:
        """MA5, FA3: deleting a session removes its lanes and its lease, and no others."""
        clock, _ = await start_working(store, make_input("i-1"), make_task("i-2"))
        await commit_start(store, "s-2")
        await enqueue_items(store, make_input("i-1"), id="s-2")
        clock.now += TTL
        await store.delete("s-1", 1)

        assert await list_ready(store, 10) == ["s-2"]
        assert await find_problems(store) == []

    async def test_a_vacuum_forgets_what_has_ended(self, store: Store) -> None:
        """TI15, MA2, MA4: A vacuum deletes the ended items of one session, and nothing else; it
        returns how many, then zero.
        """
        await start_working(store, make_input("i-1", key="k"), make_input("i-2"))
        await commit_start(store, "s-2")
        await enqueue_items(store, make_input("i-1"), id="s-2")
        for id in ("s-1", "s-2"):
            await act_on_intake(store, lambda intake: intake.cancel(["i-1"]), id=id)

        assert [
            await store.intake("s-1", lambda intake: intake.vacuum(), whole=True) for _ in range(2)
        ] == [1, 0]
        assert [*await list_all_items(store)] == ["i-2"]
        assert [*await list_all_items(store, "s-2")] == ["i-1"]
        await enqueue_items(store, make_input("i-3", key="k"))
        assert (await list_all_items(store))["i-3"].seq == 3
