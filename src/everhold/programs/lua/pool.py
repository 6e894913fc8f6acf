"""The worker processes of one event loop: found, filled, watched, killed, let go.

No threads: sockets are read and written by the loop. One advance at a time a worker.

Rules
  1. A new life goes to the idle worker that holds least; if none is idle another is started, up to `most`.
  2. Whoever finds its worker busy for longer than `patience` gets `Busy`, and begins elsewhere.
  3. An advance that takes longer than the limit allows is killed with its worker. Time counts only as far as the
     worker had a processor, so that a crowded machine makes nobody guilty; five times the limit ends it anyway.
  4. While a worker is busy there is, or soon will be, an idle one: hostile code holds up nobody but itself.
  5. A worker without work ends after a while; what it held is made again where it is needed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

import msgspec

from everhold.core.errors import EverholdError, WorkerFailed, leaves
from everhold.core.journal import Reply
from everhold.programs.lua.frame import HEADER, Limits, Order, Told, Trouble, framed, told_of
from everhold.programs.lua.process import Process

_CHUNK: Final = 2**15  # larger ones cost a call for memory each
_LOOK: Final = 0.01  # seconds between two looks at busy workers
BOOT: Final = 60.0  # seconds a worker may take to start


class Busy(Exception):
    """The worker is occupied with another session."""


class Gone(Exception):
    """The worker, or what it held, is gone, and that is not the fault of whoever asks."""


class Died(Exception):
    """The worker ended by itself while it did this."""


class Overtime(Exception):
    """The worker was killed because this advance took too long. `told` has the replies before it."""

    def __init__(self, told: list[Reply]) -> None:
        self.told = told


class Breach(Exception):
    """The worker sent what no worker sends, and was ended; `size` is that of a frame too large."""

    def __init__(self, size: int) -> None:
        self.size = size


class Worker:
    """One process, from our side."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.process = Process(pool.limits)
        self.dead = False
        self.ready = False
        self.walls: list[str] = []
        self.held: set[int] = set()
        self.since = self.idle_since = time.monotonic()
        self.busy = False
        self._loop = pool.loop
        self._awaited = 0  # orders that are not answered yet
        self._replies: list[Reply] = []
        self._problem: Exception | None = None
        self._answer: asyncio.Future[list[Reply]] | None = None
        self._queue: deque[asyncio.Future[None]] = deque()
        self._spent: float | None = None  # of its processor time, when we first looked
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._socket = self.process.socket
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._readable)

    # ---- work

    async def turn(self, patience: float | None) -> None:
        """Wait until it is ours; raises `Busy` after `patience` seconds, `Gone` if it ends meanwhile."""
        if self.dead:
            raise Gone
        if not self.busy:
            self._begin()
            return
        mine: asyncio.Future[None] = self._loop.create_future()
        self._queue.append(mine)
        timer = None if patience is None else self._loop.call_later(patience, _give_up, mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled() and mine.exception() is None:
                self._finish()  # it was given to us in the moment we left
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _begin(self) -> None:
        self.busy = True
        self.since, self._spent = time.monotonic(), None
        self.pool.watch()

    def _finish(self) -> None:
        """What was under way is over: the next in the queue has its turn."""
        self.busy = False
        self.idle_since = time.monotonic()
        while self._queue:
            following = self._queue.popleft()
            if not following.done():
                self._begin()
                following.set_result(None)
                return
        self.pool.freed(self)

    async def work(self, orders: list[Order]) -> list[Reply]:
        """Have orders done that belong together. Whoever calls has the turn; it ends with the last reply."""
        if self.dead:
            raise Gone
        self._awaited, self._replies, self._problem = len(orders), [], None
        self._answer = self._loop.create_future()
        for order in orders:
            self._send(framed(order))
        return await self._answer

    def drop(self, number: int) -> None:
        """Have an execution forgotten."""
        if number in self.held:
            self.held.discard(number)
            if not self.dead:
                self._send(framed(Order(number)))

    # ---- the socket

    def _send(self, data: bytes) -> None:
        if not self._outbox:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # it has ended; the reader finds out
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._socket, self._writable)
        self._outbox += data

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._outbox)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._outbox)
        del self._outbox[:sent]
        if not self._outbox:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended()
            return
        inbox = self._inbox
        inbox += data
        while len(inbox) >= HEADER.size and not self.dead:
            (size,) = HEADER.unpack_from(inbox)
            if size > self.pool.limits.largest + 2**20:
                self.end(Breach(size))
                return
            if len(inbox) < HEADER.size + size:
                return
            body = bytes(inbox[HEADER.size : HEADER.size + size])
            del inbox[: HEADER.size + size]
            self._take(body)

    def _take(self, body: bytes) -> None:
        try:
            told = told_of(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self.end(Breach(0))
            return
        if told.walls is not None:
            self.ready, self.walls, self.since = True, told.walls, time.monotonic()
        else:
            self._answered(told)

    def _answered(self, told: Told) -> None:
        self._replies += told.replies
        if told.trouble is not None:
            self._problem = self._problem or error_of(told.trouble)
        elif told.gone and not (self._replies and self._replies[-1].outcome):  # else it ended before the last order
            self._problem = self._problem or Gone()
        self._awaited -= not told.more
        if self._awaited:
            self.since, self._spent = time.monotonic(), None
            return
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            if self._problem is not None:
                answer.set_exception(self._problem)
            else:
                answer.set_result(self._replies)
        self._finish()

    # ---- its end

    def look(self, now: float) -> None:
        """Kill it if what it does takes too long."""
        if not self.ready:
            if now - self.since > BOOT:
                self.end(WorkerFailed(f"it was not ready after {BOOT:g} s"))
            return
        if self._spent is None:
            self._spent = _processor(self.process.pid)
        limit, age = self.pool.limits.wall, now - self.since
        if age > limit and (age > 5 * limit or _processor(self.process.pid) - self._spent >= limit):
            self.end(Overtime(self._replies))

    def _ended(self) -> None:
        if self.ready:
            self.end(Died())
            return
        said = self.process.complaint()
        self.end(WorkerFailed(said.splitlines()[-1] if said else "it ended before it was ready"))

    def end(self, reason: Exception) -> None:
        """Kill it, and tell whoever waits for it."""
        if self.dead:
            return
        self.dead = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self.process.kill()
        self.pool.left(self)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(reason)
        for waiting in self._queue:
            if not waiting.done():
                waiting.set_exception(Gone())
        self._queue.clear()


class Pool:
    """All workers of one loop. `close` ends them."""

    def __init__(self, limits: Limits | None = None, *, most: int = 8, patience: float = 0.02, idle: float = 60.0):
        self.loop = asyncio.get_running_loop()
        self.limits = limits or Limits()
        self.patience = patience
        self.workers: list[Worker] = []
        self.numbers = count(1)
        self._most = most
        self._idle = idle
        self._watching: asyncio.TimerHandle | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._queue: deque[asyncio.Future[Worker]] = deque()
        self._dying: list[Process] = []

    async def place(self, *, alone: bool = False) -> Worker:
        """A worker for a new life, whose turn it is now; `alone` wants one that holds nothing else."""
        idle = [worker for worker in self.workers if not worker.busy and not (alone and worker.held)]
        if idle:
            chosen = min(idle, key=lambda worker: len(worker.held))
        elif len(self.workers) < self._most:
            chosen = self._start()
        elif alone:
            return await self.place()
        else:
            return await self._next_free()
        await chosen.turn(None)
        return chosen

    async def _next_free(self) -> Worker:
        mine: asyncio.Future[Worker] = self.loop.create_future()
        self._queue.append(mine)
        try:
            return await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                mine.result()._finish()
            raise

    def _start(self) -> Worker:
        worker = Worker(self)
        self.workers.append(worker)
        if self._resting is None:
            self._resting = self.loop.call_later(self._idle, self._rest)
        return worker

    def freed(self, worker: Worker) -> None:
        """A worker has nothing to do: whoever waits for any has it."""
        while self._queue and not worker.dead:
            waiting = self._queue.popleft()
            if not waiting.done():
                worker._begin()
                waiting.set_result(worker)
                return

    def left(self, worker: Worker) -> None:
        """A worker was killed; if somebody waits, another is started."""
        self.workers.remove(worker)
        self._dying.append(worker.process)
        self.watch()
        if self._queue:
            self.loop.call_soon(self._replace)

    def _replace(self) -> None:
        if self._queue and len(self.workers) < self._most:
            self.freed(self._start())

    # ---- the clock

    def watch(self) -> None:
        """Look at the workers for as long as one is busy, or one that was killed has not ended yet."""
        if self._watching is None:
            self._watching = self.loop.call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._watching = None
        now = time.monotonic()
        busy = [worker for worker in self.workers if worker.busy]
        for worker in busy:
            worker.look(now)
        self._dying = [process for process in self._dying if not process.ended()]
        if not busy and not self._dying:
            return
        slow = any(worker.ready and now - worker.since > _LOOK for worker in busy)
        if slow and len(busy) == len(self.workers) < self._most:
            self._start()
        self.watch()

    def _rest(self) -> None:
        """Let go of workers that had nothing to do for a while; one that holds sessions stays if it is the last."""
        self._resting = None
        old = time.monotonic() - self._idle
        for worker in [each for each in self.workers if not each.busy and each.idle_since <= old]:
            if not worker.held or len(self.workers) > 1:
                worker.end(Gone())
        if self.workers:
            self._resting = self.loop.call_later(self._idle, self._rest)

    async def close(self) -> None:
        """End all workers."""
        self.abandon()

    def abandon(self) -> None:
        """`close`, where the loop runs no more."""
        if self._resting is not None:
            self._resting.cancel()
        for worker in list(self.workers):
            worker.end(Gone())
        if self._watching is not None:
            self._watching.cancel()
        for process in self._dying:
            process.wait()
        self._dying.clear()
        for waiting in self._queue:
            waiting.cancel()


def _give_up(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_exception(Busy())


def _processor(pid: int) -> float:
    """Seconds of processor time a process has used; where the system does not tell, of the clock."""
    try:
        return _clock((~pid << 3) | 2)  # how Linux numbers the processor clock of another process
    except OSError:
        return time.monotonic()


_clock: Final[Callable[[int], float]] = getattr(time, "clock_gettime", lambda number: time.monotonic())
_LEAVES: Final = {leaf.code: leaf for leaf in leaves()}


def error_of(trouble: Trouble) -> EverholdError:
    """An error that was raised in a worker, as it would have been raised here."""
    leaf = _LEAVES.get(trouble.code)
    if leaf is None:
        return WorkerFailed(trouble.message)
    error = leaf.__new__(leaf)
    Exception.__init__(error, trouble.message)
    error.hint = trouble.hint
    return error
