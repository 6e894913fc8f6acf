"""Tests of leases: one holder at a time, one clock, and a fence number that is never reused."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
import pytest

from everhold.core.intake import Intake, IntakeItem, ItemKind
from everhold.core.lease import Fence, Lease, LeaseGranted, LeaseOwner, LeaseRefused
from everhold.errors import LeaseLost, UnknownSession
from everhold.ports.store import Store
from everhold.testing.conformance.factories import commit_start, make_query, make_step
from everhold.testing.conformance.harness import StoreContractBase, dump_store

ADA = LeaseOwner("ada", "1")
BOB = LeaseOwner("bob", "1")
TTL: Final = 10.0


class StoreClock:
    """A store's clock that stands still until a test moves it."""

    def __init__(self, store: Store, *others: Store) -> None:
        self.now = 1000.0
        for each in (store, *others):
            each.use_clock(self)

    def __call__(self) -> float:
        return self.now


async def try_take_lease(
    store: Store, owner: LeaseOwner = ADA, token: str = "t-1", id: str = "s-1", ttl: float = TTL
) -> LeaseGranted | LeaseRefused:
    """Try to take the lease of a session."""
    return await store.intake(id, lambda intake: intake.take(owner, token, ttl))


async def take_free_lease(
    store: Store, owner: LeaseOwner = ADA, token: str = "t-1", id: str = "s-1", ttl: float = TTL
) -> Fence:
    """Take the lease of a session, which must be free."""
    found = await try_take_lease(store, owner, token, id, ttl)
    assert isinstance(found, LeaseGranted)
    return found.lease.fence


async def get_current_lease(store: Store, id: str = "s-1") -> Lease | None:
    return await store.intake(id, lambda intake: intake.lease)


async def release_by_fence(store: Store, fence: Fence, id: str = "s-1") -> None:
    await store.intake(id, lambda intake: intake.release(fence))


