"""The blocking façade: `Runtime`, its parts and `AgentSession` for code that is not async.

It works inside a running event loop, too, such as in a notebook: its own loop runs in a thread.
`Bridge` gives a class the public coroutine methods of an async class; each runs on that loop and
blocks until it is done. Type checkers read `blocking.pyi`, which tools/blocking.py generates from
the async classes.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from everhold import runtime as _async
from everhold.agents import AgentSession, ConversationHandle, PluginHandle
from everhold.agents.agent import Agent
from everhold.agents.envelopes import Envelopes
from everhold.archive.archive import Archive
from everhold.cards import Cards
from everhold.core.budget import Budget
from everhold.core.observer import Observer
from everhold.core.retry import Retry
from everhold.core.unknown_names import checks_keywords
from everhold.engine.arguments import UNSET
from everhold.errors import EverholdError
from everhold.evals.evals import Evals
from everhold.models import AnswererSpec
from everhold.movers import Workers
from everhold.notify import Notifications, Notifier
from everhold.packages.find import refuse_while_loading
from everhold.ports.program import Call, Clock
from everhold.ports.script_end import (
    is_interrupted,
    let_interrupts_kill,
    show_errors_plainly,
    tell_interrupted,
)
from everhold.runtime import CLOSE_SECONDS, IDLE_SECONDS, NOT_STARTED, Runtime
from everhold.schedules import Schedules, Triggers

R = TypeVar("R")
T = TypeVar("T")
#: Runs a coroutine on the loop and blocks until it is done.
Wait = Callable[[Coroutine[Any, Any, Any]], Any]


class _Thread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="everhold", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self, *, waits: bool = True) -> None:
        """Stop the loop. With `waits`, calls in threads end before."""
        if waits:
            self.wait(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Bridge:
    """The blocking twin of an async object.

    Public coroutine methods of the class `of` become blocking methods, and async generators become
    iterators. A result whose class has a twin is returned as that twin.
    """

    _twins: ClassVar[dict[type, type[Bridge]]] = {}

    def __init_subclass__(cls, *, of: type) -> None:
        Bridge._twins[of] = cls
        for name, member in inspect.getmembers(of):
            if name.startswith("_") or name in vars(cls):
                continue
            if isinstance(member, property):
                setattr(cls, name, _bridge_property(name, member))
            elif inspect.iscoroutinefunction(member):
                setattr(cls, name, _bridge_coroutine(name, member))
            elif inspect.isfunction(member) and _gives_events(member):
                setattr(cls, name, _bridge_generator(name, member))

    def __init__(self, target: Any, wait: Wait) -> None:
        self._target = target
        self._wait = wait


def _bridge_property(name: str, member: property) -> property:
    return property(lambda self: getattr(self._target, name), doc=member.__doc__)


def _bridge_coroutine(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def blocks(self: Bridge, *args: Any, **options: Any) -> Any:
        found = self._wait(getattr(self._target, name)(*args, **options))
        twin = Bridge._twins.get(type(found))
        return found if twin is None else twin(found, self._wait)

    return blocks


def _bridge_generator(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def iterates(self: Bridge, *args: Any, **options: Any) -> Iterator[Any]:
        return _iterate(getattr(self._target, name)(*args, **options), self._wait)

    return iterates


def _gives_events(method: Callable[..., Any]) -> bool:
    return str(method.__annotations__.get("return")).startswith("AsyncGenerator[")


def _iterate(found: AsyncGenerator[T, None], wait: Wait) -> Iterator[T]:
    async def following() -> T | None:
        return await anext(found, None)

    async def close() -> None:
        # after an interrupt, the cancelled `anext` may still run; `aclose` would raise
        while found.ag_running:
            await asyncio.sleep(0.001)
        await found.aclose()

    try:
        while (event := wait(following())) is not None:
            yield event
    finally:
        wait(close())


class BlockingConversation(Bridge, of=ConversationHandle):
    """`ConversationHandle` for code that is not async. Made by `BlockingRuntime.conversation`."""

    @property
    def id(self) -> str:
        """The id of the session."""
        return self._target.id


class BlockingSession(BlockingConversation, of=AgentSession):
    """`AgentSession` for code that is not async. Made by `BlockingRuntime.session`."""

    @property
    def agent(self) -> Agent:
        """The agent of the conversation."""
        return self._target.agent

    def plugin(self, name: str) -> BlockingPlugin:
        """One plugin of the conversation, for the operations that it declares."""
        return BlockingPlugin(self._target.plugin(name), self._wait)


class BlockingPlugin(Bridge, of=PluginHandle):
    """`PluginHandle` for code that is not async. Made by `BlockingSession.plugin`."""

    @property
    def name(self) -> str:
        """The name of the plugin."""
        return self._target.name


class BlockingSchedules(Bridge, of=Schedules):
    """`Schedules` for code that is not async."""


class BlockingTriggers(Bridge, of=Triggers):
    """`Triggers` for code that is not async."""


class BlockingEvals(Bridge, of=Evals):
    """`Evals` for code that is not async."""


class BlockingNotifications(Bridge, of=Notifications):
    """`Notifications` for code that is not async."""


class BlockingArchive(Bridge, of=Archive):
    """`Archive` for code that is not async."""


class BlockingCards(Bridge, of=Cards):
    """`Cards` for code that is not async."""

    def sinks(self) -> list[dict[str, Any]]:
        """What this process has copied to each folder of ALC_CARD_SINKS, and what failed."""
        found: list[dict[str, Any]] = self._target.sinks()
        return found


class BlockingEnvelopes(Bridge, of=Envelopes):
    """`Envelopes` for code that is not async."""


class BlockingWorkers(Bridge, of=Workers):
    """`Workers` for code that is not async."""


class BlockingRuntime(Bridge, of=Runtime):
    """`Runtime` for code that is not async. Made by `open_blocking`; use it with `with`."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime, self.wait_for)
        self._thread: _Thread | None = None
        self.schedules = BlockingSchedules(runtime.schedules, self.wait_for)
        self.triggers = BlockingTriggers(runtime.triggers, self.wait_for)
        self.evals = BlockingEvals(runtime.evals, self.wait_for)
        self.notifications = BlockingNotifications(runtime.notifications, self.wait_for)
        self.archive = BlockingArchive(runtime.archive, self.wait_for)
        self.envelopes = BlockingEnvelopes(runtime.envelopes, self.wait_for)
        self.cards = BlockingCards(runtime.cards, self.wait_for)
        self.workers = BlockingWorkers(runtime.workers, self.wait_for)

    def __enter__(self) -> Self:
        self._thread = _Thread()
        try:
            self.wait_for(self._target.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if is_interrupted(error):
            with let_interrupts_kill():
                self.wait_for(self._target._tell_interrupted(error, CLOSE_SECONDS))
                self._close(CLOSE_SECONDS, waits=False)
            return
        if isinstance(error, EverholdError):
            show_errors_plainly()
        self.close()

    @functools.wraps(Runtime.close)
    def close(self, grace: float = CLOSE_SECONDS) -> None:
        """Close the runtime and its event loop. Running calls may finish within `grace` seconds."""
        self._close(grace)

    def _close(self, grace: float, *, waits: bool = True) -> None:
        """Close. With `waits`, also wait for calls in threads, which nothing can stop."""
        if self._thread is not None:
            try:
                self.wait_for(self._target.close(grace))
            finally:
                self._stop(waits=waits)

    def _stop(self, *, waits: bool = True) -> None:
        if self._thread is not None:
            self._thread.stop(waits=waits)
            self._thread = None

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of this runtime, and wait for its result."""
        if self._thread is None:
            work.close()
            raise RuntimeError(
                "this runtime is not open; use `with everhold.open_blocking(…) as runtime:`"
            )
        return self._thread.wait(work)

    def call(self, act: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        """Call an async function with the async runtime, and wait for its result."""
        return self.wait_for(act(self._target))


@checks_keywords("open_blocking")
def open_blocking(
    database: str | PathLike[str] | None = None,
    *,
    llm: AnswererSpec = UNSET,
    durability: str = "mixed",
    clock: Clock | None = None,
    observers: Iterable[Observer] = (),
    cache: int = 1000,
    idle: float = IDLE_SECONDS,
    recover: bool = True,
    tell: Iterable[Notifier] | None = None,
    on_unavailable: str | None = None,
    retry: Retry | None = None,
    timeout: float | None = None,
) -> BlockingRuntime:
    """`everhold.open` for code that is not async."""
    runtime = _async.open(
        database,
        llm=llm,
        durability=durability,
        clock=clock,
        observers=observers,
        cache=cache,
        idle=idle,
        recover=recover,
        tell=tell,
        on_unavailable=on_unavailable,
        retry=retry,
        timeout=timeout,
    )
    return BlockingRuntime(runtime)


@checks_keywords("run")
def run(
    call: Call[R],
    *,
    key: str | None = None,
    llm: AnswererSpec = UNSET,
    database: str | PathLike[str] | None = None,
    title: str = "",
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    budget: Budget | Mapping[str, int] | None = None,
    wait: float | None = None,
    again: bool = False,
    durability: str = "mixed",
) -> R:
    """Run a program to its end and return its result. The same `key` resumes the same session.

    Raises `Waiting` if the session needs an answer from outside, `Failed`, or `Cancelled`. If the
    session with this `key` was deleted, raises `KeyDeleted`; with `again`, starts a new one.
    """
    refuse_while_loading()
    opened = False
    try:
        with open_blocking(database, llm=llm, durability=durability) as runtime:
            opened = True
            return runtime.run(
                call,
                key=key,
                title=title,
                labels=labels,
                metadata=metadata,
                budget=budget,
                wait=wait,
                again=again,
            )
    except EverholdError as error:
        show_errors_plainly(brief=error)
        raise
    except KeyboardInterrupt as error:
        if not opened:
            tell_interrupted(NOT_STARTED, error)
        raise
