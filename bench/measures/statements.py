"""SQL statements on Postgres: what one turn of a conversation takes that a front accepts and a
worker does.

Front and worker are two runtimes in one process, each with its own connections. All they send is
counted, BEGIN and COMMIT included. What reconciliation and chores send is counted apart: it does
not depend on turns. Commits are the transactions that wrote something, as the server numbers them.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

import everhold
from bench.figure import Figure
from bench.stage import Stage
from tools.postgres import Server

#: How statements begin that are sent whether or not there is a turn.
ASIDE: Final = re.compile(
    r"(WITH clock AS MATERIALIZED \(SELECT .{0,90} AS now\) SELECT s\.id, w\.why|SELECT"
    r" min\(due_at\)|WITH RECURSIVE k "
    r"|SELECT id, host, pid|INSERT INTO \S+worker |SELECT coalesce\(sum\(count\)|SELECT \S*,"
    r" ?\S*pulse)"
)

LAST_TRANSACTION: Final = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"

clerk = everhold.Agent(name="counted", instructions="Be brief.")


async def model(query: everhold.Query) -> str:
    return "Fine."


class Sent:
    """Statements that were sent, by their beginning."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.counting = False

    @property
    def turns(self) -> int:
        return sum(count for words, count in self.counts.items() if not ASIDE.match(words))

    @property
    def aside(self) -> int:
        return sum(self.counts.values()) - self.turns


@contextmanager
def counted() -> Iterator[Sent]:
    """Count what this process sends to Postgres."""
    sent = Sent()
    execute = psycopg.AsyncConnection.execute

    async def counting(self: Any, query: Any, *values: Any, **more: Any) -> Any:
        if sent.counting:
            sent.counts[re.sub(r"\s+", " ", str(query))] += 1
        return await execute(self, query, *values, **more)

    psycopg.AsyncConnection.execute = counting  # type: ignore[method-assign, assignment]
    try:
        yield sent
    finally:
        psycopg.AsyncConnection.execute = execute  # type: ignore[method-assign]


async def turns(
    url: str, count: int, numbered: Callable[[], int] = lambda: 0
) -> tuple[list[int], int, list[int]]:
    """The statements of each of so many turns, what was sent beside them, and the commits of each
    turn: `numbered` says how many transactions there were.
    """
    with counted() as sent:
        async with (
            everhold.open(url, recover=False) as front,
            everhold.open(url, llm=model, recover=False) as back,
            back.workers.worker(),
        ):
            session = await front.session(clerk, "counted")
            for number in range(5):
                await _turn(session, f"warm {number}", sent)
            sent.counts.clear()
            taken = []
            commits = []
            aside = 0
            for number in range(count):
                before = numbered()
                taken.append(await _turn(session, f"turn {number}", sent))
                commits.append(numbered() - before)
                aside += sent.aside
                sent.counts.clear()
    return taken, aside, commits


async def _turn(session: Any, words: str, sent: Sent) -> int:
    """Say something and wait until it is settled and the worker is idle again; looking at it is not
    counted.
    """
    sent.counting = True
    item = (await session.enqueue(words)).item
    while True:
        await asyncio.sleep(0.05)
        sent.counting = False
        if (await session.input(item.id)).stage == "settled":
            sent.counting = True
            await asyncio.sleep(0.1)  # what follows the turn belongs to it
            sent.counting = False
            return sent.turns
        sent.counting = True


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    with Server() as server, psycopg.connect(server.url, autocommit=True) as line:

        def numbered() -> int:
            [[last]] = line.execute(LAST_TRANSACTION).fetchall()
            return int(last)

        taken, aside, commits = asyncio.run(turns(server.url, stage.scale.fleet_turns, numbered))
    yield Figure.of("postgres.turn.statements", "statements", taken)
    yield Figure.of("postgres.turn.commits", "commits", commits)
    yield Figure.of("postgres.turn.statements_aside", "statements", [aside / len(taken)])
