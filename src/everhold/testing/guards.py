"""What a test forbids: calls that a replay cannot repeat, and connections to other machines.

Reading the clock and drawing random numbers raise no audit event, and a replay a millisecond later
often gets the same date. So while a test replays a program, a profile function sees every call into
C on that thread, whatever name the program imported it by. Calls that the standard library makes
for an import, a log record, a traceback or a warning are not reported.

Python cannot remove an audit hook. The network guard therefore has one hook for the life of the
process and counts its users. Localhost and Unix sockets stay reachable.
"""

from __future__ import annotations

import datetime
import io
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from everhold.programs.call_names import find_program_line

#: The functions of `time` that read a clock.
CLOCKS: Final = frozenset(
    {
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "process_time_ns",
        "localtime",
        "gmtime",
        "ctime",
        "asctime",
    }
)
_OTHERS: Final = frozenset(
    {
        "_frozen_importlib",
        "_frozen_importlib_external",
        "hypothesis",  # times the garbage collector in every thread
        "importlib",
        "inspect",
        "linecache",
        "logging",
        "tokenize",
        "traceback",
        "warnings",
        "zoneinfo",
    }
)
_SHARED: Final = random._inst  # whose methods are `random.random` and its siblings
_RUNTIME: Final = "everhold.programs."
_VERBS: Final = {"clock": "reads the clock", "dice": "draws random numbers", "file": "opens a file"}
_INSTEAD: Final = {
    "clock": "ctx.now()",
    "dice": "ctx.random(), ctx.rng() or ctx.uuid()",
    "file": "ctx.call",
}


class ForbiddenCall(msgspec.Struct, frozen=True):
    """A call of a program to a clock, a random number generator or a file."""

    what: str  # "clock", "dice" or "file"
    name: str  # datetime.now, random.random, …
    file: str
    line: int

    def __str__(self) -> str:
        return (
            f"it {_VERBS[self.what]} at {Path(self.file).name}:{self.line} ({self.name}); use"
            f" {_INSTEAD[self.what]}"
        )


@contextmanager
def record_forbidden_calls(
    found: list[ForbiddenCall], allowed: Collection[str] = ()
) -> Iterator[None]:
    """Record forbidden calls of the program on this thread while the block runs."""

    def see(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call":
            return
        what = _what(called)
        if what is None or not _is_the_programs(frame):
            return
        spotted = ForbiddenCall(what[0], what[1], *find_program_line(frame))
        if spotted.name not in allowed and spotted not in found:
            found.append(spotted)

    before: Callable[..., Any] | None = sys.getprofile()
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(before)


def _what(called: Any) -> tuple[str, str] | None:
    """Classify a C function as clock, random numbers or file, with its usual name; None for any
    other.
    """
    name = getattr(called, "__name__", "")
    owner = getattr(called, "__self__", None)
    if owner is time and name in CLOCKS:
        return "clock", f"time.{name}"
    if (
        name in ("now", "utcnow", "today")
        and isinstance(owner, type)
        and issubclass(owner, datetime.date)
    ):
        return "clock", f"{owner.__name__}.{name}"
    if owner is _SHARED and name in ("random", "getrandbits", "seed"):
        return "dice", f"random.{name}"
    if called is os.urandom:
        return "dice", "os.urandom"
    if called is io.open:
        return "file", "open"
    return None


def _is_the_programs(frame: FrameType | None) -> bool:
    """Whether the program made a call, and not the loop that runs it or the import system."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _OTHERS or module.startswith(_RUNTIME):
            return False
        # otherwise a standard library module that the program called, such as `random`
        if module.partition(".")[0] not in sys.stdlib_module_names or module == "__main__":
            return True
        frame = frame.f_back
    return False


_EVENTS: Final = frozenset(
    {"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"}
)
_HERE: Final = frozenset({"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "None"})


class NetworkRefused(ConnectionRefusedError):
    """Code in a test tried to connect to another machine."""


class _Guard:
    hooked = False
    wanted = 0


@contextmanager
def refuse_network() -> Iterator[None]:
    """Refuse connections to other machines while the block runs."""
    if not _Guard.hooked:
        sys.addaudithook(_refuse_event)
        _Guard.hooked = True
    _Guard.wanted += 1
    try:
        yield
    finally:
        _Guard.wanted -= 1


def _refuse_event(event: str, args: tuple[Any, ...]) -> None:
    if not _Guard.wanted or event not in _EVENTS:
        return
    named = event in ("socket.getaddrinfo", "socket.gethostbyname")
    if not named and args[0].family == getattr(socket, "AF_UNIX", None):
        return
    address = args[0] if named else args[-1]
    host = address[0] if isinstance(address, tuple) and address else address
    name = host.decode(errors="replace") if isinstance(host, bytes) else str(host)
    if name not in _HERE and not name.startswith("127."):
        raise NetworkRefused(
            f"this test connects to {name!r}, but tests with the everhold fixture have no network;"
            " replace the function that connects (everhold.calls), or call everhold.allow_network()"
        )
