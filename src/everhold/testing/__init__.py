"""Tests of programs, and tools to test everhold itself.

    Kit, Session                what the pytest fixture `everhold` gives, and its sessions
    crash_everywhere            crashes a program before and after every commit
    cancel_everywhere           cancels the callers of a program at every await
    ManualClock                 a clock that a test moves
    CrashingStore, SlowStore    stores that crash or are slow
    Nursery                     processes that a test kills with `kill -9`
    conformance                 a package: the contracts of stores and movers, as tests

Names are loaded when they are first used: pytest imports this package in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everhold.lazy_exports import make_lazy_exports

if TYPE_CHECKING:
    from everhold.testing.cancel import CancelReport as CancelReport
    from everhold.testing.cancel import cancel_everywhere as cancel_everywhere
    from everhold.testing.clock import ManualClock as ManualClock
    from everhold.testing.compare import NotSame as NotSame
    from everhold.testing.crash import CrashReport as CrashReport
    from everhold.testing.crash import crash_everywhere as crash_everywhere
    from everhold.testing.faults import CRASHED as CRASHED
    from everhold.testing.faults import CrashingStore as CrashingStore
    from everhold.testing.faults import Nursery as Nursery
    from everhold.testing.faults import SlowStore as SlowStore
    from everhold.testing.fixture import Kit as Kit
    from everhold.testing.fixture import NotReplayed as NotReplayed
    from everhold.testing.fixture import Session as Session
    from everhold.testing.guards import NetworkRefused as NetworkRefused
    from everhold.testing.store_wrapper import StoreWrapper as StoreWrapper

_HOMES = {
    "CRASHED": "testing.faults",
    "CancelReport": "testing.cancel",
    "CrashReport": "testing.crash",
    "CrashingStore": "testing.faults",
    "Kit": "testing.fixture",
    "ManualClock": "testing.clock",
    "NetworkRefused": "testing.guards",
    "NotReplayed": "testing.fixture",
    "NotSame": "testing.compare",
    "Nursery": "testing.faults",
    "Session": "testing.fixture",
    "SlowStore": "testing.faults",
    "StoreWrapper": "testing.store_wrapper",
    "cancel_everywhere": "testing.cancel",
    "crash_everywhere": "testing.crash",
}

__all__ = sorted(_HOMES)


if not TYPE_CHECKING:
    __getattr__, __dir__ = make_lazy_exports(__name__, _HOMES)
