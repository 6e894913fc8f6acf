"""What this process and a worker say to each other: JSON in frames that begin with their length.

JSON, and not something quicker: whatever a worker was made to send, what is read here is plain
values of known shape.

Rules
  1. An `Order` is answered by one or more `Told`; all but the last say `more`. One that only drops
     is not answered.
  2. A frame longer than the reader's limit is never read: it is a breach, and the worker is ended.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from everhold.core.journal import Reply
from everhold.core.query import Answer
from everhold.core.session import Birth

#: Bytes of what a program may say in one advance, whether it asks or returns.
LARGEST: Final = 8 * 2**20
#: Bytes of steps that are handed over in one frame of a replay.
SLICE: Final = 2**20
HEADER: Final = Struct(">I")

Step = tuple[int, float, list[Answer], bool, str | None]  # what `advance` takes


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a program may use, in a worker or out of it. Seconds and bytes."""

    memory: int = 64 * 2**20  # of one Lua state
    # of one advance, seen from inside; a loop that swallows the error is killed from outside
    cpu: float = 2.0
    wall: float = 3.0  # of one advance, seen from outside: CPU time, too, where the system tells it
    largest: int = LARGEST  # what it says in one advance
    space: int = 2**30  # of a worker's whole address space
    held: int = 1000  # executions a worker keeps
    kept: int = 256 * 2**20  # bytes of Lua states a worker keeps


class Order(msgspec.Struct, omit_defaults=True):
    """Advance one execution. With a birth it is made first; without steps it is dropped."""

    number: int
    steps: list[msgspec.Raw] = []
    birth: Birth | None = None
    roots: list[str] = []  # folders in which packages are looked for
    replaying: bool = False
    space: str = ""  # the namespace of its durable values


class Trouble(msgspec.Struct):
    """An error of ours that was raised over there."""

    code: str
    message: str
    hint: str = ""


class Told(msgspec.Struct, omit_defaults=True):
    """What became of an order."""

    replies: list[Reply] = []
    more: bool = False
    gone: bool = False  # the execution is not held here any more
    trouble: Trouble | None = None
    # the first frame of a worker: what protects this machine from it
    walls: list[str] | None = None


encode: Final = msgspec.json.Encoder().encode
order_of: Final = msgspec.json.Decoder(Order).decode
told_of: Final = msgspec.json.Decoder(Told).decode
step_of: Final = msgspec.json.Decoder(Step).decode


def framed(message: Order | Told) -> bytes:
    body = encode(message)
    return HEADER.pack(len(body)) + body


def raw(step: Step) -> msgspec.Raw:
    """A step as it stands in an order."""
    return msgspec.Raw(encode(step))


def sliced(steps: list[msgspec.Raw]) -> list[list[msgspec.Raw]]:
    """Steps in groups that fit into a frame each; there is at least one group."""
    groups: list[list[msgspec.Raw]] = [[]]
    size = 0
    for step in steps:
        size += len(bytes(step))
        if size > SLICE and groups[-1]:
            groups.append([])
            size = len(bytes(step))
        groups[-1].append(step)
    return groups
