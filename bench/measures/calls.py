"""A step that calls a function: from one call to the next.

everhold commits twice, before the call and after it, so that after a crash it knows which calls may
have been made; the floor of two commits does the same. DBOS commits once, after the call. A task of
LangGraph is written by a thread while the next one runs.
"""

from collections.abc import Iterator
from contextlib import ExitStack

from bench.contender import CONTENDERS, FLOOR, OURS, TASK, Contender
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import Stage, alternate, ratios
from bench.work import PAUSES, Level
from bench.worker import Worker

#: Contenders, and sessions of a slice. `floor` makes steps with one commit, `floor-call` with two.
SESSIONS = {
    "floor": 50,
    "floor-call": 50,
    OURS: 25,
    TASK.name: 2,
    "dbos-step": 2,
    "dbos-step-async": 2,
}


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours or FLOOR not in stage.taking_part:
        return

    def slice_(name: str, worker: Worker) -> Reply:
        if name == FLOOR:
            return worker.ask("sequence", sessions=SESSIONS[name], pauses=PAUSES)
        return worker.ask("calls", sessions=SESSIONS[name], steps=PAUSES)

    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(stage.worker(_contender(name), Level.NORMAL))
            for name in SESSIONS
            if _takes_part(stage, name)
        }
        replies = alternate(workers, stage.scale.rounds, slice_)
    for name, slices in replies.items():
        if name == FLOOR:
            continue
        yield Figure.of(f"call.normal.{name}.us", "µs", [reply["step"] * 1e6 for reply in slices])
        yield Figure.of(f"call.normal.{name}.over_floor", "×", ratios(slices, replies[FLOOR]))
        if name != OURS:
            yield Figure.of(f"call.normal.{name}.over_everhold", "×", ratios(slices, replies[OURS]))


def _contender(name: str) -> Contender:
    if name == TASK.name:
        return TASK
    return CONTENDERS[FLOOR if name == "floor-call" else name]


def _takes_part(stage: Stage, name: str) -> bool:
    if name == TASK.name:
        return any(one.startswith("langgraph") for one in stage.taking_part)
    return name == "floor-call" or name in stage.taking_part
