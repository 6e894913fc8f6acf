"""Tests of claims: order, boundaries, one claim per generation, and groups that stay together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everhold.core.intake import Boundary, DeliveryPolicy, Intake, ItemState
from everhold.core.lease import Fence
from everhold.errors import BadArguments, ClaimLost, LeaseLost
from everhold.ports.store import SessionFingerprint, Store
from everhold.testing.conformance.factories import commit_start, commit_step
from everhold.testing.conformance.harness import StoreContractBase, dump_store
from everhold.testing.conformance.intake import (
    EARLY,
    LATE,
    act_on_intake,
    claim_existing,
    enqueue_items,
    list_all_items,
    list_item_ids,
    list_waiting,
    make_command,
    make_input,
    make_joinable_task,
    make_task,
    start_working,
    take_over_lease,
)
from everhold.testing.conformance.lease import (
    ADA,
    TTL,
    StoreClock,
    release_by_fence,
    take_free_lease,
)


class ClaimContract(StoreContractBase):
    """Claiming items, and ending claimed items."""

    async def test_one_of_many_claims(self, store: Store) -> None:
        """QW3: of many concurrent claims exactly one gets the item."""
        _, fence = await start_working(store, make_task("i-1"))

        found = await asyncio.gather(
            *(
                act_on_intake(store, lambda intake, n=n: intake.claim_work(fence, f"c-{n}"))  # type: ignore[misc]
                for n in range(8)
            )
        )

        assert sum(claim is not None for claim in found) == 1

    async def test_the_same_claim_twice(self, store: Store) -> None:
        """LE14, QW15: A retry with the same token gets the same claim; another token gets
        nothing.
        """
        _, fence = await start_working(store, make_joinable_task("i-1"), make_joinable_task("i-2"))
        first = await claim_existing(store, lambda intake: intake.claim_work(fence, "c"))

        assert await act_on_intake(store, lambda intake: intake.claim_work(fence, "c")) == first
        assert await act_on_intake(store, lambda intake: intake.claim_work(fence, "d")) is None

    async def test_work_for_idle_hours(self, store: Store) -> None:
        """QW6, QW7: at the front of its lane it blocks a boundary; when idle it is claimed, and
        then the next may enter.
        """
        _, fence = await start_working(
            store, make_task("i-1", when=DeliveryPolicy.IDLE), make_task("i-2")
        )

        assert (
            await act_on_intake(store, lambda intake: intake.claim_work(fence, "1", EARLY)) is None
        )
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_work(fence, "2"))
        ) == ["i-1"]
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_work(fence, "3", EARLY))
        ) == ["i-2"]

    async def test_work_that_stands_alone(self, store: Store) -> None:
        """QW8: it is claimed by itself; an item that is not available yet is skipped until it
        is.
        """
        clock, fence = await start_working(
            store,
            make_task("i-1", available_at=1005.0),
            make_task("i-2"),
            make_joinable_task("i-3"),
        )

        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_work(fence, "1"))
        ) == ["i-2"]
        clock.now = 1005.0
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_work(fence, "2"))
        ) == ["i-1"]

    async def test_work_that_joins(self, store: Store) -> None:
        """QW9, QW10, QW31: neighbours with the same name and policy, up to a limit; the next claim
        continues after them.
        """
        late = make_joinable_task("i-4", when=DeliveryPolicy.IDLE)
        _, fence = await start_working(
            store,
            make_joinable_task("i-1"),
            make_joinable_task("i-2"),
            make_joinable_task("i-3"),
            late,
            make_joinable_task("i-5", "n"),
        )

        found = [
            list_item_ids(
                await act_on_intake(
                    store,
                    lambda intake, n=n: intake.claim_work(fence, f"c-{n}", most=2),  # type: ignore[misc]
                )
            )
            for n in range(4)
        ]
        assert found == [["i-1", "i-2"], ["i-3"], ["i-4"], ["i-5"]]

    async def test_commands_and_work(self, store: Store) -> None:
        """QW11, QW12: A command at the front blocks work; a later one neither joins work nor
        overtakes it.
        """
        _, fence = await start_working(
            store,
            make_command("i-1"),
            make_joinable_task("i-2"),
            make_command("i-3"),
            make_joinable_task("i-4"),
        )

        assert await act_on_intake(store, lambda intake: intake.claim_work(fence, "1")) is None
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_command(fence, "2"))
        ) == ["i-1"]
        assert await act_on_intake(store, lambda intake: intake.claim_command(fence, "3")) is None
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_work(fence, "4"))
        ) == ["i-2"]
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_command(fence, "5"))
        ) == ["i-3"]

    async def test_certain_work(self, store: Store) -> None:
        """QW13: by ids, past other items: boundary, order and joining still apply; missing ids are
        named.
        """
        idle = make_task("i-1", when=DeliveryPolicy.IDLE)
        _, fence = await start_working(
            store,
            idle,
            make_joinable_task("i-2"),
            make_joinable_task("i-3"),
            make_task("i-4"),
            make_joinable_task("i-5"),
        )

        def claim(token: str, ids: list[str], boundary: Boundary | None = None) -> Any:
            return act_on_intake(
                store, lambda intake: intake.claim_named(fence, token, ids, boundary)
            )

        assert await claim("1", ["i-1"], EARLY) == (None, [])
        found, gone = await claim("2", ["i-5", "i-0", "i-3", "i-2"])
        assert (list_item_ids(found), gone) == (["i-2", "i-3", "i-5"], ["i-0"])
        found, _ = await claim("3", ["i-4", "i-1"])
        assert list_item_ids(found) == ["i-1"]

    async def test_certain_work_ends_where_it_does_not_join(self, store: Store) -> None:
        """QW14: in order of arrival, up to the first of another name; ended and unknown ids are
        named.
        """
        _, fence = await start_working(
            store,
            make_joinable_task("i-1"),
            make_joinable_task("i-2"),
            make_joinable_task("i-3", "n"),
            make_joinable_task("i-4"),
            make_joinable_task("i-5", "n"),
        )
        await act_on_intake(store, lambda intake: intake.cancel(["i-2"]))

        def claim(token: str, *ids: str) -> Any:
            return act_on_intake(store, lambda intake: intake.claim_named(fence, token, ids), *ids)

        found, gone = await claim("1", "i-5", "i-0", "i-4", "i-3", "i-2", "i-1")
        assert (list_item_ids(found), gone) == (["i-1"], ["i-0", "i-2"])
        found, gone = await claim("2", "i-5", "i-4", "i-3")
        assert (list_item_ids(found), gone) == (["i-3"], [])
        found, gone = await claim("3", "i-5", "i-4")
        assert (list_item_ids(found), gone) == (["i-4"], [])
        assert await claim("4", "i-0", "i-2") == (None, ["i-0", "i-2"])
        assert (await list_all_items(store))["i-5"].hold is None

    async def test_a_generation_claims_once(self, store: Store) -> None:
        """QW15, QW19, TI10: its own claims are hidden from it, however many, and hide nothing that
        comes later.
        """
        _, fence = await start_working(
            store,
            *(make_task(f"i-{n}") for n in range(40)),
            make_input("i-40"),
            make_command("i-41"),
        )
        for n in range(40):
            claim = await claim_existing(
                store,
                lambda intake, n=n: intake.claim_work(fence, f"c-{n}"),  # type: ignore[misc]
            )
            assert list_item_ids(claim) == [f"i-{n}"]

        assert await act_on_intake(store, lambda intake: intake.claim_work(fence, "c-40")) is None
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_next(fence, "c-41"))
        ) == ["i-40"]
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_command(fence, "c-42"))
        ) == ["i-41"]

    async def test_a_later_generation_claims_again(self, store: Store) -> None:
        """QW16, TI10, TI16: A successor may claim it; then the predecessor completes, fails and
        returns nothing.
        """
        clock, fence = await start_working(store, make_input("i-1", turn=3))
        old, _ = await act_on_intake(
            store, lambda intake: intake.claim_boundary(fence, "1", 3, EARLY)
        )
        assert old is not None
        second = await take_over_lease(store, clock)
        new, _ = await act_on_intake(
            store, lambda intake: intake.claim_boundary(second, "2", 3, EARLY)
        )
        assert new is not None and (new.generation, new.items[0].fence) == (2, 2)
        before = await dump_store(store)

        for act in (Intake.complete, Intake.abandon):
            with pytest.raises(ClaimLost):
                await act_on_intake(store, lambda intake, act=act: act(intake, old))  # type: ignore[misc]
        with pytest.raises(ClaimLost):
            await act_on_intake(store, lambda intake: intake.fail(old, "x"))
        assert await dump_store(store) == before
        await act_on_intake(store, lambda intake: intake.complete(new))
        assert (await list_all_items(store))["i-1"].state is ItemState.COMPLETED

    async def test_what_is_given_back(self, store: Store) -> None:
        """QW17, TI8: it may be claimed again under a higher fence; the first claim is over and
        changes nothing.
        """
        _, fence = await start_working(store, make_input("i-1"))
        old = await claim_existing(store, lambda intake: intake.claim_next(fence, "1"))
        await act_on_intake(store, lambda intake: intake.abandon(old))
        new = await claim_existing(store, lambda intake: intake.claim_next(fence, "2"))

        assert [old.items[0].fence, new.items[0].fence] == [1, 2]
        with pytest.raises(ClaimLost):
            await act_on_intake(store, lambda intake: intake.complete(old))
        await act_on_intake(store, lambda intake: intake.complete(new))

    async def test_claims_are_of_one_session(self, store: Store) -> None:
        """QW20: A claim never gets or ends an item of another session, even one with the same
        name.
        """
        _, fence = await start_working(store, make_input("i-1"))
        await commit_start(store, "s-2")
        await enqueue_items(store, make_input("i-1"), id="s-2")
        claim = await claim_existing(store, lambda intake: intake.claim_next(fence, "c"))
        await act_on_intake(store, lambda intake: intake.complete(claim))

        assert await list_waiting(store, id="s-2") == ["i-1"]
        with pytest.raises(ClaimLost):
            await act_on_intake(store, lambda intake: intake.complete(claim), id="s-2")

    async def test_a_boundary_lets_in_both_lanes(self, store: Store) -> None:
        """QW24: inputs of the turn and work, once per generation; again in the next one."""
        clock, fence = await start_working(store, make_task("i-1"), make_input("i-2", turn=3))

        def claim(by: Fence, token: str) -> Any:
            return act_on_intake(store, lambda intake: intake.claim_boundary(by, token, 3, EARLY))

        assert [list_item_ids(one) for one in await claim(fence, "1")] == [["i-2"], ["i-1"]]
        assert await claim(fence, "2") == (None, None)
        second = await take_over_lease(store, clock)
        assert [list_item_ids(one) for one in await claim(second, "3")] == [["i-2"], ["i-1"]]

    async def test_what_was_begun_together(self, store: Store) -> None:
        """QW27: later generations claim it as it was: no limit, no new items, the same boundary."""
        clock, fence = await start_working(
            store,
            make_joinable_task("i-1", when=DeliveryPolicy.IDLE),
            make_joinable_task("i-2", when=DeliveryPolicy.IDLE),
            make_joinable_task("i-3"),
        )
        await claim_existing(store, lambda intake: intake.claim_work(fence, "1"))
        second = await take_over_lease(store, clock)

        assert (
            await act_on_intake(store, lambda intake: intake.claim_work(second, "2", EARLY)) is None
        )
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_work(second, "3", most=1))
        ) == [
            "i-1",
            "i-2",
        ]
        clock.now += TTL
        third = await take_free_lease(store, ADA, "t-3")
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_work(third, "4"))
        ) == [
            "i-1",
            "i-2",
        ]

    async def test_a_part_of_what_was_begun(self, store: Store) -> None:
        """QW28: it is refused, and the error names the whole group."""
        clock, fence = await start_working(
            store, make_joinable_task("i-1"), make_joinable_task("i-2")
        )
        await claim_existing(store, lambda intake: intake.claim_work(fence, "1"))
        second = await take_over_lease(store, clock)
        before = await dump_store(store)

        with pytest.raises(BadArguments, match="i-1"):
            await act_on_intake(store, lambda intake: intake.claim_named(second, "2", ["i-2"]))
        assert await dump_store(store) == before

    async def test_inputs_and_commands_at_one_moment(self, store: Store) -> None:
        """QW32: the input goes first; an older command goes before it."""
        clock, fence = await start_working(store, make_command("i-1"), make_input("i-2"))
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.choose(fence, "1"))
        ) == ["i-2"]

        clock.now += 1
        await enqueue_items(store, make_input("i-3"))
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.choose(fence, "2"))
        ) == ["i-1"]

    async def test_what_has_ended_is_not_claimed(self, store: Store) -> None:
        """TI9: completed, cancelled and failed items are not claimed."""
        _, fence = await start_working(
            store, make_input("i-1"), make_input("i-2"), make_input("i-3")
        )
        one = await claim_existing(store, lambda intake: intake.claim_next(fence, "1", 1))
        await act_on_intake(store, lambda intake: intake.complete(one))
        two = await claim_existing(store, lambda intake: intake.claim_next(fence, "2", 1))
        await act_on_intake(store, lambda intake: intake.fail(two, {"code": "malformed"}))
        await act_on_intake(store, lambda intake: intake.cancel(["i-3"]))

        assert await act_on_intake(store, lambda intake: intake.claim_next(fence, "3")) is None
        found = await list_all_items(store)
        assert [item.state for item in found.values()] == [
            ItemState.COMPLETED,
            ItemState.FAILED,
            ItemState.CANCELLED,
        ]
        assert found["i-2"].end == {"code": "malformed"}

    async def test_inputs_of_the_running_turn(self, store: Store) -> None:
        """TI11, TI12: those of that turn, in order; those for its end are admitted at its end, for
        every claimant.
        """
        items = [
            make_input("i-1", turn=3, boundary=LATE),
            make_input("i-2", turn=3),
            make_input("i-3", turn=2),
            make_input("i-4"),
        ]
        clock, fence = await start_working(store, *items, make_input("i-5", turn=3))

        def claim(by: Fence, token: str, boundary: Boundary) -> Any:
            return act_on_intake(
                store, lambda intake: intake.claim_boundary(by, token, 3, boundary)[0]
            )

        assert list_item_ids(await claim(fence, "1", EARLY)) == ["i-2", "i-5"]
        second = await take_over_lease(store, clock)
        assert list_item_ids(await claim(second, "2", EARLY)) == ["i-2", "i-5"]
        assert list_item_ids(await claim(second, "3", LATE)) == ["i-1"]

    async def test_inputs_whose_turn_is_over(self, store: Store) -> None:
        """TI13, TI14, TI17: they are for the next turn; claimed and cancelled ones, and those of
        another turn, are left alone.
        """
        items = [make_input(f"i-{n}", turn=3) for n in range(1, 4)]
        clock, fence = await start_working(store, *items, make_input("i-4", turn=4))
        await claim_existing(
            store, lambda intake: intake.claim_boundary(fence, "1", 3, EARLY, most=1)[0]
        )
        await act_on_intake(store, lambda intake: intake.cancel(["i-3"]))

        assert [await act_on_intake(store, lambda intake: intake.defer(3)) for _ in range(2)] == [
            1,
            0,
        ]
        assert list_item_ids(
            await act_on_intake(store, lambda intake: intake.claim_next(fence, "2"))
        ) == ["i-2"]
        found = await list_all_items(store)
        assert [item.deferred for item in found.values()] == [False, True, False, False]
        assert found["i-3"].state is ItemState.CANCELLED
        second = await take_over_lease(store, clock)
        assert await act_on_intake(store, lambda intake: intake.defer()) == 2
        claims = [
            await act_on_intake(store, lambda intake, n=n: intake.claim_next(second, f"d-{n}"))  # type: ignore[misc]
            for n in range(4)
        ]
        assert [list_item_ids(one) for one in claims] == [["i-1"], ["i-2"], ["i-4"], []]
        with pytest.raises(LeaseLost):
            await act_on_intake(store, lambda intake: intake.claim_next(fence, "4"))

    async def test_a_clock_takes_nothing_from_who_works(self, store: Store) -> None:
        """LE12, QW16: A claim with an expired lease can still be ended, until another claim
        replaces it.
        """
        clock, fence = await start_working(store, make_input("i-1"))
        claim = await claim_existing(store, lambda intake: intake.claim_next(fence, "1"))
        await take_over_lease(store, clock)

        await act_on_intake(store, lambda intake: intake.complete(claim, {"step": 1}))
        assert (await list_all_items(store))["i-1"].end == {"step": 1}

    async def test_how_a_session_stands(self, store: Store) -> None:
        """FA7: the numbers change with a commit, and when an item arrives, ends or becomes
        available; not with a lease or a claim.
        """
        clock = StoreClock(store)
        records = {id: await commit_start(store, id) for id in ("s-1", "s-2")}
        seen = []

        async def look() -> None:
            seen.append((await store.standing(["s-1"]))["s-1"])  # type: ignore[index]

        await look()
        await enqueue_items(store, make_input("i-1"), make_input("i-2", available_at=2000.0))
        await look()
        fence = await take_free_lease(store)
        claim = await claim_existing(store, lambda intake: intake.claim_next(fence, "c"))
        await release_by_fence(store, fence)
        await look()
        clock.now = 2000.0
        await look()
        await act_on_intake(store, lambda intake: intake.complete(claim))
        await look()
        await commit_step(store, records["s-1"], answers={0: "a"})
        await look()

        revision = records["s-1"].head.revision
        assert seen == [
            SessionFingerprint(revision, *each) for each in ((0, 0), (2, 1), (2, 1), (2, 2), (2, 1))
        ] + [SessionFingerprint(revision + 1, 2, 1)]
        assert await store.standing(["s-2", "nobody", "s-1"]) == {
            "s-1": seen[-1],
            "s-2": SessionFingerprint(revision),
        }
        assert await store.standing([]) == {}
