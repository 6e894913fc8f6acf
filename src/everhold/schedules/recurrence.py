"""When a schedule fires: by a cron expression in a timezone, at an interval, or once.

Rules
  1. The next time depends only on the recurrence and on the time before it, so that every process
     computes the same times.
  2. Cron is Debian's, by the library `cronsim`. A fixed time that a clock change skips fires right
     after the change; one that occurs twice fires the first time. `*` in minutes or hours follows
     elapsed time instead.
"""

from __future__ import annotations

import datetime as dates
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.core.status import LATEST
from everhold.errors import BadSchedule, UnknownTimezone

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

#: Short names of common cron expressions.
CRON_ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
#: Seconds between two times of an interval.
MIN_INTERVAL: Final = 1.0
MAX_INTERVAL: Final = 36525 * 86400.0


class Cron(msgspec.Struct, frozen=True, tag="cron", tag_field="by"):
    expression: str
    timezone: str


class Every(msgspec.Struct, frozen=True, tag="every", tag_field="by"):
    seconds: float


class Once(msgspec.Struct, frozen=True, tag="once", tag_field="by"):
    at: float


Recurrence = Cron | Every | Once
RecurrenceSpec = str | dates.timedelta | dates.datetime


def parse_recurrence(when: RecurrenceSpec, timezone: str = "UTC") -> Recurrence:
    """A recurrence from a cron expression, an interval or a time.

    Raises `BadSchedule` and `UnknownTimezone`.
    """
    place = load_timezone(timezone)
    match when:
        case str():
            made = Cron(" ".join(when.split()), timezone)
            if find_next_time(made, 0.0) is None:
                raise BadSchedule(when, "it never fires")
            return made
        case dates.timedelta():
            if not MIN_INTERVAL <= when.total_seconds() <= MAX_INTERVAL:
                reason = f"an interval is {MIN_INTERVAL:.0f} second to a hundred years"
                raise BadSchedule(str(when), reason)
            return Every(when.total_seconds())
        case dates.datetime():
            return Once(_timestamp(when if when.tzinfo is not None else when.replace(tzinfo=place)))
    raise BadSchedule(str(when), "give a cron expression, a timedelta or a datetime")


def _timestamp(when: dates.datetime) -> float:
    try:
        found = when.timestamp()
    except (ValueError, OverflowError):
        found = LATEST
    if not 0 <= found < LATEST:
        raise BadSchedule(str(when), "the year should be from 1970 to 9998")
    return found


def find_next_time(given: Recurrence, moment: float, since: float = 0.0) -> float | None:
    """The first time after `moment`; None if there is none. Intervals are counted from `since`."""
    match given:
        case Once(at):
            return at if at > moment else None
        case Every(seconds):
            passed = max(0, int((moment - since) // seconds))
            found = since + passed * seconds
            while found <= moment:  # at most twice: a sum of floats may fall short
                passed += 1
                found = since + passed * seconds
            return found
        case Cron(expression, timezone):
            return _find_next_cron_time(expression, timezone, moment)


def find_latest_time(given: Recurrence, first: float, now: float, since: float = 0.0) -> float:
    """The last time that is not after `now`, from `first` on, which is a time of the recurrence."""
    back = 60.0
    found = first
    while now - back > first:  # years may have passed: search backwards from now, in growing steps
        candidate = find_next_time(given, now - back, since)
        if candidate is not None and candidate <= now:
            found = candidate
            break
        back *= 2
    while (following := find_next_time(given, found, since)) is not None and following <= now:
        found = following
    return found


def format_recurrence(given: Recurrence) -> str:
    """A recurrence as text for people."""
    match given:
        case Cron(expression, timezone):
            return f"{expression} ({timezone})"
        case Every(seconds):
            return f"every {dates.timedelta(seconds=seconds)}"
        case Once(at):
            return f"once at {dates.datetime.fromtimestamp(at, dates.UTC):%Y-%m-%d %H:%M:%S} UTC"


def load_timezone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    # zoneinfo raises each of them for some sort of wrong name
    except (LookupError, OSError, ValueError, TypeError):
        raise UnknownTimezone(str(name)) from None


def _find_next_cron_time(expression: str, timezone: str, moment: float) -> float | None:
    from cronsim import CronSim

    place: Any = dates.UTC if timezone == "UTC" else load_timezone(timezone)
    parts = CRON_ALIASES.get(expression.lower(), expression)
    problem = _check_cron(parts)
    if problem is not None:
        raise BadSchedule(expression, problem)
    for found in CronSim(parts, dates.datetime.fromtimestamp(moment, place)):
        # in the hour that a clock change repeats, cronsim may give an earlier time
        if found.timestamp() > moment:
            return found.timestamp()
    return None


@lru_cache(maxsize=1000)
def _check_cron(expression: str) -> str | None:
    """The problem of a cron expression; None if it is valid."""
    from cronsim import CronSim

    try:
        CronSim(expression, dates.datetime(2000, 1, 1))
    except Exception as error:  # odd text makes cronsim raise other errors than its own
        return str(error) or "it cannot be read"
    return None
