"""Schedules and triggers: sessions that start at a time, or when an event is emitted.

Start, Feed          actions: start a session, or send something to one
Schedule, Trigger    what runs an action: a time, or an event
Emitted, Handover    the receipt of an event, and its delivery to one trigger
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
