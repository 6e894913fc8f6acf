"""Sessions that begin by themselves: on a schedule, or because something happened. How-to:
docs/how-to/.
"""

from everhold.schedules.action import Feed, Start
from everhold.schedules.blocking import BlockingTimetable
from everhold.schedules.schedule import Schedule
from everhold.schedules.schedules import Timetable
from everhold.schedules.trigger import Emitted, Handover, Trigger

__all__ = [
    "BlockingTimetable",
    "Emitted",
    "Feed",
    "Handover",
    "Schedule",
    "Start",
    "Timetable",
    "Trigger",
]
