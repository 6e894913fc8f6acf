"""Two processes on one file against one process: 50 sessions in each, their own."""

from collections.abc import Iterator

from bench.contender import OURS
from bench.figure import Figure
from bench.stage import Stage
from bench.work import Level
from bench.worker import Worker

SESSIONS = 50


def measure(stage: Stage) -> Iterator[Figure]:
    """Slices of one and of two in turn; each pair of slices has its own ratio."""
    if not stage.has_ours:
        return
    pauses = stage.scale.shared_pauses
    alone = []
    together = []
    shared = stage.file("shared")
    with (
        stage.worker(OURS, Level.NORMAL) as single,
        stage.worker(OURS, Level.NORMAL, shared) as left,
        stage.worker(OURS, Level.NORMAL, shared) as right,
    ):
        for number in range(stage.scale.rounds + 1):
            rates = _rate([single], pauses), _rate([left, right], pauses)
            if number:
                alone.append(rates[0])
                together.append(rates[1])
    yield Figure.of("processes.one.steps_per_s", "/s", alone)
    yield Figure.of("processes.two.steps_per_s", "/s", together)
    yield Figure.of(
        "processes.two_over_one", "×", [two / one for one, two in zip(alone, together, strict=True)]
    )


def _rate(workers: list[Worker], pauses: int) -> float:
    """Steps per second from the first step of the first process to the last step of the last."""
    for worker in workers:
        worker.tell("crowd", sessions=SESSIONS, pauses=pauses)
    replies = [worker.hear() for worker in workers]
    seconds: float = max(reply["ended"] for reply in replies) - min(
        reply["began"] for reply in replies
    )
    return len(workers) * SESSIONS * pauses / seconds
