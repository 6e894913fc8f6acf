"""Who spends work on a session, for a while."""

import msgspec
import pytest

from everhold.core import lease as leases
from everhold.core.lease import (
    TTL,
    Fence,
    Lease,
    LeaseGranted,
    LeaseOwner,
    LeaseRefused,
    LeaseTimings,
)
from everhold.errors import BadSetting, LeaseLost

ANNA, BEN = LeaseOwner("anna", "1"), LeaseOwner("ben", "1")


def taken(owner=ANNA, token="t-1", at=100.0, ttl=10.0, before=None):
    found = leases.take_lease(before, owner, token, ttl, at)
    assert isinstance(found, LeaseGranted)
    return found.lease


def test_the_first_one_is_of_generation_one():
    """Whoever comes first has a lease of generation 1, and displaces nobody."""
    found = leases.take_lease(None, ANNA, "t-1", 10.0, 100.0)

    assert found == LeaseGranted(Lease(ANNA, "t-1", 1, 100.0, 110.0), None)


@pytest.mark.parametrize("other", [BEN, LeaseOwner("anna", "2")])
def test_a_live_one_excludes_everybody_else(other):
    """Another owner, or another life of the same one, is told who has it."""
    held = taken()

    assert leases.take_lease(held, other, "t-2", 10.0, 109.99) == LeaseRefused(held)


def test_its_owner_may_take_it_again():
    """Generation and first moment stay, the token is the new one, and it never lives shorter than
    before.
    """
    held = taken()

    longer = taken(token="t-2", at=105.0, before=held)
    shorter = taken(token="t-3", at=106.0, ttl=1.0, before=longer)

    assert longer == Lease(ANNA, "t-2", 1, 100.0, 115.0)
    assert shorter == Lease(ANNA, "t-3", 1, 100.0, 115.0)


def test_the_same_try_again_changes_nothing():
    """Who did not hear the answer tries again with the same token, and finds what he has."""
    held = taken()

    assert leases.take_lease(held, ANNA, "t-1", 10.0, 104.0) == LeaseGranted(held)


def test_when_its_time_is_over_others_may_have_it():
    """At the very moment it expires it is free; whose it was is told."""
    held = taken()

    assert leases.take_lease(held, BEN, "t-2", 10.0, 110.0) == LeaseGranted(
        Lease(BEN, "t-2", 2, 110.0, 120.0), held
    )


def test_a_released_one_displaces_nobody():
    """What was given back is free at once, and the generation grows."""
    held = taken()
    free = leases.release_lease(held, held.fence)

    assert free is not None and not free.live(100.0)
    assert leases.take_lease(free, ANNA, "t-2", 10.0, 101.0) == LeaseGranted(
        Lease(ANNA, "t-2", 2, 101.0, 111.0), None
    )


def test_only_the_fence_that_holds_it_releases_it():
    """An old fence, and one of nobody, leave it as it is; releasing twice is harmless."""
    held = taken()
    old = Fence(ANNA, "t-0", 1)

    assert leases.release_lease(held, old) is held
    assert leases.release_lease(None, old) is None
    once = leases.release_lease(held, held.fence)
    assert leases.release_lease(once, held.fence) == once


def test_renewing_needs_the_exact_fence():
    """The right token of a wrong owner, generation or token renews nothing."""
    held = taken()
    wrong = [Fence(BEN, "t-1", 1), Fence(ANNA, "t-2", 1), Fence(ANNA, "t-1", 2)]

    for fence in wrong:
        with pytest.raises(LeaseLost) as lost:
            leases.renew_lease("s-1", held, fence, 10.0, 105.0)
        assert (lost.value.holder, lost.value.generation) == ("anna", fence.generation)
    assert leases.renew_lease("s-1", held, held.fence, 10.0, 105.0) == msgspec.structs.replace(
        held, expires_at=115.0
    )


@pytest.mark.parametrize(
    "held", [None, taken(at=90.0), leases.release_lease(taken(), taken().fence)]
)
def test_one_that_is_over_guards_nothing(held):
    """None at all, one whose time is over and one that was released: nobody holds it now."""
    with pytest.raises(LeaseLost) as lost:
        leases.require_lease("s-1", held, taken().fence, 100.0)

    assert lost.value.holder == ""
    assert str(lost.value) == "lease 1 of session 's-1' has ended"


def test_who_lost_it_is_told_who_has_it():
    """The message names the holder."""
    held = taken(BEN, "t-2", before=leases.release_lease(taken(), taken().fence))

    with pytest.raises(LeaseLost, match="has ended; 'ben' holds a newer one"):
        leases.require_lease("s-1", held, taken().fence, 100.0)


def test_it_is_renewed_three_times_in_its_life():
    """By default every third of its time; a rhythm of one's own may be quicker, never slower."""
    assert (LeaseTimings().ttl, LeaseTimings().every) == (TTL, TTL / 3)
    assert LeaseTimings(9.0, 2.0).every == 2.0
    assert LeaseTimings(0.003, 0.001).every == 0.001


@pytest.mark.parametrize(
    ("ttl", "renew"), [(0.002, 0.0), (9.0, 3.1), (9.0, -1.0), (9.0, 0.0001), (float("nan"), 0.0)]
)
def test_timings_that_lose_leases_are_refused(ttl, renew):
    """Too short to live, too seldom renewed, or no number at all: refused where it is set."""
    with pytest.raises(BadSetting):
        LeaseTimings(ttl, renew)
