"""The protocol over two descriptors, one message a line.

Pipes and sockets, which hosts use, are read and written on the loop itself: a message changes no thread. Files and
terminals are read and written in threads.

A client that closes its end after a request still wants the answer: the end of what comes in is told only when every
request has its answer, or after a while.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import IO, Final, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

#: Bytes of one message.
LONGEST: Final = 64_000_000
#: Seconds that the end of what comes in is held back for answers under way.
GRACE: Final = 30.0


def is_pipe(descriptor: int) -> bool:
    """Whether a loop can wait for it."""
    mode = os.fstat(descriptor).st_mode
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


class Ledger:
    """Requests that came and have no answer yet."""

    def __init__(self) -> None:
        self._open: set[str | int] = set()
        self._none = asyncio.Event()
        self._none.set()

    def came(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCRequest):
            self._open.add(message.id)
            self._none.clear()
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Incoming(_Stream):
    """Messages that the client writes; one that cannot be read comes as the error it raised."""

    def __init__(self, line: Callable[[], Awaitable[bytes]], ledger: Ledger) -> None:
        self._line, self._ledger = line, ledger

    @classmethod
    async def on(cls, descriptor: int, ledger: Ledger) -> Incoming:
        if not is_pipe(descriptor):
            file = os.fdopen(descriptor, "rb")
            return cls(lambda: asyncio.to_thread(file.readline, LONGEST), ledger)
        reader = asyncio.StreamReader(limit=LONGEST)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0))
        return cls(reader.readline, ledger)

    async def receive(self) -> SessionMessage | Exception:
        try:
            line = await self._line()
            if not line:
                await self._ledger.settled()
                raise anyio.EndOfStream
            message = _read(line)
        except ValueError as error:  # not JSON, not a message, or too long
            return error
        self._ledger.came(message)
        return SessionMessage(message)

    def __aiter__(self) -> Incoming:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Outgoing(_Stream):
    """Messages that the client reads. Sending waits while the client does not keep up."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], ledger: Ledger) -> None:
        self._write, self._ledger = write, ledger

    @classmethod
    async def on(cls, descriptor: int, ledger: Ledger) -> Outgoing:
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
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            await self._write(line.encode() + b"\n")
        except OSError as error:  # the client has gone
            raise anyio.BrokenResourceError from error
        finally:
            self._ledger.went(item.message)


def _read(line: bytes) -> types.JSONRPCMessage:
    """The message in a line; raises `ValueError`.

    Half a character, as clients cut text that are written in JavaScript, is no reason to leave a request without any
    answer: it is read all the same, and the tool refuses it.
    """
    try:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        try:
            return types.jsonrpc_message_adapter.validate_python(json.loads(line), by_name=False)
        except (ValueError, RecursionError):
            raise error from None


def _written(file: IO[bytes], line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[file.write(left) :]
