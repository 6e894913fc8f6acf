"""A fleet: several processes on one store, simulated in this process, and the base of the mover
tests.

    async with fleet:
        await fleet.movers()                                # as many as this fleet has
        session = await fleet.begin(errands(name="a"))      # accepted by a front that has no programs
        assert (await fleet.finish(session)).result == ["a-0"]

Movers move sessions by themselves; fronts only accept. Each process is a runtime with its own
connection to the store, which a test can cut. All share one manual clock. When a fleet closes, it
checks that every session has ended, that no call with rerun="never" ran twice, and that the store
is sound.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

import pytest

from everhold.core.intake import Intake
from everhold.core.session import ENDED, Birth
from everhold.core.status import Finished, Paused, Status
from everhold.errors import StoreUnavailable, UnknownProgram
from everhold.movers.workers import Worker
from everhold.packages.catalog import KnownPrograms
from everhold.ports.mover import Next
from everhold.ports.program import Call
from everhold.ports.store import Change, RemoteChange, SessionFilter, Store
from everhold.runtime import Runtime
from everhold.testing.clock import ManualClock
from everhold.testing.conformance.mover_programs import EFFECT_LOG, reset_effect_log
from everhold.testing.store_wrapper import StoreWrapper

T = TypeVar("T")

#: Seconds that a process is taken to live without being heard of, by the manual clock.
TTL: Final = 1000.0
#: Seconds until a test that hangs is stopped.
PATIENCE: Final = 30.0
#: Seconds between two looks at what is waited for, and at what other processes wrote.
PACE: Final = 0.01


class CuttableStore(StoreWrapper):
    """The store connection of one process. A test can cut it and observe its commits."""

    def __init__(self, store: Store, fleet: Fleet) -> None:
        super().__init__(store)
        self._fleet = fleet
        self.commits = 0  # that landed
        # told "before" and "after" each commit
        self.seen: Callable[[int, str], object] = lambda commit, when: None
        self.is_cut = False  # whether all calls fail
        self._wrote = 0  # writes of all lines that this one knows of

    async def forward(self, verb: Callable[..., Awaitable[T]], *given: Any, **options: Any) -> T:
        self._fail()
        return await verb(*given, **options)

    def _fail(self) -> None:
        if self.is_cut:
            raise StoreUnavailable(self.store.where, "the line is cut")

    async def commit(self, change: Change, fence: int) -> None:
        self._fail()
        self.seen(self.commits + 1, "before")
        self._fail()
        await self.store.commit(change, fence)
        self.commits = self.commits + 1
        self._fleet.writes = self._fleet.writes + 1
        self.seen(self.commits, "after")
        self._fail()

    async def intake(self, session_id: str, act: Callable[[Intake], T], **options: Any) -> T:
        self._fail()
        found = await self.store.intake(session_id, act, **options)
        self._fleet.writes += 1
        return found

    async def changed(self) -> bool:
        """Whether another process wrote; unknown if all processes share one store object."""
        self._fail()
        found = await self.store.changed()
        if self._fleet.is_shared:
            before = self._wrote
            self._wrote = self._fleet.writes
            found = before != self._wrote
        return found

    def listen(self, wake: Callable[[RemoteChange], None], me: str = "") -> float:
        return min(PACE, self.store.listen(wake, me))


class FleetPrograms(KnownPrograms):
    """The programs of a process that may lack some, or have other versions of them."""

    def __init__(
        self, has_any: bool, without: Collection[Any], editions: Mapping[str, Any]
    ) -> None:
        super().__init__(None)
        self._editions = editions
        self._has_any = has_any
        self._without = {one.ref for one in without}

    def find(self, ref: str, version: int) -> Any:
        if not self._has_any or ref in self._without:
            raise UnknownProgram(ref)
        return self._editions.get(ref) or super().find(ref, version)


class FleetRuntime(Runtime):
    """A runtime that may lack programs, or have other versions of them, and records the results of
    its moves.
    """

    def __init__(
        self,
        store: Any,
        *,
        programs: bool,
        without: Collection[Any],
        editions: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.editions = dict(editions or {})  # a test may deploy another one
        known = FleetPrograms(programs, without, self.editions)
        super().__init__(store, programs=known, **options)
        self.line: CuttableStore = store
        self.moves: list[tuple[str, Next]] = []
        self._really = self.engine.moves.move
        self.engine.moves.move = self._noted  # type: ignore[method-assign]

    async def _noted(self, session_id: str, **how: Any) -> Next:
        found = await self._really(session_id, **how)
        self.moves.append((session_id, found))
        return found

    def gave_up(self, session_id: str) -> bool:
        """Whether a move found that this process cannot resume a session."""
        return any(each == session_id and found.absent is not None for each, found in self.moves)


#: What a mover's `send` looks like.
Send = Callable[..., None]


class Fleet:
    """Processes on one store. A subclass defines what makes a process a mover."""

    size: ClassVar[int] = 1  # movers that `movers` opens
    # whether a mover takes up open model questions that it was not asked about
    adopts: ClassVar[bool] = False

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self.clock = ManualClock()
        self.writes = 0
        self.left: set[str] = set()  # sessions that need not end
        self._open_store, self._places = open_store, list[FleetRuntime]()
        self._stores: list[Store] = []
        self._fronts: dict[bool, FleetRuntime] = {}
        self._killed: set[str] = set()

    @property
    def is_shared(self) -> bool:
        """Whether all processes use the same store object."""
        return len({id(store) for store in self._stores}) < len(self._stores)

    # ---- what a mover is

    def _makes(self) -> dict[str, Any]:
        """Options of a runtime that is to be a mover."""
        raise NotImplementedError

    async def _set_out(self, place: FleetRuntime, send: Callable[[Send], Send]) -> None:
        """Open a runtime and let it move sessions; `send` wraps what requests a move."""
        raise NotImplementedError

    async def _call_off(self, place: FleetRuntime, grace: float) -> None:
        """Let a runtime leave in good order, within so many seconds."""
        raise NotImplementedError

    # ---- processes

    async def mover(
        self,
        *,
        without: Collection[Any] = (),
        editions: Mapping[str, Any] | None = None,
        send: Callable[[Send], Send] = lambda send: send,
        **options: Any,
    ) -> FleetRuntime:
        """Start one more process that moves sessions."""
        options |= self._makes()
        place = self._place(programs=True, without=without, editions=editions, **options)
        await self._set_out(place, send)
        return place

    async def movers(self, **options: Any) -> list[FleetRuntime]:
        """Start as many movers as the fleet has."""
        return [await self.mover(**options) for _ in range(self.size)]

    async def front(self, *, programs: bool = False, **options: Any) -> FleetRuntime:
        """Start a process that accepts input but moves nothing; `programs` says whether it has
        any.
        """
        if not options and programs in self._fronts:
            return self._fronts[programs]
        place = self._place(programs=programs, without=(), recover=False, **options)
        await place.__aenter__()
        if not options:
            self._fronts[programs] = place
        return place

    def _place(self, **options: Any) -> FleetRuntime:
        store = self._open_store()
        self._stores.append(store)
        place = FleetRuntime(CuttableStore(store, self), clock=self.clock, ttl=TTL, **options)
        self._places.append(place)
        return place

    async def leave(self, place: FleetRuntime, grace: float = PATIENCE) -> None:
        """Stop a mover gracefully."""
        self._places.remove(place)
        await self._call_off(place, grace)

    async def kill(self, place: FleetRuntime) -> None:
        """End a process as SIGKILL does: it writes nothing more, and its lease expires."""
        place.line.is_cut = True
        self._places.remove(place)
        self._killed.add(place.engine.presence.worker)
        await self._call_off(place, 0.0)
        self.clock.advance(TTL + 1)

    # ---- sessions

    async def begin(self, call: Call[Any], *, key: str | None = None, budget: Any = None) -> str:
        """Start a session through a front without programs."""
        front = await self.front()
        birth: Birth = front._birth(call, key, "", None, None, budget)
        await front.engine.accept(birth)
        return birth.id

    async def status(self, session_id: str) -> Status:
        """The status of a session, as a process that moves nothing sees it."""
        return await (await self.front()).status(session_id)

    async def finish(self, session_id: str, *, tick: float = 0.0) -> Finished:
        """Wait until a session has ended; the clock advances by `tick` at each poll."""

        async def ended() -> Finished | None:
            found = await self.status(session_id)
            return found if isinstance(found, Finished) else None

        found: Finished = await self.until(ended, tick=tick)
        return found

    async def asked(self, session_id: str, *prompts: str) -> Paused:
        """Wait until exactly these questions of a session are open."""

        async def paused() -> Paused | None:
            found = await self.status(session_id)
            queries = found.queries if isinstance(found, Paused) else ()
            return found if [query.prompt for query in queries] == list(prompts) else None  # type: ignore[return-value]

        found: Paused = await self.until(paused)
        return found

    async def hears(self, session_id: str, name: str) -> None:
        """Wait until a session waits for this signal."""

        async def listens() -> bool:
            found = await self.status(session_id)
            return isinstance(found, Paused) and name in found.signals

        await self.until(listens)

    async def until(self, what: Callable[[], Any | Awaitable[Any]], *, tick: float = 0.0) -> Any:
        """Wait until a condition returns a true value; returns it. The clock advances by `tick` at
        each poll.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while loop.time() < end:
            found = what()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            if tick:
                self.clock.advance(tick)
            await asyncio.sleep(PACE)
        open_now = [await self.status(id) for id in await self._unended()]
        raise AssertionError(f"it did not happen; the sessions that have not ended: {open_now}")

    async def _unended(self) -> list[str]:
        rows = await (await self.front()).store.list(SessionFilter(limit=1000))
        return [row.birth.id for row in rows if row.head.state not in ENDED]

    # ---- the end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self._judge()
        finally:
            for place in list(self._places):
                await self.leave(place, 0.0 if kind else PATIENCE)

    async def _judge(self) -> None:
        """Assert that every session has ended, no call with rerun="never" ran twice, and the store
        is sound.
        """
        front = await self.front()
        await self.until(self._all_ended, tick=1.0)
        assert {name: times for name, times in EFFECT_LOG.once.items() if times > 1} == {}
        assert await front.archive.verify() == []
        for place in [each for each in self._places if each is not front]:
            await self.leave(place)
        assert {worker.id for worker in await front.store.workers()} <= self._killed
        left = await front.store.unmoved(self.clock.now(), set(), parked=True)
        assert [one for one in left if one.id not in self.left] == []

    async def _all_ended(self) -> bool:
        return set(await self._unended()) <= self.left


