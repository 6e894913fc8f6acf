"""Cold resume: a session with 1000 answers that is not in memory gets the next one."""

from collections.abc import Iterator

from bench.contender import FLOOR, OURS
from bench.figure import Figure
from bench.stage import Stage
from bench.work import Level


def measure(stage: Stage) -> Iterator[Figure]:
    """The time is that of `answer`: read the journal, replay it, take the step, commit it. The
    floor selects the same rows, decodes them and sends the answers into a bare coroutine.
    """
    if not stage.has_ours:
        return
    answers = stage.scale.long
    path = stage.file("resume")
    with stage.worker(OURS, Level.NORMAL, path) as worker:
        session = worker.ask("lengthen", answers=answers)["session"]
    with (
        stage.worker(OURS, Level.NORMAL, path) as worker,
        stage.worker(FLOOR, Level.NORMAL) as floor,
    ):
        first = worker.ask("wake", session=session, reopen=False)
        later = []
        bare = []
        for _ in range(stage.scale.rounds):
            later.append(worker.ask("wake", session=session))
            bare.append(floor.ask("replay", path=str(path), session=session, answers=answers))
    over = [reply["answer"] / beside["answer"] for reply, beside in zip(later, bare, strict=True)]
    yield Figure.of("resume.everhold.cold_over_floor", "×", over)
    cold = [reply["answer"] * 1e3 for reply in later]
    yield Figure.of("resume.everhold.cold_1000_ms", "ms", cold)
    yield Figure.of("resume.floor.cold_1000_ms", "ms", [reply["answer"] * 1e3 for reply in bare])
    yield Figure.of("resume.everhold.first_in_process_ms", "ms", [first["answer"] * 1e3])
