"""The two parts of asyncio whose own versions would ask under other keys from one Python to the next.

`wait_for` makes a child task on Python 3.11 and none later; `as_completed` makes its tasks in the order of a set.
Both are replaced by versions that behave alike everywhere. Outside a program the originals run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from typing import Any

from everhold.programs.loop import Loop

_wait_for = asyncio.wait_for
_as_completed = asyncio.as_completed


async def wait_for(fut: Awaitable[Any], timeout: float | None) -> Any:
    """Wait for `fut`; cancel it and raise TimeoutError after `timeout` seconds."""
    if not isinstance(asyncio.get_running_loop(), Loop):
        return await _wait_for(fut, timeout)
    async with asyncio.timeout(timeout):
        return await fut


class _Completed:
    """Hands out futures as they are done; for `for` and for `async for`."""

    def __init__(self, fs: Iterable[Any], timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._todo = list(dict.fromkeys(asyncio.ensure_future(f) for f in dict.fromkeys(fs)))
        self._left = len(self._todo)
        self._done: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue()
        self._timer = loop.call_later(timeout, self._late) if timeout is not None and self._todo else None
        for future in self._todo:
            future.add_done_callback(self._one_done)

    def _one_done(self, future: asyncio.Future[Any]) -> None:
        self._todo.remove(future)
        self._done.put_nowait(future)
        if not self._todo and self._timer is not None:
            self._timer.cancel()

    def _late(self) -> None:
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
        for _ in range(self._left):
            yield self._value()

    async def __aiter__(self) -> AsyncIterator[asyncio.Future[Any]]:
        for _ in range(self._left):
            yield await self._next()


def as_completed(fs: Iterable[Any], *, timeout: float | None = None) -> Any:
    """Yield what is done, in the order it is done."""
    if not isinstance(asyncio._get_running_loop(), Loop):
        return _as_completed(fs, timeout=timeout)
    if asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
        raise TypeError(f"expect an iterable of futures, not {type(fs).__name__}")
    return _Completed(fs, timeout)


def install() -> None:
    """Put both where programs look for them. Doing it again changes nothing."""
    for module in (asyncio, asyncio.tasks):
        module.wait_for = wait_for  # type: ignore[attr-defined]
        module.as_completed = as_completed  # type: ignore[attr-defined]
