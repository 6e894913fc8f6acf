"""Movers decide which session is moved when: in one process alone, or in many workers by leases."""

from everhold.engine.limits import Limits
from everhold.movers.workers import Worker, WorkerEvent, Workers

__all__ = ["Limits", "Worker", "WorkerEvent", "Workers"]
