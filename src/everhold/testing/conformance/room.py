"""How the suite runs: a room is a class of claims about one part of the port.

An `async def test_…` of a room runs on a loop of its own: no plugin is needed. If it asks for `store`,
it gets an open one, which is closed after it.
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
from everhold.ports.store import Filter, Store

OpenStore = Callable[[], Store]


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    """The store, open; closed at the end."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _on_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    async def run(room: Room, given: dict[str, Any]) -> None:
        if "store" not in given:
            await test(room, **given)
            return
        async with opened(given["store"]):
            await test(room, **given)

    @functools.wraps(test)
    def claim(self: Room, **given: Any) -> None:
        asyncio.run(run(self, given))

    return claim


class Room:
    """The base of every room."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        for name, member in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(member):
                setattr(cls, name, _on_a_loop(member))

    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError("say how to make your store: a fixture that returns a function without arguments")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        return open_store()


async def everything(store: Store) -> list[Any]:
    """All that a store shows, to see that nothing of it changed."""
    summaries = await store.list(Filter(limit=1000))
    records = [await store.load(one.birth.id) for one in summaries]
    inbox = await store.inbox(kind=None, to=None, limit=1000)
    values = [(key, await store.value("n", key)) for key in await store.keys("n")]
    attached = [
        await store.attachment(one.birth.id, made.id)
        for one in summaries
        for made in await store.attachments(one.birth.id)
    ]
    doors = [await store.intake(one.birth.id, _door, whole=True) for one in summaries]
    moments = [await store.due(1e12, 1000), await store.orphans(set()), await store.next_duty()]
    return [records, inbox, values, moments, attached, doors, await store.ready(1000), await store.duties("n")]


def _door(intake: Intake) -> Any:
    return intake.lease, intake.seq, list(intake.items.values())


async def refusals(*commits: Any) -> list[BaseException | None]:
    """Commit all at once; return what each was refused with."""
    results: list[BaseException | None] = await asyncio.gather(*commits, return_exceptions=True)
    return results


async def in_time(waiting: Awaitable[Any]) -> Any:
    """What is waited for; a store that never answers fails instead of hanging."""
    return await asyncio.wait_for(waiting, 60)
