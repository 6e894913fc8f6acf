"""Which processes live, as far as this machine and the store's clock can tell.

A process id means something only where it was given: on one machine, since it was started, in one
container. Two containers may share a name, and two machines too; neither can tell whether a process
of the other lives.

This process among others: its row among the workers, which says that it lives, and theirs.
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
from everhold.ports.program import Clock
from everhold.ports.store import Store, WorkerRecord

log = logging.getLogger("everhold")


@cache
def get_machine_id() -> str:
    """The name of this machine, a slash, and what tells apart those of the same name whose process
    ids are others.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot[:8]}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not on Linux
        return f"{socket.gethostname()}/"


def get_machine_name(place: str) -> str:
    """The name of the machine, for people."""
    return place.partition("/")[0]


def has_process_ended(pid: int) -> bool:
    """Whether the process of that id has ended; its id has to be one of this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _undead(pid)


def _undead(pid: int) -> bool:
    """Whether a process has ended and only nobody has taken note of it: common where a container
    has no init.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError:
        return False


# ---- all of them


class WorkerLiveness(msgspec.Struct, frozen=True):
    """Who of the workers lives."""

    living: frozenset[str]
    dead: tuple[WorkerRecord, ...]
    near: frozenset[int]  # process ids of the living on this machine
    next: float | None  # seconds until one of the living is taken for dead, unless it is heard of


def classify_workers(rows: Sequence[WorkerRecord], me: str) -> WorkerLiveness:
    """Tell the living from the dead; oneself lives."""
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
    """The name under which a worker holds leases, for people too; its id is new for each of its
    lives.
    """
    return LeaseOwner(f"{get_machine_name(worker.host)}:{worker.pid}", worker.id)


class SuspendDetector:
    """Whether this process itself was away: suspended with its machine, stopped, or too busy; or
    its clock was set.

    Then others may have been away with it, and have had no time to say that they live. Whom only
    the clock takes for dead is given half of his time, in which he renews once, before anybody here
    acts on it.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._felt = inf  # when it was felt last
        self._back = -inf  # when it came back, by the steady clock

    def begin(self) -> None:
        """From now on it is felt."""
        self._felt = inf

    def feel(self, timings: LeaseTimings) -> None:
        """To be called as often as leases are renewed, at least: twice as long without it, and this
        was away.
        """
        before = self._felt
        self._felt = self._wall()
        away = self._felt - before
        if away > 2 * timings.every:
            self._back = self._steady()
            log.warning(
                "this process, or its clock, was away for %.0f s: others may have been, too", away
            )

    def heard(self, rows: Iterable[WorkerRecord], timings: LeaseTimings) -> list[WorkerRecord]:
        """Workers that were read just now, none of them older than may be held against him."""
        # after the reading: whoever is stopped between two feels has not judged yet
        self.feel(timings)
        since = self._steady() - self._back
        return [msgspec.structs.replace(row, age=min(row.age, row.ttl / 2 + since)) for row in rows]


class ProcessWatcher:
    """Hears at once when a process of this machine ends, where the system can tell (Linux); else it
    has to be asked.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # process id -> what becomes readable when it ends
        self._watched: dict[int, int | None] = {}

    def watch(self, pids: Iterable[int]) -> None:
        """Watch these from now on, and no others."""
        wanted = set(pids) - {os.getpid()}
        for pid in set(self._watched) - wanted:
            self._forget(pid)
        for pid in wanted - set(self._watched):
            self._watched[pid] = self._open(pid)

    @property
    def blind(self) -> bool:
        """Whether some of them have to be looked for."""
        return None in self._watched.values()

    def ended(self) -> bool:
        """Whether one of them has ended."""
        return any(has_process_ended(pid) for pid in self._watched)

    def close(self) -> None:
        self.watch(())

    def _open(self, pid: int) -> int | None:
        opened = getattr(os, "pidfd_open", None)
        try:
            fd: int | None = None if opened is None else opened(pid)
        except OSError:  # it has ended just now, or the system forbids it
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
    def __init__(self, store: Store, clock: Clock, worker: str, timings: LeaseTimings) -> None:
        self._store = store
        self._clock = clock
        self.worker = worker
        self.timings = timings
        self.is_introduced = False
        self._beaten = 0.0  # when this process last said that it lives
        self._introducing = asyncio.Lock()
        # a store with a clock of its own is one of a test: such a clock jumps on purpose
        self.pulse = SuspendDetector() if store.time is None else SuspendDetector(lambda: 0.0)

    def live_by(self, timings: LeaseTimings) -> None:
        """Use these timings from now on: a worker may have its own."""
        self.timings = timings

    async def introduce(self) -> None:
        """Be known to live before a mark is made in this process's name, and while it works."""
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
        """Say nothing more of this process; returns whether it was introduced."""
        was = self.is_introduced
        self.is_introduced = False
        return was

    async def release(self) -> None:
        """Take this process off the list."""
        await self._store.release(self.worker)

    async def workers(self) -> list[WorkerRecord]:
        """All processes that are known, with the time since each was heard of."""
        return self.pulse.heard(await self._store.workers(), self.timings)

    async def census(self) -> WorkerLiveness:
        """Which processes live, as far as this machine and the store's clock can tell."""
        return classify_workers(await self.workers(), self.worker)
