"""Retry of model calls: how often and after which pause. Numbers only: no clock, no I/O, and dice
that are handed in.

Rules
  1. A failure that may pass costs an attempt, and the wait before the next doubles up to `longest`.
  2. Being told to slow down costs no attempt: the wait is what the provider says (at most
     `retry_after`), and all such waits together stay within `throttle` seconds and `throttles`
     times.
  3. A failure that cannot pass is not repeated.
  4. A part of each wait is random (`jitter`), so that clients that failed together do not come back
     together. A wait that a provider asks for never becomes shorter by that.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import Final

import msgspec

from everhold.errors import BadSetting

_LEAST: Final = 1.0  # seconds that being told to slow down counts, however short the wait


class Patience(msgspec.Struct, frozen=True):
    """How much is put up with, for one question to one model."""

    attempts: int = 4
    base: float = 2.0  # seconds before the second attempt
    longest: float = 10.0  # seconds between attempts
    jitter: float = 0.5  # the part of a wait that is random, from 0 to 1
    retry_after: float = 60.0  # seconds a provider may ask for at once
    throttle: float = 90.0  # seconds of waiting for a provider that says "slow down"
    throttles: int = 8  # times it may say so
    timeout: float = 300.0  # seconds for one attempt
    chunk_timeout: float = 120.0  # seconds of silence within one

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            least = 1 if name == "attempts" else 0
            timeout = name in ("timeout", "chunk_timeout")
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or value < least
                or (timeout and not value)
                or (name == "jitter" and value > 1)
                or isnan(value)
            ):
                wanted = "1 or more" if least else "more than 0" if timeout else "0 or more"
                wanted = "from 0 to 1" if name == "jitter" else wanted
                raise BadSetting(name, f"it should be {wanted}, got {value!r}")


class RetryBackoff:
    """The waits of one question to one model."""

    def __init__(self, patience: Patience, random: Callable[[], float]) -> None:
        self._patience = patience
        self._random = random  # a number from 0 to 1, without 1
        self.attempts = 0  # that failed
        self.throttles = 0
        self._throttled = 0.0

    def failed(self, retry_after: float | None = None) -> float | None:
        """Seconds to wait after a failure that may pass, or None to give up."""
        patience = self._patience
        self.attempts += 1
        if self.attempts >= patience.attempts:
            return None
        return max(self._backoff(self.attempts), self._told(retry_after))

    def throttled(self, retry_after: float | None = None) -> float | None:
        """Seconds to wait where the provider says "slow down", or None to give up."""
        patience = self._patience
        self.throttles += 1
        wait = self._backoff(self.throttles) if retry_after is None else self._told(retry_after)
        self._throttled += max(wait, _LEAST)
        if self.throttles > patience.throttles or self._throttled > patience.throttle:
            return None
        return wait

    def _backoff(self, failures: int) -> float:
        """Seconds after so many failures: doubled each time up to the longest, less a random part
        of it.
        """
        patience = self._patience
        longest = min(patience.base * 2.0 ** (failures - 1), patience.longest)
        return longest * (1.0 - patience.jitter * self._random())

    def _told(self, retry_after: float | None) -> float:
        """Seconds that a provider asks for, within the limit, and a random part of `base` more."""
        if retry_after is None:
            return 0.0
        patience = self._patience
        return (
            min(retry_after, patience.retry_after)
            + patience.base * patience.jitter * self._random()
        )
