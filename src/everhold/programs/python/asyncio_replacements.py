"""Replaces the parts of asyncio that behave differently between Pythons or between processes.

Replaced
  - `wait_for` makes a child task on Python 3.11, and none on later versions;
  - `as_completed` makes its tasks in the order of a set;
  - `all_tasks` returns a set whose order depends on other sessions of the process;
  - the future of `gather` hashes by its address.

Functions that start another loop or create a `concurrent.futures.Future` call no method of the
deterministic loop, so they are wrapped to refuse inside a program. Outside a program the originals
run.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import sys
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any, Final

from everhold.programs.call_names import close_unstarted, make_foreign_call_error
from everhold.programs.python.event_loop import DeterministicLoop

_wait_for = asyncio.wait_for
_as_completed = asyncio.as_completed
_all_tasks = asyncio.all_tasks


async def wait_for(fut: Awaitable[Any], timeout: float | None) -> Any:
    """Wait for `fut`; cancel it and raise TimeoutError after `timeout` seconds."""
    if type(asyncio._get_running_loop()) is not DeterministicLoop:
        return await _wait_for(fut, timeout)
    if timeout is not None and timeout <= 0:
        # the result if there is one; a coroutine is not started
        if asyncio.iscoroutine(fut):
            fut.close()
            raise TimeoutError
        future = asyncio.ensure_future(fut)
        if not future.done():
            future.cancel()
            await asyncio.wait([future])
        try:
            return future.result()
        except asyncio.CancelledError as error:
            raise TimeoutError from error
    async with asyncio.timeout(timeout):
        return await fut


class _Completed:
    """The iterator of `as_completed`, for `for` and for `async for` (Python 3.13 and later)."""

    def __init__(self, fs: Iterable[Any], timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        # A dict keeps the caller's order; asyncio uses a set, and tasks get their paths from it.
        self._todo = dict.fromkeys(asyncio.ensure_future(f) for f in dict.fromkeys(fs))
        self._left = len(self._todo)
        self._done: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue()
        self._timer = (
            loop.call_later(timeout, self._expire) if timeout is not None and self._todo else None
        )
        for future in self._todo:
            future.add_done_callback(self._one_done)

    def _one_done(self, future: asyncio.Future[Any]) -> None:
        if future in self._todo:  # else the timeout came first
            del self._todo[future]
            self._done.put_nowait(future)
            if not self._todo and self._timer is not None:
                self._timer.cancel()

    def _expire(self) -> None:
        for future in self._todo:
            future.remove_done_callback(self._one_done)
            self._done.put_nowait(None)
        self._todo.clear()

    async def _next(self) -> asyncio.Future[Any]:
        future = await self._done.get()
        if future is None:
            raise TimeoutError
        return future

    async def _value(self) -> Any:
        return (await self._next()).result()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return self._value()

    def __aiter__(self) -> _Completed:
        return self

    async def __anext__(self) -> asyncio.Future[Any]:
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        return await self._next()


def as_completed(fs: Iterable[Any], *, timeout: float | None = None) -> Any:
    """Yield results in the order in which they are done."""
    if type(asyncio._get_running_loop()) is not DeterministicLoop:
        return _as_completed(fs, timeout=timeout)
    if asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
        raise TypeError(f"expect an iterable of futures, not {type(fs).__name__}")
    return _Completed(fs, timeout)


def all_tasks(loop: Any = None) -> set[asyncio.Task[Any]]:
    """The tasks that are not done; in a program, a set filled in the order of creation."""
    found = asyncio._get_running_loop() if loop is None else loop
    if type(found) is not DeterministicLoop:
        return _all_tasks(loop)
    return set(found.living())


def _hash_gathering(self: Any) -> int:
    """Hash the future that `gather` returns: in a program by creation number, else by address."""
    loop = self._loop
    if type(loop) is not DeterministicLoop:
        return object.__hash__(self)
    number = getattr(self, "number", None)
    if number is None:
        loop._count += 1
        number = self.number = loop._count
    return loop.spread(number)


def _guard(original: Any, name: str) -> Any:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if type(asyncio._get_running_loop()) is DeterministicLoop:
            for arg in args:
                close_unstarted(arg)
            raise make_foreign_call_error(name, sys._getframe(1))
        return original(*args, **kwargs)

    return guarded


#: Functions that are refused in a program but call no method of its loop: owner, attribute, name.
#: Every pool's `submit` creates a `concurrent.futures.Future`, even if its threads already run.
_GUARDED: Final[list[tuple[Any, str, str]]] = [
    (asyncio, "run", "asyncio.run"),
    (asyncio, "new_event_loop", "asyncio.new_event_loop"),
    (asyncio.events, "new_event_loop", "asyncio.new_event_loop"),
    (asyncio.Runner, "run", "asyncio.Runner.run"),
    (concurrent.futures.Future, "__init__", "concurrent.futures.Future"),
]


def install_asyncio_replacements() -> None:
    """Replace the functions in `asyncio`. Idempotent."""
    if asyncio.wait_for is wait_for:
        return
    for module in (asyncio, asyncio.tasks):
        module.wait_for = wait_for  # type: ignore[attr-defined]
        module.as_completed = as_completed  # type: ignore[attr-defined]
        module.all_tasks = all_tasks  # type: ignore[attr-defined]
    asyncio.tasks._GatheringFuture.__hash__ = _hash_gathering  # type: ignore[attr-defined]
    for owner, attribute, name in _GUARDED:
        setattr(owner, attribute, _guard(getattr(owner, attribute), name))
