"""What claims promise: order and boundaries, one generation each, and what was begun together stays
together.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everhold.core.intake import Boundary, Intake, ItemState, When
from everhold.core.lease import Fence
from everhold.errors import BadArguments, ClaimLost, LeaseLost
from everhold.ports.store import Standing, Store
from everhold.testing.conformance.factories import begin, move
from everhold.testing.conformance.harness import Room, everything
from everhold.testing.conformance.intake_lanes import (
    EARLY,
    LATE,
    claimed,
    command,
    join,
    kept,
    names,
    on,
    put,
    said,
    taken_over,
    task,
    waiting,
    working,
)
from everhold.testing.conformance.lease import ADA, TTL, Clock, release, taken


class ClaimRoom(Room):
    """Claiming, and ending what was claimed."""

    async def test_one_of_many_claims(self, store: Store) -> None:
        """QW3: Of many claims at once exactly one has the item."""
        _, fence = await working(store, task("i-1"))

        found = await asyncio.gather(
            *(on(store, lambda intake, n=n: intake.claim_work(fence, f"c-{n}")) for n in range(8))  # type: ignore[misc]
        )

        assert sum(claim is not None for claim in found) == 1

    async def test_the_same_claim_twice(self, store: Store) -> None:
        """LE14, QW15: Who did not hear the answer and tries again has the same claim; another try
        has nothing.
        """
        _, fence = await working(store, join("i-1"), join("i-2"))
        first = await claimed(store, lambda intake: intake.claim_work(fence, "c"))

        assert await on(store, lambda intake: intake.claim_work(fence, "c")) == first
        assert await on(store, lambda intake: intake.claim_work(fence, "d")) is None

    async def test_work_for_idle_hours(self, store: Store) -> None:
        """QW6, QW7: First in its lane it blocks a boundary; at idle it is claimed, and then the
        next may enter.
        """
        _, fence = await working(store, task("i-1", when=When.IDLE), task("i-2"))

        assert await on(store, lambda intake: intake.claim_work(fence, "1", EARLY)) is None
        assert names(await on(store, lambda intake: intake.claim_work(fence, "2"))) == ["i-1"]
        assert names(await on(store, lambda intake: intake.claim_work(fence, "3", EARLY))) == [
            "i-2"
        ]

    async def test_work_that_stands_alone(self, store: Store) -> None:
        """QW8: It is claimed by itself; what is not available yet is skipped, until it is."""
        clock, fence = await working(
            store, task("i-1", available_at=1005.0), task("i-2"), join("i-3")
        )

        assert names(await on(store, lambda intake: intake.claim_work(fence, "1"))) == ["i-2"]
        clock.now = 1005.0
        assert names(await on(store, lambda intake: intake.claim_work(fence, "2"))) == ["i-1"]

    async def test_work_that_joins(self, store: Store) -> None:
        """QW9, QW10, QW31: Neighbours of the same name and policy, up to a limit; the next claim
        goes on from there.
        """
        late = join("i-4", when=When.IDLE)
        _, fence = await working(
            store, join("i-1"), join("i-2"), join("i-3"), late, join("i-5", "n")
        )

        found = [
            names(await on(store, lambda intake, n=n: intake.claim_work(fence, f"c-{n}", most=2)))  # type: ignore[misc]
            for n in range(4)
        ]
        assert found == [["i-1", "i-2"], ["i-3"], ["i-4"], ["i-5"]]

    async def test_commands_and_work(self, store: Store) -> None:
        """QW11, QW12: A command first blocks work; a later one neither joins work nor goes before
        it.
        """
        _, fence = await working(store, command("i-1"), join("i-2"), command("i-3"), join("i-4"))

        assert await on(store, lambda intake: intake.claim_work(fence, "1")) is None
        assert names(await on(store, lambda intake: intake.claim_command(fence, "2"))) == ["i-1"]
        assert await on(store, lambda intake: intake.claim_command(fence, "3")) is None
        assert names(await on(store, lambda intake: intake.claim_work(fence, "4"))) == ["i-2"]
        assert names(await on(store, lambda intake: intake.claim_command(fence, "5"))) == ["i-3"]

    async def test_certain_work(self, store: Store) -> None:
        """QW13: By its ids, past others: boundary, order and joining hold; who is gone is named."""
        idle = task("i-1", when=When.IDLE)
        _, fence = await working(store, idle, join("i-2"), join("i-3"), task("i-4"), join("i-5"))

        def claim(token: str, ids: list[str], boundary: Boundary | None = None) -> Any:
            return on(store, lambda intake: intake.claim_named(fence, token, ids, boundary))

        assert await claim("1", ["i-1"], EARLY) == (None, [])
        found, gone = await claim("2", ["i-5", "i-0", "i-3", "i-2"])
        assert (names(found), gone) == (["i-2", "i-3", "i-5"], ["i-0"])
        found, _ = await claim("3", ["i-4", "i-1"])
        assert names(found) == ["i-1"]

    async def test_certain_work_ends_where_it_does_not_join(self, store: Store) -> None:
        """QW14: In the order it came, up to the first of another name; who has ended, or never was,
        is named.
        """
        _, fence = await working(
            store, join("i-1"), join("i-2"), join("i-3", "n"), join("i-4"), join("i-5", "n")
        )
        await on(store, lambda intake: intake.cancel(["i-2"]))

        def claim(token: str, *ids: str) -> Any:
            return on(store, lambda intake: intake.claim_named(fence, token, ids), *ids)

        found, gone = await claim("1", "i-5", "i-0", "i-4", "i-3", "i-2", "i-1")
        assert (names(found), gone) == (["i-1"], ["i-0", "i-2"])
        found, gone = await claim("2", "i-5", "i-4", "i-3")
        assert (names(found), gone) == (["i-3"], [])
        found, gone = await claim("3", "i-5", "i-4")
        assert (names(found), gone) == (["i-4"], [])
        assert await claim("4", "i-0", "i-2") == (None, ["i-0", "i-2"])
        assert (await kept(store))["i-5"].hold is None

    async def test_a_generation_claims_once(self, store: Store) -> None:
        """QW15, QW19, TI10: What it has claimed hides from it, however much, and hides nothing that
        comes after.
        """
        _, fence = await working(
            store, *(task(f"i-{n}") for n in range(40)), said("i-40"), command("i-41")
        )
        for n in range(40):
            claim = await claimed(store, lambda intake, n=n: intake.claim_work(fence, f"c-{n}"))  # type: ignore[misc]
            assert names(claim) == [f"i-{n}"]

        assert await on(store, lambda intake: intake.claim_work(fence, "c-40")) is None
        assert names(await on(store, lambda intake: intake.claim_next(fence, "c-41"))) == ["i-40"]
        assert names(await on(store, lambda intake: intake.claim_command(fence, "c-42"))) == [
            "i-41"
        ]

    async def test_a_later_generation_claims_again(self, store: Store) -> None:
        """QW16, TI10, TI16: A successor may; from then on the predecessor completes, fails and
        gives back nothing.
        """
        clock, fence = await working(store, said("i-1", turn=3))
        old, _ = await on(store, lambda intake: intake.claim_boundary(fence, "1", 3, EARLY))
        assert old is not None
        second = await taken_over(store, clock)
        new, _ = await on(store, lambda intake: intake.claim_boundary(second, "2", 3, EARLY))
        assert new is not None and (new.generation, new.items[0].fence) == (2, 2)
        before = await everything(store)

        for act in (Intake.complete, Intake.abandon):
            with pytest.raises(ClaimLost):
                await on(store, lambda intake, act=act: act(intake, old))  # type: ignore[misc]
        with pytest.raises(ClaimLost):
            await on(store, lambda intake: intake.fail(old, "x"))
        assert await everything(store) == before
        await on(store, lambda intake: intake.complete(new))
        assert (await kept(store))["i-1"].state is ItemState.COMPLETED

    async def test_what_is_given_back(self, store: Store) -> None:
        """QW17, TI8: It may be claimed again, with a higher fence; the first claim is over and
        disturbs nothing.
        """
        _, fence = await working(store, said("i-1"))
        old = await claimed(store, lambda intake: intake.claim_next(fence, "1"))
        await on(store, lambda intake: intake.abandon(old))
        new = await claimed(store, lambda intake: intake.claim_next(fence, "2"))

        assert [old.items[0].fence, new.items[0].fence] == [1, 2]
        with pytest.raises(ClaimLost):
            await on(store, lambda intake: intake.complete(old))
        await on(store, lambda intake: intake.complete(new))

    async def test_claims_are_of_one_session(self, store: Store) -> None:
        """QW20: Nothing of another session is ever claimed or ended, though it is called the
        same.
        """
        _, fence = await working(store, said("i-1"))
        await begin(store, "s-2")
        await put(store, said("i-1"), id="s-2")
        claim = await claimed(store, lambda intake: intake.claim_next(fence, "c"))
        await on(store, lambda intake: intake.complete(claim))

        assert await waiting(store, id="s-2") == ["i-1"]
        with pytest.raises(ClaimLost):
            await on(store, lambda intake: intake.complete(claim), id="s-2")

    async def test_a_boundary_lets_in_both_lanes(self, store: Store) -> None:
        """QW24: Inputs of the turn and work, once in a generation; again in the next one."""
        clock, fence = await working(store, task("i-1"), said("i-2", turn=3))

        def claim(by: Fence, token: str) -> Any:
            return on(store, lambda intake: intake.claim_boundary(by, token, 3, EARLY))

        assert [names(one) for one in await claim(fence, "1")] == [["i-2"], ["i-1"]]
        assert await claim(fence, "2") == (None, None)
        second = await taken_over(store, clock)
        assert [names(one) for one in await claim(second, "3")] == [["i-2"], ["i-1"]]

    async def test_what_was_begun_together(self, store: Store) -> None:
        """QW27: The next generation, and the one after it, take it as it was: no limit, no
        newcomer, same boundary.
        """
        clock, fence = await working(
            store, join("i-1", when=When.IDLE), join("i-2", when=When.IDLE), join("i-3")
        )
        await claimed(store, lambda intake: intake.claim_work(fence, "1"))
        second = await taken_over(store, clock)

        assert await on(store, lambda intake: intake.claim_work(second, "2", EARLY)) is None
        assert names(await on(store, lambda intake: intake.claim_work(second, "3", most=1))) == [
            "i-1",
            "i-2",
        ]
        clock.now += TTL
        third = await taken(store, ADA, "t-3")
        assert names(await on(store, lambda intake: intake.claim_work(third, "4"))) == [
            "i-1",
            "i-2",
        ]

    async def test_a_part_of_what_was_begun(self, store: Store) -> None:
        """QW28: It is refused, and the whole is named."""
        clock, fence = await working(store, join("i-1"), join("i-2"))
        await claimed(store, lambda intake: intake.claim_work(fence, "1"))
        second = await taken_over(store, clock)
        before = await everything(store)

        with pytest.raises(BadArguments, match="i-1"):
            await on(store, lambda intake: intake.claim_named(second, "2", ["i-2"]))
        assert await everything(store) == before

    async def test_inputs_and_commands_at_one_moment(self, store: Store) -> None:
        """QW32: The input goes first; a command that is older goes before it."""
        clock, fence = await working(store, command("i-1"), said("i-2"))
        assert names(await on(store, lambda intake: intake.choose(fence, "1"))) == ["i-2"]

        clock.now += 1
        await put(store, said("i-3"))
        assert names(await on(store, lambda intake: intake.choose(fence, "2"))) == ["i-1"]

    async def test_what_has_ended_is_not_claimed(self, store: Store) -> None:
        """TI9: Completed, cancelled or failed: it is over."""
        _, fence = await working(store, said("i-1"), said("i-2"), said("i-3"))
        one = await claimed(store, lambda intake: intake.claim_next(fence, "1", 1))
        await on(store, lambda intake: intake.complete(one))
        two = await claimed(store, lambda intake: intake.claim_next(fence, "2", 1))
        await on(store, lambda intake: intake.fail(two, {"code": "malformed"}))
        await on(store, lambda intake: intake.cancel(["i-3"]))

        assert await on(store, lambda intake: intake.claim_next(fence, "3")) is None
        found = await kept(store)
        assert [item.state for item in found.values()] == [
            ItemState.COMPLETED,
            ItemState.FAILED,
            ItemState.CANCELLED,
        ]
        assert found["i-2"].end == {"code": "malformed"}

    async def test_inputs_of_the_running_turn(self, store: Store) -> None:
        """TI11, TI12: Those of that turn, in order; those for its end are let in at its end,
        whoever claims.
        """
        items = [
            said("i-1", turn=3, boundary=LATE),
            said("i-2", turn=3),
            said("i-3", turn=2),
            said("i-4"),
        ]
        clock, fence = await working(store, *items, said("i-5", turn=3))

        def claim(by: Fence, token: str, boundary: Boundary) -> Any:
            return on(store, lambda intake: intake.claim_boundary(by, token, 3, boundary)[0])

        assert names(await claim(fence, "1", EARLY)) == ["i-2", "i-5"]
        second = await taken_over(store, clock)
        assert names(await claim(second, "2", EARLY)) == ["i-2", "i-5"]
        assert names(await claim(second, "3", LATE)) == ["i-1"]

    async def test_inputs_whose_turn_is_over(self, store: Store) -> None:
        """TI13, TI14, TI17: They are for the next one; what is claimed, cancelled or another turn's
        is left alone.
        """
        items = [said(f"i-{n}", turn=3) for n in range(1, 4)]
        clock, fence = await working(store, *items, said("i-4", turn=4))
        await claimed(store, lambda intake: intake.claim_boundary(fence, "1", 3, EARLY, most=1)[0])
        await on(store, lambda intake: intake.cancel(["i-3"]))

        assert [await on(store, lambda intake: intake.defer(3)) for _ in range(2)] == [1, 0]
        assert names(await on(store, lambda intake: intake.claim_next(fence, "2"))) == ["i-2"]
        found = await kept(store)
        assert [item.deferred for item in found.values()] == [False, True, False, False]
        assert found["i-3"].state is ItemState.CANCELLED
        second = await taken_over(store, clock)
        assert await on(store, lambda intake: intake.defer()) == 2
        claims = [
            await on(store, lambda intake, n=n: intake.claim_next(second, f"d-{n}"))  # type: ignore[misc]
            for n in range(4)
        ]
        assert [names(one) for one in claims] == [["i-1"], ["i-2"], ["i-4"], []]
        with pytest.raises(LeaseLost):
            await on(store, lambda intake: intake.claim_next(fence, "4"))

    async def test_a_clock_takes_nothing_from_who_works(self, store: Store) -> None:
        """LE12, QW16: A claim whose lease ran out still ends what it has, as long as nobody has
        claimed it again.
        """
        clock, fence = await working(store, said("i-1"))
        claim = await claimed(store, lambda intake: intake.claim_next(fence, "1"))
        await taken_over(store, clock)

        await on(store, lambda intake: intake.complete(claim, {"step": 1}))
        assert (await kept(store))["i-1"].end == {"step": 1}

    async def test_how_a_session_stands(self, store: Store) -> None:
        """FA7: Told by numbers: a commit, and what comes, ends or becomes available; not a lease,
        nor a claim.
        """
        clock = Clock(store)
        records = {id: await begin(store, id) for id in ("s-1", "s-2")}
        seen = []

        async def look() -> None:
            seen.append((await store.standing(["s-1"]))["s-1"])  # type: ignore[index]

        await look()
        await put(store, said("i-1"), said("i-2", available_at=2000.0))
        await look()
        fence = await taken(store)
        claim = await claimed(store, lambda intake: intake.claim_next(fence, "c"))
        await release(store, fence)
        await look()
        clock.now = 2000.0
        await look()
        await on(store, lambda intake: intake.complete(claim))
        await look()
        await move(store, records["s-1"], answers={0: "a"})
        await look()

        revision = records["s-1"].head.revision
        assert seen == [
            Standing(revision, *each) for each in ((0, 0), (2, 1), (2, 1), (2, 2), (2, 1))
        ] + [Standing(revision + 1, 2, 1)]
        assert await store.standing(["s-2", "nobody", "s-1"]) == {
            "s-1": seen[-1],
            "s-2": Standing(revision),
        }
        assert await store.standing([]) == {}
