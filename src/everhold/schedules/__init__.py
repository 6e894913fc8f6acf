"""Schedules and triggers: sessions that start at a time, or when an event is emitted.

Start, Feed                what is done: a session is started, or one is sent something
Schedule, Trigger          what is set up
Emitted, Handover          what became of an event
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
