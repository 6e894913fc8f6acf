"""Serving one client over standard input and output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

from everhold.mcp import stdout
from everhold.mcp.profiles import DEFAULT_PROFILE, make_front
from everhold.mcp.server import McpFront
from everhold.mcp.stdio import IncomingStream, OutgoingStream, PendingRequests
from everhold.models import AnswererSpec
from everhold.ports.interrupts import set_signals_handled


async def serve_stdio(
    database: str | None, *, llm: AnswererSpec, profile: str = DEFAULT_PROFILE
) -> None:
    """Serve until the client closes our standard input, or a signal ends us."""
    wires = stdout.take_client_descriptors()
    made = make_front(database, llm, profile)
    server = made.server(web=False)
    _leave_on_signals(made)
    opening = asyncio.ensure_future(made.open())
    ledger = PendingRequests()
    outgoing = await OutgoingStream.on(wires[1], ledger)
    incoming = await IncomingStream.on(wires[0], ledger, outgoing, made.forms.lost)
    try:
        await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await opening
        await made.close()
        set_signals_handled(False)


def _leave_on_signals(made: McpFront) -> None:
    """Give everything back and go. A thread that reads a terminal cannot be stopped, so nobody
    waits for it.
    """

    async def leave(number: int) -> None:
        with suppress(Exception):
            await made.close()
        sys.stderr.flush()
        os._exit(128 + number)

    loop = asyncio.get_running_loop()
    leaving: set[asyncio.Task[None]] = set()

    def called(number: int) -> None:
        leaving.add(loop.create_task(leave(number)))

    with suppress(NotImplementedError):  # Windows: a signal ends the process, and nothing is lost
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, called, number)
        set_signals_handled()
