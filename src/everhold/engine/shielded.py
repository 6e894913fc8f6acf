"""Work that completes although its caller leaves.

A caller may be cancelled at any await: by a timeout, or because a web client disconnected. A commit
that is on its way cannot be called back, and what has to follow it (telling who waits, starting the
work that it marked) must follow. So a verb runs as a task of the engine. Its caller waits for that
task, and may stop waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar
from weakref import WeakSet

from everhold.errors import StoreUnavailable

T = TypeVar("T")

log = logging.getLogger("everhold")

CLOSED_HINT: Final = (
    "Whether the call was done is not known. Open the database again, and repeat it"
    " with the same key."
)


class ShieldedCalls:
    """The verbs of one runtime that have begun and not ended. `refuse` raises where a verb must not
    begin.
    """

    def __init__(
        self, refuse: Callable[[], None] = lambda: None, where: str = "the runtime"
    ) -> None:
        self._refuse = refuse
        self._where = where
        self.tasks: set[asyncio.Task[Any]] = set()
        self._stopped: WeakSet[asyncio.Task[Any]] = WeakSet()  # those that `rest` has cancelled

    async def run(self, verb: Coroutine[Any, Any, T]) -> T:
        """Run a verb to its end; returns what it returns, unless the caller is cancelled before.

        Raises `StoreUnavailable` in a caller whose verb was cancelled by `rest`.
        """
        self._refuse()
        task = asyncio.get_running_loop().create_task(_outcome(verb))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        try:
            value, error = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task in self._stopped and not _is_cancelled():
                raise StoreUnavailable(self._where, "the runtime was closed", CLOSED_HINT) from None
            task.add_done_callback(_log_failure)
            raise
        if error is None:
            return value  # type: ignore[return-value]
        try:
            raise error
        finally:
            del error, task  # the traceback holds this frame

    async def rest(self, timeout: float | None = None) -> None:
        """Wait until all of them have ended, also those that begin meanwhile; what is left by then
        is cancelled.
        """
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        while self.tasks:
            await asyncio.wait(
                set(self.tasks), timeout=None if end is None else max(0.0, end - loop.time())
            )
            if end is not None and loop.time() >= end:
                break
        left = set(self.tasks)
        self._stopped.update(left)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _is_cancelled() -> bool:
    """Whether the caller was cancelled, and not only what it waits for."""
    caller = asyncio.current_task()
    return caller is None or caller.cancelling() > 0


async def _outcome(verb: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """What a verb returns or raises. An interrupt is for the caller, too: raised in a task, it
    would end the loop.
    """
    try:
        return await verb, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def _log_failure(task: asyncio.Task[tuple[Any, BaseException | None]]) -> None:
    """Nobody waits for this verb any more: its error goes to the log."""
    error = None if task.cancelled() else task.result()[1]
    if error is not None:
        log.info("a call whose caller had left failed: %s", error)
