"""Detects the times when this process could not reach its store.

Other processes may not have reached it either, so that time does not count against them. Otherwise
a server outage longer than a lease would make the first worker that returns declare all others
dead, and their work would be done twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from everhold.errors import StoreBusy, StoreFull, StoreUnavailable

#: A store call that takes longer than this many seconds counts as stalled.
LONG: Final = 1.0
#: Number of stalls that are remembered.
MOST: Final = 16


class OutageTracker:
    def __init__(self) -> None:
        self._sound = time.monotonic()  # the last successful call
        self._times: list[tuple[float, float]] = []  # the stalls, oldest first

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Runs a store call and records whether it succeeded in time."""
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
        """Records an outage from then until now."""
        while self._times and self._times[-1][1] >= began:
            began = min(began, self._times.pop()[0])
        self._times = [*self._times[1 - MOST :], (began, time.monotonic())]

    def age(self, seconds: float) -> float:
        """Seconds of a peer's silence, minus the time that this process itself was cut off."""
        since = time.monotonic() - seconds
        return seconds - sum(end - max(began, since) for began, end in self._times if end > since)