class LeaseContract(StoreContractBase):
    """`intake` and the lease; `keep` and `leave`."""

    @pytest.mark.parametrize("other", [BOB, LeaseOwner("ada", "2")])
    async def test_a_live_lease_excludes_others(self, store: Store, other: LeaseOwner) -> None:
        """LE1, LE2, LE20: another owner, and another life of the same owner, see the holder and get
        nothing.
        """
        clock = StoreClock(store)
        await commit_start(store)
        await take_free_lease(store)
        held = await get_current_lease(store)
        clock.now += TTL - 0.001

        assert await try_take_lease(store, other, "t-2") == LeaseRefused(
            Lease(ADA, "t-1", 1, 1000.0, 1010.0)
        )
        assert await get_current_lease(store) == held

    async def test_its_owner_takes_it_again(self, store: Store) -> None:
        """LE3: generation and start time stay, the token changes, and the expiry moves."""
        clock = StoreClock(store)
        await commit_start(store)
        await take_free_lease(store)
        clock.now += 5

        assert await try_take_lease(store, token="t-2") == LeaseGranted(
            Lease(ADA, "t-2", 1, 1000.0, 1015.0), None
        )

    async def test_only_its_fence_renews_it(self, store: Store) -> None:
        """LE4, LE5, LE18, LE21: A wrong owner, token or generation, and an expired lease, renew
        nothing.
        """
        clock = StoreClock(store)
        await commit_start(store)
        fence = await take_free_lease(store)
        before = await dump_store(store)
        wrong = [
            Fence(BOB, "t-1", 1),
            Fence(LeaseOwner("ada", "2"), "t-1", 1),
            Fence(ADA, "t-2", 1),
            Fence(ADA, "t-1", 2),
        ]

        for each in wrong:
            with pytest.raises(LeaseLost):
                await store.intake("s-1", lambda intake, each=each: intake.renew(each, TTL))  # type: ignore[misc]
        assert await dump_store(store) == before

        clock.now += 9
        renewed = await store.intake("s-1", lambda intake: intake.renew(fence, TTL))
        assert renewed == await get_current_lease(store) == Lease(ADA, "t-1", 1, 1000.0, 1019.0)
        clock.now += TTL
        with pytest.raises(LeaseLost):
            await store.intake("s-1", lambda intake: intake.renew(fence, TTL))

    async def test_nobody_renews_what_never_was(self, store: Store) -> None:
        """LE21: A renewal without a lease is refused."""
        StoreClock(store)
        await commit_start(store)

        with pytest.raises(LeaseLost):
            await store.intake("s-1", lambda intake: intake.renew(Fence(ADA, "t-1", 1), TTL))
        assert await get_current_lease(store) is None

    @pytest.mark.parametrize("way", ["act", "verb"])
    @pytest.mark.parametrize("owner", [ADA, LeaseOwner("ada", "2"), BOB])
    async def test_an_old_fence_releases_nothing(
        self, store: Store, owner: LeaseOwner, way: str
    ) -> None:
        """LE6: A former holder cannot release the next lease, of the same owner, its next life, or
        another.
        """
        clock = StoreClock(store)
        await commit_start(store)
        old = await take_free_lease(store)
        clock.now += TTL
        new = await take_free_lease(store, owner, "t-2")
        before = await get_current_lease(store)
        near = (
            Fence(owner, "t-2", 1),
            Fence(owner, "t-1", 2),
            Fence(LeaseOwner(owner.name, "9"), "t-2", 2),
        )

        for stale in (old, *near):
            assert stale != new
            if way == "act":
                await release_by_fence(store, stale)
            else:
                assert await store.release_lease("s-1", stale, 0) is False
            assert await get_current_lease(store) == before
        assert isinstance(await try_take_lease(store, LeaseOwner("eve", "1"), "t-3"), LeaseRefused)

    async def test_releasing_twice(self, store: Store) -> None:
        """LE7: it is harmless, also if no new lease was taken."""
        StoreClock(store)
        await commit_start(store)
        fence = await take_free_lease(store)

        await release_by_fence(store, fence)
        once = await get_current_lease(store)
        await release_by_fence(store, fence)
        assert await get_current_lease(store) == once
        assert once is not None and once.released

    async def test_a_release_tells_what_came_meanwhile(self, store: Store) -> None:
        """It reports items that arrived since the lease was taken, not earlier, deferred or ended
        ones.
        """
        clock = StoreClock(store)
        await commit_start(store, "s-1", make_query(0))

        async def put(name: str, at: float = 0.0) -> None:
            item = IntakeItem(name, ItemKind.INPUT, {"content": name}, available_at=at)
            await store.intake("s-1", lambda intake: intake.enqueue(item))

        await put("before")
        fence = await take_free_lease(store)
        came = await store.intake("s-1", lambda intake: intake.seq)
        assert await store.release_lease("s-1", fence, came) is False
        assert (found := await get_current_lease(store)) is not None and found.released

        fence = await take_free_lease(store, token="t-2")
        await put("later", clock.now + 60)
        assert await store.release_lease("s-1", fence, came) is False

        fence = await take_free_lease(store, token="t-3")
        came = await store.intake("s-1", lambda intake: intake.seq)
        await put("meanwhile")
        assert await store.release_lease("s-1", fence, came) is True

        newer = await take_free_lease(store, token="t-4")
        await store.release_lease("s-1", fence, came)  # that was another's
        assert (
            (found := await get_current_lease(store)) is not None
            and found.fence == newer
            and not found.released
        )
        with pytest.raises(UnknownSession):
            await store.release_lease("s-none", fence, 0)

    async def test_each_acquisition_is_a_generation(self, store: Store) -> None:
        """LE8: after a release and after an expiry the generation is one higher, for every
        owner.
        """
        clock = StoreClock(store)
        await commit_start(store)
        first = await take_free_lease(store)
        await release_by_fence(store, first)
        second = await take_free_lease(store, token="t-2")
        clock.now += TTL
        third = await take_free_lease(store, BOB, "t-3")

        assert [first.generation, second.generation, third.generation] == [1, 2, 3]

    async def test_time_is_the_stores(self, store: Store) -> None:
        """LE9, LE12: held until the store's clock reaches the expiry; free at that moment."""
        clock = StoreClock(store)
        await commit_start(store)
        await take_free_lease(store)

        clock.now = 1009.999
        assert isinstance(await try_take_lease(store, BOB, "t-2"), LeaseRefused)
        clock.now = 1010.0
        assert isinstance(await try_take_lease(store, BOB, "t-2"), LeaseGranted)

    async def test_a_store_has_a_clock_of_its_own(self, store: Store) -> None:
        """LE12: without a given clock, leases use the store's own clock, which runs."""
        await commit_start(store)
        await take_free_lease(store, ttl=0.003)
        await asyncio.sleep(0.01)
        found = await try_take_lease(store, BOB, "t-2")

        assert isinstance(found, LeaseGranted) and found.displaced is not None
        assert (
            found.lease.claimed_at
            >= found.displaced.expires_at
            > found.displaced.claimed_at
            > 1.7e9
        )

    async def test_one_of_many_gets_it(self, store: Store) -> None:
        """LE10: of many concurrent attempts exactly one succeeds, and the others see the holder."""
        await commit_start(store)
        owners = [LeaseOwner(f"w-{n}", "1") for n in range(8)]

        found = await asyncio.gather(
            *(try_take_lease(store, one, one.name, ttl=1e6) for one in owners)
        )

        (winner,) = [one.lease for one in found if isinstance(one, LeaseGranted)]
        assert [one.holder for one in found if isinstance(one, LeaseRefused)] == [winner] * 7
        assert await get_current_lease(store) == winner and winner.generation == 1

    async def test_many_sessions_at_once(self, store: Store) -> None:
        """LE1, LE10: an operation on many sessions acts on each separately; an error concerns only
        its session.
        """
        StoreClock(store)
        ids = [f"s-{n}" for n in range(20)]
        for id in [*ids, "broken"]:
            await commit_start(store, id)
        await take_free_lease(store, BOB, "b", "s-3")

        def broken(intake: Intake) -> None:
            intake.take(ADA, "t-1", TTL)
            raise ZeroDivisionError

        *found, unknown, refused = await asyncio.gather(
            *(try_take_lease(store, ADA, f"t-{id}", id) for id in ids),
            try_take_lease(store, ADA, "t-1", "nobody's"),
            store.intake("broken", broken),
            return_exceptions=True,
        )

        assert isinstance(unknown, UnknownSession) and isinstance(refused, ZeroDivisionError)
        assert await get_current_lease(store, "broken") is None
        assert [
            id for id, one in zip(ids, found, strict=True) if not isinstance(one, LeaseGranted)
        ] == ["s-3"]
        leases = await asyncio.gather(*(get_current_lease(store, id) for id in ids))
        assert [one and one.token for one in leases] == [
            "b" if id == "s-3" else f"t-{id}" for id in ids
        ]

    async def test_claims_need_a_live_lease(self, store: Store) -> None:
        """LE11, LE18: A claim with an invalid, foreign or expired fence gets nothing."""
        clock = StoreClock(store)
        for id in ("s-1", "s-2"):
            await commit_start(store, id)
            item = IntakeItem(f"i-{id}", ItemKind.INPUT, "x")
            await store.intake(id, lambda intake, item=item: intake.enqueue(item))  # type: ignore[misc]
        fence, other = await take_free_lease(store), await take_free_lease(store, BOB, "t-9", "s-2")

        for wrong in (
            other,
            msgspec.structs.replace(fence, token="t-0"),
            msgspec.structs.replace(fence, generation=0),
        ):
            with pytest.raises(LeaseLost):
                await store.intake("s-1", lambda intake, wrong=wrong: intake.claim_next(wrong, "c"))  # type: ignore[misc]
        clock.now += TTL
        with pytest.raises(LeaseLost):
            await store.intake("s-1", lambda intake: intake.claim_next(fence, "c"))
        assert await store.intake("s-1", lambda intake: intake.items["i-s-1"].hold) is None

    async def test_the_same_try_twice(self, store: Store) -> None:
        """LE14: A retry with the same token gets the same lease: no new generation or start
        time.
        """
        clock = StoreClock(store)
        await commit_start(store)
        first = await try_take_lease(store)
        clock.now += 1
        assert await try_take_lease(store) == first

        clock.now += TTL
        second = await try_take_lease(store, BOB, "t-2")
        clock.now += 1
        again = await try_take_lease(store, BOB, "t-2")
        assert isinstance(second, LeaseGranted) and isinstance(again, LeaseGranted)
        assert again.lease == second.lease and second.lease.generation == 2

    async def test_a_new_token_and_an_old_renewal(self, store: Store) -> None:
        """LE15: concurrent calls behave as if one came after the other; the new token stays."""
        clock = StoreClock(store)
        await commit_start(store)
        fence = await take_free_lease(store)
        clock.now += 1

        again, renewed = await asyncio.gather(
            try_take_lease(store, token="t-2"),
            store.intake("s-1", lambda intake: intake.renew(fence, 30.0)),
            return_exceptions=True,
        )

        assert isinstance(again, LeaseGranted) and isinstance(renewed, Lease | LeaseLost)
        last = 1031.0 if isinstance(renewed, Lease) else 1011.0
        assert await get_current_lease(store) == Lease(ADA, "t-2", 1, 1000.0, last)

    async def test_a_takeover_tells_whose_it_was(self, store: Store) -> None:
        """LE16: it names the expired lease with generation and time; a first lease and a released
        one have no predecessor.
        """
        clock = StoreClock(store)
        await commit_start(store)
        first = await try_take_lease(store)
        again = await try_take_lease(store, token="t-2")
        clock.now += TTL
        third = await try_take_lease(store, BOB, "t-3")
        assert isinstance(third, LeaseGranted)
        await release_by_fence(store, third.lease.fence)
        fourth = await try_take_lease(store, ADA, "t-4")

        assert [getattr(one, "displaced", None) for one in (first, again, fourth)] == [
            None,
            None,
            None,
        ]
        assert third.displaced == Lease(ADA, "t-2", 1, 1000.0, 1010.0)

    async def test_looking_at_it(self, store: Store) -> None:
        """LE17: A read returns none for a missing or released lease, still shows an expired one,
        and counts a takeover; nothing changes.
        """
        clock = StoreClock(store)
        await commit_start(store)

        async def seen() -> tuple[str, int] | None:
            before = await dump_store(store)
            held = await store.intake("s-1", lambda intake: intake.holder)
            assert await dump_store(store) == before
            return None if held is None else (held.owner.name, held.generation)

        found = [await seen()]
        await take_free_lease(store)
        clock.now += TTL + 1
        found.append(await seen())
        fence = await take_free_lease(store, BOB, "t-2")
        found.append(await seen())
        await release_by_fence(store, fence)
        found.append(await seen())

        assert found == [None, ("ada", 1), ("bob", 2), None]

    async def test_a_new_token_does_not_take_a_claim_away(self, store: Store) -> None:
        """LE19: the old guard claims nothing more, but still commits what it has claimed."""
        StoreClock(store)
        record = await commit_start(store, "s-1", make_query(0))
        await store.intake(
            "s-1", lambda intake: intake.enqueue(IntakeItem("i-1", ItemKind.INPUT, "x"))
        )
        await store.intake(
            "s-1", lambda intake: intake.enqueue(IntakeItem("i-2", ItemKind.INPUT, "y"))
        )
        old = await take_free_lease(store)
        claim = await store.intake("s-1", lambda intake: intake.claim_next(old, "c-1", 1))
        assert claim is not None
        await take_free_lease(store, token="t-2")

        with pytest.raises(LeaseLost):
            await store.intake("s-1", lambda intake: intake.claim_next(old, "c-2"))
        await store.commit(
            make_step(record, answers={0: "x"}, intake=lambda intake: intake.complete(claim)), 1
        )
        assert (await store.load("s-1")).head.n == 1

    async def test_all_of_a_worker_live_on(self, store: Store) -> None:
        """LE4, LE9: one call renews all live leases of a worker and no others; no expiry moves
        back.
        """
        clock = StoreClock(store)
        for n in range(1, 6):
            await commit_start(store, f"s-{n}")
        await take_free_lease(store, ADA, "t", "s-1")
        await take_free_lease(store, ADA, "t", "s-2", ttl=100.0)
        await take_free_lease(store, BOB, "t", "s-3")
        await release_by_fence(store, await take_free_lease(store, ADA, "t", "s-4"), "s-4")
        await take_free_lease(store, LeaseOwner("ada", "2"), "t", "s-5")
        clock.now += 9

        assert sorted(await store.keep(ADA, TTL)) == ["s-1", "s-2"]
        ends = [(await get_current_lease(store, f"s-{n}")) for n in range(1, 6)]
        assert [one.expires_at for one in ends if one is not None] == [
            1019.0,
            1100.0,
            1010.0,
            1010.0,
            1010.0,
        ]
        clock.now += 10
        assert await store.keep(ADA, TTL) == ["s-2"]

    async def test_all_of_a_worker_are_given_back(self, store: Store) -> None:
        """LE8: one call releases all leases of a worker and no others; others can take them at
        once.
        """
        StoreClock(store)
        for n in range(1, 4):
            await commit_start(store, f"s-{n}")
        for n in (1, 2):
            await take_free_lease(store, ADA, "t", f"s-{n}")
        await take_free_lease(store, LeaseOwner("ada", "2"), "t", "s-3")

        await store.leave(ADA)

        assert [(await take_free_lease(store, BOB, "u", f"s-{n}")).generation for n in (1, 2)] == [
            2,
            2,
        ]
        assert isinstance(await try_take_lease(store, BOB, "u", "s-3"), LeaseRefused)

    async def test_names_of_any_kind(self, store: Store) -> None:
        """LE3: owners and tokens are text with any characters."""
        StoreClock(store)
        await commit_start(store)
        owner = LeaseOwner("a\0\1'é🦉", "\0")
        fence = await take_free_lease(store, owner, "\0t")

        assert await store.intake(
            "s-1", lambda intake: intake.renew(fence, 5.0)
        ) == await get_current_lease(store)
        assert await store.keep(owner, TTL) == ["s-1"]
        await store.leave(owner)
        assert await store.intake("s-1", lambda intake: intake.holder) is None

    async def test_nobody_has_the_lease_of_nothing(self, store: Store) -> None:
        """FA1, FA3, FA5: an unknown or deleted session has no lease and no lanes."""
        StoreClock(store)
        record = await commit_start(store)
        await take_free_lease(store)
        await store.delete("s-1", record.head.revision)

        def nothing(intake: Intake) -> Any:
            raise AssertionError("there is nothing to act on")

        for id in ("s-1", "s-2", "\ud800"):
            with pytest.raises(UnknownSession):
                await store.intake(id, nothing)
        assert await store.keep(ADA, TTL) == []
