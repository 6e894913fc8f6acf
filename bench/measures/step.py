"""One step of one session alone: an answer given, the next question durable. The main figure of the
table.
"""

from collections.abc import Iterator, Mapping
from statistics import median

from bench.contender import CONTENDERS, DURABLE, FLOOR, OURS
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import Stage, alternate, ratios
from bench.work import PAUSES, Level
from bench.worker import Worker

Replies = Mapping[str, list[Reply]]


def measure(stage: Stage) -> Iterator[Figure]:
    taken: dict[Level, Replies] = {}
    for level in (*DURABLE, Level.MEMORY):
        if stage.contenders(level):
            taken[level] = _slices(stage, level)
            yield from _figures(level, taken[level])
    if FLOOR in stage.taking_part:
        normal, full = (median(reply["step"] for reply in taken[level][FLOOR]) for level in DURABLE)
        yield Figure.of("fsync.us", "µs", [(full - normal) * 1e6])


def _slices(stage: Stage, level: Level) -> Replies:
    def slice_(name: str, worker: Worker) -> Reply:
        sessions = CONTENDERS[name].slice.get(level, 100)
        reply = worker.ask("sequence", sessions=sessions, pauses=PAUSES)
        return reply | {"life": reply["start"] + reply["step"] * PAUSES}

    with stage.workers(level) as workers:
        if level is Level.FULL:
            for name, worker in workers.items():  # a young file is slower: see `fresh`
                if not CONTENDERS[name].peer:
                    worker.ask("sequence", sessions=stage.scale.settled, pauses=PAUSES)
        return alternate(workers, stage.scale.rounds, slice_)


def _figures(level: Level, replies: Replies) -> Iterator[Figure]:
    at = level.lower()
    for name, slices in replies.items():
        yield Figure.of(f"step.{at}.{name}.us", "µs", [reply["step"] * 1e6 for reply in slices])
        yield Figure.of(f"start.{at}.{name}.us", "µs", [reply["start"] * 1e6 for reply in slices])
        if FLOOR in replies and name != FLOOR:
            floor = replies[FLOOR]
            yield Figure.of(f"step.{at}.{name}.over_floor", "×", ratios(slices, floor))
            yield Figure.of(f"step.{at}.{name}.cpu_over_floor", "×", ratios(slices, floor, "cpu"))
            yield Figure.of(f"start.{at}.{name}.over_floor", "×", ratios(slices, floor, "start"))
            yield Figure.of(f"life.{at}.{name}.over_floor", "×", ratios(slices, floor, "life"))
        if OURS in replies and name not in (FLOOR, OURS):
            yield Figure.of(f"step.{at}.{name}.over_everhold", "×", ratios(slices, replies[OURS]))
    forms = [slices for name, slices in replies.items() if name.startswith("langgraph-")]
    if OURS in replies and forms:
        fastest = min((ratios(slices, replies[OURS]) for slices in forms), key=median)
        yield Figure.of(f"step.{at}.langgraph-fastest.over_everhold", "×", fastest)
