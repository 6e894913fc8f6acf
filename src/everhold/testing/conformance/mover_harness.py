"""How the mover suite runs: each test has a fleet and a world of its own.

An `async def test_…` of a room runs on a loop of its own: no plugin is needed. The fleet is closed
after the test, and what holds after each of them is checked then.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from everhold.testing.conformance.mover_fleet import Fleet
from everhold.testing.conformance.mover_programs import reset_effect_log

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
    """The base of every room of the mover suite."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        for name, member in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(member):
                setattr(cls, name, _on_a_loop(member))

    @pytest.fixture
    def open_fleet(self) -> OpenFleet:
        raise NotImplementedError(
            "say how to make a fleet: a fixture that returns a function without arguments"
        )

    @pytest.fixture
    def fleet(self, open_fleet: OpenFleet) -> Fleet:
        return open_fleet()
