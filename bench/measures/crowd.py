"""A thousand sessions open at once: durable steps per second, also while the loop has other
work.
"""

from collections.abc import Iterator

from bench.contender import DURABLE, OURS
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import Stage
from bench.work import PAUSES, Level


def measure(stage: Stage) -> Iterator[Figure]:
    for level in DURABLE:
        for contender in stage.contenders(level):
            if contender.name == OURS:
                yield from _ours(stage, level)
            # each waiting workflow would hold one of DBOS's 64 threads
            elif contender.name != "dbos-recv":
                sessions = stage.scale.peer_crowd if contender.peer else stage.scale.crowd
                with stage.worker(contender.name, level) as worker:
                    slices = [worker.ask("crowd", sessions=sessions, pauses=PAUSES)]
                yield _rate(f"crowd.{level.lower()}.{contender.name}.steps_per_s", slices)


def _ours(stage: Stage, level: Level) -> Iterator[Figure]:
    """Quiet and busy slices in turn, after one to warm up."""
    at = f"crowd.{level.lower()}.{OURS}"
    work = {"sessions": stage.scale.crowd, "pauses": PAUSES}
    quiet = []
    busy = []
    with stage.worker(OURS, level) as worker:
        worker.ask("crowd", **work)
        for _ in range(stage.scale.crowd_rounds):
            quiet.append(worker.ask("crowd", **work))
            busy.append(worker.ask("crowd", **work, busy=True))
    yield _rate(f"{at}.steps_per_s", quiet)
    yield Figure.of(f"{at}.starts_per_s", "/s", [1 / reply["start"] for reply in quiet])
    yield _rate(f"{at}.busy_steps_per_s", busy)
    yield Figure.of(f"{at}.busy_share", "", [reply["share"] for reply in busy])


def _rate(name: str, slices: list[Reply]) -> Figure:
    return Figure.of(name, "/s", [1 / reply["step"] for reply in slices])
