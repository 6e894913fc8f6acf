"""How both sides of a worker's socket hear: what comes soon is looked for, what comes late is slept
for.

A processor that sleeps wakes later than most orders and answers come, so one looks again and again
for a blink before one sleeps. Where that was in vain, because nobody is in a hurry or others have
the processor, one sleeps at once the next few times, and more of them if it was in vain again.
Where there is only one processor nobody blinks.
"""

from __future__ import annotations

import fcntl
import os
from time import monotonic
from typing import Final

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
