"""The log and the progress of a program. Replay does not compare either.

Rules
  1. A session shows its newest `MAX_ENTRIES` log entries; older ones are dropped.
  2. Only the latest progress is kept. Its delivery has it in full, and the head in short, so that
     listings need no journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from everhold.core.codec import JSON

MAX_ENTRIES: Final = 20
#: The newest entries that a delivery stores, so that a program with an endless log cannot fill the
#: disk.
LOGGED: Final = 1000
#: Characters of a progress message in the head, which every commit rewrites.
MAX_HEAD_CHARS: Final = 200


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One line of a session's log. `ts` is in milliseconds since the epoch."""

    ts: int
    level: str
    source: str
    message: str

    def json(self) -> dict[str, JSON]:
        return {"ts": self.ts, "level": self.level, "source": self.source, "message": self.message}


class Progress(msgspec.Struct, frozen=True, gc=False):
    """The progress that a program reported last; a `total` of 0 means that it is not known."""

    step: int
    total: int
    message: str | None = None

    def __str__(self) -> str:
        count = f"{self.step} of {self.total}" if self.total else str(self.step)
        return f"{count}: {self.message}" if self.message else count

    def json(self) -> dict[str, JSON]:
        """The report as JSON."""
        return {"step": self.step, "total": self.total, "message": self.message}

    def shorten(self) -> Progress:
        """The same with at most `MAX_HEAD_CHARS` characters of the message, for the head."""
        if self.message is None or len(self.message) <= MAX_HEAD_CHARS:
            return self
        return Progress(self.step, self.total, self.message[: MAX_HEAD_CHARS - 1] + "…")


class LogRing:
    """The newest log entries of one session, oldest first."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[LogEntry] = ()) -> None:
        self._entries: deque[LogEntry] = deque(entries, maxlen=MAX_ENTRIES)

    def add(self, entry: LogEntry) -> None:
        """Adds an entry; a full ring drops its oldest one."""
        self._entries.append(entry)

    def write(
        self, now: float, message: str, *, level: str = "info", source: str = "ctx.log"
    ) -> LogEntry:
        """Adds and returns an entry made at `now` (seconds)."""
        entry = LogEntry(int(now * 1000), level, source, message)
        self._entries.append(entry)
        return entry

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def json(self) -> list[JSON]:
        return [entry.json() for entry in self._entries]
