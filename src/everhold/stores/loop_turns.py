"""Lets in-process stores yield to the event loop now and then.

A store in this process never waits for anything, so a task that calls it in a loop would starve
the other tasks: heartbeats, timers, web requests. After `TURNS` store calls in a row, the next call
of the task first yields to the loop. If the task is cancelled there, the call has done nothing.
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

#: Store calls of one task in a row before it yields.
TURNS: Final = 16
#: Rows that are read before the loop gets a turn.
ROWS: Final = 256
_VERBS: Final = {*dir(Store), *dir(Maintenance)} - {"open", "close"}
#: Returns a loop's running task. Before Python 3.12, asyncio's own function is not written in C.
current_task: Any = (
    asyncio.current_task
    if sys.version_info >= (3, 12)
    else vars(asyncio.tasks)["_current_tasks"].get
)


def give_loop_turns(store: type[T]) -> type[T]:
    """Class decorator: the verbs of a store or of its maintenance yield to the loop. `commit_now`
    does not; its caller does.
    """
    for name, verb in inspect.getmembers(store, inspect.iscoroutinefunction):
        if name in _VERBS:
            setattr(store, name, _turned(verb))
    store._caller = store._verbs = 0  # type: ignore[attr-defined]
    return store


async def iterate_with_turns(rows: Iterable[T]) -> AsyncIterator[T]:
    """Iterates over rows and yields to the loop now and then."""
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
