"""How often and how fast a model is asked again. Numbers only: no clock, no I/O.

Rules
  1. A failure that may pass costs an attempt, and the wait before the next doubles up to `longest`.
  2. Being told to slow down costs no attempt: the wait is what the provider says (at most `retry_after`), and all
     such waits together stay within `throttle` seconds and `throttles` times.
  3. A failure that cannot pass is not repeated.
"""

from __future__ import annotations

from typing import Final

import msgspec

from everhold.core.errors import BadSetting

_LEAST: Final = 1.0  # seconds that being told to slow down counts, however short the wait


class Patience(msgspec.Struct, frozen=True):
    """How much is put up with, for one question to one model."""

    attempts: int = 4
    base: float = 2.0  # seconds before the second attempt
    longest: float = 10.0  # seconds between attempts
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
            ):
                wanted = "1 or more" if least else "more than 0" if timeout else "0 or more"
                raise BadSetting(name, f"it should be {wanted}, got {value!r}")


class Pace:
    """The waits of one question to one model."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.attempts = 0  # that failed
        self.throttles = 0
        self._throttled = 0.0

    def failed(self, retry_after: float | None = None) -> float | None:
        """Seconds to wait after a failure that may pass, or None to give up."""
        patience = self._patience
        self.attempts += 1
        if self.attempts >= patience.attempts:
            return None
        wait = min(patience.base * 2.0 ** (self.attempts - 1), patience.longest)
        return wait if retry_after is None else max(wait, min(retry_after, patience.retry_after))

    def throttled(self, retry_after: float | None = None) -> float | None:
        """Seconds to wait where the provider says "slow down", or None to give up."""
        patience = self._patience
        self.throttles += 1
        wait = (
            min(patience.base * 2.0 ** (self.throttles - 1), patience.longest) if retry_after is None else retry_after
        )
        wait = min(wait, patience.retry_after)
        self._throttled += max(wait, _LEAST)
        if self.throttles > patience.throttles or self._throttled > patience.throttle:
            return None
        return wait
