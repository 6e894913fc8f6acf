"""Processes that send signals to sessions that workers drive, with the program and without it."""

import asyncio
import json
import random
from typing import Any

import everhold
from everhold.errors import UnknownProgram
from everhold.packages.catalog import KnownPrograms
from everhold.ports.store import Store
from everhold.runtime import Runtime
from tests.fault.crowd import at
from tests.fault.victim import say
from tests.fault.workers_victim import work  # noqa: F401  (a nursery calls it here)


async def nothing() -> None:
    """A call, so that a worker is busy with something when it is killed."""
    await asyncio.sleep(0.005)


@everhold.program
async def listens(ctx: everhold.Context) -> list[Any]:
    """Receives signals until one says "stop"."""
    found: list[Any] = []
    while (one := await ctx.receive("news")) != "stop":
        found.append(one)
        if len(found) % 3 == 0:
            await ctx.call(nothing)
    return found


class NoPrograms(KnownPrograms):
    """The programs of a process that has none."""

    def find(self, ref: str, version: int) -> Any:
        raise UnknownProgram(ref)


def bare(store: Store) -> Runtime:
    """A runtime that has no programs."""
    return Runtime(store, programs=NoPrograms(None), recover=False)


async def accept(path: str, keys: list[str]) -> None:
    """Have sessions accepted, for workers to begin."""
    async with bare(at(path)) as runtime:
        for key in keys:
            await runtime.engine.accept(runtime._birth(listens(), key, "", None, None, None))


async def send(path: str, keys: list[str], sender: int, count: int, program: bool) -> None:
    """Send so many signals to sessions at random; say of each that it was acknowledged."""
    dice = random.Random(sender)
    opened = Runtime(at(path), recover=False) if program else bare(at(path))
    async with opened as runtime:
        for number in range(count):
            key = dice.choice(keys)
            session_id = str(await runtime.store.find(key))
            await runtime.signal(session_id, "news", [sender, number // 2], wait=0)
            say(json.dumps([key, sender, number]))
            await asyncio.sleep(dice.random() * 0.05)


async def stop(path: str, keys: list[str]) -> None:
    async with bare(at(path)) as runtime:
        for key in keys:
            await runtime.signal(str(await runtime.store.find(key)), "news", "stop")
