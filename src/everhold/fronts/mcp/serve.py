"""Serving one client over standard input and output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.server.stdio import stdio_server

from everhold.answerers import Spec
from everhold.fronts.mcp import stdout
from everhold.fronts.mcp.pipe import Incoming, Outgoing, is_pipe
from everhold.fronts.mcp.server import Front, front


async def serve(database: str | None, *, llm: Spec) -> None:
    """Serve until the client closes our standard input, or a signal ends us."""
    wires = stdout.wires()
    made = front(database, llm)
    server = made.server()
    _leave_on_signals(made)
    opening = asyncio.ensure_future(made.open())
    try:
        async with _streams(*wires) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await opening
        await made.close()


@asynccontextmanager
async def _streams(incoming: int, outgoing: int) -> AsyncIterator[tuple[Any, Any]]:
    """The two ways of the protocol: on the loop where it can wait for them, else through the library's threads."""
    if is_pipe(incoming) and is_pipe(outgoing):
        out = await Outgoing.on(outgoing)
        yield await Incoming.on(incoming), out
        await out.finish()
        return
    reader = open(incoming, encoding="utf-8", errors="replace")  # noqa: SIM115
    writer = open(outgoing, "w", encoding="utf-8", newline="\n", closefd=False)  # noqa: SIM115
    async with stdio_server(anyio.wrap_file(reader), anyio.wrap_file(writer)) as (read, write):
        yield read, write


def _leave_on_signals(made: Front) -> None:
    """Give everything back and go. A thread that reads a terminal cannot be stopped, so nobody waits for it."""

    async def leave(number: int) -> None:
        with suppress(Exception):
            await made.close()
        sys.stderr.flush()
        os._exit(128 + number)

    loop = asyncio.get_running_loop()
    leaving: set[asyncio.Task[None]] = set()

    def called(number: int) -> None:
        leaving.add(loop.create_task(leave(number)))

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: a signal ends the process, and nothing is lost
            loop.add_signal_handler(number, called, number)
