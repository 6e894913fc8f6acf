"""What the scenarios share: runtimes that replay at the end whatever they ran, and processes that
die.

A scenario runs live; when its runtime closes, each of its sessions is rebuilt from the journal,
strictly and without effects. Those whose program can be loaded elsewhere are replayed once more
when all tests are done, in a fresh process with another hash seed (`conftest.py`).
"""

import asyncio
from contextlib import asynccontextmanager

import msgspec

import everhold
from everhold.core.status import Raised
from everhold.engine.live_session import rebuild_session
from everhold.packages.find import find_program
from everhold.ports.store import SessionFilter
from everhold.programs.python.execution import PythonHost
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock

TTL = 10.0
#: Journals to be replayed in a fresh process, as JSON.
TAPES: list[bytes] = []
#: The references of programs that are made by `at_top`: a fresh process does not find them.
AT_TOP: set[str] = set()


def store(path=None):
    return MemoryStore() if path is None else SQLiteStore(path / "app.db")


class Rows(SQLiteStore):
    """Counts what SQLite does, step by step: rows that are looked at in vain too."""

    steps = 0

    async def open(self):
        await super().open()
        self._connection.set_progress_handler(self._step, 1)

    def _step(self):
        self.steps += 1


@asynccontextmanager
async def opened(path=None, *, on=None, clock=None, replay=True, **options):
    """A runtime on a manual clock: in memory, in `path`, or on a store that is there already."""
    runtime = Runtime(on or store(path), clock=clock or ManualClock(), ttl=TTL, **options)
    async with runtime:
        yield runtime
        if replay:
            await replayed(runtime)


async def replayed(runtime):
    """Rebuild every session from its journal: the same questions, nothing done, nothing written."""
    for row in await runtime.store.list(SessionFilter(limit=1000)):
        record = await runtime.store.load(row.birth.id)
        if _is_poisoned(record):
            continue
        await again(record, find_program)
        if "<locals>" not in record.birth.program and record.birth.program not in AT_TOP:
            TAPES.append(msgspec.json.encode(record))


async def again(record, finder):
    """Replay one journal and compare."""
    metrics = record.head.metrics
    live = await rebuild_session(record, PythonHost(finder), strict=True)
    live.drop()
    assert live.head.metrics == metrics, "metrics differ after replay"


def _is_poisoned(record):
    notes = record.deliveries[-1].notes if record.deliveries else None
    return (
        notes is not None and isinstance(notes.outcome, Raised) and notes.outcome.kind == "poison"
    )


async def dying(path, clock, **options):
    """A runtime that is going to die: see `die`."""
    runtime = Runtime(SQLiteStore(path / "app.db"), clock=clock, ttl=TTL, **options)
    await runtime.__aenter__()
    return runtime


async def die(runtime, clock):
    """End a runtime as `kill -9` does: nothing is given back, and after a while it counts as
    dead.
    """
    await runtime.engine.reconciler.stop()
    await runtime.mover.leave(0.0)
    if runtime._serving is not None:
        await runtime._serving  # else it is destroyed with the runtime, while it waits
    tasks = [*runtime.engine.effects.tasks, *runtime.engine.effects.waits.values()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for live in runtime.engine.sessions.all():
        runtime.engine.sessions.drop(live)
    await runtime.store.close()
    clock.advance(TTL + 1)


async def moved(runtime, session_id):
    """The status after the next change that comes by itself."""
    await runtime.engine.sessions.next_change(session_id, 60)
    return await runtime.status(session_id)


async def rows(runtime, session_id):
    """The deliveries of a session."""
    return (await runtime.store.load(session_id)).deliveries


def ids(status):
    return [query.id for query in status.queries]


def prompts(status):
    return [query.prompt for query in status.queries]


def at_top(body):
    """The program of a function that is defined in a test, as if it stood at the top of the module:
    a store that outlives the process takes no other.
    """
    body.__qualname__ = body.__name__
    program = everhold.program(body)
    AT_TOP.add(program.ref)
    return program
