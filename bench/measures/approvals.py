"""An approval: a person's yes recorded, and the next question for a person in the inbox."""

from collections.abc import Iterator
from contextlib import ExitStack

from bench.contender import APPROVALS, CONTENDERS, FLOOR
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import Stage, alternate, ratios
from bench.work import PAUSES, Level
from bench.worker import Worker


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours or FLOOR not in stage.taking_part:
        return

    def slice_(name: str, worker: Worker) -> Reply:
        return worker.ask("sequence", sessions=50, pauses=PAUSES)

    with ExitStack() as stack:
        workers = {
            one.name: stack.enter_context(stage.worker(one, Level.NORMAL))
            for one in (CONTENDERS[FLOOR], APPROVALS)
        }
        replies = alternate(workers, stage.scale.rounds, slice_)
    ours, floor = replies[APPROVALS.name], replies[FLOOR]
    yield Figure.of("approval.normal.everhold.us", "µs", [reply["step"] * 1e6 for reply in ours])
    yield Figure.of("approval.normal.everhold.over_floor", "×", ratios(ours, floor))
    yield Figure.of("approval.normal.everhold.cpu_over_floor", "×", ratios(ours, floor, "cpu"))
