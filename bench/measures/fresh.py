"""The first 1000 commits of a new file, each synced: its WAL still grows, which costs more."""

from collections.abc import Iterator

from bench.contender import FLOOR, OURS
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import Stage, alternate, ratios
from bench.work import PAUSES, Level
from bench.worker import Worker

COMMITS = 1000


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours or FLOOR not in stage.taking_part:
        return
    sessions = COMMITS // (PAUSES + 1)

    def slice_(name: str, worker: Worker) -> Reply:
        path = str(stage.file(f"fresh-{name}"))
        return worker.ask("fresh", path=path, sessions=sessions, pauses=PAUSES)

    with stage.workers(Level.FULL, FLOOR, OURS) as workers:
        replies = alternate(workers, stage.scale.fresh_rounds, slice_)
    over = ratios(replies[OURS], replies[FLOOR])
    yield Figure.of("fresh.full.everhold.over_floor", "×", over)
    for name, slices in replies.items():
        yield Figure.of(f"fresh.full.{name}.us", "µs", [reply["step"] * 1e6 for reply in slices])
