"""The leases that a process holds."""

import asyncio

import pytest

from everhold.core.lease import LeaseOwner, LeaseTimings
from everhold.engine.leases import Leases
from everhold.engine.liveness import Presence
from everhold.engine.serving import Serving
from everhold.errors import StoreBusy, StoreUnavailable, UnknownSession
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from everhold.testing.conformance.factories import commit_start
from everhold.testing.conformance.intake import enqueue_items, make_input

TTL = 9.0


class Heard:
    """A worker that remembers what it is told of leases."""

    gate = None
    adopts_older = False

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.freed: list[str] = []
        self.adopted: list[str] = []
        self.lease_lost = self.lost.append
        self.lease_freed = self.freed.append
        self.lease_adopted = self.adopted.append


class House:
    """A store with two sessions, a clock, and two processes."""

    def __init__(self) -> None:
        self.clock, self.store = ManualClock(), MemoryStore()
        self.store.use_clock(self.clock.now)
        self.introduced = 0
        self.heard = Heard()
        self.lost = self.heard.lost
        self.ours, self.theirs = self.leases("ours", self.heard), self.leases("theirs", Heard())

    def leases(self, name: str, worker: Heard) -> Leases:
        house = self

        class Counted(Presence):
            async def introduce(self) -> None:
                house.introduced += 1

        serving = Serving(worker)
        serving.serve_by(worker)
        presence = Counted(self.store, self.clock, f"w-{name}", LeaseTimings(TTL))
        owner = LeaseOwner(name, f"w-{name}")
        return Leases(self.store, owner, self.clock, presence, serving)

    async def lease(self, session_id: str):
        return await self.store.intake(session_id, lambda intake: intake.lease)


@pytest.fixture
def house() -> House:
    found = House()
    for id in ("s-1", "s-2"):
        asyncio.run(commit_start(found.store, id))
    return found


async def test_one_has_it_at_a_time(house):
    """Who holds a lease is known to live; another gets it when it is released, one generation
    on.
    """
    fence = await house.ours.take("s-1")
    assert fence.generation == 1 and house.introduced == 1
    assert await house.theirs.take("s-1") is None
    assert (await house.theirs.foreign("s-1")).owner == house.ours.owner
    assert await house.ours.foreign("s-1") is None
    await house.ours.release("s-1")
    assert await house.theirs.foreign("s-1") is None
    assert (await house.theirs.take("s-1")).generation == 2


async def test_taken_twice_it_is_released_with_the_second(house):
    async with house.ours.held("s-1") as one, house.ours.held("s-1") as two:
        assert one == two
        await house.ours.release("s-1")
        assert house.ours.holds("s-1")
        await house.ours.take("s-1")
    assert (await house.lease("s-1")).released
    assert len(house.ours) == 0


async def test_two_takes_at_once_are_one_lease(house):
    """Whoever is second in this process waits for the first, and shows the same fence."""
    one, two = await asyncio.gather(house.ours.take("s-1"), house.ours.take("s-1"))
    assert one == two == (await house.lease("s-1")).fence


async def test_a_session_that_is_not_there(house):
    with pytest.raises(UnknownSession):
        await house.ours.take("s-none")
    await house.ours.release("s-none")


async def test_a_lease_that_came_with_a_commit_is_driven(house):
    """Whoever drives is told once, takes it without asking the store, and gives it back."""
    fence = (
        await house.store.intake("s-1", lambda intake: intake.take(house.ours.owner, "t-1", TTL))
    ).lease.fence
    house.ours.adopt("s-1", fence)
    house.ours.adopt("s-1", fence)
    assert house.heard.adopted == ["s-1"] and house.ours.holds("s-1") and house.introduced == 0
    assert await house.ours.take("s-1") == fence
    await house.ours.release("s-1")
    assert (await house.lease("s-1")).released and not house.ours.holds("s-1")


async def test_all_are_renewed_together(house):
    for id in ("s-1", "s-2"):
        await house.ours.take(id)
    for _ in range(5):
        house.clock.advance(TTL / 3)
        await house.ours.renew()
    assert [(await house.lease(id)).expires_at - house.clock.now() for id in ("s-1", "s-2")] == [
        TTL,
        TTL,
    ]
    assert house.lost == []


async def test_what_somebody_else_has_is_lost(house):
    """One that was not renewed in time and taken by another is lost, and only that."""
    await house.ours.take("s-1")
    house.clock.advance(TTL)
    await house.ours.take("s-2")
    assert (await house.theirs.take("s-1")).generation == 2
    await house.ours.renew()
    assert house.lost == ["s-1"]
    assert (house.ours.holds("s-1"), house.ours.holds("s-2")) == (False, True)
    await house.ours.release("s-1")
    assert (await house.lease("s-1")).owner == house.theirs.owner


async def test_a_store_that_is_away_costs_nothing_until_the_time_is_over(house):
    """A renewal that fails is tried again; when the time is over, everything is lost."""
    await house.ours.take("s-1")

    async def away(owner, ttl):
        raise StoreBusy("here", 1)

    keep, house.store.keep = house.store.keep, away
    house.clock.advance(TTL / 3)
    await house.ours.renew()
    assert house.lost == [] and house.ours.holds("s-1")
    house.clock.advance(TTL)
    await house.ours.renew()
    assert house.lost == ["s-1"] and len(house.ours) == 0
    house.store.keep = keep
    await house.ours.renew()


async def test_a_release_that_fails_is_left_to_time(house):
    """Whoever lets go is not troubled: the lease ends by itself."""
    await house.ours.take("s-1")
    await house.store.delete("s-1", 1)
    await house.ours.release("s-1")
    assert not house.ours.holds("s-1")


async def test_leaving_releases_all(house):
    for id in ("s-1", "s-2"):
        await house.ours.take(id)
    await house.ours.leave()
    assert [(await house.lease(id)).released for id in ("s-1", "s-2")] == [True, True]
    assert len(house.ours) == 0


async def test_what_came_while_it_was_held_is_told_when_it_is_given_back(house):
    """Nobody could let it in before, and nobody is woken again."""
    freed = house.heard.freed
    async with house.ours.held("s-1"), house.ours.held("s-2"):
        await enqueue_items(house.store, make_input("i-1"), id="s-2")
        await house.ours.release("s-1")
        assert freed == []
    assert freed == ["s-2"]


async def test_what_waited_before_it_was_held_is_not_told(house):
    """The holder has seen it: a session into which nothing can enter now is not taken again and
    again.
    """
    freed = house.heard.freed
    await enqueue_items(house.store, make_input("i-1"), id="s-1")
    async with house.ours.held("s-1"):
        pass
    assert freed == []
    async with house.ours.held("s-1"):
        await enqueue_items(house.store, make_input("i-2"), id="s-1")
    assert freed == ["s-1"]


async def test_what_could_not_be_released_is_not_renewed_for_ever(house):
    """The store was away when it was given back: others get it all the same, though we hold another
    one.
    """
    await house.ours.take("s-1")
    await house.ours.take("s-2")
    intake = house.store.intake

    async def away(*given, **more):
        raise StoreUnavailable("memory", "it is away")

    house.store.intake = away
    await house.ours.release("s-1")
    house.store.intake = intake
    for _ in range(2):
        assert await house.theirs.take("s-1") is None
        house.clock.advance(TTL / 3)
        await house.ours.renew()
    assert await house.theirs.take("s-1") is not None
    assert await house.theirs.take("s-2") is None
