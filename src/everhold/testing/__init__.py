"""For those who test programs, and those who test everhold: what is public is listed here.

    plugin, kit     the pytest fixture `everhold`, and its sessions
    crash           crash_everywhere: a program crashed before and after every commit
    cancel          cancel_everywhere: the callers of a program cancelled at every await
    faults          stores that crash or are slow, and processes made to be killed with `kill -9`
    clock           a clock that a test moves
    conformance     the contract of stores, as tests

Names are loaded when they are first used: pytest imports this package in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from everhold.testing.network import NetworkRefused as NetworkRefused
    from everhold.testing.session import Session as Session

_HOMES = {
    "CRASHED": "faults",
    "CancelReport": "cancel",
    "CrashReport": "crash",
    "CrashingStore": "faults",
    "Kit": "fixture",
    "ManualClock": "clock",
    "NetworkRefused": "network",
    "NotReplayed": "fixture",
    "NotSame": "compare",
    "Nursery": "faults",
    "Session": "session",
    "SlowStore": "faults",
    "cancel_everywhere": "cancel",
    "crash_everywhere": "crash",
}

__all__ = sorted(_HOMES)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'everhold.testing' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"everhold.testing.{home}"), name)
        globals()[name] = value
        return value
