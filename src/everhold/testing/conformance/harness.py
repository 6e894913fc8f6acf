"""The base class of store contracts, and helpers to run and inspect a store.

Each `async def test_…` of a contract runs on its own event loop, so no plugin is needed. A test
with the argument `store` gets an open store, which is closed afterwards.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from everhold.core.intake import Intake
from everhold.ports.store import (
    ITEM,
    LETTER,
    MARK,
    PARKED,
    TIMER,
    ReclaimResult,
    SessionFilter,
    Store,
    StoreProblem,
)

#: Makes the store of a test; it is not open yet.
OpenStore = Callable[[], Store]


@asynccontextmanager
async def using_store(store: Store) -> AsyncIterator[Store]:
    """Open a store, and close it at the end."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _on_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    async def run(room: StoreContractBase, given: dict[str, Any]) -> None:
        if "store" not in given:
            await test(room, **given)
            return
        async with using_store(given["store"]):
            await test(room, **given)

    @functools.wraps(test)
    def claim(self: StoreContractBase, **given: Any) -> None:
        asyncio.run(run(self, given))

    return claim


class StoreContractBase:
    """The base of every store contract."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        for name, member in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(member):
                setattr(cls, name, _on_a_loop(member))

    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError(
            "define the fixture open_store; it returns a function that makes a store"
        )

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        return open_store()


async def dump_store(store: Store) -> list[Any]:
    """Everything that a store shows, to compare before and after."""
    summaries = await store.list(SessionFilter(limit=1000))
    records = [await store.load(one.birth.id) for one in summaries]
    inbox = await store.inbox(kind=None, to=None, limit=1000)
    values = [(key, await store.value("n", key)) for key in await store.keys("n")]
    attached = [
        await store.attachment(one.birth.id, made.id)
        for one in summaries
        for made in await store.attachments(one.birth.id)
    ]
    doors = [await store.intake(one.birth.id, _door, whole=True) for one in summaries]
    moments = [
        await list_due(store, 1e12, 1000),
        await list_orphans(store, set()),
        await store.next_duty(),
    ]
    return [
        records,
        inbox,
        values,
        moments,
        attached,
        doors,
        await list_ready(store, 1000),
        await store.duties("n"),
    ]


def _door(intake: Intake) -> Any:
    return intake.lease, intake.seq, list(intake.items.values())


async def find_problems(store: Store) -> list[StoreProblem]:
    """The findings of `verify`; an empty list for a store without maintenance."""
    return [] if store.maintenance is None else await store.maintenance.verify()


async def reclaim_leftovers(store: Store) -> ReclaimResult:
    """The result of `reclaim`; empty for a store without maintenance."""
    return ReclaimResult() if store.maintenance is None else await store.maintenance.reclaim()


async def collect_refusals(*commits: Any) -> list[BaseException | None]:
    """Run commits concurrently, and return the error of each, or None."""
    results: list[BaseException | None] = await asyncio.gather(*commits, return_exceptions=True)
    return results


async def wait_in_time(waiting: Awaitable[Any]) -> Any:
    """Await with a timeout, so that a store that never answers fails instead of hanging."""
    return await asyncio.wait_for(waiting, 60)


async def list_due(store: Store, now: float, limit: int) -> list[str]:
    """Sessions with a due timer or with letters, oldest first."""
    return await _needing(store, {TIMER, LETTER}, now=now, limit=limit)


async def list_orphans(store: Store, alive: set[str]) -> list[str]:
    """Sessions with marks of workers that are not alive, oldest first."""
    return await _needing(store, {MARK}, living=alive)


async def list_ready(store: Store, limit: int) -> list[str]:
    """Sessions with available queued items and no live claim, oldest first."""
    return await _needing(store, {ITEM}, limit=limit)


async def list_parked(store: Store) -> list[str]:
    """Sessions with a question that a worker may answer."""
    return await _needing(store, {PARKED})


async def _needing(
    store: Store,
    reasons: set[str],
    *,
    now: float = -1.0,
    living: set[str] | None = None,
    limit: int = 1000,
) -> list[str]:
    found = await store.unmoved(now, living or set(), parked=True, limit=1000)
    return list(dict.fromkeys(str(one.id) for one in found if one.why in reasons))[:limit]
