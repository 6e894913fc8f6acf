"""A deterministic event loop: ordinary asyncio code, with nothing but our queries to wait for.

It has no sockets, no threads and no clock. When nothing is ready, the program is waiting; when the
engine hands something over, it runs until nothing is ready again. Everything whose order asyncio
leaves to chance is given an order here: tasks and futures hash by creation number (salted per
session), so sets of them iterate alike in every process; tasks are named by their path.

What may not happen inside
  1. reaching outside: every loop method that would is refused with `ForeignCall`;
  2. being woken from outside: `call_soon` on an idle loop raises `ForeignWake`;
  3. raising from an exception handler: it logs;
  4. being collected: a parked program is kept until it is dropped, because the garbage collector
     would run its `finally` blocks wherever it happens to be, in another program's advance for one.
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

#: Handles one advance may run before the program counts as spinning.
HANDLES = 1_000_000
_NEVER: Final = float("inf")
_NOWHERE: Final = Variables()
_PRIME: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 61) - 1
_swap = getattr(asyncio.tasks, "_swap_current_task", None) if sys.version_info >= (3, 14) else None


#: The running task of a loop. Up to Python 3.11 asyncio's own function for it is not in C.
current_task: Any = (
    asyncio.current_task
    if sys.version_info >= (3, 12)
    else vars(asyncio.tasks)["_current_tasks"].get
)


class LoopHandle:
    """A callback that waits its turn."""

    __slots__ = ("_args", "_callback", "_context", "_when")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Variables | None
    ) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._when = 0.0

    def cancel(self) -> None:
        """Let go of everything at once: the handle itself may be kept until its moment, or until
        somebody looks.
        """
        self._callback = None
        self._args = ()
        self._context = _NOWHERE

    def cancelled(self) -> bool:
        return self._callback is None

    def when(self) -> float:
        return self._when


class DeterministicFuture(asyncio.Future[Any]):
    """A future whose place in a set is the same in every process."""

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
    """A task that knows its path: the k-th task made by task `t` is `t.k`."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        loop: DeterministicLoop,
        path: str,
        context: Variables | None,
    ) -> None:
        self.path = path  # where its queries are asked; `ctx.run` adds a segment for a while
        self.made = 0  # tasks made so far
        self.asked = 0  # queries asked so far
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
        self.prefix = prefix  # of the paths of its tasks: keys differ before and after a restart
        self.active = False
        # the one on which it is active; asyncio's own way to ask for it takes a call of the system
        self.thread = 0
        self.dropped = False
        self.replaying = False
        self.tasks: dict[int, DeterministicTask] = {}
        self._ready: deque[LoopHandle] = deque()
        self._timers: list[tuple[float, int, LoopHandle]] = []
        self._count = 0
        self._made = 0  # tasks that no task made: the root, and those of callbacks
        self._finalized = 0
        self._outer: Any = None
        self._outer_task: Any = None
        self._outer_hooks: Any = None

    def spread(self, number: int) -> int:
        """A creation number spread out and salted, so that sessions do not collide in asyncio's
        sets.
        """
        return ((number + self.salt) * _PRIME) & _MASK

    # ---- being run

    def __enter__(self) -> DeterministicLoop:
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
        """Run what is ready until nothing is. Raises `Spinning` past the limit."""
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
            # with what they held: an async generator is finished before the next one's turn
            del handle, callback

    def fire(self) -> None:
        """Make the timers due by now ready, earliest first."""
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            handle = heapq.heappop(timers)[2]
            if handle._callback is not None:
                self._ready.append(handle)

    def due(self) -> float | None:
        """When the earliest timer is due."""
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
                return LoopHandle(callback, args, context)  # never run
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
        **_: Any,  # newer Pythons pass eager_start; a task never starts before its turn here
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
        except Exception:  # a handler of the host's that is broken is not the program's concern
            pass

    def get_task_factory(self) -> None:
        return None

    def set_task_factory(self, factory: Any) -> None:
        raise ForeignCall("loop.set_task_factory")

    def _finalize(self, agen: Any) -> None:
        """Finish an async generator that the program let go of.

        Only where that happened at a moment that replay repeats: the last reference went while the
        program ran. What the garbage collector finds, sooner or later, is not finished at all.
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

    # ---- letting go

    def stand_still(self) -> None:
        """Run nothing more of what is ready or waits for its time."""
        self._ready.clear()
        self._timers.clear()

    def drop(self) -> None:
        """Close every parked coroutine here and now, each in its own context: silent, without
        effects.
        """
        if self.dropped:
            return
        self.dropped = True
        UNDROPPED_LOOPS.discard(self)
        self.stand_still()
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
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    close_coroutine(task.get_coro(), task.context)
                    del task
        self._ready.clear()


def refuse_runtime() -> None:
    """Raise `ForeignCall` inside a program: a runtime there would run what no journal knows."""
    if type(asyncio._get_running_loop()) is DeterministicLoop:
        raise make_foreign_call_error("a runtime", sys._getframe(1))


#: The loops of programs that were begun and not dropped.
UNDROPPED_LOOPS: Final[set[DeterministicLoop]] = set()


@atexit.register
def drop_all_loops() -> None:
    """Drop what nobody dropped, while there is still an interpreter to do it quietly."""
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


_OWN = set(vars(DeterministicLoop)) | set(dir(object))
for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in _OWN:
        setattr(DeterministicLoop, _name, _refuse(_name))
DeterministicLoop.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
