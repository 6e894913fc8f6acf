"""Serves one client over standard input and output, one message a line.

Pipes and sockets, which hosts use, are read and written on the event loop, so a message needs no
thread. Files and terminals are read and written in threads.

Rules
  1. A client that closes its end after a request still gets the answer: the end of the input is
     reported only when every request has its answer, or after a time (`pending_requests`).
  2. Every line that cannot be read gets a response, so no client waits in vain. A line that is not
     a message is answered with an error. A reply that cannot be read ends the request that it
     names; if it names none, every open form fails (`lost`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import IO, TYPE_CHECKING, Final, Self

from everhold.mcp import DEFAULT_PROFILE, make_front
from everhold.mcp.json_rpc import UnreadableMessage, parse_rpc_message
from everhold.mcp.pending_requests import PendingRequests
from everhold.mcp.pipe_server import PipeServer
from everhold.mcp.sdk import types
from everhold.mcp.server import McpFront
from everhold.mcp.stdout import take_client_descriptors
from everhold.models import AnswererSpec
from everhold.ports.program import set_signals_handled

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

#: Bytes of one message.
MAX_MESSAGE_BYTES: Final = 64_000_000


def is_pipe(descriptor: int) -> bool:
    """Whether an event loop can wait for the descriptor."""
    mode = os.fstat(descriptor).st_mode
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


class _Stream:
    async def aclose(self) -> None:
        """Does nothing: the descriptor belongs to the caller."""

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
    """Messages from the client. An unreadable line is answered, and returned as its error."""

    def __init__(
        self,
        line: Callable[[], Awaitable[bytes]],
        pending: PendingRequests,
        outgoing: OutgoingStream,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._line = line
        self._pending = pending
        self._outgoing = outgoing
        self._lost = lost

    async def receive(self) -> SessionMessage | Exception:
        from anyio import EndOfStream
        from mcp.shared.message import SessionMessage

        try:
            line = await self._line()
        except ValueError:  # the line is longer than the limit
            return await self._refused(_too_long())
        if not line:
            await self._pending.wait_until_answered()
            raise EndOfStream
        try:
            message = parse_rpc_message(line)
        except UnreadableMessage as error:
            if len(line) >= MAX_MESSAGE_BYTES:  # the line of a file, cut off at the limit
                return await self._refused(_too_long())
            return await self._refused(error) if line.strip() else error
        if isinstance(message, types.JSONRPCRequest):
            self._pending.open(message.id)
        elif (
            isinstance(message, types.JSONRPCNotification)
            and message.method == "notifications/cancelled"
        ):
            self._pending.close((message.params or {}).get("requestId"))  # it gets no answer
        return SessionMessage(message)

    async def _refused(self, error: UnreadableMessage) -> SessionMessage | Exception:
        """Answer a line that is not a message. A reply is returned as an error, not answered."""
        from anyio import BrokenResourceError
        from mcp.shared.message import SessionMessage

        if error.may_reply and not (error.is_reply and error.error.id is not None):
            self._lost()
        if error.is_reply:
            return SessionMessage(error.error)
        with suppress(BrokenResourceError):  # the client has gone: the end of the input follows
            await self._outgoing.send(SessionMessage(error.error))
        return error

    def __aiter__(self) -> IncomingStream:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        from anyio import EndOfStream

        try:
            return await self.receive()
        except EndOfStream:
            raise StopAsyncIteration from None


class OutgoingStream(_Stream):
    """Messages to the client. Sending waits until the client has read enough."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], pending: PendingRequests) -> None:
        self._write = write
        self._pending = pending

    async def send(self, item: SessionMessage, /) -> None:
        try:
            await self._write(_line(item.message))
        except OSError as error:  # the client has gone
            from anyio import BrokenResourceError

            raise BrokenResourceError from error
        finally:
            if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
                self._pending.close(item.message.id)


def _line(message: types.JSONRPCMessage) -> bytes:
    """A message as a line. A lone surrogate, as in the id of a client, is returned unchanged."""
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


async def _open_input(descriptor: int) -> Callable[[], Awaitable[bytes]]:
    """Reads lines of the client. A line over the limit is a `ValueError`, or is cut off."""
    if not is_pipe(descriptor):
        file = os.fdopen(descriptor, "rb")
        return lambda: asyncio.to_thread(file.readline, MAX_MESSAGE_BYTES)
    reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader.readline


