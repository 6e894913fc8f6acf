"""When this process could not get through to its store for a while.

Others may not have got through either: who was not heard of meanwhile is not taken for dead before it had the time to
say that it lives. Else a server that was away for longer than a lease would make every worker a dead one in the eyes of
the first that is back, and what they do would be done twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

from everhold.core.errors import StoreFull

#: Seconds after which something that was asked of the store took suspiciously long.
LONG: Final = 1.0


class Stall:
    def __init__(self) -> None:
        self._over = -inf

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Ask something of the store, and see whether it comes through, and in time."""
        began, full = time.monotonic(), False
        try:
            yield
        except StoreFull:
            full = True
            raise
        finally:
            now = time.monotonic()
            if full or now - began > LONG:
                self._over = now

    def age(self, seconds: float) -> float:
        """How long somebody who was last heard of so many seconds ago could have been heard."""
        return min(seconds, time.monotonic() - self._over)
