"""Waiting for a session, in a runtime that moves nothing by itself."""

import asyncio

import everhold
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock


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


class Counting(MemoryStore):
    """One that counts who listens; others write to it all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.listened = 0

    def listen(self, wake, me=""):
        self.listened += 1
        return 0.001

    async def changed(self):
        return True


async def test_others_are_heard_while_somebody_waits_and_only_then():
    """What another runtime does to a session is seen by whoever waits for it here; before and
    after, nobody listens.
    """
    global may_end
    may_end = asyncio.Event()
    store = Counting()
    async with Runtime(store) as working, Runtime(store, recover=False) as looking:
        begun = await working.start(patient(), wait=0)
        await looking.status(begun.session_id)
        while store.listened == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert store.listened == 1  # the one that moves sessions

        waiting = asyncio.ensure_future(looking.wait(begun.session_id))
        while store.listened == 1:
            await asyncio.sleep(0.01)
        may_end.set()
        assert (await asyncio.wait_for(waiting, 60)).result == "done"
        assert not looking.engine.sessions.awaited.is_set()


async def test_who_works_on_what_he_was_asked_to_is_not_taken_for_dead():
    """A call that lasts longer than a sign of life is not taken over by others."""
    global may_end
    may_end = asyncio.Event()
    store, clock = MemoryStore(), ManualClock()
    async with Runtime(store, clock=clock, ttl=10.0, recover=False) as runtime:
        await runtime.start(patient(), wait=0)
        for _ in range(5):
            async with asyncio.timeout(60):
                while not clock.waiting:
                    await asyncio.sleep(0.001)
                clock.advance(4.0)
                while [worker.age for worker in await store.workers()] != [0.0]:
                    await asyncio.sleep(0.001)
        may_end.set()


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
        while runtime.engine.sessions.jobs:
            await asyncio.sleep(0.001)
        store.way.set()

        status = await asyncio.wait_for(waiting, 30)

    assert status.result == "done"
