"""Other work on the same event loop: a task that takes a fixed share of its time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

SHARE = 0.3
PERIOD = 0.002


class Burn:
    """After each turn of the loop, burns CPU time to keep its share; `share` is the time that it
    took.
    """

    def __init__(self) -> None:
        self.burned = 0.0
        self.began = perf_counter()
        self.share = 0.0

    async def run(self) -> None:
        rested_from = perf_counter()
        while True:
            await asyncio.sleep(PERIOD)
            woken = perf_counter()
            until = woken + (woken - rested_from) * SHARE / (1 - SHARE)
            while (now := perf_counter()) < until:
                pass
            self.burned += now - woken
            rested_from = now

    def stop(self) -> None:
        self.share = self.burned / (perf_counter() - self.began)


@asynccontextmanager
async def burning(wanted: bool) -> AsyncIterator[Burn]:
    """Keep the loop busy inside the block, if wanted."""
    burn = Burn()
    task = asyncio.create_task(burn.run()) if wanted else None
    try:
        yield burn
    finally:
        burn.stop()
        if task:
            task.cancel()
