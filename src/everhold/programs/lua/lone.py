"""A worker that is spoken to with blocking calls: for those that replay sessions outside of a loop, one at a time."""

from __future__ import annotations

import time
import weakref

import msgspec

from everhold.core.errors import WorkerFailed
from everhold.core.journal import Reply
from everhold.programs.lua.crew import BOOT, Breach, Died, Gone, Overtime, error_of, processor
from everhold.programs.lua.frame import HEADER, Limits, Order, Told, framed, told_of
from everhold.programs.lua.process import Process


class Lone:
    """One process. It ends with `end`, or when nobody has it any more."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process = Process(limits)
        self._end = weakref.finalize(self, _ended, self._process)
        self._socket = self._process.socket
        self._socket.settimeout(BOOT)
        try:
            self._told()
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
        self._socket.settimeout(self._limits.wall)
        try:
            self._socket.sendall(framed(order))
        except OSError:
            raise Died from None
        told = self._told()
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

    def _told(self) -> Told:
        (size,) = HEADER.unpack(self._read(HEADER.size))
        if size > self._limits.largest + 2**20:
            raise Breach(size)
        try:
            return told_of(self._read(size))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise Breach(0) from None

    def _read(self, size: int) -> bytes:
        found = bytearray()
        began, spent = time.monotonic(), processor(self._process.pid)
        patience = self._socket.gettimeout() or 0.0
        while len(found) < size:
            try:
                data = self._socket.recv(size - len(found))
            except TimeoutError:
                if processor(self._process.pid) - spent < patience and time.monotonic() - began < 5 * patience:
                    continue  # others have the processor
                raise Overtime([]) from None
            except OSError:
                data = b""
            if not data:
                raise Died
            found += data
        return bytes(found)


def _ended(process: Process) -> None:
    process.kill()
    process.wait()
