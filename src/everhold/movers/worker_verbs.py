"""Workers of a runtime: making them as the settings say, and listing those that live."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from everhold.engine.arguments import check_seconds_arg
from everhold.engine.engine import Engine
from everhold.engine.limits import Limits
from everhold.errors import BadSetting
from everhold.movers.workers import CONCURRENCY, GRACE, Worker, WorkerEvent
from everhold.packages.settings import Settings, parse_duration
from everhold.ports.store import WorkerRecord


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[worker]` of the settings."""

    concurrency: int = CONCURRENCY
    lease_ttl: float | str | None = None
    grace: float | str = GRACE
    limits: Limits = Limits()
    adopt_parked: bool = False


def parse_worker_settings(table: Mapping[str, Any]) -> WorkerSettings:
    """Read the table; raises `BadSetting`."""
    _refuse_unknown("worker", table, WorkerSettings.__struct_fields__)
    limits = table.get("limits")
    if isinstance(limits, Mapping):
        _refuse_unknown("worker.limits", limits, Limits.__struct_fields__)
    try:
        return msgspec.convert(dict(table), WorkerSettings)
    except msgspec.ValidationError as error:
        raise BadSetting("worker", str(error)) from None


def _refuse_unknown(where: str, table: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in table:
        if name not in names:
            raise BadSetting(where, f"there is no {name!r}; there are {', '.join(names)}")


class Workers:
    """`runtime.workers`: makes workers, and says which processes work for the store.

    `take_up` makes this process do the chores of one that moves sessions of these programs.
    """

    def __init__(
        self, engine: Engine, settings: Settings | None, take_up: Callable[[frozenset[str]], None]
    ) -> None:
        self._engine = engine
        self._table = settings.worker if settings is not None else {}
        self._take_up = take_up

    def worker(
        self,
        *,
        concurrency: int | None = None,
        limits: Limits | None = None,
        programs: Iterable[str] = (),
        ttl: float | None = None,
        grace: float | None = None,
        poll: float | None = None,
        adopt_parked: bool | None = None,
        tell: Callable[[WorkerEvent], object] | None = None,
    ) -> Worker:
        """A worker: it claims sessions that can be moved, drives them, and takes over from workers
        that died.

        What is not given is as the settings say. `programs` are the references of those it works
        for (all, by default). Its leases live for `ttl` seconds. When it stops, running work has
        `grace` seconds to get to its commit. It looks every `poll` seconds at least. With
        `adopt_parked` it also answers model questions of sessions that were made by an older
        everhold, which do not say who answers them. `tell` is called with what is worth knowing.
        """
        for name, given in (("ttl", ttl), ("grace", grace), ("poll", poll)):
            check_seconds_arg(name, given)
        found = parse_worker_settings(self._table)
        if ttl is None and found.lease_ttl is not None:
            ttl = parse_duration(found.lease_ttl, "worker.lease_ttl")
        wanted = frozenset(programs)
        self._take_up(wanted)
        return Worker(
            self._engine,
            adopt_parked=found.adopt_parked if adopt_parked is None else adopt_parked,
            concurrency=found.concurrency if concurrency is None else concurrency,
            limits=found.limits if limits is None else limits,
            programs=wanted,
            ttl=ttl,
            grace=parse_duration(found.grace, "worker.grace") if grace is None else grace,
            poll=poll,
            tell=tell,
        )

    async def run(
        self,
        *,
        concurrency: int | None = None,
        limits: Limits | None = None,
        programs: Iterable[str] = (),
        ttl: float | None = None,
        grace: float | None = None,
        poll: float | None = None,
        adopt_parked: bool | None = None,
        tell: Callable[[WorkerEvent], object] | None = None,
    ) -> None:
        """Work until cancelled; `worker` says what the options mean."""
        worker = self.worker(
            concurrency=concurrency,
            limits=limits,
            programs=programs,
            ttl=ttl,
            grace=grace,
            poll=poll,
            adopt_parked=adopt_parked,
            tell=tell,
        )
        await worker.run()

    async def list(self) -> builtins.list[WorkerRecord]:
        """The processes that live and work for sessions of this store."""
        living = (await self._engine.presence.census()).living
        return [worker for worker in await self._engine.store.workers() if worker.id in living]
