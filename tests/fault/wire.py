"""A wire between a store and its server that can be cut: at once, or around one message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self


class Wire:
    """Forwards to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._what = b""
        self._landed = False
        self._writers: set[asyncio.StreamWriter] = set()
        self.open = True  # else who connects is turned away
        self.lost = asyncio.Event()
        self.deaf = False  # whether notifications are lost

    def lose(self, what: bytes, *, landed: bool) -> None:
        """Cut the line that sends this, once: before the server gets it, or after, when its answer
        comes.
        """
        self._what, self._landed = what, landed
        self.lost.clear()

    @property
    def url(self) -> str:
        """The address of a store at the other end."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?schema=everhold"

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Once what is to be lost is lost, nobody gets through until the block has ended."""
        await asyncio.wait_for(self.lost.wait(), 60)
        self.open = False
        self.cut()
        yield
        self.open = True

    def cut(self) -> None:
        """Cut every line."""
        for writer in self._writers:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.sleep(0.05)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open:
            writer.transport.abort()
            return
        above, below = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, below}
        mute = asyncio.Event()
        answers = asyncio.ensure_future(self._answers(above, writer, mute))
        try:
            while data := await reader.read(65536):
                if self._what and self._what in data:
                    self._what = b""
                    mute.set()
                    if not self._landed:
                        break
                    answers.add_done_callback(lambda _: writer.transport.abort())
                below.write(data)
        except ConnectionError:
            pass
        finally:
            answers.cancel()
            for each in (writer, below):
                self._writers.discard(each)
                each.transport.abort()
            if mute.is_set():
                self.lost.set()

    async def _answers(
        self, above: asyncio.StreamReader, writer: asyncio.StreamWriter, mute: asyncio.Event
    ) -> None:
        """Hand back what the server says; the first answer that must be lost ends it, once it is
        whole.
        """
        try:
            while data := await above.read(65536):
                if mute.is_set():
                    # the server is ready for the next: the transaction has ended
                    if data[-6:-1] == b"Z\0\0\0\5":
                        return
                # a notification comes alone to who listens
                elif not (self.deaf and data[:1] == b"A"):
                    writer.write(data)
        except ConnectionError:
            pass