async def _open_output(descriptor: int) -> Callable[[bytes], Awaitable[None]]:
    """Writes lines to the client. Returns once the client has read enough."""
    if not is_pipe(descriptor):
        file = os.fdopen(descriptor, "wb", 0, closefd=False)
        return lambda line: asyncio.to_thread(_written, file, line)
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0)
    )
    transport.set_write_buffer_limits(0)  # `drain` returns once everything is written
    writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def write(line: bytes) -> None:
        writer.write(line)
        await writer.drain()

    return write


async def serve_stdio(
    database: str | None, *, llm: AnswererSpec, profile: str = DEFAULT_PROFILE
) -> None:
    """Serve until the client closes standard input, or a signal ends the process."""
    descriptors = take_client_descriptors()
    front = make_front(database, llm, profile)
    _exit_on_signals(front)
    opening = asyncio.ensure_future(front.open())
    try:
        await serve_client(
            front, await _open_input(descriptors[0]), await _open_output(descriptors[1])
        )
    finally:
        await opening
        await front.close()
        set_signals_handled(False)


async def serve_client(
    front: McpFront,
    line: Callable[[], Awaitable[bytes]],
    write: Callable[[bytes], Awaitable[None]],
    *,
    direct: bool = True,
) -> None:
    """Serve one client until its end of the input. Without `direct`, the library serves it all."""
    pending = PendingRequests()
    pipe = PipeServer(front, line, write, pending)
    try:
        rest = await pipe.serve() if direct and not _is_traced() else b""
        if rest is not None:
            await _serve_with_library(front, pipe, rest, line, write, pending)
    finally:
        await pipe.close()


def _is_traced() -> bool:
    """Whether this process exports traces, to which the library adds those of requests."""
    return "opentelemetry.sdk.trace" in sys.modules


# ---- after a message that only the library serves


async def _serve_with_library(
    front: McpFront,
    pipe: PipeServer,
    first: bytes | ValueError,
    line: Callable[[], Awaitable[bytes]],
    write: Callable[[bytes], Awaitable[None]],
    pending: PendingRequests,
) -> None:
    """Serve from a message on. `first` is its line, the error of reading it, or empty."""
    server = front.server(web=False)
    before: deque[bytes | ValueError] = deque(
        json.dumps(message).encode() + b"\n" for message in pipe.replay
    )
    if first:
        before.append(first)

    async def read() -> bytes:
        if not before:
            return await line()
        found = before.popleft()
        if isinstance(found, ValueError):
            raise found
        return found

    replayed = {message["id"] for message in pipe.replay if "id" in message}
    outgoing = _OutgoingAfterReplay(write, pending, replayed)
    incoming = _IncomingForBoth(read, pending, outgoing, front.forms.lost)
    incoming.pipe = pipe
    await server.run(incoming, outgoing, server.create_initialization_options())


class _IncomingForBoth(IncomingStream):
    """Messages for the library. Those about requests in progress go to the `PipeServer`."""

    pipe: PipeServer

    async def receive(self) -> SessionMessage | Exception:
        while True:
            found = await super().receive()
            if isinstance(found, Exception):
                return found
            message = found.message
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                if self.pipe.take_reply(message.model_dump(by_alias=True, exclude_unset=True)):
                    continue
            elif (
                isinstance(message, types.JSONRPCNotification)
                and message.method == "notifications/cancelled"
            ):
                self.pipe.cancel((message.params or {}).get("requestId"))
            return found


class _OutgoingAfterReplay(OutgoingStream):
    """Messages of the library, without its answers to what was replayed."""

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        pending: PendingRequests,
        replayed: set[str],
    ) -> None:
        super().__init__(write, pending)
        self._replayed = replayed

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        if (
            isinstance(message, types.JSONRPCResponse | types.JSONRPCError)
            and message.id in self._replayed
        ):
            self._pending.close(message.id)
        else:
            await super().send(item)


def _exit_on_signals(front: McpFront) -> None:
    """Close the front and exit on SIGINT and SIGTERM.

    `os._exit` is needed, because a thread that reads a terminal cannot be stopped.
    """

    async def leave(number: int) -> None:
        with suppress(Exception):
            await front.close()
        sys.stderr.flush()
        os._exit(128 + number)

    loop = asyncio.get_running_loop()
    leaving: set[asyncio.Task[None]] = set()

    def called(number: int) -> None:
        leaving.add(loop.create_task(leave(number)))

    with suppress(
        NotImplementedError
    ):  # Windows: the signal ends the process, and the database stays whole
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, called, number)
        set_signals_handled()
