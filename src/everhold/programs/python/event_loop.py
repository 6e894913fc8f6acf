"""A deterministic event loop for asyncio code that waits only for queries and timers.

It has no sockets, no threads and no clock. The engine delivers answers, and the loop runs until
nothing is ready. Then the program waits for the next delivery.

asyncio leaves the order of some things to chance; here it is fixed. Tasks and futures hash by
creation number (salted per session), so sets of them iterate in the same order in every process.
Tasks are named by their path.

Rules
  1. A loop method that reaches outside raises `ForeignCall`.
  2. `call_soon` while the program does not run raises `ForeignWake`: another loop or thread called
     it.
  3. An exception in a callback is logged, not raised.
  4. A waiting program is never garbage collected. It is kept in `UNDROPPED_LOOPS` until it is
     dropped, because the collector would run its `finally` blocks at a random moment, for example
     while another program runs.
"""

from __future__ import annotations

import asyncio
import atexit
import heapq
import logging
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context as Variables
from contextvars import copy_context
from threading import get_ident
from typing import Any, Final

from everhold.errors import ForeignCall, ForeignWake, Spinning
from everhold.programs.call_names import close_unstarted, make_foreign_call_error
from everhold.programs.python.coroutine_close import (
    LAST_REFCOUNT,
    NeverAwaitedSilencer,
    close_async_generator,
    close_coroutine,
    pin_unclosed_coroutines,
)

log = logging.getLogger("everhold.program")

#: Callbacks that one advance may run before it fails with `Spinning`.
HANDLES = 1_000_000
_NEVER: Final = float("inf")
_EMPTY_CONTEXT: Final = Variables()
_PRIME: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 61) - 1
# Python 3.14 refuses to start a task while another task of the same thread is current.
_swap = getattr(asyncio.tasks, "_swap_current_task", None) if sys.version_info >= (3, 14) else None


#: The current task of a loop. `asyncio.current_task` is written in C from Python 3.12 on; before,
#: reading its table is faster.
current_task: Any = (
    asyncio.current_task
    if sys.version_info >= (3, 12)
    else vars(asyncio.tasks)["_current_tasks"].get
)


class LoopHandle:
    """A scheduled callback."""

    __slots__ = ("_args", "_callback", "_context", "_when")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Variables | None
    ) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._when = 0.0

    def cancel(self) -> None:
        """Release callback and arguments now: the handle stays in the queue until its time."""
        self._callback = None
        self._args = ()
        self._context = _EMPTY_CONTEXT

    def cancelled(self) -> bool:
        return self._callback is None

    def when(self) -> float:
        return self._when


class DeterministicFuture(asyncio.Future[Any]):
    """A future that hashes by creation number, not by address."""

    __slots__ = ("number",)

    def __init__(self, loop: DeterministicLoop) -> None:
        loop._count += 1
        self.number = loop._count
        asyncio.Future.__init__(self, loop=loop)

    def __hash__(self) -> int:
        loop: Any = self._loop
        spread: int = loop.spread(self.number)
        return spread


