"""A file with a thousand sessions, and with ten thousand, a hundred thousand and a million: opening
it, answering one session, pages of lists and of the inbox, retention, due timers.

CPU time in alternating rounds, through the verbs of the runtime: of the loop's thread, and of all
threads. The sessions are written in bulk with the store's own statements, as `testing.conformance`
makes them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import everhold
from bench import work
from bench.figure import Figure
from bench.programs import chain
from bench.stage import Stage, say
from everhold.core.query import Kind
from everhold.core.session import SessionState, mint
from everhold.ports.store import Change
from everhold.stores.sqlite import SQLiteStore
from everhold.stores.sqlite.write import write_change
from everhold.testing.conformance.factories import make_query, make_start

DAWN: Final = 1_700_000_000.0
ROUNDS: Final = 15
#: Sessions that have a program, and can be answered: one in each round.
LIVING: Final = ROUNDS + 1
#: Of the sessions that wait, one of so many has a timer; ten of the timers are due.
TIMERS: Final = 50
ENDED: Final = (SessionState.FAILED, SessionState.COMPLETED)
SHARE_ENDED: Final = 5
#: Ended sessions that retention deletes in each round.
DELETED: Final = 5


@dataclass(slots=True)
class Held:
    """A file with sessions. `loop` and `all` are CPU seconds, of the loop's thread and of all."""

    path: Path
    living: list[str]
    runtime: Any = None
    loop: dict[str, list[float]] = field(default_factory=dict)
    all: dict[str, list[float]] = field(default_factory=dict)

    def open(self) -> everhold.Runtime:
        return everhold.open(f"sqlite:///{self.path}", recover=False)


Work = Callable[[Held, int], Awaitable[object]]


def _page(page: Callable[[everhold.Runtime], Awaitable[object]]) -> Work:
    return lambda held, _: page(held.runtime)


async def _open(held: Held, number: int) -> None:
    async with held.open():
        pass


async def _answer(held: Held, number: int) -> None:
    status = await held.runtime.answer(held.living[number], work.ANSWER)
    if len(status.queries) != 1:
        raise AssertionError(f"it should ask one question, not {status!r}")


async def _retain(held: Held, number: int) -> None:
    """Delete the sessions that ended first."""
    until = DAWN + (number + 1) * DELETED * SHARE_ENDED
    age = held.runtime.clock.now() - until
    report = await held.runtime.archive.gc([state.value for state in ENDED], older_than=age)
    if len(report.deleted) != DELETED:
        raise AssertionError(f"it should delete {DELETED} sessions, not {len(report.deleted)}")


WORKS: Final[dict[str, Work]] = {
    "open": _open,
    "answer": _answer,
    "inbox": _page(lambda runtime: runtime.inbox(limit=10)),
    "approvals": _page(lambda runtime: runtime.inbox(kind="approval", limit=10)),
    "newest": _page(lambda runtime: runtime.sessions()),
    "state": _page(lambda runtime: runtime.sessions(state="failed")),
    "program": _page(lambda runtime: runtime.sessions(program="m3:p3")),
    "label": _page(lambda runtime: runtime.sessions(labels={"env": "prod"})),
    "prefix": _page(lambda runtime: runtime.sessions(prefix="s-")),
    "retention": _page(lambda runtime: runtime.sessions(state=list(ENDED), older_than=1)),
    "delete": _retain,
    "due": _page(lambda runtime: runtime.store.unmoved(DAWN, set(), limit=100)),
    "next_due": _page(lambda runtime: runtime.store.next_due()),
}


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    files = {size: _fill(stage.file("lists"), size) for size in stage.scale.listed}
    asyncio.run(_compare(files))
    few, many = files[min(files)], files[max(files)]
    for name in WORKS:
        yield Figure.of(f"lists.{name}.us", "µs", [1e6 * took for took in many.loop[name]])
        for size, held in files.items():
            if held is not few:
                over = _over(held.loop[name], few.loop[name])
                yield Figure.of(f"lists.{name}.{size}.over_few", "×", over)
                over = _over(held.all[name], few.all[name])
                yield Figure.of(f"lists.{name}.{size}.cpu_over_few", "×", over)
        over = _over(many.loop[name], few.loop[name])
        yield Figure.of(f"lists.{name}.many_over_few", "×", over)


def _over(above: list[float], below: list[float]) -> list[float]:
    return [one / other for one, other in zip(above, below, strict=True)]


def _fill(path: Path, sessions: int) -> Held:
    """A file with so many sessions. One of twenty waits for a person, one of five has ended; the
    rest wait for models or, as idle agents do, for a signal. Some have timers.
    """
    say(f"  writing {sessions} sessions")

    async def write() -> list[str]:
        store = SQLiteStore(path, durability="process")
        await store.open()
        run = store._connection.cursor().execute
        for first in range(0, sessions, 20_000):
            run("BEGIN")
            for n in range(first, min(first + 20_000, sessions)):
                write_change(run, _change(n), 0, lambda: DAWN)
            run("COMMIT")
        await store.close()
        async with everhold.open(f"sqlite:///{path}", recover=False) as runtime:
            return [str((await runtime.start(chain(2))).session_id) for _ in range(LIVING)]

    return Held(path, asyncio.run(write()))


def _change(n: int) -> Change:
    at = DAWN + n
    labels = {"env": "prod", "customer": str(n)}
    facts: dict[str, Any] = {"created_at": at, "program": f"m{n % 7}:p{n % 7}", "labels": labels}
    if n % SHARE_ENDED == 3:
        change = make_start(mint(at, n), **facts)
        change.head.state = ENDED[n % 2]
        change.head.open_from = 1
        return change
    kind = Kind.APPROVAL if n % 20 == 0 else Kind.SIGNAL if n % 2 else Kind.LLM
    change = make_start(mint(at, n), make_query(0, kind), **facts)
    if n % TIMERS == 1:
        change.head.due_at = DAWN - 1 if n < 10 * TIMERS else at + 1e9
    return change


async def _compare(files: dict[int, Held]) -> None:
    async with AsyncExitStack() as stack:
        for held in files.values():
            held.runtime = await stack.enter_async_context(held.open())
        for number in range(ROUNDS + 1):
            for name, make in WORKS.items():
                for held in list(files.values())[:: 1 if number % 2 else -1]:
                    loop, every = time.thread_time(), time.process_time()
                    await make(held, number)
                    loop, every = time.thread_time() - loop, time.process_time() - every
                    if number:  # the first round reads the pages of the file
                        held.loop.setdefault(name, []).append(loop)
                        held.all.setdefault(name, []).append(every)
