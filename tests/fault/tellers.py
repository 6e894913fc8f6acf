"""Processes that tell people, each line `told ID` printed when it was sent; some die right
after.
"""

import asyncio
import os
import time

import everhold
from everhold.notify.outbox import OutboxState
from everhold.runtime import Runtime, SystemClock
from everhold.stores.registry import create_store
from tests.fault.victim import say


@everhold.program
async def people(ctx: everhold.Context, count: int) -> list:
    return await asyncio.gather(*(ctx.input(f"{n}?") for n in range(count)))


class Late(SystemClock):
    """A clock that is so many seconds ahead."""

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def now(self) -> float:
        return time.time() + self._ahead


class Printing:
    name, kinds, to, timeout, max_age = "printer", (), (), 20.0, 3600.0

    def __init__(self, dies: bool) -> None:
        self._dies = dies

    async def tell(self, id: str, message: bytes, now: float) -> None:
        say("told", id)
        if self._dies:
            os._exit(9)
        await asyncio.sleep(0.001)


async def ask(url: str, count: int) -> None:
    async with Runtime(create_store(url)) as runtime:
        await runtime.start(people(count=count), key="people")


async def tell(url: str, count: int, dies: bool = False, ahead: float = 0.0) -> None:
    """Tell until everything is told."""
    async with Runtime(
        create_store(url), clock=Late(ahead) if ahead else None, tell=[Printing(dies)]
    ) as runtime:
        while [entry.state for entry in await runtime.notifications.list()] != [
            OutboxState.TOLD
        ] * count:
            await asyncio.sleep(0.02)
