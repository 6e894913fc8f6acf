"""The worker processes of one event loop: starts, chooses, watches and kills them.

Rules
  1. A new execution goes to the idle worker that holds the fewest executions. If no worker is
     idle, another one is started, up to `most`.
  2. A caller whose worker is busy with one advance for longer than `patience` gets `WorkerBusy`,
     and starts in another worker. A queue that moves does not count.
  3. A worker that exceeds the CPU limit of an advance is killed, and the session fails. A worker
     that uses no CPU time for five times the limit is killed, too, and its work runs again in
     another worker: a program cannot wait, so something stopped the worker. Time in which this
     process itself was stopped does not count.
  4. The pool keeps two workers, and one of them idle. A worker that computes for long gets a lower
     priority and does not count towards `most`; with such workers there may be up to
     `MAX_CROWD_FACTOR` times `most`. So hostile code delays only itself.
  5. An idle worker ends after a while. Its executions are rebuilt when they are needed.
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

_LOOK: Final = 0.01  # seconds between two checks of busy workers
_AWAY: Final = 1.0  # a longer time between two checks means that this process was stopped
_SPARE: Final = 0.05  # seconds after which another worker is started, to have an idle one
#: The limit of all workers, also of those that compute for long, as a multiple of `most`.
MAX_CROWD_FACTOR: Final = 4
_CHUNK: Final = 2**15  # each larger buffer would be a system call for memory
_MOMENT: Final = 0.001  # seconds for which the event loop may be blocked
_LONG: Final = 0.25  # seconds after which an advance counts as long


class LuaWorker:
    """One worker process, as its pool uses it."""

    def __init__(self, pool: LuaWorkerPool) -> None:
        self.pool = pool
        self.process = LuaWorkerProcess(pool.limits)
        self.dead = False
        self.ready = False
        self.walls: list[str] = []
        self.held: set[int] = set()
        self.since = self.idle_since = time.monotonic()
        self.wall = pool.limits.wall  # the limit of this advance
        self.busy = False
        self._loop = pool.loop
        self._awaited = 0  # orders without an answer
        self._replies: list[ProgramReply] = []
        self._problem: Exception | None = None
        self._answer: asyncio.Future[list[ProgramReply]] | None = None
        self._queue: deque[asyncio.Future[None]] = deque()
        self._spin = SpinWait()
        self._is_prompt = False  # whether the last answer arrived at once
        self._use: CpuUse | None = None  # from the first check of this advance
        self._booting = 0.0  # seconds that it has been starting
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
        """Wait for the worker and occupy it. Raises `WorkerBusy` if another session occupies it for
        too long, `WorkerGone` if it ends meanwhile.
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
                self.finish()  # it was granted in the moment of the cancellation
            raise

    def occupy(self) -> None:
        self.busy = True
        self.since = time.monotonic()
        self._use = None
        self.pool.watch()

    def finish(self) -> None:
        """Release the worker, and grant it to the next in its queue."""
        self.busy = False
        self.idle_since = time.monotonic()
        while self._queue:
            following = self._queue.popleft()
            if not following.done():
                self.occupy()
                following.set_result(None)
                return
        self.pool.freed(self)

    async def work(
        self, orders: list[WorkerOrder], wall: float | None = None
    ) -> list[ProgramReply]:
        """Run orders that belong together. The caller must occupy the worker; the last reply
        releases it. `wall` is the limit of each advance.
        """
        if self.dead:
            raise WorkerGone
        self.wall = self.pool.limits.wall if wall is None else wall
        self._awaited = len(orders)
        self._replies = []
        self._problem = None
        for order in orders:
            self._send(encode_frame(order))
        if self._is_prompt and len(orders) == 1 and self._wait_briefly():
            if self._problem is not None:
                raise self._problem
            return self._replies
        self._answer = self._loop.create_future()
        return await self._answer

    def _wait_briefly(self) -> bool:
        """Wait for a moment in this call, which is faster than a turn of the event loop."""
        until = self.since + 2 * _MOMENT
        spin = self._spin.begin()
        while self._awaited and not self.dead and time.monotonic() < spin:
            self._readable()
        if spin:
            self._spin.ended(in_vain=self._awaited > 0)
        while (
            self._awaited
            and not self.dead
            and time.monotonic() < until
            and self._came.poll(_MOMENT * 1000)
        ):
            self._readable()
        return not self._awaited

    def drop(self, number: int) -> None:
        """Drop an execution."""
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
                return  # it has ended; `_readable` notices that
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
        """Handle the complete frames of the inbox."""
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
        # otherwise it ended before the last order
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
        """Whether its advance takes long (rule 4)."""
        return self.busy and self.ready and now - self.since > _LONG

    def look(self, now: float, passed: float) -> None:
        """Refuse waiting callers if the advance takes long; kill the worker if it takes too long.

        `passed` is the time since the last check of all workers.
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
            self._refuse_waiters(WorkerBusy())
        if self._use is None:
            self._use = CpuUse(self.process.pid)
            return
        self._use.look(passed)
        if self._use.spent >= self.wall:
            self.end(WorkerOvertime(self._replies))
        elif self._use.still > STALL_FACTOR * self.pool.limits.wall:
            self.end(WorkerDied())

    def end(self, reason: Exception) -> None:
        """Kill it, and fail all waiters."""
        if self.dead:
            return
        self.dead = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self.process.kill()
        self.pool.left(self)
        if self._loop.is_closed():
            return  # no waiter can be left
        self._problem = reason
        self._awaited = 0
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(reason)
        self._refuse_waiters(WorkerGone())

    def _refuse_waiters(self, reason: Exception) -> None:
        for waiting in self._queue:
            if not waiting.done():
                waiting.set_exception(reason)
        self._queue.clear()


class LuaWorkerPool:
    """All workers of one event loop. `close` ends them."""

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
        """An occupied worker for a new execution; `alone` asks for one that holds no other.

        Raises `WorkerGone` if the worker ends meanwhile, or the pool is closed.
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
        """Whether another worker may be started."""
        if self.closed or len(self.workers) < self._most:
            return not self.closed
        now = time.monotonic()
        places = sum(not worker.is_long(now) for worker in self.workers)
        return places < self._most and len(self.workers) < MAX_CROWD_FACTOR * self._most

    def _spare(self) -> None:
        """Start a worker if there are fewer than two, or none is idle; a waiter gets it."""
        self._sparing = None
        if (
            len(self.workers) < 2 or all(worker.busy for worker in self.workers)
        ) and self._has_room():
            try:
                self.freed(self._start())
            except WorkerFailed as error:  # a caller that needs a worker gets its own error
                log.warning("%s", error)

    def _start(self) -> LuaWorker:
        worker = LuaWorker(self)
        self.workers.append(worker)
        if self._resting is None:
            self._resting = self.loop.call_later(self._idle, self._rest)
        return worker

    def freed(self, worker: LuaWorker) -> None:
        """Grant an idle worker to the first waiter."""
        while self._queue and not worker.dead:
            waiting = self._queue.popleft()
            if not waiting.done():
                worker.occupy()
                waiting.set_result(worker)
                return

    def left(self, worker: LuaWorker) -> None:
        """Remove a killed worker; if callers wait, another one is started."""
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
            if not self.workers:  # otherwise the next free worker serves them
                self._refuse(error)

    def _refuse(self, reason: Exception) -> None:
        """Fail all waiters: no worker will become free."""
        for waiting in self._queue:
            if not waiting.done():
                waiting.set_exception(reason)
        self._queue.clear()

    # ---- the clock

    def watch(self) -> None:
        """Check the workers while one is busy, or a killed one has not ended."""
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
        """End workers that were idle for a while; the last one stays if it holds executions."""
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
