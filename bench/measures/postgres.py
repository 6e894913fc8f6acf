"""On Postgres, beside DBOS and LangGraph: a step of one session alone; steps per second with one,
two and four worker processes; and what a turn takes that a worker does.

Everybody's commits wait for the disk. For the workers, sessions are left in the database, so that
only workers work on them; a slice lasts from the first step of the first worker until all sessions
have ended. All sessions are alike; each has as many in a slice as it ends in a few seconds.
"""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

from bench.contender import FLOOR, FLOOR_POSTGRES
from bench.environment import python_of
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import QUIET, Stage, alternate, ratios
from bench.work import PAUSES, Level
from bench.worker import Worker
from tools.postgres import Server

FLEETS: Final = (1, 2, 4)
#: Turns of a slice.
TURNS: Final = 10


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
        yield from _alone(stage, server)
        yield from _steps(stage, server, fleets)
        for size in FLEETS:
            yield from _turns(stage, server, fleets, size)


def _alone(stage: Stage, server: Server) -> Iterator[Figure]:
    """The work of 20 pauses, one session alone: each step is one commit of the floor."""
    contenders = stage.contenders(Level.POSTGRES)
    if FLOOR in stage.taking_part:
        contenders = [FLOOR_POSTGRES, *contenders]
    slices = {one.name: one.slice[Level.POSTGRES] for one in contenders}

    def slice_(name: str, worker: Worker) -> Reply:
        return worker.ask("sequence", sessions=slices[name], pauses=PAUSES)

    with ExitStack() as stack:
        workers = {
            one.name: stack.enter_context(
                stage.worker(one, Level.POSTGRES, database(server, f"alone_{one.name}"))
            )
            for one in contenders
        }
        replies = alternate(workers, stage.scale.rounds, slice_)
    for name, taken in replies.items():
        at = f"step.postgres.{name}"
        yield Figure.of(f"{at}.us", "µs", [reply["step"] * 1e6 for reply in taken])
        if FLOOR in replies and name != FLOOR:
            yield Figure.of(f"{at}.over_floor", "×", ratios(taken, replies[FLOOR]))
        if name not in (FLOOR, OURS.name) and OURS.name in replies:
            yield Figure.of(f"{at}.over_everhold", "×", ratios(taken, replies[OURS.name]))


def database(server: Server, name: str) -> str:
    """The address of a database of this name, which is made if it is not there."""
    name = name.replace("-", "_")
    if not server.run("SELECT 1 FROM pg_database WHERE datname = %s", name):
        server.run(f"CREATE DATABASE {name}")
    return f"{server.url.removesuffix('/postgres')}/{name}"


@contextmanager
def crew(
    server: Server,
    fleet: Fleet,
    count: int,
    name: str,
    *,
    stage: Stage | None = None,
    last: str = "",
) -> Iterator[list[Worker]]:
    """So many processes of a fleet, open on a database, made if it is not there; the `last` on that
    machine.
    """
    url = database(server, name)
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
    """Slices of everybody in turn, with one, two and four workers in each round; ratios are taken
    within a round.
    """
    sessions = {OURS.name: stage.scale.fleet_sessions, DBOS.name: stage.scale.peer_fleet_sessions}
    rates: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        crews = {
            fleet.name: stack.enter_context(
                crew(server, fleet, max(FLEETS), f"steps_{fleet.name}", stage=stage)
            )
            for fleet in fleets
        }
        turns = [(name, size) for size in FLEETS for name in crews]
        for name, size in turns:
            _rate(crews[name][:size], sessions[name] // 4)  # to warm up
        for number in range(stage.scale.fleet_rounds):
            for name, size in turns[:: 1 if number % 2 else -1]:
                rate = _rate(crews[name][:size], sessions[name])
                rates.setdefault((name, size), []).append(rate)
    for (name, size), taken in rates.items():
        yield Figure.of(f"postgres.{size}.{name}.steps_per_s", "/s", taken)
        if name == OURS.name and (DBOS.name, size) in rates:
            yield Figure.of(f"postgres.{size}.over_dbos", "×", _over(taken, rates[DBOS.name, size]))
        if (DBOS.name, 1) in rates:
            beside = rates[DBOS.name, 1]
            yield Figure.of(f"postgres.{size}.{name}.over_dbos_one", "×", _over(taken, beside))
        beside = rates[name, FLEETS[0]]
        yield Figure.of(f"postgres.{size}.{name}.over_one", "×", _over(taken, beside))
    four, two = rates[OURS.name, 4], rates[OURS.name, 2]
    yield Figure.of("postgres.everhold.four_over_two", "×", _over(four, two))


def _over(above: list[float], below: list[float]) -> list[float]:
    return [one / other for one, other in zip(above, below, strict=True)]


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


def _turns(stage: Stage, server: Server, fleets: Sequence[Fleet], size: int) -> Iterator[Figure]:
    """From saying something to its answer, when workers wait for it. Slices of both fleets in turn;
    the workers of the other are stopped.
    """
    taken: dict[str, list[list[float]]] = {fleet.name: [] for fleet in fleets}
    with ExitStack() as stack:
        crews = {}
        for fleet in fleets:
            name = f"turns_{fleet.name}_{size}"
            client, *workers = stack.enter_context(crew(server, fleet, size + 1, name))
            for worker in workers:
                stack.callback(worker.process.kill)
                worker.tell("serve")
            client.ask("turns", count=5)
            crews[fleet.name] = client, workers
            _signal(workers, signal.SIGSTOP)
        for number in range(max(stage.scale.fleet_turns // TURNS, 2)):
            for name in list(crews)[:: 1 if number % 2 else -1]:
                client, workers = crews[name]
                _signal(workers, signal.SIGCONT)
                client.ask("turns", count=1)  # workers that were stopped look around first
                taken[name].append(client.ask("turns", count=TURNS)["seconds"])
                _signal(workers, signal.SIGSTOP)
    for name, slices in taken.items():
        at = f"postgres.{size}.{name}"
        every = [seconds * 1e3 for turns in slices for seconds in turns]
        yield Figure.of(f"{at}.turn_ms", "ms", every)
        yield Figure.of(f"{at}.turn_p99_ms", "ms", [quantiles(every, n=100)[98]])
    if DBOS.name in taken:
        ours, theirs = ([median(turns) for turns in taken[one.name]] for one in (OURS, DBOS))
        yield Figure.of(f"postgres.{size}.turn_over_dbos", "×", _over(ours, theirs))


def _signal(workers: Sequence[Worker], number: signal.Signals) -> None:
    for worker in workers:
        worker.process.send_signal(number)
