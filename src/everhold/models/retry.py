"""The retries of a provider's model: how often, and how long to wait. No clock and no I/O.

They use the retry policy of `core/retry.py`. A rate limit is more: the provider says how long it
lasts, and waiting helps. With a policy of its own, a question is tried again by the engine, and the
model makes one attempt: see `engine/effects.py`.

Rules
  1. A temporary failure costs an attempt, and the wait before the next one grows.
  2. A rate limit costs no attempt. The wait is what the provider asks for (at most
     `MAX_RETRY_AFTER`); all these waits together are limited to `rate_limit_wait` seconds and
     `MAX_RATE_LIMITS` times.
  3. A permanent failure is not retried, unless the policy names its code.
  4. Jitter never shortens a wait that a provider asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from everhold.core.retry import Retry

#: The policy of a model.
MODEL_RETRY: Final = Retry(4, backoff=2.0, max_backoff=10.0, jitter=0.5)
#: Seconds of one attempt.
MODEL_TIMEOUT: Final = 300.0
#: Seconds without data within one attempt.
CHUNK_TIMEOUT: Final = 120.0
#: Seconds to wait for rate limits, all together.
RATE_LIMIT_WAIT: Final = 90.0
#: The longest wait that a provider may ask for.
MAX_RETRY_AFTER: Final = 60.0
#: Rate limits in a row before giving up.
MAX_RATE_LIMITS: Final = 8
_MIN_THROTTLE: Final = 1.0  # seconds that each rate limit counts, however short the wait


class RetryBackoff:
    """The waits of one query to one model."""

    def __init__(
        self,
        retry: Retry,
        random: Callable[[], float],
        rate_limit_wait: float = RATE_LIMIT_WAIT,
    ) -> None:
        self._retry = retry
        self._random = random  # returns 0 <= x < 1
        self._rate_limit_wait = rate_limit_wait
        self.attempts = 0  # failed attempts
        self.throttles = 0
        self._throttled = 0.0

    def retries(self, code: str, is_temporary: bool) -> bool:
        """Whether the policy retries this failure."""
        return code in self._retry.on if self._retry.on else is_temporary

    def failed(self, retry_after: float | None = None) -> float | None:
        """Seconds to wait after a temporary failure, or None to give up."""
        self.attempts += 1
        if self.attempts >= self._retry.attempts:
            return None
        wait = self._retry.compute_wait(self.attempts, self._random)
        return max(wait, self._requested(retry_after))

    def throttled(self, retry_after: float | None = None) -> float | None:
        """Seconds to wait after a rate limit, or None to give up."""
        self.throttles += 1
        if retry_after is None:
            wait = self._retry.compute_wait(self.throttles, self._random)
        else:
            wait = self._requested(retry_after)
        self._throttled += max(wait, _MIN_THROTTLE)
        if self.throttles > MAX_RATE_LIMITS or self._throttled > self._rate_limit_wait:
            return None
        return wait

    def _requested(self, retry_after: float | None) -> float:
        """The wait that a provider asked for, within the limit, plus a random part of `backoff`."""
        if retry_after is None:
            return 0.0
        random = self._retry.backoff * self._retry.jitter * self._random()
        return min(retry_after, MAX_RETRY_AFTER) + random
