"""Workers that are killed, stopped and told to leave, and programs whose effects are written down
outside.

Each effect appends lines to a file, each in one write: `begin NAME PID` and `end NAME PID`. One
whose name has a file beside the log, `NAME.wait`, ends only when that is gone.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

import everhold
from everhold.movers import Limits
from everhold.runtime import Runtime
from tests.fault.crowd import at

VERSION = int(os.environ.get("EVERHOLD_TEST_VERSION", "1"))


def note(log: str, *words: object) -> None:
    """Append one line, whole or not at all."""
    line = (" ".join(map(str, words)) + "\n").encode()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


async def errand(log: str, name: str, seconds: float) -> int:
    """Something done outside; returns which process did it."""
    note(log, "begin", name, os.getpid())
    await asyncio.sleep(seconds)
    gate = Path(log).parent / f"{name}.wait"
    while gate.exists():
        await asyncio.sleep(0.01)
    note(log, "end", name, os.getpid())
    return os.getpid()


@everhold.program
async def errands(ctx, log: str, name: str, count: int, seconds: float = 0.0, rerun: str = "safe"):
    """One errand after another; one whose outcome is unknown counts as 0."""
    done = []
    for number in range(count):
        try:
            done.append(await ctx.call(errand, log, f"{name}-{number}", seconds, rerun=rerun))
        except everhold.OutcomeUnknown:
            done.append(0)
    return done


def stumble(log: str, name: str, failures: int) -> int:
    """Something done outside that fails so many times."""
    note(log, "begin", name, os.getpid())
    begun = Path(log).read_text().splitlines()
    if sum(line.startswith(f"begin {name} ") for line in begun) <= failures:
        raise ConnectionError("not yet")
    return os.getpid()


@everhold.program
async def stumbles(ctx, log: str, name: str, failures: int):
    """Attempts at what may not be repeated; returns 0 if its outcome is unknown."""
    again = everhold.Retry(failures + 1, backoff=0.2, factor=1.2)
    try:
        return await ctx.call(stumble, log, name, failures, rerun="never", retry=again)
    except everhold.OutcomeUnknown:
        return 0


@everhold.program(version=VERSION)
async def deployed(ctx, log: str):
    await ctx.call(errand, log, f"version-{VERSION}", 0.0)
    return VERSION


@everhold.program
async def naps(ctx, log: str, name: str, seconds: float):
    await ctx.sleep(seconds)
    return await ctx.call(errand, log, name, 0.0)


async def begin(path: str, calls: list[dict]) -> None:
    """Begin sessions without doing anything for them: their first errands are left for workers."""
    async with Runtime(at(path), recover=False) as runtime:
        runtime.engine.leave()
        for call in calls:
            program = {
                "errands": errands,
                "naps": naps,
                "deployed": deployed,
                "stumbles": stumbles,
            }[call.pop("program", "errands")]
            key = call.pop("key")
            await runtime.start(program(**call), key=key, wait=0)
        await runtime.engine.release()


async def work(
    path: str,
    ttl: float = 10.0,
    concurrency: int = 8,
    grace: float = 30.0,
    host: str = "",
    ahead: float = 0.0,
) -> None:
    """Be a worker until SIGTERM; `host` says on which machine, and `ahead` by how much its clock is
    wrong.
    """
    if host:
        import socket

        socket.gethostname = lambda: host
    if ahead:
        now = time.time
        time.time = lambda: now() + ahead
    async with Runtime(at(path), ttl=ttl, recover=False) as runtime:
        worker = runtime.workers.worker(
            concurrency=concurrency, grace=grace, limits=Limits(), tell=_tell
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


def _tell(one) -> None:
    os.write(1, f"{one.event} {one.session_id or ''}\n".encode())
