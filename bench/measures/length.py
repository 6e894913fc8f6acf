"""Sessions of 1000 pauses: the cost of a late step against an early one."""

from collections.abc import Iterator

from bench.contender import DURABLE, Contender
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import Stage, alternate
from bench.work import Level
from bench.worker import Worker


def measure(stage: Stage) -> Iterator[Figure]:
    for level in DURABLE:
        for contender in stage.contenders(level):
            taken = _slices(stage, level, contender)
            at = f"length.{level.lower()}.{contender.name}"
            for key in ("early", "late", "mean"):
                yield Figure.of(f"{at}.{key}_us", "µs", [reply[key] * 1e6 for reply in taken])
            yield Figure.of(
                f"{at}.late_over_early", "×", [reply["late"] / reply["early"] for reply in taken]
            )


def _slices(stage: Stage, level: Level, contender: Contender) -> list[Reply]:
    """A session per slice; early and late steps are compared within it, so no floor is needed
    beside it.
    """
    pauses = stage.scale.peer_long if contender.peer else stage.scale.long
    rounds = 1 if contender.peer else stage.scale.rounds

    def slice_(_name: str, worker: Worker) -> Reply:
        return worker.ask("length", pauses=pauses)

    with stage.workers(level, contender.name) as workers:
        return alternate(workers, rounds, slice_)[contender.name]
