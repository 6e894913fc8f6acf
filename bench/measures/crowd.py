"""Many sessions open at once: what a step takes, also while the loop has other work, and the CPU
time of a step with 10 and with 1000 of them.
"""

from collections.abc import Iterator

from bench.contender import CONTENDERS, DURABLE, FLOOR, OURS
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import Stage, alternate, ratios
from bench.work import PAUSES, Level
from bench.worker import Worker


def measure(stage: Stage) -> Iterator[Figure]:
    for level in DURABLE:
        yield from _crowds(stage, level)
    if stage.has_ours:
        for level in DURABLE:
            yield from _busy(stage, level)
        if FLOOR in stage.taking_part:
            yield from _cpu(stage)


def _crowds(stage: Stage, level: Level) -> Iterator[Figure]:
    """Everybody in turn. The floor answers its sessions one after the other, each with a commit."""

    def slice_(name: str, worker: Worker) -> Reply:
        sessions = stage.scale.peer_crowd if CONTENDERS[name].peer else stage.scale.crowd
        return worker.ask("crowd", sessions=sessions, pauses=PAUSES)

    # each waiting workflow would hold one of DBOS's 64 threads
    names = [one.name for one in stage.contenders(level) if one.name != "dbos-recv"]
    with stage.workers(level, *names) as workers:
        replies = alternate(workers, stage.scale.crowd_rounds, slice_)
    for name, slices in replies.items():
        at = f"crowd.{level.lower()}.{name}"
        yield Figure.of(f"{at}.steps_per_s", "/s", [1 / reply["step"] for reply in slices])
        if name != FLOOR and FLOOR in replies:
            yield Figure.of(f"{at}.over_floor", "×", ratios(slices, replies[FLOOR]))
        if name not in (FLOOR, OURS) and OURS in replies:
            yield Figure.of(f"{at}.over_everhold", "×", ratios(slices, replies[OURS]))


def _busy(stage: Stage, level: Level) -> Iterator[Figure]:
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
    yield Figure.of(f"{at}.starts_per_s", "/s", [1 / reply["start"] for reply in quiet])
    yield Figure.of(f"{at}.busy_over_quiet", "×", ratios(busy, quiet))
    yield Figure.of(f"{at}.busy_share", "", [reply["share"] for reply in busy])


def _cpu(stage: Stage) -> Iterator[Figure]:
    """CPU time of a step, of all threads, in turns: alone, 10 at once, 1000 at once, the floor."""
    alone: list[Reply] = []
    floor: list[Reply] = []
    crowds: dict[int, list[Reply]] = {10: [], stage.scale.crowd: []}
    sessions = stage.scale.crowd // 10
    with (
        stage.worker(OURS, Level.NORMAL) as ours,
        stage.worker(FLOOR, Level.NORMAL) as bare,
    ):
        for number in range(stage.scale.crowd_rounds * 2 + 1):
            taken = ours.ask("sequence", sessions=sessions, pauses=PAUSES)
            beside = bare.ask("sequence", sessions=sessions, pauses=PAUSES)
            ten = ours.ask("crowd", sessions=10, pauses=sessions * PAUSES // 10)
            many = ours.ask("crowd", sessions=stage.scale.crowd, pauses=PAUSES)
            if number:
                alone.append(taken)
                floor.append(beside)
                crowds[10].append(ten)
                crowds[stage.scale.crowd].append(many)
    for (_, slices), name in zip(crowds.items(), ("ten", "thousand"), strict=True):
        at = f"crowd.normal.{OURS}.{name}"
        yield Figure.of(f"{at}.cpu_over_alone", "×", ratios(slices, alone, "cpu"))
        yield Figure.of(f"{at}.cpu_over_floor", "×", ratios(slices, floor, "cpu"))
