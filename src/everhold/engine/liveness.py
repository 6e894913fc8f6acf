"""Which worker processes are alive, as this machine and the store's clock show.

Every worker renews its row in the store. A worker is dead if its row expired, or if it was on this
machine and its process has ended.

A process id is valid only within one boot of one machine and one container. Host names are not
unique either. So the process check is used only for rows with exactly our machine id.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import inf
from pathlib import Path

import msgspec

from everhold.core.lease import LeaseOwner, LeaseTimings
from everhold.portability import has_process_ended
from everhold.ports.program import Clock
from everhold.ports.store import Store, WorkerRecord

log = logging.getLogger("everhold")


@cache
def get_machine_id() -> str:
    """The host name, a slash, and an id of the boot and the process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot[:8]}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not on Linux
        return f"{socket.gethostname()}/"


def get_machine_name(place: str) -> str:
    """The host name of a machine id."""
    return place.partition("/")[0]


# ---- all workers


class WorkerLiveness(msgspec.Struct, frozen=True):
    """Living and dead workers."""

    living: frozenset[str]
    dead: tuple[WorkerRecord, ...]
    near: frozenset[int]  # process ids of living workers on this machine
    next: float | None  # seconds until the next row expires, unless it is renewed


def classify_workers(rows: Sequence[WorkerRecord], me: str) -> WorkerLiveness:
    """Separate living and dead workers. `me` is alive."""
    dead = tuple(row for row in rows if row.id != me and not is_worker_alive(row))
    others = [row for row in rows if row.id != me and row not in dead]
    near = frozenset(row.pid for row in others if row.host == get_machine_id())
    ends = min((row.ttl - row.age for row in others), default=None)
    return WorkerLiveness(frozenset((me, *(row.id for row in others))), dead, near, ends)


def is_worker_alive(worker: WorkerRecord) -> bool:
    return not worker.expired and (
        worker.host != get_machine_id() or not has_process_ended(worker.pid)
    )


def make_lease_owner(worker: WorkerRecord) -> LeaseOwner:
    """The owner of a worker's leases: a readable name, and an id that is new at each start."""
    return LeaseOwner(f"{get_machine_name(worker.host)}:{worker.pid}", worker.id)


class SuspendDetector:
    """Detects that this process was suspended, stopped or too busy, or that its clock was set.

    Other processes may have been suspended with it, without time to renew their rows. After a
    suspension, the age of every row counts as at most half of its time to live, so that each
    worker can renew once before it counts as dead.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._checked = inf  # wall time of the last `feel`
        self._resumed = -inf  # steady time of the end of the last suspension

    def begin(self) -> None:
        """Start the detection; the time before does not count."""
        self._checked = inf

    def feel(self, timings: LeaseTimings) -> None:
        """Call this at least once per lease renewal. A gap of two intervals counts as a
        suspension.
        """
        before = self._checked
        self._checked = self._wall()
        away = self._checked - before
        if away > 2 * timings.every:
            self._resumed = self._steady()
            log.warning(
                "this process was suspended, or its clock was set, for %.0f s;"
                " other workers may have been suspended, too",
                away,
            )

    def heard(self, rows: Iterable[WorkerRecord], timings: LeaseTimings) -> list[WorkerRecord]:
        """Rows read just now, with their ages corrected for a suspension of this process."""
        # after the read: a suspension during it must count, too
        self.feel(timings)
        since = self._steady() - self._resumed
        return [msgspec.structs.replace(row, age=min(row.age, row.ttl / 2 + since)) for row in rows]


class ProcessWatcher:
    """Wakes a callback when a process of this machine ends (Linux, by pidfd). Elsewhere, poll
    `ended`.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # process id -> what becomes readable when it ends
        self._watched: dict[int, int | None] = {}

    def watch(self, pids: Iterable[int]) -> None:
        """Watch exactly these processes from now on."""
        wanted = set(pids) - {os.getpid()}
        for pid in set(self._watched) - wanted:
            self._forget(pid)
        for pid in wanted - set(self._watched):
            self._watched[pid] = self._open(pid)

    @property
    def blind(self) -> bool:
        """Whether any watched process must be polled."""
        return None in self._watched.values()

    def ended(self) -> bool:
        """Whether any watched process has ended."""
        return any(has_process_ended(pid) for pid in self._watched)

    def close(self) -> None:
        self.watch(())

    def _open(self, pid: int) -> int | None:
        opened = getattr(os, "pidfd_open", None)
        try:
            fd: int | None = None if opened is None else opened(pid)
        except OSError:  # it has just ended, or the system forbids it
            return None
        if fd is not None:
            asyncio.get_running_loop().add_reader(fd, self._hear, pid)
        return fd

    def _hear(self, pid: int) -> None:
        self._forget(pid)
        self._wake()

    def _forget(self, pid: int) -> None:
        fd = self._watched.pop(pid, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)


class Presence:
    """This process's worker row, and the rows of the others."""

    def __init__(self, store: Store, clock: Clock, worker: str, timings: LeaseTimings) -> None:
        self._store = store
        self._clock = clock
        self.worker = worker
        self.timings = timings
        self.is_introduced = False
        self._beaten = 0.0  # when this process last renewed its row
        self._introducing = asyncio.Lock()
        # only tests use a store with a clock of its own; that clock jumps on purpose
        self.pulse = SuspendDetector() if store.time is None else SuspendDetector(lambda: 0.0)

    def live_by(self, timings: LeaseTimings) -> None:
        """Use these timings from now on."""
        self.timings = timings

    async def introduce(self) -> None:
        """Write this process's row if it is not current. Call it before any mark of this
        process.
        """
        if self._is_known():
            return
        async with self._introducing:
            if not self._is_known():
                now = self._clock.now()
                me = WorkerRecord(self.worker, get_machine_id(), os.getpid(), self.timings.ttl)
                await self._store.beat(me)
                self.is_introduced = True
                self._beaten = now

    def _is_known(self) -> bool:
        return self.is_introduced and self._clock.now() < self._beaten + self.timings.every

    def withdraw(self) -> bool:
        """Stop renewing this process's row. Returns whether it was written."""
        was = self.is_introduced
        self.is_introduced = False
        return was

    async def release(self) -> None:
        """Delete this process's row."""
        await self._store.release(self.worker)

    async def workers(self) -> list[WorkerRecord]:
        """All worker rows, with the time since each was renewed."""
        return self.pulse.heard(await self._store.workers(), self.timings)

    async def census(self) -> WorkerLiveness:
        """The living and dead workers."""
        return classify_workers(await self.workers(), self.worker)
