"""The mover that serves this process now: the local one, or a worker that replaces it for a while.

All parts of the engine share one `Serving`. They send it their requests for moves and the events
that a worker needs. So no part holds a worker, and none changes when a worker starts or stops.
"""

from __future__ import annotations

from typing import Protocol

from everhold.core.session import Birth
from everhold.engine.limits import JobLimiter
from everhold.ports.mover import Mover


class WorkerRole(Mover, Protocol):
    """A mover that claims sessions with leases. It gets more events of the engine than a local
    one.
    """

    #: Decides when jobs start.
    gate: JobLimiter
    #: Whether to answer model questions of sessions that do not say who answers them.
    adopts_older: bool

    def turn_settled(self, session_id: str) -> None:
        """A turn of an agent settled: its queued input may be delivered."""
        ...

    def took_over(self, birth: Birth) -> None:
        """This process resolves the work of a dead one."""
        ...

    def lease_lost(self, session_id: str) -> None:
        """A lease was not renewed in time."""
        ...

    def lease_freed(self, session_id: str) -> None:
        """A lease was released, and input had arrived for its session."""
        ...

    def lease_adopted(self, session_id: str) -> None:
        """A commit took a lease: move its session here."""
        ...


class Serving:
    """The current mover, and the settings that follow from it."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self.worker: WorkerRole | None = None
        self.gate: JobLimiter | None = None  # None: jobs start at once
        #: Whether open queries are answered here without a caller's request for their session.
        self.adopts = False
        self.adopts_older = False
        #: Whether this process is closing: it starts no new work.
        self.leaving = False

    def serve_by(self, worker: WorkerRole) -> None:
        """Make a worker the mover of this process."""
        self.worker = worker
        self.gate = worker.gate
        self.adopts = True
        self.adopts_older = worker.adopts_older

    def serve_locally(self) -> None:
        """Return to the local mover. The limiter stays until `release`, because jobs still use
        it.
        """
        self.worker = None
        self.adopts = False
        self.adopts_older = False

    def leave(self) -> None:
        """Start no new work; it is left for other processes."""
        self.leaving = True
        if self.gate is not None:
            self.gate.close()

    def release(self) -> None:
        """Allow new work again, without the limiter of the former worker."""
        self.leaving = False
        self.gate = None

    def send(self, session_id: str, at: float | None = None) -> None:
        """Request a move from the current mover; see `Mover.send`."""
        (self.worker or self._mover).send(session_id, at=at)

    def turn_settled(self, session_id: str) -> None:
        """A turn of an agent settled: tell the worker, or request a move."""
        if self.worker is None:
            self.send(session_id)
        else:
            self.worker.turn_settled(session_id)
