"""A receiver of webhooks that does what a test says."""

import asyncio
from contextlib import asynccontextmanager

import pytest


class Receiver:
    """Keeps what it was sent; answers with `says`, one after another, the last for ever."""

    def __init__(self):
        self.got = []
        self.says = [b"HTTP/1.1 204 No Content\r\n\r\n"]
        self.url = ""

    async def serve(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines if line)
            body = await reader.readexactly(int(headers["Content-Length"]))
            self.got.append((first, headers, body))
            said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
            if said is None:
                await asyncio.sleep(3600)
            writer.write(said)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def opened(self, ssl=None):
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=ssl)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        tasks = asyncio.all_tasks()
        try:
            yield self
        finally:
            server.close()
            for task in asyncio.all_tasks() - tasks:
                if "Receiver.serve" in repr(task):
                    task.cancel()


@pytest.fixture
def receiver():
    return Receiver()
