"""The protocol over two descriptors, one message a line.

Pipes and sockets, which hosts use, are read and written on the loop itself: a message changes no thread. Files and
terminals are read and written in threads.

A client that closes its end after a request still wants the answer: the end of what comes in is told only when every
request has its answer, or after a while.

Nobody waits for what was not understood: a line that is no message is answered with an error, and a reply that cannot
be read is an error to whoever waits for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import IO, Final, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

#: Bytes of one message.
LONGEST: Final = 64_000_000
#: Seconds that the end of what comes in is held back for answers under way.
GRACE: Final = 30.0
#: What a request looks like.
_REQUEST: Final = 'it has "jsonrpc": "2.0", a method, an id that is text or a whole number, and params as an object'


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
    """Messages that the client writes; one that cannot be read is answered, and comes as the error it raised."""

    def __init__(self, line: Callable[[], Awaitable[bytes]], ledger: Ledger, outgoing: Outgoing) -> None:
        self._line, self._ledger, self._outgoing = line, ledger, outgoing

    @classmethod
    async def on(cls, descriptor: int, ledger: Ledger, outgoing: Outgoing) -> Incoming:
        if not is_pipe(descriptor):
            file = os.fdopen(descriptor, "rb")
            return cls(lambda: asyncio.to_thread(file.readline, LONGEST), ledger, outgoing)
        reader = asyncio.StreamReader(limit=LONGEST)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0))
        return cls(reader.readline, ledger, outgoing)

    async def receive(self) -> SessionMessage | Exception:
        line = b""
        try:
            line = await self._line()
            if not line:
                await self._ledger.settled()
                raise anyio.EndOfStream
            message = _read(line)
        except ValueError as error:  # not JSON, not a message, or too long
            refusal, is_reply = _refused(line)
            if is_reply:
                return SessionMessage(refusal)
            if line.strip() or not line:  # an empty line says nothing; one that is too long was not handed over
                with suppress(anyio.BrokenResourceError):  # the client has gone: the end follows
                    await self._outgoing.send(SessionMessage(refusal))
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
        try:
            await self._write(_line(item.message))
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
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        try:
            message = types.jsonrpc_message_adapter.validate_python(json.loads(line), by_name=False)
        except (ValueError, RecursionError):
            raise error from None
    # What has an id wants an answer, and is no notification, which the library takes it for if the id is none.
    if isinstance(message, types.JSONRPCNotification) and b'"id"' in line and "id" in json.loads(line):
        raise ValueError("the id is neither text nor a whole number")
    return message


def _line(message: types.JSONRPCMessage) -> bytes:
    """A message as a line. Half a character, such as a client's id may have, goes back as it came."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except ValueError:
        return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode() + b"\n"


def _refused(line: bytes) -> tuple[types.JSONRPCError, bool]:
    """The error that says what is wrong with a line, and whether the line was to be a reply to us."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        words = f"longer than {LONGEST} bytes" if not line or len(line) >= LONGEST else "not JSON"
        return _error(None, types.PARSE_ERROR, f"A line was not read: it is {words}."), False
    if not isinstance(given, dict):
        return _error(None, types.INVALID_REQUEST, "No message: one is a JSON object. Batches are not taken."), False
    name = given.get("id")
    known = name if isinstance(name, str | int) and not isinstance(name, bool) else None
    is_reply = "method" not in given and not given.keys().isdisjoint(("result", "error"))
    words = "a result is an object, an error has a code and a message" if is_reply else _REQUEST
    return _error(known, types.INVALID_REQUEST, f"No JSON-RPC 2.0 message: {words}."), is_reply


def _error(name: str | int | None, code: int, words: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=name, error=types.ErrorData(code=code, message=words))


def _written(file: IO[bytes], line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[file.write(left) :]
