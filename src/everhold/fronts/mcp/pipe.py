"""The protocol over two pipes, one message a line, on the loop itself.

The protocol library reads and writes standard streams in threads, because they may be files or terminals; hosts use
pipes or sockets, and there a message need not change threads twice in each direction.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from types import TracebackType
from typing import Final, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

#: Bytes of one message.
LONGEST: Final = 64_000_000


def is_pipe(descriptor: int) -> bool:
    """Whether a loop can wait for it."""
    mode = os.fstat(descriptor).st_mode
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


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

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    @classmethod
    async def on(cls, descriptor: int) -> Incoming:
        reader = asyncio.StreamReader(limit=LONGEST)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0))
        return cls(reader)

    async def receive(self) -> SessionMessage | Exception:
        try:
            line = await self._reader.readline()
            if not line:
                raise anyio.EndOfStream
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:  # not JSON, not a message, or too long
            return error

    def __aiter__(self) -> Incoming:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Outgoing(_Stream):
    """Messages that the client reads. Sending waits while the client does not keep up."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    @classmethod
    async def on(cls, descriptor: int) -> Outgoing:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0)
        )
        return cls(asyncio.StreamWriter(transport, protocol, None, loop))

    async def send(self, item: SessionMessage, /) -> None:
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            self._writer.write(line.encode() + b"\n")
            await self._writer.drain()
        except OSError as error:  # the client has gone
            raise anyio.BrokenResourceError from error

    async def finish(self) -> None:
        """Wait until everything is on its way."""
        self._writer.transport.set_write_buffer_limits(0)
        try:
            await self._writer.drain()
        except OSError:
            pass
        self._writer.close()
