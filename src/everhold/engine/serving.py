"""Which mover serves this process now: the local one, or a worker that took its place for a while.

The parts of the engine are given one `Serving` when they are made. They send their requests for
moves through it, and tell it what a worker has to know. So no part holds a worker, and none has to
be changed when a worker begins or ends.
"""

from __future__ import annotations

from typing import Protocol

from everhold.core.session import Birth
from everhold.engine.limits import JobLimiter
from everhold.ports.mover import Mover


class WorkerRole(Mover, Protocol):
    """A mover that claims sessions with leases; it hears more of the engine than a local one."""

    #: Jobs begin when this lets them in.
    gate: JobLimiter
    #: Whether model questions are answered also in sessions that do not say who answers them.
    adopts_older: bool

    def turn_settled(self, session_id: str) -> None:
        """A turn of an agent has ended: what waits in its intake may enter."""
        ...

    def took_over(self, birth: Birth) -> None:
        """Work of a process that died is resolved here."""
        ...

    def lease_lost(self, session_id: str) -> None:
        """A lease was not renewed in time."""
        ...

    def lease_freed(self, session_id: str) -> None:
        """A lease was released, and something had arrived for its session meanwhile."""
        ...

    def lease_adopted(self, session_id: str) -> None:
        """A lease came with a commit: its session is to be driven here."""
        ...


class Serving:
    """The mover that serves now, and what follows from that."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self.worker: WorkerRole | None = None
        self.gate: JobLimiter | None = None  # None: jobs begin at once
        #: Whether open questions are answered here although no caller asked for that session.
        self.adopts = False
        self.adopts_older = False
        #: Whether this process is about to leave: what it is asked to begin is left for others.
        self.leaving = False

    def serve_by(self, worker: WorkerRole) -> None:
        """Let a worker serve this process."""
        self.worker = worker
        self.gate = worker.gate
        self.adopts = True
        self.adopts_older = worker.adopts_older

    def serve_locally(self) -> None:
        """The worker is gone; its gate closes with the last of its jobs, in `release`."""
        self.worker = None
        self.adopts = False
        self.adopts_older = False

    def leave(self) -> None:
        """Begin nothing any more: it is left for other processes."""
        self.leaving = True
        if self.gate is not None:
            self.gate.close()

    def release(self) -> None:
        """This process may begin work again, without the gate of the worker it was."""
        self.leaving = False
        self.gate = None

    def send(self, session_id: str, at: float | None = None) -> None:
        """Request a move of the mover that serves now; see `Mover.send`."""
        (self.worker or self._mover).send(session_id, at=at)

    def turn_settled(self, session_id: str) -> None:
        """A turn of an agent has ended."""
        if self.worker is None:
            self.send(session_id)
        else:
            self.worker.turn_settled(session_id)
