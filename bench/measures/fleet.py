"""Workers on Postgres: how long a session waits when its worker dies or leaves, the cost of an
endless session for others, and the cost of a session that only waits.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

import psycopg

from bench.figure import Figure
from bench.measures.postgres import OURS, crew
from bench.stage import Stage, say
from bench.worker import Worker, WorkerFailed
from tools.postgres import Server

PATIENCE = 60.0
#: The tables, and the bytes of each with its indexes.
TABLES = (
    "SELECT tablename, pg_total_relation_size('everhold.' || tablename) FROM pg_tables"
    " WHERE schemaname = 'everhold'"
)


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    with Server(fsync=True) as server:
        yield from _deaths(stage, server)
        yield from _fairness(stage, server)
        yield from _idle(stage, server)


# ---- death and leaving


def _deaths(stage: Stage, server: Server) -> Iterator[Figure]:
    for name, act, where in (
        ("fleet.takeover.elsewhere_s", _takeover, "elsewhere"),
        ("fleet.takeover.here_s", _takeover, ""),
        ("fleet.hand_over_s", _hand_over, ""),
    ):
        taken = []
        for number in range(stage.scale.takeovers):
            log = stage.file("errands")
            with crew(server, OURS, 3, f"{name.replace('.', '_')}_{number}", last=where) as (
                client,
                two,
                one,
            ):
                taken.append(act(log, client, one, two))
        yield Figure.of(name, "s", taken)


def _takeover(log: Path, client: Worker, one: Worker, two: Worker) -> float:
    """Seconds from SIGKILL of who works on a session to the moment when another does what was under
    way.
    """
    gate = _gate(log, "a-0")
    client.ask("send", log=str(log), name="a", count=1)
    one.tell("serve")
    _until(lambda: _times(log, "a-0"))
    two.tell("serve")
    time.sleep(1.0)
    killed = time.perf_counter()
    one.process.kill()
    begun = _until(lambda: _times(log, "a-0")[1:])[0]
    gate.unlink()
    two.process.kill()
    return begun - killed


def _hand_over(log: Path, client: Worker, one: Worker, two: Worker) -> float:
    """Seconds from SIGTERM to who works on a session to the moment when another does what comes
    next.
    """
    gate = _gate(log, "a-0")
    client.ask("send", log=str(log), name="a", count=2)
    one.tell("serve")
    _until(lambda: _times(log, "a-0"))
    two.tell("serve")
    time.sleep(1.0)
    told = time.perf_counter()
    one.process.send_signal(signal.SIGTERM)
    gate.unlink()  # what is under way ends now
    begun = _until(lambda: _times(log, "a-1"))[0]
    if _done_by(log, "a-1") != two.process.pid:
        raise WorkerFailed(two.name, "it continued after SIGTERM")
    two.process.kill()
    return begun - told


def _gate(log: Path, name: str) -> Path:
    """Let an errand last until this file is gone."""
    gate = Path(f"{log}.{name}")
    gate.touch()
    log.touch()
    return gate


def _times(log: Path, name: str) -> list[float]:
    """When an errand was begun, each time."""
    words = [line.split(" ") for line in log.read_text().splitlines()]
    return [float(at) for what, _, at in words if what == name]


def _done_by(log: Path, name: str) -> int:
    return next(
        int(pid) for what, pid, _ in map(str.split, log.read_text().splitlines()) if what == name
    )


def _until(found: Callable[[], list[float]]) -> list[float]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        times = found()
        if times:
            return times
        time.sleep(0.002)
    raise WorkerFailed(OURS.name, f"no worker resumed within {PATIENCE:.0f} s")


# ---- fairness


def _fairness(stage: Stage, server: Server) -> Iterator[Figure]:
    """What 99 sessions wait on the average, with and without one that never ends; both in each
    round.
    """
    waits: dict[bool, list[float]] = {False: [], True: []}
    for number in range(stage.scale.takeovers):
        for endless in (False, True):
            with crew(server, OURS, 1, f"fair_{number}_{int(endless)}") as (worker,):
                waited = worker.ask("beside", endless=endless, log=os.devnull)["seconds"]
            waits[endless].append(mean(waited))
    yield Figure.of("fleet.wait.alone_s", "s", waits[False])
    yield Figure.of("fleet.wait.beside_endless_s", "s", waits[True])
    ratios = [beside / alone for alone, beside in zip(waits[False], waits[True], strict=True)]
    yield Figure.of("fleet.wait.beside_over_alone", "×", ratios)


# ---- sessions that only wait


def _idle(stage: Stage, server: Server) -> Iterator[Figure]:
    """Rows and bytes of a paused session, and what a worker holds in memory for many of them,
    beyond few.
    """
    held = []
    for sessions in (stage.scale.few_parked, stage.scale.fleet_parked):
        say(f"  parking {sessions} sessions")
        with crew(server, OURS, 1, f"idle_{sessions}") as (worker,):
            empty = _kept(server, f"idle_{sessions}")
            worker.ask("park", sessions=sessions)
            rows, size = (
                after - before
                for before, after in zip(empty, _kept(server, f"idle_{sessions}"), strict=True)
            )
        with crew(server, OURS, 1, f"idle_{sessions}") as (worker,):
            held.append(worker.ask("memory")["megabytes"])
    yield Figure.of("fleet.idle.rows_per_session", "rows", [rows / sessions])
    yield Figure.of("fleet.idle.bytes_per_session", "B", [size / sessions])
    yield Figure.of("fleet.idle.growth_mb", "MB", [held[1] - held[0]])


def _kept(server: Server, database: str) -> tuple[int, int]:
    """The rows and the bytes of all tables."""
    with psycopg.connect(
        f"{server.url.removesuffix('/postgres')}/{database}", autocommit=True
    ) as connection:
        connection.execute("VACUUM")
        tables = connection.execute(TABLES).fetchall()
        counts = [
            connection.execute(f'SELECT count(*) FROM everhold."{name}"').fetchall()
            for name, _ in tables
        ]
    return sum(count for ((count,),) in counts), sum(size for _, size in tables)
