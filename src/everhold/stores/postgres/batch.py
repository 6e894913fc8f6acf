"""Batches lookups: requests that arrive during a lookup are answered together by the next one.

A request is always answered by a lookup that started after it. A request that fails does not affect
the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")

#: Requests in one batch.
MOST: Final = 100


class BatchLoader(Generic[K, T]):
    """`await loader(wanted)`; `ask` receives several requests and returns an answer for each, in
    order.
    """

    def __init__(
        self, ask: Callable[[list[K]], Awaitable[Sequence[T]]], *, at_once: int = 1
    ) -> None:
        self._ask = ask
        self._at_once = at_once
        self._wanted: list[tuple[K, asyncio.Future[T]]] = []
        # a strong reference; asyncio keeps only weak ones
        self._tasks: set[asyncio.Task[Any]] = set()
        # tasks that will still look at the queue; a finished one may be among the tasks
        self._busy = 0

    async def __call__(self, wanted: K) -> T:
        loop = asyncio.get_running_loop()
        said: asyncio.Future[T] = loop.create_future()
        self._wanted.append((wanted, said))
        if self._busy < self._at_once:
            self._busy += 1
            self._tasks.add(task := loop.create_task(self._work()))
            task.add_done_callback(self._tasks.discard)
        return await said

    async def _work(self) -> None:
        try:
            while self._wanted:
                batch = self._wanted[:MOST]
                self._wanted = self._wanted[MOST:]
                await self._answer([one for one in batch if not one[1].done()])
        finally:
            self._busy -= 1

    async def _answer(self, batch: list[tuple[K, asyncio.Future[T]]]) -> None:
        try:
            said = await self._ask([wanted for wanted, _ in batch])
        except BaseException as error:
            for _, future in batch:
                _refuse(future, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), one in zip(batch, said, strict=True):
                if not future.done():
                    future.set_result(one)


def _refuse(future: asyncio.Future[Any], error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
    elif not future.done():
        future.set_exception(error)
