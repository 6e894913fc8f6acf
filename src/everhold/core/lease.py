"""Leases: time-limited claims of workers on sessions.

A lease decides which worker should move a session. It does not decide who may commit: the head's
revision and the ownership of a claim do. The *generation* of a lease grows with every acquisition
and is never reset, so that a claim made under an earlier lease is recognised. All times are the
store's.
"""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

from everhold.errors import BadSetting, LeaseLost

#: Seconds after which a lease that is not renewed expires.
TTL: Final = 10.0


class LeaseOwner(msgspec.Struct, frozen=True):
    """A worker: its name, and the incarnation, which is new at every start of its process."""

    name: str
    incarnation: str


class Fence(msgspec.Struct, frozen=True):
    """The proof of a lease holder: owner, token and generation."""

    owner: LeaseOwner
    token: str
    generation: int


class Lease(msgspec.Struct, frozen=True):
    """The right to move a session, until it expires."""

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
    """A lease that was acquired or extended, and the expired lease that it replaced."""

    lease: Lease
    displaced: Lease | None = None


class LeaseRefused(msgspec.Struct, frozen=True):
    """Another worker holds the lease."""

    holder: Lease


class LeaseTimings(msgspec.Struct, frozen=True):
    """The lifetime of a lease and the interval of its renewal, at most a third of that."""

    ttl: float = TTL
    renew: float = 0.0  # 0: a third of `ttl`

    def __post_init__(self) -> None:
        if not 0.003 <= self.ttl < inf or not (
            self.renew == 0 or 0.001 <= self.renew <= self.ttl / 3
        ):
            reason = (
                f"ttl {self.ttl} s with a renewal every {self.renew} s is not possible: ttl must be"
                " at least 3 ms and three times the renewal interval"
            )
            raise BadSetting("lease", reason)

    @property
    def every(self) -> float:
        """Seconds between two renewals."""
        return self.renew or self.ttl / 3


def take_lease(
    held: Lease | None, owner: LeaseOwner, token: str, ttl: float, now: float
) -> LeaseGranted | LeaseRefused:
    """Acquires a free lease, or extends one of the same owner. Repeating a call with the same
    `token` changes nothing, so every new attempt needs a new one.
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
    """The extended lease; raises `LeaseLost` unless the fence holds it now."""
    return msgspec.structs.replace(
        require_lease(session_id, held, fence, now), expires_at=now + ttl
    )


def release_lease(held: Lease | None, fence: Fence) -> Lease | None:
    """The released lease; a lease of another holder is returned unchanged."""
    if held is None or held.fence != fence:
        return held
    return msgspec.structs.replace(held, released=True)


def require_lease(session_id: str, held: Lease | None, fence: Fence, now: float) -> Lease:
    """The lease; raises `LeaseLost` unless the fence holds it now."""
    if held is None or not held.live(now):
        raise LeaseLost(session_id, fence.generation)
    if held.fence != fence:
        raise LeaseLost(session_id, fence.generation, held.owner.name)
    return held
