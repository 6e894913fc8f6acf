"""What a model says while it says it, for whoever listens in this process.

    with subscribe(session_id) as heard:
        async for query_id, delta in heard:
            ...

Deltas are for eyes only. They are not kept, not replayed, and decide nothing: the answer in the
journal does.

Rules
  1. `publish_delta` never waits and never fails, and costs nothing where nobody listens.
  2. A listener that falls behind loses the oldest deltas, and is told so: the next it hears is a
     `missed`.
  3. `reset` retracts all that was said to a query so far: the model is asked once more.
  4. `end` is the last of an attempt that was answered. What failed ends without it; the journal
     knows how.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

import msgspec

#: Deltas kept for one listener that does not read.
LIMIT: Final = 1000


class DeltaKind(StrEnum):
    """What a piece of a streamed answer is."""

    TEXT = "text"  # words of the answer
    THINKING = "thinking"  # words the model says to itself
    # a tool call: `call` and `name` with its first delta, the input as JSON text in `text`
    TOOL = "tool"
    PROGRESS = "progress"  # of a tool that is run: `call`, `name`, and words in `text`
    RESET = "reset"  # forget what was said to this query: it is asked again, by the model `name`
    END = "end"  # the answer is whole
    MISSED = "missed"  # `text` many were dropped, because this listener did not read


class Delta(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A piece of an answer. Pieces of the same `part` belong together, in the order heard."""

    kind: DeltaKind
    text: str = ""
    part: int = 0
    call: str = ""
    name: str = ""


class StreamListener:
    """What is heard of one session. Leave the `with` block to stop listening; that ends the
    iteration.
    """

    def __init__(self, session_id: str, limit: int = LIMIT) -> None:
        self.session_id = session_id
        self._limit = limit
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
        """Stop listening; what was heard can still be read."""
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
        """The next that was heard, without waiting."""
        if self._missed:
            missed = self._missed
            self._missed = 0
            return "", Delta(DeltaKind.MISSED, str(missed))
        return self._heard.popleft() if self._heard else None

    def hear(self, query_id: str, delta: Delta) -> None:
        if len(self._heard) >= self._limit:
            self._heard.popleft()
            self._missed += 1
        self._heard.append((query_id, delta))
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        try:  # the publisher may live on the loop of another thread
            waiter.get_loop().call_soon_threadsafe(_done, waiter)
        except RuntimeError:  # that loop is closed: nobody reads any more
            pass


_LISTENERS: Final[dict[str, list[StreamListener]]] = {}


def publish_delta(session_id: str, query_id: str, delta: Delta) -> None:
    """Tell whoever listens to this session."""
    for listener in _LISTENERS.get(session_id, ()):
        listener.hear(query_id, delta)


def has_listeners(session_id: str) -> bool:
    """Whether anybody listens: who would have to work for a delta may leave it."""
    return session_id in _LISTENERS


def subscribe(session_id: str, *, limit: int = LIMIT) -> StreamListener:
    """Listen to what models say to one session, from now on. Use it with `with`."""
    return StreamListener(session_id, limit)


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
