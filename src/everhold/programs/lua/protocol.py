"""The protocol between this process and a worker: JSON in frames with a length prefix.

JSON, not a faster format: a worker may have been taken over, and whatever it sends is decoded into
plain values of a known schema.

Rules
  1. A `WorkerOrder` is answered by one or more `OrderResult`; all but the last have `more`. An
     order that only drops an execution has no answer.
  2. A frame longer than the limit is not read: it is a breach, and the worker is killed.

Reading: most messages arrive within microseconds, faster than a sleeping process wakes up. So both
sides poll the socket for a moment (`SpinWait`) before they block. After a poll in vain the next
reads block at once, and more of them each time. With one processor there is no polling.
"""

from __future__ import annotations

import os
from struct import Struct
from time import monotonic
from typing import Final

import msgspec

from everhold.core.budget import Budget
from everhold.core.journal import ProgramReply
from everhold.core.query import QueryAnswer
from everhold.core.session import Birth

try:
    import fcntl
except ImportError:  # Windows, which has no worker processes
    fcntl = None  # type: ignore[assignment]

#: The largest output of one advance: queries, result and log, in bytes.
MAX_REPLY_BYTES: Final = 8 * 2**20
#: Bytes of steps in one frame of a replay.
MAX_SLICE_BYTES: Final = 2**20
FRAME_HEADER: Final = Struct(">I")

#: The arguments of `advance`.
WorkerStep = tuple[int, float, list[QueryAnswer], bool, str | None, Budget | None]


class LuaLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of a program, in a worker and in this process, in seconds and bytes."""

    memory: int = 64 * 2**20  # of one Lua state
    cpu: float = 2.0  # of one advance, measured inside the Lua state
    # Of one advance, measured by the parent, which kills the worker: CPU time, or the clock where
    # the CPU time of another process cannot be read.
    wall: float = 3.0
    largest: int = MAX_REPLY_BYTES  # output of one advance
    space: int = 2**30  # address space of a worker
    held: int = 1000  # executions in a worker
    kept: int = 256 * 2**20  # bytes of Lua states in a worker
    replay: float = 0.0  # of one advance that has paused before; 0: between cpu and wall
    setting: str = ""  # the table of the settings that sets cpu, memory and replay
    chosen: bool = False  # whether the user has set cpu for this program

    @property
    def again(self) -> float:
        """Seconds of CPU time of one advance on replay, measured inside."""
        return self.replay or (self.cpu + self.wall) / 2

    def describe_cpu(self, seconds: float, key: str = "cpu") -> str:
        """A limit of CPU time as the error names it, with the setting that changes it."""
        place = f"; the setting is {key} in [{self.setting}]" if self.setting else ""
        return f"{seconds:g} s of CPU time{place}"


def format_memory(size: int) -> str:
    """Bytes of memory for people, in the units of the settings."""
    return f"{size / 10**6:.0f} MB" if size % 2**20 else f"{size // 2**20} MB"


class WorkerOrder(msgspec.Struct, omit_defaults=True):
    """Advance one execution. With a birth it is created first; without steps it is dropped."""

    number: int
    steps: list[msgspec.Raw] = []
    birth: Birth | None = None
    roots: list[str] = []  # folders in which packages are looked for
    replaying: bool = False
    space: str = ""  # the namespace of its durable values
    limits: LuaLimits | None = None  # with a birth: other limits than those of the worker


class RemoteError(msgspec.Struct):
    """An error of everhold that was raised in the worker."""

    code: str
    message: str
    hint: str = ""


class OrderResult(msgspec.Struct, omit_defaults=True):
    """The result of an order, or a part of it."""

    replies: list[ProgramReply] = []
    more: bool = False
    gone: bool = False  # the worker no longer has the execution
    trouble: RemoteError | None = None
    walls: list[str] | None = None  # only in the first frame: the active protections


encode_worker_json: Final = msgspec.json.Encoder().encode
decode_order: Final = msgspec.json.Decoder(WorkerOrder).decode
decode_order_result: Final = msgspec.json.Decoder(OrderResult).decode
decode_step: Final = msgspec.json.Decoder(WorkerStep).decode


def encode_frame(message: WorkerOrder | OrderResult) -> bytes:
    body = encode_worker_json(message)
    return FRAME_HEADER.pack(len(body)) + body


def encode_step(step: WorkerStep) -> msgspec.Raw:
    """Encode a step for an order."""
    return msgspec.Raw(encode_worker_json(step))


def slice_steps(steps: list[msgspec.Raw]) -> list[list[msgspec.Raw]]:
    """Split steps into groups that fit into a frame; returns at least one group."""
    groups: list[list[msgspec.Raw]] = [[]]
    size = 0
    for step in steps:
        size += len(bytes(step))
        if size > MAX_SLICE_BYTES and groups[-1]:
            groups.append([])
            size = len(bytes(step))
        groups[-1].append(step)
    return groups


#: Seconds of polling before a read blocks; 0 with one processor. Long enough for the other side to
#: wake up: with less, each side would always find the other one asleep.
BLINK: Final = 2.5e-4 if (os.cpu_count() or 1) > 1 else 0.0
# Reads that block at once after a poll in vain: at first, and at most.
_FEW = 4
_MANY = 256
_CHUNK: Final = 2**15  # malloc takes larger buffers from the system, one call each


class SpinWait:
    """Decides how long to poll before a read blocks."""

    def __init__(self) -> None:
        self._rest = 0
        self._next = _FEW

    def begin(self) -> float:
        """The time until which to poll; 0 to block at once."""
        if self._rest:
            self._rest -= 1
            return 0.0
        return monotonic() + BLINK if BLINK else 0.0

    def ended(self, *, in_vain: bool) -> None:
        """Report whether polling found data."""
        if in_vain:
            self._rest, self._next = self._next, min(self._next * 4, _MANY)
        else:
            self._next = _FEW


class SocketReader:
    """Reads a blocking socket in chunks, with polling."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._flags = fcntl.fcntl(channel, fcntl.F_GETFL)
        self._blink = SpinWait()

    def read(self) -> bytes:
        """Wait for the next chunk; empty if the other side has closed the socket."""
        until = self._blink.begin()
        if until:
            data = self._poll(until)
            self._blink.ended(in_vain=data is None)
            if data is not None:
                return data
        return os.read(self._channel, _CHUNK)

    def _poll(self, until: float) -> bytes | None:
        fcntl.fcntl(self._channel, fcntl.F_SETFL, self._flags | os.O_NONBLOCK)
        try:
            while True:
                try:
                    return os.read(self._channel, _CHUNK)
                except BlockingIOError:
                    if monotonic() > until:
                        return None
        finally:
            fcntl.fcntl(self._channel, fcntl.F_SETFL, self._flags)
