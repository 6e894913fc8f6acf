"""Schedules and triggers: sessions that start at a time, or when an event is emitted.

Start, Feed                what is done: a session is started, or one is sent something
Schedule, Trigger          what is set up
Emitted, Handover          what became of an event
"""

from everhold.schedules.action import Feed, SessionActionRunner, Start
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
