"""Opens the contenders at one level, and takes slices from each in turn."""

import os
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from bench.contender import CONTENDERS, FLOOR, OURS, Contender
from bench.scale import Scale
from bench.speak import Reply
from bench.work import SYNCHRONOUS, Level
from bench.worker import Worker, WorkerFailed

QUIET = {"LANGSMITH_TRACING": "false", "PYTHONDONTWRITEBYTECODE": ""}


@dataclass(slots=True)
class Stage:
    """One run of the bench: its databases, its contenders, and the amount of work."""

    data: Path
    scale: Scale
    taking_part: Sequence[str]
    versions: dict[str, str] = field(default_factory=dict)
    _files: Iterator[int] = field(default_factory=count)

    def contenders(self, level: Level, *names: str) -> list[Contender]:
        """The contenders that have this level, in the order of the table; only those of `names` if
        any are given.
        """
        return [
            contender
            for name, contender in CONTENDERS.items()
            if name in self.taking_part
            and level in contender.slice
            and (not names or name in names)
        ]

    def file(self, name: str) -> Path:
        return self.data / f"{name}-{next(self._files)}.db"

    @contextmanager
    def worker(
        self, who: str | Contender, level: Level, path: Path | str | None = None
    ) -> Iterator[Worker]:
        """Start a contender and open its database at this level; check that SQLite agrees on the
        level.
        """
        contender = who if isinstance(who, Contender) else CONTENDERS[who]
        name = contender.name
        worker = Worker(name, contender.command(), env=QUIET)
        try:
            opened = worker.ask(
                "open", level=level, path=str(path or self.file(name)), **contender.options
            )
            if opened["synchronous"] != SYNCHRONOUS.get(level):
                raise WorkerFailed(
                    name, f"asked for {level}, its `synchronous` is {opened['synchronous']}"
                )
            self.versions |= opened["versions"]
            yield worker
            worker.ask("close")
        finally:
            worker.end()

    @contextmanager
    def workers(self, level: Level, *names: str) -> Iterator[dict[str, Worker]]:
        """All contenders of a level at once, by name. Nothing is durable in memory, so the floor
        beside it is that of `NORMAL`.
        """
        with ExitStack() as stack:
            workers = {}
            if level is Level.MEMORY and FLOOR in self.taking_part:
                workers[FLOOR] = stack.enter_context(self.worker(FLOOR, Level.NORMAL))
            for contender in self.contenders(level, *names):
                workers[contender.name] = stack.enter_context(self.worker(contender.name, level))
            yield workers

    @property
    def has_ours(self) -> bool:
        return OURS in self.taking_part


Slice = Callable[[str, Worker], Reply]


def alternate(
    workers: Mapping[str, Worker], rounds: int, slice_: Slice, *, warm: bool = True
) -> dict[str, list[Reply]]:
    """Take slices from each worker in turn, every second round in reverse; one round before them
    only warms up.
    """
    replies: dict[str, list[Reply]] = defaultdict(list)
    for number in range(0 if warm else 1, rounds + 1):
        for name in list(workers)[:: 1 if number % 2 else -1]:
            reply = slice_(name, workers[name])
            if number:
                replies[name].append(reply)
    return replies


def ratios(above: list[Reply], below: list[Reply], key: str = "step") -> list[float]:
    """Round by round: each slice over the slice of the other that was taken beside it."""
    return [a[key] / b[key] for a, b in zip(above, below, strict=True)]


def bytes_of(path: Path) -> int:
    """The size of a database once its WAL is folded in."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return os.path.getsize(path)


def remove(path: Path) -> None:
    for name in path.parent.glob(f"{path.name}*"):
        name.unlink()


def say(*words: Any) -> None:
    print(*words, file=sys.stderr, flush=True)
