"""A cold step: the answer to a session of 20 answers that is not in memory.

everhold keeps sessions in memory, so that its step of the table is answered from there; after a
restart, or in another process, it first reads the session and replays it. LangGraph loads its state
at each step, so that its step is always a cold one; here it is taken after as many answers. The
floor is the step of a bare coroutine in memory, as in the table.
"""

from collections.abc import Iterator

from bench.contender import FLOOR, OURS
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import Stage, alternate, ratios
from bench.work import PAUSES, Level
from bench.worker import Worker


def measure(stage: Stage) -> Iterator[Figure]:
    names = [
        contender.name
        for contender in stage.contenders(Level.NORMAL)
        if not contender.name.startswith("dbos")  # which holds its waiting workflows in memory
    ]

    def slice_(name: str, worker: Worker) -> Reply:
        if name == FLOOR:
            return worker.ask("sequence", sessions=50, pauses=PAUSES)
        sessions = stage.scale.cold if name == OURS else 2
        return worker.ask("cold", sessions=sessions, answers=PAUSES)

    with stage.workers(Level.NORMAL, *names) as workers:
        replies = alternate(workers, stage.scale.rounds, slice_)
    for name, slices in replies.items():
        if name == FLOOR:
            continue
        yield Figure.of(f"cold.normal.{name}.us", "µs", [reply["step"] * 1e6 for reply in slices])
        if FLOOR in replies:
            yield Figure.of(f"cold.normal.{name}.over_floor", "×", ratios(slices, replies[FLOOR]))
        if OURS in replies and name != OURS:
            yield Figure.of(f"cold.normal.{name}.over_everhold", "×", ratios(slices, replies[OURS]))
