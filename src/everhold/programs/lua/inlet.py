"""How a worker hears: what comes soon is looked for, what comes late is slept for.

A processor that sleeps wakes later than most orders come, so whoever gets one after another looks again and again for
a blink before it sleeps. Others have the processor whenever they want it, and where there is only one nobody blinks.
"""

from __future__ import annotations

import fcntl
import os
from time import monotonic
from typing import Final

#: Seconds for which it is worth to look again and again; none where there is one processor.
BLINK: Final = 1e-4 if (os.cpu_count() or 1) > 1 else 0.0
_SOON: Final = 1e-3  # seconds: whoever sends as quickly may be quicker the next time
_CHUNK: Final = 2**15  # larger ones cost a call for memory each


class Inlet:
    """What comes in over a socket, in pieces."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._flags = fcntl.fcntl(channel, fcntl.F_GETFL)
        self._is_quick = False  # whether the last piece came soon

    def read(self) -> bytes:
        """The next piece, when it is here; empty if nobody is left to send one."""
        began = monotonic()
        data = self._at_once(began + BLINK) if BLINK and self._is_quick else None
        if data is None:
            data = os.read(self._channel, _CHUNK)
        self._is_quick = monotonic() - began < _SOON
        return data

    def _at_once(self, until: float) -> bytes | None:
        fcntl.fcntl(self._channel, fcntl.F_SETFL, self._flags | os.O_NONBLOCK)
        try:
            while True:
                try:
                    return os.read(self._channel, _CHUNK)
                except BlockingIOError:
                    if monotonic() > until:
                        return None
                    os.sched_yield()
        finally:
            fcntl.fcntl(self._channel, fcntl.F_SETFL, self._flags)
