"""Sessions that begin by themselves: on a schedule, or because something happened. How-to: docs/how-to/."""

from everhold.drive.deed import Feed, Start
from everhold.drive.schedules import Schedule
from everhold.drive.triggers import Emitted, Handover, Trigger
from everhold.timetable.blocking import BlockingTimetable
from everhold.timetable.house import Timetable

__all__ = ["BlockingTimetable", "Emitted", "Feed", "Handover", "Schedule", "Start", "Timetable", "Trigger"]
