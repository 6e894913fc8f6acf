"""The retry policy: which failures are tried again, how often, and how long to wait between.

No clock and no I/O; random numbers are an argument. The engine applies a policy around an effect
(`engine/effects.py`), a provider's model around its requests (`models/retry.py`).

Rules
  1. The wait before the next attempt grows by `factor`, up to `max_backoff`. A part of it is random
     (`jitter`), so that clients that failed together do not retry together.
  2. A failure may say how long to wait (`AnswerFailed.retry_after`). Jitter never shortens that.
  3. Errors are compared by name: a policy is stored with its query, and classes cannot be stored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from everhold.core.schema import describe_misfit
from everhold.core.unknown_names import find_close_name
from everhold.errors import AnswerFailed, BadSchema, BadSetting, BadValue, EverholdError

#: Codes of `AnswerFailed` that are tried again if a policy names no errors.
TEMPORARY_CODES: Final = frozenset(
    {
        "bad_response",
        "command_failed",
        "empty_response",
        "provider_unavailable",
        "rate_limited",
        "timeout",
    }
)
#: Errors that an attempt would meet again: the value or its type is wrong.
_PERMANENT: Final = (BadSchema, BadValue)
#: A code, in contrast to the name of a class.
_CODE: Final = re.compile(r"[a-z][a-z0-9_]*")
#: The longest wait and time limit, about 30 years. They are stored as JSON, which has no infinity.
MAX_SECONDS: Final = 1_000_000_000
BackoffSeconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
_Timeout = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]
AttemptCount = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]


class Retry(msgspec.Struct, frozen=True, gc=False):
    """A retry policy: how often a failed effect is tried again, and how long to wait between.

        everhold.Retry(5, backoff=2, on=(ConnectionError, "rate_limited"))

    `on` has the errors that are tried again: classes, which include their subclasses, and codes. By
    default these are all that a retry can help. `Retry(1)` means no retry.
    """

    attempts: AttemptCount = 3  # in all
    backoff: BackoffSeconds = 1.0  # before the second attempt
    factor: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 2.0  # by which the wait grows
    max_backoff: BackoffSeconds = 60.0  # the longest wait between two attempts
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1  # the random part of a wait
    on: tuple[str, ...] = ()  # the names of errors that are tried again; empty: see above

    if TYPE_CHECKING:

        def __init__(
            self,
            attempts: int = 3,
            backoff: float = 1.0,
            factor: float = 2.0,
            max_backoff: float = 60.0,
            jitter: float = 0.1,
            on: type[BaseException] | str | Iterable[type[BaseException] | str] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "on", _parse_errors(self.on))
        for field in msgspec.structs.fields(self):
            if misfit := describe_misfit(getattr(self, field.name), field.type):
                raise BadSetting(f"retry.{field.name}", misfit)

    def is_retried(self, error: BaseException) -> bool:
        """Whether an attempt that raised this is followed by another, if one is left."""
        if not self.on:
            if isinstance(error, AnswerFailed):
                return error.kind in TEMPORARY_CODES
            return isinstance(error, Exception) and not isinstance(error, _PERMANENT)
        names = {each.__name__ for each in type(error).__mro__}
        return not names.isdisjoint(self.on) or get_error_code(error) in self.on

    def compute_wait(self, failures: int, random: Callable[[], float]) -> float:
        """Seconds between this many failed attempts and the next one."""
        # a power above the largest float raises; far before that, the longest wait is reached
        grown = self.backoff * self.factor ** min(failures - 1, 100)
        return min(grown, self.max_backoff) * (1.0 - self.jitter * random())


def get_error_code(error: BaseException) -> str:
    """The code of an error, as a program sees it: `AnswerFailed.kind`."""
    if isinstance(error, AnswerFailed) and error.kind:
        return error.kind
    return error.code if isinstance(error, EverholdError) else type(error).__name__


def read_retry_after(error: BaseException) -> float:
    """How many seconds a failure asks to wait, within the limits of a policy; 0 if it says nothing,
    or something that is not a time: it comes from code of others, and is stored.
    """
    after = error.retry_after if isinstance(error, AnswerFailed) else None
    if not isinstance(after, int | float) or not after > 0:
        return 0.0
    return float(min(after, MAX_SECONDS))


def parse_retry(given: Any, setting: str = "retry") -> Retry | None:
    """A policy or None; raises `BadSetting` for anything else, and for a misspelled code."""
    if given is None:
        return None
    if not isinstance(given, Retry):
        raise BadSetting(setting, f"must be an everhold.Retry, as in Retry(3), not {given!r}")
    for name in given.on:  # not when it is made: a stored policy of an older version loads
        meant = None
        if _CODE.fullmatch(name) and name not in TEMPORARY_CODES:
            meant = find_close_name(name, TEMPORARY_CODES)
        if meant is not None:
            words = f"there is no code {name!r} (did you mean {meant!r}?)"
            raise BadSetting(f"{setting}.on", words)
    return given


def convert_older_retries(retries: int | None) -> Retry | None:
    """The policy of a number of retries, as older databases store it."""
    return Retry(retries + 1, 0.1, max_backoff=10.0, jitter=0.0) if retries else None


def parse_timeout(given: Any, setting: str = "timeout") -> float | None:
    """The seconds of one attempt or None; raises `BadSetting` for anything else. Infinity is a
    limit, too: it lifts the default.
    """
    if given == math.inf:
        return MAX_SECONDS
    if given is not None and (misfit := describe_misfit(given, _Timeout)):
        raise BadSetting(setting, misfit)
    return None if given is None else float(given)


def _parse_errors(given: Any) -> tuple[str, ...]:
    """The names of errors; raises `BadSetting` for what is none."""
    listed = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    return tuple(dict.fromkeys(_parse_error(one) for one in listed))


def _parse_error(given: Any) -> str:
    if isinstance(given, type) and issubclass(given, BaseException):
        return given.__name__
    if not isinstance(given, str) or not given:
        raise BadSetting("retry.on", f"{given!r} is neither an exception class nor an error code")
    return given
