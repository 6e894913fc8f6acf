"""Asking once for many: what is wanted while an asking is under way is asked for together in the
next.

Whoever wants something hears what was so after he asked, never before; one that cannot be had harms
no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")

#: What is asked for in one go.
MOST: Final = 100


class BatchLoader(Generic[K, T]):
    """`await loader(wanted)`; `ask` is given some that are wanted, and says something of each, in
    order.
    """

    def __init__(
        self, ask: Callable[[list[K]], Awaitable[Sequence[T]]], *, at_once: int = 1
    ) -> None:
        self._ask = ask
        self._at_once = at_once
        self._wanted: list[tuple[K, asyncio.Future[T]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()  # kept, or nobody would
        # those that will still look at what is wanted; one that is over may be among the tasks
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
