"""everhold's workers on one database: `runtime.start` and `runtime.workers`, as a user writes them.

Sessions are left to the workers: they start with a timer that is due at once, which only workers
fire.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import psycopg

import everhold
from bench import speak, work
from bench.ours import resident
from bench.programs import chain
from everhold.runtime import Runtime
from everhold.stores.registry import create_store as store_at

AT_ONCE = 32
LOOK = 0.05
LEFT = "SELECT 1 FROM everhold.sessions_v WHERE state IN ('running', 'paused') LIMIT 1"
began: list[float] = []  # when this process first did something in a slice


async def ask(prompt: str) -> str:
    if not began:
        began.append(perf_counter())
    return work.ANSWER


@everhold.program
async def calls(ctx: everhold.Context, steps: int) -> int:
    """`steps` durable steps, each of which calls a function."""
    await ctx.sleep(0.001)
    return sum(
        [len(await ctx.call(ask, work.PROMPTS[n % 1000], rerun="safe")) for n in range(steps)]
    )


async def errand(log: str, name: str, seconds: float) -> None:
    """Record the start, and run until the file of its name is removed."""
    with open(log, "a") as file:
        file.write(f"{name} {os.getpid()} {perf_counter()}\n")
    await asyncio.sleep(seconds)
    while Path(f"{log}.{name}").exists():
        await asyncio.sleep(0.001)


@everhold.program
async def errands(
    ctx: everhold.Context, log: str, name: str, count: int, seconds: float = 0.0
) -> None:
    await ctx.sleep(0.001)
    for n in range(count):
        await ctx.call(errand, log, f"{name}-{n}", seconds, rerun="safe")


bench_agent = everhold.Agent(instructions="Be brief.")


def model(query: Any) -> str:
    return work.ANSWER


class Crew:
    """One process of a fleet."""

    def __init__(self) -> None:
        self.url = ""

    def _runtime(self, **options: Any) -> Runtime:
        return Runtime(store_at(self.url, durability="power"), llm=model, recover=False, **options)

    async def open(self, url: str, host: str = "") -> speak.Reply:
        """`host` says on which machine this is."""
        if host:
            socket.gethostname = lambda: host
        self.url = url
        async with self._runtime():
            return {"versions": {"everhold": version("everhold")}}

    async def enqueue(self, sessions: int, steps: int) -> speak.Reply:
        """Create sessions for the workers."""
        async with self._runtime() as runtime:
            await asyncio.gather(
                *(runtime.start(calls(steps=steps), wait=0) for _ in range(sessions))
            )
        return {}

    async def work(self) -> speak.Reply:
        """Run a worker until all sessions have ended; returns when its first step was made, and
        when all were over.
        """
        began.clear()
        async with self._runtime() as runtime, runtime.workers.worker(concurrency=AT_ONCE):
            ended = await asyncio.to_thread(none_left, self.url)
        return {"began": began[0] if began else ended, "ended": ended}

    async def serve(self) -> speak.Reply:
        """Run a worker until SIGTERM."""
        async with self._runtime() as runtime:
            worker = runtime.workers.worker(concurrency=AT_ONCE)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
            await worker.run()
        return {}

    async def send(self, log: str, name: str, count: int) -> speak.Reply:
        """Create one session with errands for the workers."""
        async with self._runtime() as runtime:
            await runtime.start(errands(log=log, name=name, count=count), wait=0)
        return {}

    async def turns(self, count: int) -> speak.Reply:
        """Send inputs to a conversation and wait for the workers' answers; returns the seconds
        of each turn.
        """
        taken = []
        async with self._runtime() as runtime:
            session = await runtime.session(bench_agent, "latency")
            first = len(await session.turns())
            for number in range(first, first + count):
                before = perf_counter()
                await session.enqueue(work.ANSWER, key=f"n{number}")
                turn = await session.turn(f"n{number}")
                taken.append(perf_counter() - before)
                if turn.text != work.ANSWER:
                    raise AssertionError(f"it should have been answered, but is {turn!r}")
        return {"seconds": taken}

    async def beside(self, endless: bool, log: str) -> speak.Reply:
        """Seconds until each of 99 sessions of five errands has ended, beside one that never does
        or without it.
        """
        async with AsyncExitStack() as stack:
            runtime = await stack.enter_async_context(self._runtime())
            for n in range(100 if endless else 99):
                count = 10**6 if n == 99 else 5
                await runtime.start(
                    errands(log=log, name=f"f{n}", count=count, seconds=0.001), key=f"f{n}", wait=0
                )
            ids = [str(await runtime.store.find(f"f{n}")) for n in range(99)]
            before = perf_counter()
            await stack.enter_async_context(runtime.workers.worker(concurrency=AT_ONCE, grace=0.1))
            waited = await asyncio.gather(
                *(self._end(runtime, session_id, before) for session_id in ids)
            )
        return {"seconds": waited}

    async def _end(self, runtime: Runtime, session_id: str, before: float) -> float:
        status = await runtime.wait(session_id)
        if status.state != "completed":
            raise AssertionError(f"it should have ended, but is {status!r}")
        return perf_counter() - before

    async def park(self, sessions: int) -> speak.Reply:
        """Start this many sessions and leave them at their first question."""
        async with Runtime(store_at(self.url, durability="process"), recover=False) as runtime:
            for done in range(0, sessions, 500):
                wave = range(min(500, sessions - done))
                await asyncio.gather(*(runtime.start(chain(work.PAUSES)) for _ in wave))
        return {}

    async def memory(self) -> speak.Reply:
        """What a worker holds after a while with nothing to do, in MB."""
        async with self._runtime() as runtime, runtime.workers.worker():
            await asyncio.sleep(1.0)
            return {"megabytes": resident()}


def none_left(url: str) -> float:
    """Poll until nothing is left to do; returns the time."""
    pause = threading.Event()
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        while connection.execute(LEFT).fetchone() is not None:
            pause.wait(LOOK)
    return perf_counter()


VERBS = ("open", "enqueue", "work", "serve", "send", "turns", "beside", "park", "memory")


def main() -> None:
    crew = Crew()
    verbs: dict[str, Callable[..., Any]] = {name: getattr(crew, name) for name in VERBS}
    asyncio.run(speak.serve_async(verbs))


if __name__ == "__main__":
    import bench.crew  # its programs have that name in every process

    bench.crew.main()
