"""How the suite runs: a room is a class of claims about one part of the port.

An `async def test_…` of a room runs on a loop of its own: no plugin is needed. If it asks for `store`,
it gets an open one, which is closed after it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from everhold.ports.store import Store

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
