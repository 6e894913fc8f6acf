"""When this process could not get through to its store for a while.

Others may not have got through either: the time in which nobody could be heard does not count for
those who were not heard. Else a server that was away for longer than a lease would make every
worker a dead one in the eyes of the first that is back, and what they do would be done twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from everhold.errors import StoreBusy, StoreFull, StoreUnavailable

#: Seconds after which something that was asked of the store took suspiciously long.
LONG: Final = 1.0
#: How many stalls are remembered.
MOST: Final = 16


class OutageTracker:
    def __init__(self) -> None:
        self._sound = time.monotonic()  # when something came through
        self._times: list[tuple[float, float]] = []  # when nothing did, oldest first

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Ask something of the store, and see whether it comes through, and in time."""
        began = time.monotonic()
        try:
            yield
        except (StoreBusy, StoreFull, StoreUnavailable):
            self._note(min(self._sound, began))
            raise
        self._sound = time.monotonic()
        if self._sound - began > LONG:
            self._note(began)

    def _note(self, began: float) -> None:
        """From then until now nothing came through."""
        while self._times and self._times[-1][1] >= began:
            began = min(began, self._times.pop()[0])
        self._times = [*self._times[1 - MOST :], (began, time.monotonic())]

    def age(self, seconds: float) -> float:
        """For how long somebody who was last heard of so many seconds ago could have been heard
        since.
        """
        since = time.monotonic() - seconds
        return seconds - sum(end - max(began, since) for began, end in self._times if end > since)
