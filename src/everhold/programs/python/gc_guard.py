"""What Python's garbage collector does while a program advances is not the program's.

It runs wherever it happens to be, and calls the finalizers of whatever it finds. Some of these look
for the loop that runs: clients of model providers start a task that closes them. In a program that
would be one task more, at a moment that no replay repeats, and everything that is asked after it
would have another key.

Rule: while the collector works, no program runs. There is no loop to be found, and nothing is
watched.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from everhold.programs.python import determinism_guard
from everhold.programs.python.event_loop import DeterministicLoop

# what stands aside: one at most, because only one thread collects at a time
_aside: list[tuple[DeterministicLoop, Any]] = []


def install_gc_guard() -> None:
    """From now on, be told when the collector begins and ends."""
    if _told not in gc.callbacks:
        gc.callbacks.append(_told)


def _told(phase: str, _info: dict[str, int]) -> None:
    if phase == "start":
        running = asyncio._get_running_loop()
        if type(running) is DeterministicLoop:
            _aside.append((running, determinism_guard.swap_executing(None)))
            asyncio._set_running_loop(None)
    elif _aside:
        running, executing = _aside.pop()
        asyncio._set_running_loop(running)
        determinism_guard.swap_executing(executing)
