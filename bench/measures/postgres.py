"""On Postgres: durable steps per second with one, two and four worker processes, and what a turn
takes, beside DBOS.

Everybody's commits wait for the disk. Sessions are left in the database, so that only workers work
on them; a slice lasts from the first step of the first worker until all sessions have ended. All
sessions are alike; each has as many in a slice as it ends in a few seconds.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import quantiles
from typing import Final

from bench.environment import python_of
from bench.figure import Figure
from bench.postgres import alone
from bench.stage import QUIET, Stage
from bench.work import PAUSES
from bench.worker import Worker
from tools.postgres import Server

FLEETS: Final = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet on Postgres; a `peer` has its own environment."""

    name: str
    module: str
    title: str
    peer: str | None = None

    def worker(self) -> Worker:
        python = python_of(self.peer) if self.peer else sys.executable
        return Worker(self.name, [python, "-m", self.module], env=QUIET)


OURS: Final = Fleet("everhold", "bench.crew", "**everhold**")
DBOS: Final = Fleet("dbos", "bench.peers.dbos_crew", "DBOS", "dbos")


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    fleets = [OURS, *([DBOS] if any(name.startswith("dbos") for name in stage.taking_part) else [])]
    with Server(fsync=True) as server:
        p50s = asyncio.run(alone(server.url, "power", stage.scale.fleet_turns * 5))
        yield Figure.of("postgres.answer.everhold.us", "µs", [p50s[0]])
        yield from _steps(stage, server, fleets)
        for fleet in fleets:
            yield from _turns(stage, server, fleet)


@contextmanager
def crew(
    server: Server,
    fleet: Fleet,
    count: int,
    database: str,
    *,
    stage: Stage | None = None,
    last: str = "",
) -> Iterator[list[Worker]]:
    """So many processes of a fleet, open on a database, made if it is not there; the `last` on that
    machine.
    """
    if not server.run("SELECT 1 FROM pg_database WHERE datname = %s", database):
        server.run(f"CREATE DATABASE {database}")
    url = f"{server.url.removesuffix('/postgres')}/{database}"
    with ExitStack() as stack:
        workers = [fleet.worker() for _ in range(count)]
        for number, worker in enumerate(workers):
            stack.callback(worker.end)
            where = {"host": last} if last and number == count - 1 else {}
            opened = worker.ask("open", url=url, **where)
            if stage is not None:
                stage.versions |= opened["versions"]
        yield workers


def _steps(stage: Stage, server: Server, fleets: Sequence[Fleet]) -> Iterator[Figure]:
    """Slices of everybody in turn; the ratio is taken within a round."""
    sessions = {OURS.name: stage.scale.fleet_sessions, DBOS.name: stage.scale.peer_fleet_sessions}
    with ExitStack() as stack:
        crews = {
            fleet.name: stack.enter_context(
                crew(server, fleet, max(FLEETS), f"steps_{fleet.name}", stage=stage)
            )
            for fleet in fleets
        }
        for size in FLEETS:
            rates: dict[str, list[float]] = {name: [] for name in crews}
            for name in crews:
                _rate(crews[name][:size], sessions[name] // 4)  # to warm up
            for number in range(stage.scale.fleet_rounds):
                for name in list(crews)[:: 1 if number % 2 else -1]:
                    rates[name].append(_rate(crews[name][:size], sessions[name]))
            for name, taken in rates.items():
                yield Figure.of(f"postgres.{size}.{name}.steps_per_s", "/s", taken)
            if DBOS.name in rates:
                pairs = zip(rates[OURS.name], rates[DBOS.name], strict=True)
                yield Figure.of(
                    f"postgres.{size}.over_dbos", "×", [ours / dbos for ours, dbos in pairs]
                )


def _rate(workers: Sequence[Worker], sessions: int) -> float:
    """Steps per second of so many workers."""
    workers[0].ask("enqueue", sessions=sessions, steps=PAUSES)
    for worker in workers:
        worker.tell("work")
    replies = [worker.hear() for worker in workers]
    seconds: float = max(reply["ended"] for reply in replies) - min(
        reply["began"] for reply in replies
    )
    return sessions * PAUSES / seconds


def _turns(stage: Stage, server: Server, fleet: Fleet) -> Iterator[Figure]:
    """From saying something to its answer, when workers wait for it."""
    for size in FLEETS:
        with crew(server, fleet, size + 1, f"turns_{fleet.name}_{size}") as (client, *workers):
            for worker in workers:
                worker.tell("serve")
            client.ask("turns", count=5)
            taken = [
                seconds * 1e3
                for seconds in client.ask("turns", count=stage.scale.fleet_turns)["seconds"]
            ]
            for worker in workers:
                worker.process.kill()
        yield Figure.of(f"postgres.{size}.{fleet.name}.turn_ms", "ms", taken)
        yield Figure.of(
            f"postgres.{size}.{fleet.name}.turn_p99_ms", "ms", [quantiles(taken, n=100)[98]]
        )
