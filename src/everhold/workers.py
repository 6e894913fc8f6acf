"""The part of `Runtime` that works for whatever waits in its store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from everhold.drive.gate import Limits
from everhold.drive.worker import CONCURRENCY, GRACE, Told, Worker

if TYPE_CHECKING:
    from everhold.runtime import Runtime

__all__ = ["Limits", "Told", "Worker", "Workers"]


class Workers:
    """The part of `Runtime` that works for whatever waits in its store."""

    def worker(
        self,
        *,
        concurrency: int = CONCURRENCY,
        limits: Limits | None = None,
        programs: Iterable[str] = (),
        ttl: float | None = None,
        grace: float = GRACE,
        tell: Callable[[Told], object] | None = None,
    ) -> Worker:
        """A worker: it claims sessions that can go on, drives them, and takes over from workers that died.

        `programs` are the references of those it works for (all, by default). Its leases live for `ttl` seconds. When
        it stops, work under way has `grace` seconds to get to its commit. `tell` is called with what is worth knowing.
        """
        runtime = cast("Runtime", self)
        return Worker(
            runtime._sessions,
            runtime._dispatch,
            runtime._caretaker,
            runtime.clock,
            concurrency=concurrency,
            limits=limits,
            programs=tuple(programs),
            ttl=ttl,
            grace=grace,
            tell=tell,
        )
