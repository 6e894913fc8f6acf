"""Cold resume: a session with 1000 answers that is not in memory gets the next one."""

from collections.abc import Iterator

from bench.contender import OURS
from bench.figure import Figure
from bench.stage import Stage
from bench.work import Level


def measure(stage: Stage) -> Iterator[Figure]:
    """The time is that of `answer`: read the journal, replay it, take the step, commit it."""
    if not stage.has_ours:
        return
    path = stage.file("resume")
    with stage.worker(OURS, Level.NORMAL, path) as worker:
        session = worker.ask("lengthen", answers=stage.scale.long)["session"]
    with stage.worker(OURS, Level.NORMAL, path) as worker:
        first = worker.ask("wake", session=session, reopen=False)
        later = [worker.ask("wake", session=session) for _ in range(stage.scale.rounds)]
    yield Figure.of(
        "resume.everhold.cold_1000_ms", "ms", [reply["answer"] * 1e3 for reply in later]
    )
    yield Figure.of("resume.everhold.first_in_process_ms", "ms", [first["answer"] * 1e3])
