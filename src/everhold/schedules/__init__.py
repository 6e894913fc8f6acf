"""Sessions that begin by themselves: on a schedule, or because something happened. How-to:
docs/how-to/.
"""

from everhold.schedules.action import Feed, Start
from everhold.schedules.runner import SessionActionRunner
from everhold.schedules.schedule import Schedule, Schedules
from everhold.schedules.trigger import Emitted, Handover, Trigger, Triggers

__all__ = [
    "Emitted",
    "Feed",
    "Handover",
    "Schedule",
    "Schedules",
    "SessionActionRunner",
    "Start",
    "Trigger",
    "Triggers",
]
