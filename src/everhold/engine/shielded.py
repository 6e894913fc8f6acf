"""Runs verbs to their end even if their callers are cancelled.

A caller may be cancelled at any await: by a timeout, or because a web client disconnected. A
running commit cannot be undone, and its follow-up must happen: waking waiting tasks, starting
marked work. So a verb runs in a task of its own. The caller waits for that task and may stop
waiting.
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
    "It is not known whether the call was done. Open the database again and repeat the call"
    " with the same key."
)


class ShieldedCalls:
    """The running verbs of one runtime. `refuse` raises if no verb may start."""

    def __init__(
        self, refuse: Callable[[], None] = lambda: None, where: str = "the runtime"
    ) -> None:
        self._refuse = refuse
        self._where = where
        self.tasks: set[asyncio.Task[Any]] = set()
        self._stopped: WeakSet[asyncio.Task[Any]] = WeakSet()  # cancelled by `rest`

    async def run(self, verb: Coroutine[Any, Any, T]) -> T:
        """Run a verb to its end and return its result; the caller may be cancelled before.

        Raises `StoreUnavailable` if `rest` cancelled the verb.
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
            del error, task  # the traceback refers to this frame: break the cycle

    async def rest(self, timeout: float | None = None) -> None:
        """Wait until all verbs have ended, also those that start meanwhile. After `timeout`, cancel
        the rest.
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
    """Whether the current task is being cancelled, and not only what it awaits."""
    caller = asyncio.current_task()
    return caller is None or caller.cancelling() > 0


async def _outcome(verb: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """The result or the error of a verb. A KeyboardInterrupt raised in a task would end the event
    loop, so it is returned, too.
    """
    try:
        return await verb, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def _log_failure(task: asyncio.Task[tuple[Any, BaseException | None]]) -> None:
    """Log the error of a verb whose caller was cancelled."""
    error = None if task.cancelled() else task.result()[1]
    if error is not None:
        log.info("a call failed after its caller was cancelled: %s", error)
