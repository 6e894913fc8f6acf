"""Requests of a client that have no answer yet."""

from __future__ import annotations

import asyncio
from typing import Final

#: Seconds for which the end of the input is delayed while requests have no answer.
GRACE: Final = 30.0


class PendingRequests:
    """Requests that have no answer yet."""

    def __init__(self) -> None:
        self._open: set[str | int] = set()
        self._none = asyncio.Event()
        self._none.set()

    def open(self, request_id: str | int) -> None:
        self._open.add(request_id)
        self._none.clear()

    def close(self, request_id: object) -> None:
        """The request has its answer, or was cancelled and gets none."""
        if isinstance(request_id, str | int):  # clients may send any JSON value as an id
            self._open.discard(request_id)
        if not self._open:
            self._none.set()

    async def wait_until_answered(self) -> None:
        """Wait until every request has its answer, at most `GRACE` seconds."""
        try:
            async with asyncio.timeout(GRACE):
                await self._none.wait()
        except TimeoutError:
            pass
