"""Verbs of a store that answers in place give the event loop a turn now and then.

A store in this process answers without waiting for anything, so a task that calls it in a loop
would never let another task run: heartbeats, timers, web requests. After `TURNS` verbs of one task,
its next one gives the loop a turn before it begins. It can be cancelled there, and then it has done
nothing.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, TypeVar

from everhold.ports.store import Maintenance, Store

T = TypeVar("T")

#: Verbs of one task in a row after which the loop is given a turn.
TURNS: Final = 16
#: Rows that are looked at before the loop is given a turn.
ROWS: Final = 256
_VERBS: Final = {*dir(Store), *dir(Maintenance)} - {"open", "close"}
#: The running task of a loop. Up to Python 3.11 asyncio's own function for it is not in C.
current_task: Any = (
    asyncio.current_task
    if sys.version_info >= (3, 12)
    else vars(asyncio.tasks)["_current_tasks"].get
)


def give_loop_turns(store: type[T]) -> type[T]:
    """Let the verbs of a class of stores, or of their maintenance, give turns. `commit_now` gives
    none: its caller does.
    """
    for name, verb in inspect.getmembers(store, inspect.iscoroutinefunction):
        if name in _VERBS:
            setattr(store, name, _turned(verb))
    store._caller = store._verbs = 0  # type: ignore[attr-defined]
    return store


async def iterate_with_turns(rows: Iterable[T]) -> AsyncIterator[T]:
    """What was read, with a turn for the loop now and then."""
    for number, row in enumerate(rows, 1):
        yield row
        if not number % ROWS:
            await asyncio.sleep(0)


def _turned(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    async def turned(self: Any, *args: Any, **options: Any) -> Any:
        caller = id(current_task(asyncio.get_running_loop()))
        if self._caller != caller:
            self._caller = caller
            self._verbs = 0
        elif self._verbs >= TURNS:
            self._verbs = 0
            await asyncio.sleep(0)
        self._verbs += 1
        return await verb(self, *args, **options)

    return turned
