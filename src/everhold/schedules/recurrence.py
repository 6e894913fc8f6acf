"""When a schedule fires: by a cron expression in a timezone, at an interval, or once.

Rules
  1. A moment is a plain function of the rhythm and of the moment before it: every process counts
     the same ones.
  2. Cron is Debian's, by the library `cronsim`. A fixed time that the clock jumps over happens as
     soon as it has jumped; one that comes twice happens the first time. `*` in minutes or hours
     follows real time instead.
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

#: Names for common expressions.
CRON_ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
#: Seconds between two moments, at least and at most.
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
    """What was said as text (cron), as a pause, or as a moment; raises `BadSchedule` and
    `UnknownTimezone`.
    """
    place = load_timezone(timezone)
    match when:
        case str():
            made = Cron(" ".join(when.split()), timezone)
            if find_next_time(made, 0.0) is None:
                raise BadSchedule(when, "that never comes")
            return made
        case dates.timedelta():
            if not MIN_INTERVAL <= when.total_seconds() <= MAX_INTERVAL:
                why = (
                    f"there is at least {MIN_INTERVAL:.0f} second between two moments, and a"
                    " hundred"
                    " years at most"
                )
                raise BadSchedule(str(when), why)
            return Every(when.total_seconds())
        case dates.datetime():
            return Once(_moment(when if when.tzinfo is not None else when.replace(tzinfo=place)))
    raise BadSchedule(str(when), "say when as text, as a timedelta, or as a datetime")


def _moment(when: dates.datetime) -> float:
    try:
        found = when.timestamp()
    except (ValueError, OverflowError):
        found = LATEST
    if not 0 <= found < LATEST:
        raise BadSchedule(str(when), "it is in no year from 1970 to 9998")
    return found


def find_next_time(given: Recurrence, moment: float, since: float = 0.0) -> float | None:
    """The first moment later than this one; a pause is counted from `since`. None: it never comes
    again.
    """
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
            return _cron(expression, timezone, moment)


def find_latest_time(given: Recurrence, first: float, now: float, since: float = 0.0) -> float:
    """The last moment up to now, of those from `first` on, which is one itself."""
    back = 60.0
    found = first
    while now - back > first:  # years may have passed: look back from now, further and further
        candidate = find_next_time(given, now - back, since)
        if candidate is not None and candidate <= now:
            found = candidate
            break
        back *= 2
    while (following := find_next_time(given, found, since)) is not None and following <= now:
        found = following
    return found


def format_recurrence(given: Recurrence) -> str:
    """A rhythm as people say it."""
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
    # each is how one sort of wrong name is told
    except (LookupError, OSError, ValueError, TypeError):
        raise UnknownTimezone(str(name)) from None


def _cron(expression: str, timezone: str, moment: float) -> float | None:
    from cronsim import CronSim

    place: Any = dates.UTC if timezone == "UTC" else load_timezone(timezone)
    parts = CRON_ALIASES.get(expression.lower(), expression)
    known = _checked(parts)
    if known is not None:
        raise BadSchedule(expression, known)
    for found in CronSim(parts, dates.datetime.fromtimestamp(moment, place)):
        # in an hour that comes twice, the clock on the wall may be behind
        if found.timestamp() > moment:
            return found.timestamp()
    return None


@lru_cache(maxsize=1000)
def _checked(expression: str) -> str | None:
    """What is wrong with an expression, if something is."""
    from cronsim import CronSim

    try:
        CronSim(expression, dates.datetime(2000, 1, 1))
    except Exception as error:  # besides its own error, odd text makes it raise others
        return str(error) or "it cannot be read"
    return None
