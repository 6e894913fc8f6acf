"""What goes wrong with schedules, triggers and what they start. `core.errors` has the whole tree."""

from __future__ import annotations

from everhold.core.branches import StateError, UsageError


class BadSchedule(UsageError):
    code = "bad_schedule"
    hint = "Say when in five fields (minute hour day month weekday), such as '0 3 * * 1-5', or by a time or a pause."

    def __init__(self, when: str, reason: str) -> None:
        super().__init__(f"{when!r} is no schedule: {reason}")
        self.when, self.reason = when, reason


class UnknownTimezone(UsageError):
    code = "unknown_timezone"
    hint = "Name it as the tz database does: Europe/Berlin, or UTC. On Windows, `pip install tzdata` brings them."

    def __init__(self, name: str) -> None:
        super().__init__(f"no timezone {name!r} here")
        self.name = name


class UnknownSchedule(UsageError):
    code = "unknown_schedule"
    hint = "List the schedules: everhold schedule"

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule {name!r}")
        self.name = name


class UnknownTrigger(UsageError):
    code = "unknown_trigger"
    hint = "List the triggers: everhold trigger"

    def __init__(self, event: str, name: str) -> None:
        super().__init__(f"nothing called {name!r} is triggered by {event!r}")
        self.event, self.name = event, name


class UnknownHandover(UsageError):
    code = "unknown_handover"
    hint = "List what events have started, or could not start: everhold trigger log"

    def __init__(self, id: str) -> None:
        super().__init__(f"no handover {id!r}")
        self.id = id


class EventConflict(UsageError):
    code = "event_conflict"
    hint = "Use another key; what was emitted first stands, and is delivered once."

    def __init__(self, event: str, key: str) -> None:
        super().__init__(f"{event!r} was emitted before with the key {key!r} and another payload")
        self.event, self.key = event, key


class Outdated(StateError):
    code = "outdated"
    hint = "Look at it again, then decide; nothing was changed."

    def __init__(self, what: str, wanted: int, found: int) -> None:
        super().__init__(f"{what} is at revision {found}, not {wanted}")
        self.what, self.wanted, self.found = what, wanted, found
