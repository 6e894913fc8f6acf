"""Retry of model calls: how often, and how long to wait. No clock, no I/O; random is an argument.

Rules
  1. A temporary failure costs an attempt, and the wait before the next one doubles up to `longest`.
  2. A rate limit costs no attempt. The wait is what the provider asks for (at most `retry_after`);
     all these waits together are limited to `throttle` seconds and `throttles` times.
  3. A permanent failure is not retried.
  4. A part of each wait is random (`jitter`), so that clients that failed together do not retry
     together. Jitter never shortens a wait that a provider asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from everhold.core.schema import (
    NonNegativeInt,
    PositiveInt,
    PositiveSeconds,
    Seconds,
    describe_misfit,
)
from everhold.errors import BadSetting

_MIN_THROTTLE: Final = 1.0  # seconds that each rate limit counts, however short the wait


class Patience(msgspec.Struct, frozen=True):
    """The retry policy for one query to one model."""

    attempts: PositiveInt = 4
    base: Seconds = 2.0  # before the second attempt
    longest: Seconds = 10.0  # between attempts
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5  # the random part of a wait
    retry_after: Seconds = 60.0  # the longest wait that a provider may ask for
    throttle: Seconds = 90.0  # to wait for rate limits, all together
    throttles: NonNegativeInt = 8  # rate limits in a row before giving up
    timeout: PositiveSeconds = 300.0  # of one attempt
    chunk_timeout: PositiveSeconds = 120.0  # without data within one attempt

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            if misfit := describe_misfit(getattr(self, field.name), field.type):
                raise BadSetting(field.name, misfit)


class RetryBackoff:
    """The waits of one query to one model."""

    def __init__(self, patience: Patience, random: Callable[[], float]) -> None:
        self._patience = patience
        self._random = random  # returns 0 <= x < 1
        self.attempts = 0  # failed attempts
        self.throttles = 0
        self._throttled = 0.0

    def failed(self, retry_after: float | None = None) -> float | None:
        """Seconds to wait after a temporary failure, or None to give up."""
        patience = self._patience
        self.attempts += 1
        if self.attempts >= patience.attempts:
            return None
        return max(self._backoff(self.attempts), self._requested(retry_after))

    def throttled(self, retry_after: float | None = None) -> float | None:
        """Seconds to wait after a rate limit, or None to give up."""
        patience = self._patience
        self.throttles += 1
        wait = (
            self._backoff(self.throttles) if retry_after is None else self._requested(retry_after)
        )
        self._throttled += max(wait, _MIN_THROTTLE)
        if self.throttles > patience.throttles or self._throttled > patience.throttle:
            return None
        return wait

    def _backoff(self, failures: int) -> float:
        """`base` doubled with each failure, at most `longest`, minus a random part."""
        patience = self._patience
        longest = min(patience.base * 2.0 ** (failures - 1), patience.longest)
        return longest * (1.0 - patience.jitter * self._random())

    def _requested(self, retry_after: float | None) -> float:
        """The wait that a provider asked for, within the limit, plus a random part of `base`."""
        if retry_after is None:
            return 0.0
        patience = self._patience
        return (
            min(retry_after, patience.retry_after)
            + patience.base * patience.jitter * self._random()
        )
