"""Who spends work on a session, for a while.

A lease says who should work; it never says who may commit: the head's revision and the ownership of
a claim do. Its
*generation* grows with every acquisition and outlives it, so that a claim made under an earlier one is known for what
it is. Time is the store's.
"""  # noqa: E501

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

from everhold.errors import BadSetting, LeaseLost

#: Seconds that a lease lives without being renewed.
TTL: Final = 10.0


class LeaseOwner(msgspec.Struct, frozen=True):
    """A worker: its name, and which of its lives this is."""

    name: str
    incarnation: str


class Fence(msgspec.Struct, frozen=True):
    """What a holder shows: who, under which token, of which generation."""

    owner: LeaseOwner
    token: str
    generation: int


class Lease(msgspec.Struct, frozen=True):
    """The right to work on a session until a moment."""

    owner: LeaseOwner
    token: str
    generation: int
    claimed_at: float
    expires_at: float
    released: bool = False

    @property
    def fence(self) -> Fence:
        return Fence(self.owner, self.token, self.generation)

    def live(self, now: float) -> bool:
        return not self.released and now < self.expires_at


class LeaseGranted(msgspec.Struct, frozen=True):
    """A lease that was acquired or extended, and the holder whose time had run out."""

    lease: Lease
    displaced: Lease | None = None


class LeaseRefused(msgspec.Struct, frozen=True):
    """Somebody else has it."""

    holder: Lease


class LeaseTimings(msgspec.Struct, frozen=True):
    """How long a lease lives, and how often it is renewed: at least three times in its life."""

    ttl: float = TTL
    renew: float = 0.0  # 0: a third of `ttl`

    def __post_init__(self) -> None:
        if not 0.003 <= self.ttl < inf or not (
            self.renew == 0 or 0.001 <= self.renew <= self.ttl / 3
        ):
            why = (
                f"{self.ttl} s, renewed every {self.renew} s: it has to live three times as"
                " long, and 3 ms at least"
            )
            raise BadSetting("lease", why)

    @property
    def every(self) -> float:
        """Seconds between two renewals."""
        return self.renew or self.ttl / 3


def take_lease(
    held: Lease | None, owner: LeaseOwner, token: str, ttl: float, now: float
) -> LeaseGranted | LeaseRefused:
    """Acquire a lease that is free, or extend one's own; `token` is new for every try, so that one
    can be repeated.
    """
    if held is not None and held.live(now):
        if held.owner != owner:
            return LeaseRefused(held)
        same = msgspec.structs.replace(
            held, token=token, expires_at=max(held.expires_at, now + ttl)
        )
        return LeaseGranted(held if held.token == token else same)
    generation = 1 if held is None else held.generation + 1
    fresh = Lease(owner, token, generation, now, now + ttl)
    return LeaseGranted(fresh, None if held is None or held.released else held)


def renew_lease(session_id: str, held: Lease | None, fence: Fence, ttl: float, now: float) -> Lease:
    """A lease that lives on; raises `LeaseLost` unless the fence is the one that holds now."""
    return msgspec.structs.replace(
        require_lease(session_id, held, fence, now), expires_at=now + ttl
    )


def release_lease(held: Lease | None, fence: Fence) -> Lease | None:
    """A lease after its holder let it go; one that somebody else has stays as it is."""
    if held is None or held.fence != fence:
        return held
    return msgspec.structs.replace(held, released=True)


def require_lease(session_id: str, held: Lease | None, fence: Fence, now: float) -> Lease:
    """The lease, if this fence holds it now; else raises `LeaseLost`."""
    if held is None or not held.live(now):
        raise LeaseLost(session_id, fence.generation)
    if held.fence != fence:
        raise LeaseLost(session_id, fence.generation, held.owner.name)
    return held
