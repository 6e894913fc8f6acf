"""What this process and a worker say to each other: JSON in frames that begin with their length.

JSON, and not something quicker: whatever a worker was made to send, what is read here is plain
values of known shape.

Rules
  1. An `WorkerOrder` is answered by one or more `OrderResult`; all but the last say `more`. One
     that only drops is not answered.
  2. A frame longer than the reader's limit is never read: it is a breach, and the worker is ended.

How both sides of a worker's socket hear: what comes soon is looked for, what comes late is slept
for.

A processor that sleeps wakes later than most orders and answers come, so one looks again and again
for a blink before one sleeps. Where that was in vain, because nobody is in a hurry or others have
the processor, one sleeps at once the next few times, and more of them if it was in vain again.
Where there is only one processor nobody blinks.
"""

from __future__ import annotations

import os
from struct import Struct
from time import monotonic
from typing import Final

import msgspec

from everhold.core.journal import ProgramReply
from everhold.core.query import QueryAnswer
from everhold.core.session import Birth

try:
    import fcntl
except ImportError:  # Windows, which has no worker processes
    fcntl = None  # type: ignore[assignment]

#: Bytes of what a program may say in one advance, whether it asks or returns.
MAX_REPLY_BYTES: Final = 8 * 2**20
#: Bytes of steps that are handed over in one frame of a replay.
MAX_SLICE_BYTES: Final = 2**20
FRAME_HEADER: Final = Struct(">I")

WorkerStep = tuple[int, float, list[QueryAnswer], bool, str | None]  # what `advance` takes


class LuaLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a program may use, in a worker or out of it. Seconds and bytes."""

    memory: int = 64 * 2**20  # of one Lua state
    # of one advance, seen from inside; a loop that swallows the error is killed from outside
    cpu: float = 2.0
    wall: float = 3.0  # of one advance, seen from outside: CPU time, too, where the system tells it
    largest: int = MAX_REPLY_BYTES  # what it says in one advance
    space: int = 2**30  # of a worker's whole address space
    held: int = 1000  # executions a worker keeps
    kept: int = 256 * 2**20  # bytes of Lua states a worker keeps


class WorkerOrder(msgspec.Struct, omit_defaults=True):
    """Advance one execution. With a birth it is made first; without steps it is dropped."""

    number: int
    steps: list[msgspec.Raw] = []
    birth: Birth | None = None
    roots: list[str] = []  # folders in which packages are looked for
    replaying: bool = False
    space: str = ""  # the namespace of its durable values


class RemoteError(msgspec.Struct):
    """An error of ours that was raised over there."""

    code: str
    message: str
    hint: str = ""


class OrderResult(msgspec.Struct, omit_defaults=True):
    """What became of an order."""

    replies: list[ProgramReply] = []
    more: bool = False
    gone: bool = False  # the execution is not held here any more
    trouble: RemoteError | None = None
    # the first frame of a worker: what protects this machine from it
    walls: list[str] | None = None


encode_worker_json: Final = msgspec.json.Encoder().encode
decode_order: Final = msgspec.json.Decoder(WorkerOrder).decode
decode_order_result: Final = msgspec.json.Decoder(OrderResult).decode
decode_step: Final = msgspec.json.Decoder(WorkerStep).decode


def encode_frame(message: WorkerOrder | OrderResult) -> bytes:
    body = encode_worker_json(message)
    return FRAME_HEADER.pack(len(body)) + body


def encode_step(step: WorkerStep) -> msgspec.Raw:
    """A step as it stands in an order."""
    return msgspec.Raw(encode_worker_json(step))


def slice_steps(steps: list[msgspec.Raw]) -> list[list[msgspec.Raw]]:
    """Steps in groups that fit into a frame each; there is at least one group."""
    groups: list[list[msgspec.Raw]] = [[]]
    size = 0
    for step in steps:
        size += len(bytes(step))
        if size > MAX_SLICE_BYTES and groups[-1]:
            groups.append([])
            size = len(bytes(step))
        groups[-1].append(step)
    return groups


#: Seconds for which it is worth to look again and again; none where there is one processor. Long
#: enough for another that has to wake up first: else both would always find the other asleep.
BLINK: Final = 2.5e-4 if (os.cpu_count() or 1) > 1 else 0.0
# times that one sleeps at once after a blink in vain
_FEW = 4
_MANY = 256
_CHUNK: Final = 2**15  # larger ones cost a call for memory each


class SpinWait:
    """Says for how long to look before one sleeps."""

    def __init__(self) -> None:
        self._rest = 0
        self._next = _FEW

    def begin(self) -> float:
        """The moment until which to look; 0 where it is better to sleep at once."""
        if self._rest:
            self._rest -= 1
            return 0.0
        return monotonic() + BLINK if BLINK else 0.0

    def ended(self, *, in_vain: bool) -> None:
        """Say what came of it."""
        if in_vain:
            self._rest, self._next = self._next, min(self._next * 4, _MANY)
        else:
            self._next = _FEW


class SocketReader:
    """What comes in over a socket, in pieces."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._flags = fcntl.fcntl(channel, fcntl.F_GETFL)
        self._blink = SpinWait()

    def read(self) -> bytes:
        """The next piece, when it is here; empty if nobody is left to send one."""
        until = self._blink.begin()
        if until:
            data = self._at_once(until)
            self._blink.ended(in_vain=data is None)
            if data is not None:
                return data
        return os.read(self._channel, _CHUNK)

    def _at_once(self, until: float) -> bytes | None:
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