class DeterministicTask(asyncio.Task[Any]):
    """A task with a path: the k-th task that task `t` creates is `t.k`."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        loop: DeterministicLoop,
        path: str,
        context: Variables | None,
    ) -> None:
        self.path = path  # prefix of its queries' keys; `ctx.run` appends a segment while it runs
        self.made = 0  # tasks created so far
        self.asked = 0  # queries made so far
        self.drawn = 0  # random values drawn so far
        loop._count += 1
        self.number = loop._count
        self.context = Variables() if context is None else context
        super().__init__(coro, loop=loop, name=path, context=self.context)
        loop.tasks[self.number] = self

    def __hash__(self) -> int:
        loop: Any = self._loop
        spread: int = loop.spread(self.number)
        return spread


class DeterministicLoop(asyncio.AbstractEventLoop):
    def __init__(self, salt: int, prefix: str = "") -> None:
        self.now = 0.0
        self.salt = salt
        self.prefix = prefix  # of its tasks' paths: keys differ before and after a restart
        self.active = False
        # The thread that runs it. asyncio's `_get_running_loop` calls getpid, a system call.
        self.thread = 0
        self.dropped = False
        self.replaying = False
        self.tasks: dict[int, DeterministicTask] = {}
        self._ready: deque[LoopHandle] = deque()
        self._timers: list[tuple[float, int, LoopHandle]] = []
        self._count = 0
        self._made = 0  # tasks that no task created: the root, and those of callbacks
        self._finalized = 0
        self._outer: Any = None
        self._outer_task: Any = None
        self._outer_hooks: Any = None

    def spread(self, number: int) -> int:
        """A hash of a creation number. The salt keeps sessions apart in asyncio's global sets."""
        return ((number + self.salt) * _PRIME) & _MASK

    # ---- running

    def __enter__(self) -> DeterministicLoop:
        # The engine runs on a loop of its own, so this loop is nested: asyncio refuses that in
        # `run_forever`, and the running loop is exchanged by hand.
        self._outer = asyncio._get_running_loop()
        if type(self._outer) is DeterministicLoop and not self.dropped:
            raise make_foreign_call_error("a runtime", sys._getframe(1))
        if _swap is not None and self._outer is not None:
            self._outer_task = _swap(self._outer, None)
        asyncio._set_running_loop(self)
        self._outer_hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, self._finalize)
        self.active, self.thread = True, get_ident()
        return self

    def __exit__(self, *_: object) -> None:
        self.active = False
        self.thread = 0
        sys.set_asyncgen_hooks(*self._outer_hooks)
        asyncio._set_running_loop(self._outer)
        if _swap is not None and self._outer is not None:
            _swap(self._outer, self._outer_task)
        self._outer = self._outer_task = None

    def drain(self) -> None:
        """Run callbacks until none is ready. Raises `Spinning` after `HANDLES`."""
        ready = self._ready
        left = HANDLES
        while ready:
            handle = ready.popleft()
            callback = handle._callback
            if callback is None:
                continue
            left -= 1
            if left < 0:
                raise Spinning(f"{HANDLES:,} turns of its loop")
            try:
                handle._context.run(callback, *handle._args)
            except Exception as error:
                self.call_exception_handler(
                    {"message": f"exception in callback {callback!r}", "exception": error}
                )
            # Freed before the next callback runs, so that an async generator that they held is
            # finalized at the same point on every run.
            del handle, callback

    def fire(self) -> None:
        """Make the timers due by now ready, earliest first."""
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            handle = heapq.heappop(timers)[2]
            if handle._callback is not None:
                self._ready.append(handle)

    def due(self) -> float | None:
        """The time of the earliest timer; None without timers."""
        timers = self._timers
        while timers:
            if timers[0][2]._callback is not None:
                return timers[0][0]
            heapq.heappop(timers)
        return None

    def living(self) -> list[DeterministicTask]:
        """The tasks that are not done, oldest first."""
        done = [number for number, task in self.tasks.items() if task.done()]
        for number in done:
            del self.tasks[number]
        return list(self.tasks.values())

    # ---- what asyncio calls

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Variables | None = None
    ) -> Any:
        if not self.active:
            if self.dropped:
                return LoopHandle(callback, args, context)  # is never run
            raise ForeignWake
        handle = LoopHandle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Variables | None = None,
    ) -> Any:
        if when != when:
            raise ValueError("a timer cannot be set for nan")
        if not self.active and not self.dropped:
            raise ForeignWake
        handle = LoopHandle(callback, args, context)
        handle._when = when
        if when <= self.now:
            self._ready.append(handle)
        elif when != _NEVER:
            self._count += 1
            heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Variables | None = None,
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def time(self) -> float:
        return self.now

    def create_future(self) -> DeterministicFuture:
        return DeterministicFuture(self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: Variables | None = None,
        **_: Any,  # newer Pythons pass eager_start; here a task never starts eagerly
    ) -> Any:
        if self.dropped or not self.active:
            close_unstarted(coro)
            raise (
                RuntimeError("this program was dropped from memory; no task can start")
                if self.dropped
                else ForeignWake
            )
        maker = current_task(self)
        if isinstance(maker, DeterministicTask):
            maker.made += 1
            path = f"{maker.path}.{maker.made}"
            context = copy_context() if context is None else context
        else:
            path = f"{self.prefix}{self._made}"
            self._made += 1
        # Forget tasks that are done whenever the table has doubled: amortized constant time.
        if len(self.tasks) > 64 and len(self.tasks) & (len(self.tasks) - 1) == 0:
            self.living()
        task = DeterministicTask(coro, self, path, context)
        if name is not None:
            task.set_name(name)
        return task

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.dropped

    def _timer_handle_cancelled(self, handle: Any) -> None:
        pass

    def get_exception_handler(self) -> None:
        return None

    def set_exception_handler(self, handler: Any) -> None:
        raise ForeignCall("loop.set_exception_handler")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.dropped or self.replaying:
            return
        try:
            log.error("%s", context.get("message"), exc_info=context.get("exception"))
        except Exception:  # a broken log handler of the host must not change what the program does
            pass

    def get_task_factory(self) -> None:
        return None

    def set_task_factory(self, factory: Any) -> None:
        raise ForeignCall("loop.set_task_factory")

    def _finalize(self, agen: Any) -> None:
        """Close an async generator whose last reference is gone.

        Only if the reference went while the program ran, because replay repeats that moment. A
        generator that the garbage collector finds is not closed at all: the collector runs at a
        different moment on every run.
        """
        if not self.active or sys.getrefcount(agen) > LAST_REFCOUNT:
            return
        if not self.dropped:
            self._finalized += 1
            DeterministicTask(
                agen.aclose(), self, f"{self.prefix}~{self._finalized}", copy_context()
            )
            return
        close_async_generator(agen)

    # ---- being dropped

    def clear_callbacks(self) -> None:
        """Forget all callbacks and timers."""
        self._ready.clear()
        self._timers.clear()

    def drop(self) -> None:
        """Close every waiting coroutine now, each in its own context, without effects."""
        if self.dropped:
            return
        self.dropped = True
        UNDROPPED_LOOPS.discard(self)
        self.clear_callbacks()
        if self.active:
            self._close_all()
        else:
            with self:
                self._close_all()

    def _close_all(self) -> None:
        living = self.living()
        self.tasks.clear()
        if living:
            with NeverAwaitedSilencer():
                while living:
                    task = living.pop()
                    # asyncio logs an error when a pending task is freed.
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    close_coroutine(task.get_coro(), task.context)
                    del task
        self._ready.clear()


def refuse_runtime() -> None:
    """Raise `ForeignCall` inside a program: sessions of a runtime there would not be recorded."""
    if type(asyncio._get_running_loop()) is DeterministicLoop:
        raise make_foreign_call_error("a runtime", sys._getframe(1))


#: The loops of programs that have started and are not dropped (rule 4).
UNDROPPED_LOOPS: Final[set[DeterministicLoop]] = set()


@atexit.register
def drop_all_loops() -> None:
    """At exit: drop the remaining programs while the interpreter can still run their code."""
    for loop in list(UNDROPPED_LOOPS):
        if not loop.active:
            loop.drop()
    pin_unclosed_coroutines()


def _refuse(name: str) -> Callable[..., Any]:
    def refused(self: DeterministicLoop, *args: Any, **kwargs: Any) -> Any:
        for arg in args:
            close_unstarted(arg)
        raise make_foreign_call_error(f"loop.{name}", sys._getframe(1))

    refused.__name__ = name
    return refused


# Every public method of the abstract loop that is not implemented above is refused, including those
# that a later Python adds.
_OWN = set(vars(DeterministicLoop)) | set(dir(object))
for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in _OWN:
        setattr(DeterministicLoop, _name, _refuse(_name))
DeterministicLoop.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
