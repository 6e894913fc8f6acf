"""One worker process, from our side: its socket, whose turn it is, how long it takes, and how it
ends.

No threads: the loop reads and writes. Whoever wants something done takes the turn, and has it until
the last reply. A caller who leaves before that leaves the worker busy: what comes then is for
nobody.

A worker whose last answer came at once is waited for in place, for a moment: most steps take less
than the loop's way to sleep and back, and a program that runs here would hold the loop as long.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from everhold.core.journal import ProgramReply
from everhold.core.query import LUA_KINDS
from everhold.errors import EverholdError, WorkerFailed, leaves
from everhold.programs.lua.process import LuaWorkerProcess
from everhold.programs.lua.protocol import (
    FRAME_HEADER,
    OrderResult,
    RemoteError,
    SpinWait,
    WorkerOrder,
    decode_order_result,
    encode_frame,
)

if TYPE_CHECKING:
    from everhold.programs.lua.pool import LuaWorkerPool

_CHUNK: Final = 2**15  # larger ones cost a call for memory each
_MOMENT: Final = 0.001  # seconds for which the loop may stand still
_LONG: Final = 0.25  # seconds of one advance after which a worker is no longer treated like others
BOOT_TIMEOUT: Final = 60.0  # seconds a worker may take to start
#: How many times the limit of an advance a worker may use no CPU time at all. A program cannot
#: wait, so it is stopped.
STALL_FACTOR: Final = 5


class WorkerBusy(Exception):
    """The worker is occupied with another session."""


class WorkerGone(Exception):
    """The worker, or what it held, is gone, and that is not the fault of whoever asks."""


class WorkerDied(Exception):
    """The worker ended by itself while it did this, or was killed because it stood still."""


class WorkerOvertime(Exception):
    """The worker was killed because this advance used too much CPU time. `told` has the replies
    before it.
    """

    def __init__(self, told: list[ProgramReply]) -> None:
        self.told = told


class ProtocolBreach(Exception):
    """The worker sent what no worker sends, and was ended; `size` is that of a frame too large."""

    def __init__(self, size: int) -> None:
        self.size = size


class CpuUse:
    """The CPU time that a worker uses for one advance, and for how long it has used none.

    Only time in which we looked counts: if this process stood still, others have, too.
    """

    def __init__(self, pid: int) -> None:
        self.spent = self.still = 0.0
        self._pid, self._last = pid, read_cpu_time(pid)

    def look(self, passed: float) -> None:
        """Look again, so many seconds after the last look."""
        now = read_cpu_time(self._pid)
        if now is None or self._last is None:
            self.spent += passed
        elif now > self._last:
            self.spent = self.spent + now - self._last
            self.still = 0.0
            self._last = now
        else:
            self.still += passed


class LuaWorker:
    """One process, from our side."""

    def __init__(self, pool: LuaWorkerPool) -> None:
        self.pool = pool
        self.process = LuaWorkerProcess(pool.limits)
        self.dead = False
        self.ready = False
        self.walls: list[str] = []
        self.held: set[int] = set()
        self.since = self.idle_since = time.monotonic()
        self.busy = False
        self._loop = pool.loop
        self._awaited = 0  # orders that are not answered yet
        self._replies: list[ProgramReply] = []
        self._problem: Exception | None = None
        self._answer: asyncio.Future[list[ProgramReply]] | None = None
        self._queue: deque[asyncio.Future[None]] = deque()
        self._blink = SpinWait()
        self._is_prompt = False  # whether the last answer came at once
        self._use: CpuUse | None = None  # from our first look at this advance
        self._booting = 0.0  # seconds in which we saw it start
        self._slowed = False
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._socket = self.process.socket
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._readable)
        self._came = select.poll()
        self._came.register(self._socket, select.POLLIN)

    # ---- work

    async def turn(self) -> None:
        """Wait until it is ours; raises `WorkerBusy` if somebody else has it for too long,
        `WorkerGone` if it ends meanwhile.
        """
        if self.dead:
            raise WorkerGone
        if not self.busy:
            self.occupy()
            return
        mine: asyncio.Future[None] = self._loop.create_future()
        self._queue.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled() and mine.exception() is None:
                self.finish()  # it was given to us in the moment we left
            raise

    def occupy(self) -> None:
        self.busy = True
        self.since = time.monotonic()
        self._use = None
        self.pool.watch()

    def finish(self) -> None:
        """What was under way is over: the next in the queue has its turn."""
        self.busy = False
        self.idle_since = time.monotonic()
        while self._queue:
            following = self._queue.popleft()
            if not following.done():
                self.occupy()
                following.set_result(None)
                return
        self.pool.freed(self)

    async def work(self, orders: list[WorkerOrder]) -> list[ProgramReply]:
        """Have orders done that belong together. Whoever calls has the turn; it ends with the last
        reply.
        """
        if self.dead:
            raise WorkerGone
        self._awaited = len(orders)
        self._replies = []
        self._problem = None
        for order in orders:
            self._send(encode_frame(order))
        if self._is_prompt and len(orders) == 1 and self._came_at_once():
            if self._problem is not None:
                raise self._problem
            return self._replies
        self._answer = self._loop.create_future()
        return await self._answer

    def _came_at_once(self) -> bool:
        """Wait for a moment, in place."""
        until = self.since + 2 * _MOMENT
        blink = self._blink.begin()
        while self._awaited and not self.dead and time.monotonic() < blink:
            self._readable()
        if blink:
            self._blink.ended(in_vain=self._awaited > 0)
        while (
            self._awaited
            and not self.dead
            and time.monotonic() < until
            and self._came.poll(_MOMENT * 1000)
        ):
            self._readable()
        return not self._awaited

    def drop(self, number: int) -> None:
        """Have an execution forgotten."""
        if number in self.held:
            self.held.discard(number)
            if not self.dead:
                self._send(encode_frame(WorkerOrder(number)))

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
        self._inbox += data
        self._parse()

    def _parse(self) -> None:
        """Take the frames that are whole."""
        inbox = self._inbox
        while len(inbox) >= FRAME_HEADER.size and not self.dead:
            (size,) = FRAME_HEADER.unpack_from(inbox)
            if size > self.pool.limits.largest + 2**20:
                self.end(ProtocolBreach(size))
                return
            if len(inbox) < FRAME_HEADER.size + size:
                return
            body = bytes(inbox[FRAME_HEADER.size : FRAME_HEADER.size + size])
            del inbox[: FRAME_HEADER.size + size]
            self._take(body)

    def _take(self, body: bytes) -> None:
        try:
            told = decode_order_result(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self.end(ProtocolBreach(0))
            return
        if told.walls is not None:
            self.ready, self.walls, self.since = True, told.walls, time.monotonic()
        else:
            self._answered(told)

    def _answered(self, told: OrderResult) -> None:
        self._replies += told.replies
        if any(query.kind not in LUA_KINDS for reply in told.replies for query in reply.asked):
            self.end(ProtocolBreach(0))
            return
        if told.trouble is not None:
            self._problem = self._problem or decode_remote_error(told.trouble)
        # else it ended before the last order
        elif told.gone and not (self._replies and self._replies[-1].outcome):
            self._problem = self._problem or WorkerGone()
        now = time.monotonic()
        self._awaited -= not told.more
        if self._awaited:
            self.since = now
            self._use = None
            return
        self._is_prompt = now - self.since < _MOMENT
        answer = self._answer
        self._answer = None
        if answer is not None and not answer.done():
            if self._problem is not None:
                answer.set_exception(self._problem)
            else:
                answer.set_result(self._replies)
        self.finish()

    # ---- its end

    def is_long(self, now: float) -> bool:
        """Whether what it does takes so long that it is no longer treated like others."""
        return self.busy and self.ready and now - self.since > _LONG

    def look(self, now: float, passed: float) -> None:
        """Send away those who wait if what it does takes long, and kill it if that takes too long.

        `passed` is the time since the last look at all workers.
        """
        if not self.ready:
            self._booting += passed
            if self._booting > BOOT_TIMEOUT:
                self.end(WorkerFailed(f"it was not ready after {BOOT_TIMEOUT:g} s"))
            return
        if self.is_long(now) and not self._slowed:
            self._slowed = True
            _step_back(self.process.pid)
        if now - self.since > self.pool.patience and self._queue:
            self._send_away(WorkerBusy())
        if self._use is None:
            self._use = CpuUse(self.process.pid)
            return
        self._use.look(passed)
        if self._use.spent >= self.pool.limits.wall:
            self.end(WorkerOvertime(self._replies))
        elif self._use.still > STALL_FACTOR * self.pool.limits.wall:
            self.end(WorkerDied())

    def _ended(self) -> None:
        if self.ready:
            self.end(WorkerDied())
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
        if self._loop.is_closed():
            return  # nobody is left who waits
        self._problem = reason
        self._awaited = 0
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(reason)
        self._send_away(WorkerGone())

    def _send_away(self, reason: Exception) -> None:
        for waiting in self._queue:
            if not waiting.done():
                waiting.set_exception(reason)
        self._queue.clear()


def _step_back(pid: int) -> None:
    """Let others go first on a processor."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, 10)
    except OSError:
        pass  # it has ended


def read_cpu_time(pid: int) -> float | None:
    """Seconds of CPU time that a process has used; None where the system does not tell."""
    try:
        return _clock((~pid << 3) | 2)  # how Linux numbers the CPU clock of another process
    except OSError:
        return None


_clock: Final[Callable[[int], float | None]] = getattr(time, "clock_gettime", lambda number: None)
_LEAVES: Final = {leaf.code: leaf for leaf in leaves()}


def decode_remote_error(trouble: RemoteError) -> EverholdError:
    """An error that was raised in a worker, as it would have been raised here."""
    leaf = _LEAVES.get(trouble.code)
    if leaf is None:
        return WorkerFailed(trouble.message)
    error = leaf.__new__(leaf)
    Exception.__init__(error, trouble.message)
    error.hint = trouble.hint
    return error
