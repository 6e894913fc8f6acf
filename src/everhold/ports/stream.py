"""Streaming: pieces of an answer while a model produces it, for listeners in this process.

    with subscribe(session_id) as heard:
        async for query_id, delta in heard:
            ...

Deltas are only for display. They are not stored, not replayed, and decide nothing; the answer in
the journal does.

Rules
  1. `publish_delta` never waits and never fails, and costs nothing without listeners.
  2. A listener that is too slow loses the oldest deltas, and then gets a `missed`.
  3. `reset` retracts all deltas of a query so far: the model is asked again.
  4. `end` is the last delta of an answered attempt. A failed attempt has none; the journal has the
     error. `end` with a `call` is the last delta of a program's output, however the program ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

import msgspec

from everhold.core.query import Usage

#: Deltas that are kept for a slow listener.
LIMIT: Final = 1000


class DeltaKind(StrEnum):
    """The kind of a delta."""

    TEXT = "text"  # text of the answer
    THINKING = "thinking"  # reasoning of the model
    # a tool call: `call` and `name` with its first delta, the input as JSON text in `text`
    TOOL = "tool"
    USAGE = "usage"  # a running subagent `name` has used `usage`; `text` is its session
    PROGRESS = "progress"  # of a running tool: `call`, `name`, and a message in `text`
    # what a program prints: `call`, its language as `name`, and a piece of the output in `text`
    OUTPUT = "output"
    RESET = "reset"  # discard the deltas of this query: the model `name` is asked again
    END = "end"  # the answer is complete
    MISSED = "missed"  # deltas were dropped, because this listener is slow; `text` is their number


class Delta(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A piece of an answer. Pieces with the same `part` belong together, in order."""

    kind: DeltaKind
    text: str = ""
    part: int = 0
    call: str = ""
    name: str = ""
    usage: Usage | None = None


class StreamListener:
    """The deltas of one session, or of one call. Leaving the `with` block ends the iteration; so
    does the end of that call.
    """

    def __init__(self, session_id: str, limit: int = LIMIT, call: str = "") -> None:
        self.session_id = session_id
        self._limit = limit
        self._call = call
        self._heard: deque[tuple[str, Delta]] = deque()
        self._missed = 0
        self._open = False
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._open = True
        _LISTENERS.setdefault(self.session_id, []).append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. Deltas received so far can still be read."""
        if self._open:
            self._open = False
            others = [one for one in _LISTENERS[self.session_id] if one is not self]
            if others:
                _LISTENERS[self.session_id] = others
            else:
                del _LISTENERS[self.session_id]
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, Delta]:
        while (found := self.take()) is None:
            if not self._open:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            if self._heard:  # a thread published meanwhile
                continue
            try:
                await self._waiter
            finally:
                self._waiter = None
        return found

    def take(self) -> tuple[str, Delta] | None:
        """The next delta, or None; never waits."""
        if self._missed:
            missed = self._missed
            self._missed = 0
            return "", Delta(DeltaKind.MISSED, str(missed))
        return self._heard.popleft() if self._heard else None

    def hear(self, query_id: str, delta: Delta) -> None:
        """Add a delta; `publish_delta` calls it. Of too many, the oldest is dropped."""
        if self._call and delta.call != self._call:
            return
        if len(self._heard) >= self._limit:
            self._heard.popleft()
            self._missed += 1
        self._heard.append((query_id, delta))
        if self._call and delta.kind is DeltaKind.END:
            self.close()
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        try:  # the publisher may run on the loop of another thread
            waiter.get_loop().call_soon_threadsafe(_done, waiter)
        except RuntimeError:  # that loop is closed, so its listener is gone
            pass


_LISTENERS: Final[dict[str, list[StreamListener]]] = {}


def publish_delta(session_id: str, query_id: str, delta: Delta) -> None:
    """Send a delta to all listeners of a session."""
    for listener in _LISTENERS.get(session_id, ()):
        listener.hear(query_id, delta)


def has_listeners(session_id: str) -> bool:
    """Whether a session has listeners; without them, deltas need not be made."""
    return session_id in _LISTENERS


def subscribe(session_id: str, *, limit: int = LIMIT, call: str = "") -> StreamListener:
    """Listen to one session from now on. Use it with `with`.

    With `call`, listen to one tool call or program: its progress and output. The iteration ends
    with the program, also if it fails or is cancelled.
    """
    return StreamListener(session_id, limit, call)


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
