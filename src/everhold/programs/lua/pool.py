"""The worker processes of one event loop: chosen, watched, killed and ended.

Rules
  1. A new life goes to the idle worker that holds least; if none is idle another is started, up to
     `most`.
  2. Whoever finds its worker busy with one advance for longer than `patience` gets `WorkerBusy`,
     and begins elsewhere. A queue that moves is no reason.
  3. An advance that uses more CPU time than the limit allows is killed with its worker, and its
     session has failed. A worker that uses none for five times the limit is killed, too, and its
     work is done again elsewhere: a program cannot wait, so something stopped the worker. Time in
     which this process stood still does not count.
  4. There are, or soon will be, two workers, and an idle one; one that computes for long gets less
     of the processor, and takes no place from others: beside it another may be started, up to
     `MAX_CROWD_FACTOR` times `most`. So hostile code holds up nobody but itself.
  5. A worker without work ends after a while; what it held is made again where it is needed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import time
from collections import deque
from itertools import count
from typing import Final

import msgspec

from everhold.core.journal import ProgramReply
from everhold.core.query import LUA_KINDS
from everhold.errors import EverholdError, WorkerFailed
from everhold.programs.lua.protocol import (
    FRAME_HEADER,
    LuaLimits,
    OrderResult,
    SpinWait,
    WorkerOrder,
    decode_order_result,
    encode_frame,
)
from everhold.programs.lua.worker_process import (
    BOOT_TIMEOUT,
    STALL_FACTOR,
    CpuUse,
    LuaWorkerProcess,
    ProtocolBreach,
    WorkerBusy,
    WorkerDied,
    WorkerGone,
    WorkerOvertime,
    decode_remote_error,
)

log = logging.getLogger("everhold")

_LOOK: Final = 0.01  # seconds between two looks at busy workers
_AWAY: Final = 1.0  # seconds between two looks after which this process stood still
_SPARE: Final = 0.05  # seconds after which another worker is started, so that one is idle
#: How many times `most` there may be, however many of them compute for long: each takes memory.
MAX_CROWD_FACTOR: Final = 4
_CHUNK: Final = 2**15  # larger ones cost a call for memory each
_MOMENT: Final = 0.001  # seconds for which the loop may stand still
_LONG: Final = 0.25  # seconds of one advance after which a worker is no longer treated like others


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
            if self.ready:
                self.end(WorkerDied())
            else:
                said = self.process.complaint()
                self.end(
                    WorkerFailed(said.splitlines()[-1] if said else "it ended before it was ready")
                )
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
            # other processes get the CPU first
            try:
                os.setpriority(os.PRIO_PROCESS, self.process.pid, 10)
            except OSError:
                pass  # it has ended
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


class LuaWorkerPool:
    """All workers of one loop. `close` ends them."""

    def __init__(
        self,
        limits: LuaLimits | None = None,
        *,
        most: int = 8,
        patience: float = 0.02,
        idle: float = 60.0,
    ):
        self.loop = asyncio.get_running_loop()
        self.limits = limits or LuaLimits()
        self.patience = patience
        self.workers: list[LuaWorker] = []
        self.numbers = count(1)
        self._most = most
        self._idle = idle
        self._watching: asyncio.TimerHandle | None = None
        self._looked = 0.0
        self._resting: asyncio.TimerHandle | None = None
        self._sparing: asyncio.TimerHandle | None = None
        self._queue: deque[asyncio.Future[LuaWorker]] = deque()
        self._dying: list[LuaWorkerProcess] = []
        self.closed = False

    async def place(self, *, alone: bool = False) -> LuaWorker:
        """A worker for a new life, whose turn it is now; `alone` wants one that holds nothing else.

        Raises `WorkerGone` if there is none any more: one that ends now, or all of them.
        """
        if self.closed:
            raise WorkerGone
        idle = [
            worker for worker in self.workers if not worker.busy and not (alone and worker.held)
        ]
        if idle:
            chosen = min(idle, key=lambda worker: len(worker.held))
        elif self._has_room():
            chosen = self._start()
        elif alone:
            return await self.place()
        else:
            mine: asyncio.Future[LuaWorker] = self.loop.create_future()
            self._queue.append(mine)
            try:
                return await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled() and mine.exception() is None:
                    mine.result().finish()
                raise
        await chosen.turn()
        if self._sparing is None and len(self.workers) < 2:
            self._sparing = self.loop.call_later(_SPARE, self._spare)
        return chosen

    def _has_room(self) -> bool:
        """Whether another may be started."""
        if self.closed or len(self.workers) < self._most:
            return not self.closed
        now = time.monotonic()
        places = sum(not worker.is_long(now) for worker in self.workers)
        return places < self._most and len(self.workers) < MAX_CROWD_FACTOR * self._most

    def _spare(self) -> None:
        """See to it that one is idle, and that there are two; whoever waits has it."""
        self._sparing = None
        if (
            len(self.workers) < 2 or all(worker.busy for worker in self.workers)
        ) and self._has_room():
            try:
                self.freed(self._start())
            except WorkerFailed as error:  # whoever needs one is told
                log.warning("%s", error)

    def _start(self) -> LuaWorker:
        worker = LuaWorker(self)
        self.workers.append(worker)
        if self._resting is None:
            self._resting = self.loop.call_later(self._idle, self._rest)
        return worker

    def freed(self, worker: LuaWorker) -> None:
        """A worker has nothing to do: whoever waits for any has it."""
        while self._queue and not worker.dead:
            waiting = self._queue.popleft()
            if not waiting.done():
                worker.occupy()
                waiting.set_result(worker)
                return

    def left(self, worker: LuaWorker) -> None:
        """A worker was killed; if somebody waits, another is started."""
        self.workers.remove(worker)
        self._dying.append(worker.process)
        if self.closed:
            return
        self.watch()
        if self._queue:
            self.loop.call_soon(self._replace)

    def _replace(self) -> None:
        if not self._queue or not self._has_room():
            return
        try:
            self.freed(self._start())
        except EverholdError as error:
            if not self.workers:  # else the next that is free serves them
                self._refuse(error)

    def _refuse(self, reason: Exception) -> None:
        """Fail all waiters: no worker will become free."""
        for waiting in self._queue:
            if not waiting.done():
                waiting.set_exception(reason)
        self._queue.clear()

    # ---- the clock

    def watch(self) -> None:
        """Look at the workers for as long as one is busy, or one that was killed has not ended
        yet.
        """
        if self._watching is None:
            self._watching = self.loop.call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._watching = None
        now = time.monotonic()
        passed = now - self._looked
        self._looked = now
        busy = [worker for worker in self.workers if worker.busy]
        for worker in busy:
            worker.look(now, passed if passed < _AWAY else _LOOK)
        self._dying = [process for process in self._dying if not process.ended()]
        if not busy and not self._dying:
            return
        if len(busy) == len(self.workers) and any(
            now - worker.since > _LOOK for worker in busy if worker.ready
        ):
            self._spare()
        self.watch()

    def _rest(self) -> None:
        """Let go of workers that had nothing to do for a while; one that holds sessions stays if it
        is the last.
        """
        self._resting = None
        old = time.monotonic() - self._idle
        for worker in [each for each in self.workers if not each.busy and each.idle_since <= old]:
            if not worker.held or len(self.workers) > 1:
                worker.end(WorkerGone())
        if self.workers:
            self._resting = self.loop.call_later(self._idle, self._rest)

    async def close(self) -> None:
        """Kill all workers."""
        self.abandon()

    def abandon(self) -> None:
        """`close`, where the loop runs no more."""
        self.closed = True
        for timer in (self._resting, self._sparing):
            if timer is not None:
                timer.cancel()
        for worker in list(self.workers):
            worker.end(WorkerGone())
        if self._watching is not None:
            self._watching.cancel()
        for process in self._dying:
            process.wait()
        self._dying.clear()
        if not self.loop.is_closed():
            self._refuse(WorkerGone())
