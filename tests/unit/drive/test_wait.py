"""Waiting for a session."""

import asyncio

import everhold
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore


class SlowStore(MemoryStore):
    """One whose answer to a look may be old when it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.way = asyncio.Event()
        self.way.set()

    async def load(self, *args, **options):
        found = await super().load(*args, **options)
        await self.way.wait()
        return found


may_end = asyncio.Event()


@everhold.program
async def patient(ctx: everhold.Context) -> str:
    await ctx.call(may_end.wait)
    return "done"


async def test_what_happens_while_it_is_looked_at_is_not_missed():
    """A session that ends between the look and its answer has ended for whoever waits, too."""
    global may_end
    may_end = asyncio.Event()
    store = SlowStore()
    async with Runtime(store, recover=False) as runtime:
        begun = await runtime.start(patient(), wait=0)
        store.way.clear()
        waiting = asyncio.ensure_future(runtime.wait(begun.session_id))
        await asyncio.sleep(0.01)
        may_end.set()
        while runtime._sessions.jobs:
            await asyncio.sleep(0.001)
        store.way.set()

        status = await asyncio.wait_for(waiting, 30)

    assert status.result == "done"
