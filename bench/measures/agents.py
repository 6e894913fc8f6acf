"""What a turn of an agent costs beside LangGraph and Pydantic AI, on the same scripted model.

A turn is an input of 1024 characters and an answer of 1024: from the call to the moment when both
are committed (SQLite, WAL, `synchronous=NORMAL` for all). Slices of some turns alternate around
turn 10, 100 and 1000, with one of the floor's steps beside them. How a late turn of ours compares
with an early one is taken from pairs: turns of a young conversation, and beside them turns of the
old one.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import mean

from bench.contender import FLOOR, OURS
from bench.environment import python_of
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import QUIET, Stage, alternate
from bench.work import PAUSES, Level
from bench.worker import Worker

SLICES = 10
#: Turns of a slice. Together they are a cycle of a `DeltaChannel`: its snapshot is among them.
SLICE = 5
#: Young conversations that are held beside an old one: each has ten of its turns.
YOUNG = 5
AROUND = 10
#: Turns whose calls and statements are counted.
COUNTED = 20
SAID = "u" * 1024
ANSWER = "a" * 1024


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who holds a conversation. One that rewrites it with each turn has it `put` there, and takes
    fewer turns.
    """

    name: str
    module: str
    title: str
    peer: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    slice: int = SLICE
    put: bool = False


SPEAKERS = (
    Speaker(OURS, "bench.talk", "**everhold**"),
    Speaker(
        "langgraph",
        "bench.peers.langgraph_agent",
        "LangGraph",
        "langgraph",
        {"form": "state"},
        slice=1,
        put=True,
    ),
    Speaker(
        "langgraph-delta",
        "bench.peers.langgraph_agent",
        "LangGraph, `DeltaChannel`",
        "langgraph",
        {"form": "delta"},
    ),
    Speaker("pydantic-ai", "bench.peers.pydantic_agent", "Pydantic AI"),
)


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    with ExitStack() as stack:
        speakers = {
            one.name: stack.enter_context(_speaking(stage, one))
            for one in SPEAKERS
            if one.peer is None or any(name.startswith(one.peer) for name in stage.taking_part)
        }
        workers = dict(speakers)
        if FLOOR in stage.taking_part:
            workers[FLOOR] = stack.enter_context(stage.worker(FLOOR, Level.NORMAL))
        for turn in stage.scale.turns:
            yield from _around(workers, turn)
        ours = speakers[OURS]
        size = ours.ask("size")["bytes"]
        yield Figure.of("turn.everhold.bytes", "B", [size / ours.ask("reached")["turns"]])
        yield from _pairs(ours, stage.scale.turns[0])
        counted = ours.ask("count", turns=COUNTED)
        yield Figure.of("turn.everhold.calls", "calls", [counted["calls"]])
        yield Figure.of("turn.everhold.statements", "statements", [counted["statements"]])


@contextmanager
def _speaking(stage: Stage, one: Speaker) -> Iterator[Worker]:
    python = python_of(one.peer) if one.peer else sys.executable
    worker = Worker(one.name, [python, "-m", one.module], env=QUIET)
    path = str(stage.file(one.name))
    try:
        opened = worker.ask("open", path=path, said=SAID, answer=ANSWER, **one.options)
        stage.versions |= opened["versions"]
        yield worker
        worker.ask("close")
    finally:
        worker.end()


def _around(workers: dict[str, Worker], turn: int) -> Iterator[Figure]:
    """The turns around one, in slices; with fewer slices where there are not so many turns."""
    slices = max(min(SLICES, turn // SLICE), 1)
    speakers = {one.name: one for one in SPEAKERS if one.name in workers}
    before = {}
    for name, one in speakers.items():
        turns = slices * one.slice
        workers[name].ask("put" if one.put else "reach", turn=max(turn - turns // 2, 1))
        before[name] = workers[name].ask("size")["bytes"]

    def slice_(name: str, worker: Worker) -> Reply:
        if name == FLOOR:
            return worker.ask("sequence", sessions=20, pauses=PAUSES)
        return {"step": mean(worker.ask("turns", count=speakers[name].slice)["seconds"])}

    replies = alternate(workers, slices, slice_, warm=False)
    for name, one in speakers.items():
        at = f"turn.{name}.{turn}"
        taken = replies[name]
        yield Figure.of(f"{at}.ms", "ms", [reply["step"] * 1e3 for reply in taken])
        if FLOOR in replies:
            over = [a["step"] / b["step"] for a, b in zip(taken, replies[FLOOR], strict=True)]
            yield Figure.of(f"{at}.over_floor", "×", over)
        if name != OURS and OURS in replies:
            over = [a["step"] / b["step"] for a, b in zip(taken, replies[OURS], strict=True)]
            yield Figure.of(f"{at}.over_everhold", "×", over)
        added = workers[name].ask("size")["bytes"] - before[name]
        yield Figure.of(f"{at}.bytes", "B", [added / (slices * one.slice)])


def _pairs(ours: Worker, early: int) -> Iterator[Figure]:
    """Pair by pair, what a late turn took over one around `early`."""
    pairs: list[float] = []
    for number in range(YOUNG):
        young = ours.ask("young_turns", name=f"y{number}", reach=early - AROUND // 2, count=0)
        for _ in range(AROUND):
            young = ours.ask("young_turns", name=f"y{number}", reach=0, count=1)
            old = ours.ask("turns", count=1)
            pairs.append(old["seconds"][0] / young["seconds"][0])
    yield Figure.of("turn.everhold.late_over_early", "×", pairs)
