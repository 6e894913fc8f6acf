"""The protocol over two descriptors, one message a line.

Pipes and sockets, which hosts use, are read and written on the loop itself: a message changes no
thread. Files and terminals are read and written in threads.

A client that closes its end after a request still wants the answer: the end of what comes in is
told only when every request has its answer, or after a while.

Nobody waits for what was not understood: a line that is not a message is answered with an error,
and a reply that cannot be read is an error to the request it names. Where it names none, every open
form fails (`lost`).

Serving one client over standard input and output.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import IO, Final, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from everhold.mcp import DEFAULT_PROFILE, make_front
from everhold.mcp.json_rpc import UnreadableMessage, parse_rpc_message
from everhold.mcp.server import McpFront
from everhold.mcp.stdout import take_client_descriptors
from everhold.models import AnswererSpec
from everhold.ports.program import set_signals_handled

#: Bytes of one message.
MAX_MESSAGE_BYTES: Final = 64_000_000
#: Seconds that the end of what comes in is held back for answers under way.
GRACE: Final = 30.0


def is_pipe(descriptor: int) -> bool:
    """Whether a loop can wait for it."""
    mode = os.fstat(descriptor).st_mode
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


class PendingRequests:
    """Requests that came and have no answer yet."""

    def __init__(self) -> None:
        self._open: set[str | int] = set()
        self._none = asyncio.Event()
        self._none.set()

    def came(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCRequest):
            self._open.add(message.id)
            self._none.clear()
        elif (
            isinstance(message, types.JSONRPCNotification)
            and message.method == "notifications/cancelled"
        ):
            self._closed((message.params or {}).get("requestId"))  # nobody answers it

    def went(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._closed(message.id)

    def _closed(self, request_id: object) -> None:
        if isinstance(request_id, str | int):  # whatever a client calls it
            self._open.discard(request_id)
        if not self._open:
            self._none.set()

    async def settled(self) -> None:
        """Wait until every request has its answer, or long enough."""
        try:
            async with asyncio.timeout(GRACE):
                await self._none.wait()
        except TimeoutError:
            pass


class _Stream:
    async def aclose(self) -> None:
        """Nothing to do: whoever opened it closes it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class IncomingStream(_Stream):
    """Messages that the client writes; one that cannot be read is answered, and comes as the error
    it raised.
    """

    def __init__(
        self,
        line: Callable[[], Awaitable[bytes]],
        ledger: PendingRequests,
        outgoing: OutgoingStream,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._line = line
        self._ledger = ledger
        self._outgoing = outgoing
        self._lost = lost

    @classmethod
    async def on(
        cls,
        descriptor: int,
        ledger: PendingRequests,
        outgoing: OutgoingStream,
        lost: Callable[[], None] = lambda: None,
    ) -> IncomingStream:
        if not is_pipe(descriptor):
            file = os.fdopen(descriptor, "rb")
            return cls(
                lambda: asyncio.to_thread(file.readline, MAX_MESSAGE_BYTES), ledger, outgoing, lost
            )
        reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
        )
        return cls(reader.readline, ledger, outgoing, lost)

    async def receive(self) -> SessionMessage | Exception:
        try:
            line = await self._line()
        except ValueError:  # longer than a line may be
            return await self._refused(_too_long())
        if not line:
            await self._ledger.settled()
            raise anyio.EndOfStream
        try:
            message = parse_rpc_message(line)
        except UnreadableMessage as error:
            if len(line) >= MAX_MESSAGE_BYTES:  # a file's line, which was cut off there
                return await self._refused(_too_long())
            return await self._refused(error) if line.strip() else error
        self._ledger.came(message)
        return SessionMessage(message)

    async def _refused(self, error: UnreadableMessage) -> SessionMessage | Exception:
        """What becomes of a line that is not a message. One that is a reply is not answered in its
        turn.
        """
        if error.may_reply and not (error.is_reply and error.error.id is not None):
            self._lost()
        if error.is_reply:
            return SessionMessage(error.error)
        with suppress(anyio.BrokenResourceError):  # the client has gone: the end follows
            await self._outgoing.send(SessionMessage(error.error))
        return error

    def __aiter__(self) -> IncomingStream:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class OutgoingStream(_Stream):
    """Messages that the client reads. Sending waits while the client does not keep up."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], ledger: PendingRequests) -> None:
        self._write = write
        self._ledger = ledger

    @classmethod
    async def on(cls, descriptor: int, ledger: PendingRequests) -> OutgoingStream:
        if not is_pipe(descriptor):
            file = os.fdopen(descriptor, "wb", 0, closefd=False)
            return cls(lambda line: asyncio.to_thread(_written, file, line), ledger)
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0)
        )
        transport.set_write_buffer_limits(0)  # so that what was sent has left us
        writer = asyncio.StreamWriter(transport, protocol, None, loop)

        async def write(line: bytes) -> None:
            writer.write(line)
            await writer.drain()

        return cls(write, ledger)

    async def send(self, item: SessionMessage, /) -> None:
        try:
            await self._write(_line(item.message))
        except OSError as error:  # the client has gone
            raise anyio.BrokenResourceError from error
        finally:
            self._ledger.went(item.message)


def _line(message: types.JSONRPCMessage) -> bytes:
    """A message as a line. Half a character, such as a client's id may have, goes back as it
    came.
    """
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except ValueError:
        return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode() + b"\n"


def _too_long() -> UnreadableMessage:
    return UnreadableMessage(
        types.PARSE_ERROR, f"A message was not read: it is longer than {MAX_MESSAGE_BYTES} bytes."
    )


def _written(file: IO[bytes], line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[file.write(left) :]


async def serve_stdio(
    database: str | None, *, llm: AnswererSpec, profile: str = DEFAULT_PROFILE
) -> None:
    """Serve until the client closes our standard input, or a signal ends us."""
    wires = take_client_descriptors()
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
