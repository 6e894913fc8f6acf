"""`runtime.workers`: work until cancelled, and say which processes live."""

import asyncio

import pytest

import everhold
from everhold.errors import UnknownProgram
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock


@everhold.program
async def counts(ctx):
    return 1


@everhold.program
async def other(ctx): ...


async def test_a_worker_is_not_made_for_a_program_that_is_not_here():
    """The error names what is near."""
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        with pytest.raises(UnknownProgram) as refused:
            runtime.workers.worker(programs=[f"{__name__}:count"])
        assert refused.value.hint == "Did you mean 'counts'?"


async def test_run_works_until_it_is_cancelled():
    """It then leaves as a worker does: its row is gone."""
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        status = await runtime.start(counts.ref, unchecked=True, wait=0)
        working = asyncio.create_task(runtime.workers.run(concurrency=2))
        assert (await runtime.wait(status)).result == 1
        assert [one.id for one in await runtime.workers.list()] == [runtime.engine.presence.worker]
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        assert await runtime.workers.list() == []


async def test_a_new_worker_starts_the_sessions_of_its_programs_only():
    """Also those that schedules and triggers begin."""
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        await runtime.triggers.add("happened", counts)
        runtime.workers.worker(programs=[other.ref])
        (handover,) = (await runtime.triggers.emit("happened")).handovers
        assert handover.state == "waiting"
        runtime.workers.worker()
        assert (await runtime.triggers.retry(handover.id)).state == "started"