class LocalFleet(Fleet):
    """A fleet whose movers are plain runtimes."""

    def _makes(self) -> dict[str, Any]:
        return {"recover": True}

    async def _set_out(self, place: FleetRuntime, send: Callable[[Send], Send]) -> None:
        place.mover.send = place.engine.sessions.send = send(place.mover.send)  # type: ignore[method-assign]
        await place.__aenter__()

    async def _call_off(self, place: FleetRuntime, grace: float) -> None:
        await place.close(grace)


class WorkerFleet(Fleet):
    """A fleet whose movers are workers."""

    size = 2
    adopts = True

    def __init__(self, open_store: Callable[[], Store]) -> None:
        super().__init__(open_store)
        self._workers: dict[FleetRuntime, Worker] = {}

    def _makes(self) -> dict[str, Any]:
        return {"recover": False}

    async def _set_out(self, place: FleetRuntime, send: Callable[[Send], Send]) -> None:
        await place.__aenter__()
        worker = self._workers[place] = place.workers.worker(poll=PACE)
        worker.send = send(worker.send)  # type: ignore[method-assign]
        await worker.__aenter__()

    async def _call_off(self, place: FleetRuntime, grace: float) -> None:
        worker = self._workers.pop(place, None)
        if worker is not None:
            await worker.leave(grace)
        await place.close(grace)


#: Makes the mover of a test, and its processes.
OpenFleet = Callable[[], Fleet]


def _on_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    async def run(room: MoverContractBase, given: dict[str, Any]) -> None:
        async with given["fleet"]:
            await test(room, **given)

    @functools.wraps(test)
    def claim(self: MoverContractBase, **given: Any) -> None:
        reset_effect_log()
        asyncio.run(run(self, given))

    return claim


class MoverContractBase:
    """The base of every mover contract. Each async test runs on its own loop, with its own fleet
    and effect log.
    """

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        for name, member in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(member):
                setattr(cls, name, _on_a_loop(member))

    @pytest.fixture
    def open_fleet(self) -> OpenFleet:
        raise NotImplementedError(
            "define the fixture open_fleet; it returns a function that makes a Fleet"
        )

    @pytest.fixture
    def fleet(self, open_fleet: OpenFleet) -> Fleet:
        return open_fleet()
