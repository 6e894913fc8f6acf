"""Pages of lists and of the inbox among a million sessions, beside the same among a thousand.

CPU time of the loop's thread, in alternating rounds, through the verbs of the runtime. The sessions
are written in bulk with the store's own statements, as `testing.conformance` makes them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import everhold
from bench.figure import Figure
from bench.stage import Stage, say
from everhold.core.query import Kind
from everhold.core.session import SessionState, mint
from everhold.ports.store import Change
from everhold.stores.sqlite import SQLiteStore
from everhold.stores.sqlite.write import write_change
from everhold.testing.conformance.factories import make_query, make_start

DAWN: Final = 1_700_000_000.0
ROUNDS: Final = 15
ENDED: Final = (SessionState.FAILED, SessionState.COMPLETED)
Page = Callable[[everhold.Runtime], Awaitable[object]]

PAGES: Final[dict[str, Page]] = {
    "inbox": lambda runtime: runtime.inbox(limit=10),
    "approvals": lambda runtime: runtime.inbox(kind="approval", limit=10),
    "newest": lambda runtime: runtime.sessions(),
    "state": lambda runtime: runtime.sessions(state="failed"),
    "program": lambda runtime: runtime.sessions(program="m3:p3"),
    "label": lambda runtime: runtime.sessions(labels={"env": "prod"}),
    "prefix": lambda runtime: runtime.sessions(prefix="s-"),
    "retention": lambda runtime: runtime.sessions(state=list(ENDED), older_than=1),
    "due": lambda runtime: runtime.store.unmoved(DAWN, set(), limit=100),
}


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    few, many = stage.scale.few_listed, stage.scale.listed
    small, large = _fill(stage.file("lists"), few), _fill(stage.file("lists"), many)
    times = asyncio.run(_compare(small, large))
    for name, (least, most) in times.items():
        yield Figure.of(f"lists.{name}.us", "µs", [1e6 * took for took in most])
        ratios = [late / early for early, late in zip(least, most, strict=True)]
        yield Figure.of(f"lists.{name}.many_over_few", "", ratios)


def _fill(path: Path, sessions: int) -> Path:
    """A database with so many sessions. One of twenty waits for a person, one of five has ended;
    the rest wait for models or, as idle agents do, for a signal.
    """
    say(f"  writing {sessions} sessions")

    async def write() -> None:
        store = SQLiteStore(path, durability="process")
        await store.open()
        run = store._connection.cursor().execute
        for first in range(0, sessions, 20_000):
            run("BEGIN")
            for n in range(first, min(first + 20_000, sessions)):
                write_change(run, _change(n), 0, lambda: DAWN)
            run("COMMIT")
        await store.close()

    asyncio.run(write())
    return path


def _change(n: int) -> Change:
    at = DAWN + n
    labels = {"env": "prod", "customer": str(n)}
    facts: dict[str, Any] = {"created_at": at, "program": f"m{n % 7}:p{n % 7}", "labels": labels}
    if n % 5 == 3:
        change = make_start(mint(at, n), **facts)
        change.head.state = ENDED[n % 2]
        change.head.open_from = 1
        return change
    kind = Kind.APPROVAL if n % 20 == 0 else Kind.SIGNAL if n % 2 else Kind.LLM
    return make_start(mint(at, n), make_query(0, kind), **facts)


async def _compare(small: Path, large: Path) -> dict[str, tuple[list[float], list[float]]]:
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in PAGES}
    async with (
        everhold.open(f"sqlite:///{small}", recover=False) as few,
        everhold.open(f"sqlite:///{large}", recover=False) as many,
    ):
        for number in range(ROUNDS + 1):
            for name, page in PAGES.items():
                for place, runtime in enumerate((few, many)):
                    began = time.thread_time()
                    await page(runtime)
                    if number:  # the first round reads the pages of the file
                        times[name][place].append(time.thread_time() - began)
    return times
