"""Movers: who calls `move` for which session, and when. One process by itself, or many workers with
leases.
"""

from everhold.engine.limits import Limits
from everhold.movers.workers import Worker, WorkerEvent, Workers

__all__ = ["Limits", "Worker", "WorkerEvent", "Workers"]
