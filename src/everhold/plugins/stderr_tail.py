"""The last words of a process: its standard error, of which only the end is kept."""

from __future__ import annotations

import asyncio
import os
from typing import Final

#: Bytes that are kept.
MAX_TAIL_BYTES: Final = 400


class StderrTail:
    """A pipe to hand to a process. It is read as long as it is open, so that nobody has to wait for
    us.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.file = os.fdopen(writing, "w")
        self._kept = b""
        self._loop.add_reader(self._reading, self._read)

    @property
    def said(self) -> str:
        """What it said last, after a colon; nothing if it said nothing."""
        words = " ".join(self._kept.decode("utf-8", "replace").split())
        return f": {words}" if words else ""

    def _read(self) -> None:
        try:
            data = os.read(self._reading, 65_536)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._reading)
        self._kept = (self._kept + data)[-MAX_TAIL_BYTES:]

    def close(self) -> None:
        self._read()
        self._loop.remove_reader(self._reading)
        os.close(self._reading)
        self.file.close()
