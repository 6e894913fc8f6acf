"""Worker processes: starting one, reading its CPU time, and a client with blocking calls.

A worker is a new interpreter, not a fork, because this process may have threads. It gets one end of
a socket, no environment, no working folder, no other descriptors, and a search path with the three
packages that it needs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from everhold.core.journal import ProgramReply
from everhold.errors import EverholdError, MissingExtra, UnsupportedSystem, WorkerFailed, leaves
from everhold.portability import HAS_LUA_WORKERS
from everhold.programs.lua.protocol import (
    FRAME_HEADER,
    LuaLimits,
    OrderResult,
    RemoteError,
    WorkerOrder,
    decode_order_result,
    encode_frame,
    encode_worker_json,
)

BOOT_TIMEOUT: Final = 60.0  # seconds a worker may take to start
#: How many times the limit of an advance a worker may use no CPU time at all. A program cannot
#: wait, so it is stopped.
STALL_FACTOR: Final = 5
_BOOT: Final = (
    "import sys; sys.path[:0] = sys.argv[3:]; from everhold.programs.lua.worker import main; main()"
)


class LuaWorkerProcess:
    """A worker process and our end of its socket. Its owner must call `kill` and `wait`."""

    def __init__(self, limits: LuaLimits) -> None:
        command = [
            sys.executable,
            *_FLAGS,
            "-c",
            _BOOT,
            encode_worker_json(limits).decode(),
            str(os.getpid()),
            *find_library_folders(),
        ]
        if not HAS_LUA_WORKERS:
            raise UnsupportedSystem("a Lua program in the sandbox", sys.platform)
        ours, its = socket.socketpair()
        try:
            self.popen = subprocess.Popen(
                command,
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise WorkerFailed(f"the system did not start it: {error}") from None
        finally:
            its.close()
        self.socket = ours
        self.pid = self.popen.pid

    def complaint(self) -> str:
        """The end of its standard error."""
        assert self.popen.stderr is not None
        os.set_blocking(self.popen.stderr.fileno(), False)
        said = self.popen.stderr.read(4000) or b""
        return said.decode(errors="replace").strip()[-600:]

    def kill(self) -> None:
        """Kill it. It may take a moment until it has `ended`."""
        self.socket.close()
        if self.popen.stderr is not None:
            self.popen.stderr.close()
        if self.popen.poll() is None:
            self.popen.kill()

    def ended(self) -> bool:
        return self.popen.poll() is not None

    def wait(self) -> None:
        """Wait until it has ended, which a killed process does soon."""
        self.popen.wait()


#: Isolated, without site-packages, UTF-8 whatever the locale, nothing written beside sources.
_FLAGS: Final = ("-I", "-S", "-B", "-X", "utf8")


def find_library_folders() -> list[str]:
    """Where everhold, msgspec and lupa are; raises `MissingExtra` without lupa."""
    found = []
    for name in ("everhold", "msgspec", "lupa"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise MissingExtra("lua", "a Lua program")
        found.append(str(Path(spec.origin).resolve().parent.parent))
    return list(dict.fromkeys(found))


class WorkerBusy(Exception):
    """The worker is busy with another session."""


class WorkerGone(Exception):
    """The worker, or the execution in it, is gone; the caller did not cause that."""


class WorkerDied(Exception):
    """The worker exited during this order, or was killed because it used no CPU time."""


class WorkerOvertime(Exception):
    """The worker was killed because this advance used too much CPU time. `told` has the replies
    before it.
    """

    def __init__(self, told: list[ProgramReply]) -> None:
        self.told = told


class ProtocolBreach(Exception):
    """The worker broke the protocol and was killed; `size` is that of a frame that is too large."""

    def __init__(self, size: int) -> None:
        self.size = size


class CpuUse:
    """The CPU time that a worker uses for one advance, and for how long it has used none.

    Only time between two checks counts: if this process was stopped, the worker probably was, too.
    """

    def __init__(self, pid: int) -> None:
        self.spent = self.still = 0.0
        self._pid, self._last = pid, read_cpu_time(pid)

    def look(self, passed: float) -> None:
        """Check again, `passed` seconds after the last check."""
        now = read_cpu_time(self._pid)
        if now is None or self._last is None:
            self.spent += passed
        elif now > self._last:
            self.spent = self.spent + now - self._last
            self.still = 0.0
            self._last = now
        else:
            self.still += passed


def read_cpu_time(pid: int) -> float | None:
    """Seconds of CPU time that a process has used; None if the system does not report it."""
    try:
        return _clock((~pid << 3) | 2)  # the id of another process's CPU clock on Linux
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


_SYNC_LOOK: Final = 0.1  # seconds between two checks of a worker that does not answer


class SyncLuaWorker:
    """A worker process with blocking calls. It ends with `end`, or with this object."""

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
            raise WorkerFailed("its first frame was not a greeting") from None

    def work(self, order: WorkerOrder, wall: float | None = None) -> ProgramReply:
        """Run one step; raises `WorkerGone` if the worker does not hold the execution any more.
        `wall` is the limit of the step.

        After `WorkerDied`, `WorkerOvertime` or `ProtocolBreach` the worker cannot be used.
        """
        self._socket.settimeout(BOOT_TIMEOUT)
        try:
            self._socket.sendall(encode_frame(order))
        except OSError:
            raise WorkerDied from None
        told = self._told(self._limits.wall if wall is None else wall)
        if told.trouble is not None:
            raise decode_remote_error(told.trouble)
        if told.gone:
            raise WorkerGone
        return told.replies[0]

    def drop(self, number: int) -> None:
        """Drop an execution."""
        try:
            self._socket.sendall(encode_frame(WorkerOrder(number)))
        except OSError:
            pass  # it has ended, with its executions

    def end(self) -> None:
        self._end()

    def _told(self, limit: float) -> OrderResult:
        self._socket.settimeout(_SYNC_LOOK)
        (size,) = FRAME_HEADER.unpack(self._read(FRAME_HEADER.size, limit))
        if size > self._limits.largest + 2**20:
            raise ProtocolBreach(size)
        try:
            return decode_order_result(self._read(size, limit))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise ProtocolBreach(0) from None

    def _read(self, size: int, limit: float) -> bytes:
        """Read `size` bytes; raises if the worker uses more than `limit` seconds of CPU time, or
        none at all for too long.
        """
        found = bytearray()
        use = CpuUse(self._process.pid)
        while len(found) < size:
            try:
                data = self._socket.recv(size - len(found))
            except TimeoutError:
                use.look(_SYNC_LOOK)
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
