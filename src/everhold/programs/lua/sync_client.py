"""A worker that is spoken to with blocking calls: for those that replay sessions outside of a loop,
one at a time.
"""

from __future__ import annotations

import weakref
from typing import Final

import msgspec

from everhold.core.journal import Reply
from everhold.errors import WorkerFailed
from everhold.programs.lua.process import Process
from everhold.programs.lua.protocol import HEADER, Limits, Order, Told, framed, told_of
from everhold.programs.lua.worker_client import (
    BOOT,
    STILL,
    Breach,
    Died,
    Gone,
    Overtime,
    Use,
    error_of,
)

_LOOK: Final = 0.1  # seconds between two looks at a worker that does not answer


class Lone:
    """One process. It ends with `end`, or when nobody has it any more."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process = Process(limits)
        self._end = weakref.finalize(self, _ended, self._process)
        self._socket = self._process.socket
        try:
            self._told(BOOT)
        except (Died, Overtime):
            said = self._process.complaint()
            self.end()
            raise WorkerFailed(said or "it ended before it was ready") from None
        except Breach:
            self.end()
            raise WorkerFailed("it began with something else than a greeting") from None

    def work(self, order: Order) -> Reply:
        """Have one step done; raises `Gone` if the execution is not held there any more.

        After `Died`, `Overtime` or `Breach` it is of no use.
        """
        self._socket.settimeout(BOOT)
        try:
            self._socket.sendall(framed(order))
        except OSError:
            raise Died from None
        told = self._told(self._limits.wall)
        if told.trouble is not None:
            raise error_of(told.trouble)
        if told.gone:
            raise Gone
        return told.replies[0]

    def drop(self, number: int) -> None:
        """Have an execution forgotten."""
        try:
            self._socket.sendall(framed(Order(number)))
        except OSError:
            pass  # it has ended, and everything with it

    def end(self) -> None:
        self._end()

    def _told(self, limit: float) -> Told:
        self._socket.settimeout(_LOOK)
        (size,) = HEADER.unpack(self._read(HEADER.size, limit))
        if size > self._limits.largest + 2**20:
            raise Breach(size)
        try:
            return told_of(self._read(size, limit))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise Breach(0) from None

    def _read(self, size: int, limit: float) -> bytes:
        """So many bytes, unless the worker uses more than `limit` seconds of CPU time for them, or
        none at all.
        """
        found = bytearray()
        use = Use(self._process.pid)
        while len(found) < size:
            try:
                data = self._socket.recv(size - len(found))
            except TimeoutError:
                use.look(_LOOK)
                if use.spent >= limit:
                    raise Overtime([]) from None
                if use.still > STILL * limit:
                    raise Died from None
                continue
            except OSError:
                data = b""
            if not data:
                raise Died
            found += data
        return bytes(found)


def _ended(process: Process) -> None:
    process.kill()
    process.wait()
