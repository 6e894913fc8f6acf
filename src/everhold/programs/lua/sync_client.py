"""A worker that is spoken to with blocking calls: for those that replay sessions outside of a loop,
one at a time.
"""

from __future__ import annotations

import weakref
from typing import Final

import msgspec

from everhold.core.journal import ProgramReply
from everhold.errors import WorkerFailed
from everhold.programs.lua.process import LuaWorkerProcess
from everhold.programs.lua.protocol import (
    FRAME_HEADER,
    LuaLimits,
    OrderResult,
    WorkerOrder,
    decode_order_result,
    encode_frame,
)
from everhold.programs.lua.worker_client import (
    BOOT_TIMEOUT,
    STALL_FACTOR,
    CpuUse,
    ProtocolBreach,
    WorkerDied,
    WorkerGone,
    WorkerOvertime,
    decode_remote_error,
)

_LOOK: Final = 0.1  # seconds between two looks at a worker that does not answer


class SyncLuaWorker:
    """One process. It ends with `end`, or when nobody has it any more."""

    def __init__(self, limits: LuaLimits) -> None:
        self._limits = limits
        self._process = LuaWorkerProcess(limits)
        self._end = weakref.finalize(self, _ended, self._process)
        self._socket = self._process.socket
        try:
            self._told(BOOT_TIMEOUT)
        except (WorkerDied, WorkerOvertime):
            said = self._process.complaint()
            self.end()
            raise WorkerFailed(said or "it ended before it was ready") from None
        except ProtocolBreach:
            self.end()
            raise WorkerFailed("it began with something else than a greeting") from None

    def work(self, order: WorkerOrder) -> ProgramReply:
        """Have one step done; raises `WorkerGone` if the execution is not held there any more.

        After `WorkerDied`, `WorkerOvertime` or `ProtocolBreach` it is of no use.
        """
        self._socket.settimeout(BOOT_TIMEOUT)
        try:
            self._socket.sendall(encode_frame(order))
        except OSError:
            raise WorkerDied from None
        told = self._told(self._limits.wall)
        if told.trouble is not None:
            raise decode_remote_error(told.trouble)
        if told.gone:
            raise WorkerGone
        return told.replies[0]

    def drop(self, number: int) -> None:
        """Have an execution forgotten."""
        try:
            self._socket.sendall(encode_frame(WorkerOrder(number)))
        except OSError:
            pass  # it has ended, and everything with it

    def end(self) -> None:
        self._end()

    def _told(self, limit: float) -> OrderResult:
        self._socket.settimeout(_LOOK)
        (size,) = FRAME_HEADER.unpack(self._read(FRAME_HEADER.size, limit))
        if size > self._limits.largest + 2**20:
            raise ProtocolBreach(size)
        try:
            return decode_order_result(self._read(size, limit))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise ProtocolBreach(0) from None

    def _read(self, size: int, limit: float) -> bytes:
        """So many bytes, unless the worker uses more than `limit` seconds of CPU time for them, or
        none at all.
        """
        found = bytearray()
        use = CpuUse(self._process.pid)
        while len(found) < size:
            try:
                data = self._socket.recv(size - len(found))
            except TimeoutError:
                use.look(_LOOK)
                if use.spent >= limit:
                    raise WorkerOvertime([]) from None
                if use.still > STALL_FACTOR * limit:
                    raise WorkerDied from None
                continue
            except OSError:
                data = b""
            if not data:
                raise WorkerDied
            found += data
        return bytes(found)


def _ended(process: LuaWorkerProcess) -> None:
    process.kill()
    process.wait()
