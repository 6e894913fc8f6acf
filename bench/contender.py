"""The contenders, and the work of each in one slice."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bench.environment import python_of
from bench.work import Level

FLOOR: Final = "floor"
OURS: Final = "everhold"
DURABLE: Final = (Level.NORMAL, Level.FULL)


@dataclass(frozen=True, slots=True)
class Contender:
    """`slice` is sessions per slice, by level; a contender does not have the levels that are not in
    it.
    """

    name: str
    module: str
    slice: Mapping[Level, int]
    peer: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    title: str = ""

    def command(self) -> list[str]:
        return [python_of(self.peer) if self.peer else sys.executable, "-m", self.module]


def _all(sessions: int) -> Mapping[Level, int]:
    return dict.fromkeys(Level, sessions)


def _langgraph(form: str, title: str) -> Contender:
    return Contender(
        f"langgraph-{form}",
        "bench.peers.langgraph_worker",
        _all(2),
        peer="langgraph",
        options={"form": form},
        title=f"LangGraph, {title}",
    )


def _dbos(name: str, form: str, title: str, sessions: int) -> Contender:
    slices = {level: sessions for level in Level if level is not Level.MEMORY}
    module = "bench.peers.dbos_async_worker" if "async" in name else "bench.peers.dbos_worker"
    return Contender(
        f"dbos-{name}", module, slices, peer="dbos", options={"form": form}, title=f"DBOS, {title}"
    )


#: Those that play sessions with pauses; `dbos-step` stands beside them.
CONTENDERS: Final = {
    contender.name: contender
    for contender in (
        Contender(FLOOR, "bench.floor", {Level.NORMAL: 100, Level.FULL: 20}, title="floor"),
        Contender(
            OURS,
            "bench.ours",
            {Level.NORMAL: 100, Level.FULL: 20, Level.MEMORY: 100, Level.POSTGRES: 20},
            title="**everhold**",
        ),
        _langgraph("loop", "a loop in a node"),
        _langgraph("function", "functional API"),
        _langgraph("visit", "a visit per question"),
        _langgraph("delta", "a visit, `DeltaChannel`"),
        _dbos("step", "step", "a step (no pause)", 2),
        _dbos("step-async", "step", "an async step (no pause)", 2),
        _dbos("recv", "recv", "`recv`", 1),
        _dbos("recv-async", "recv", "async `recv`", 1),
    )
}
FLOOR_POSTGRES: Final = Contender(
    FLOOR, "bench.floor_postgres", {Level.POSTGRES: 20}, title="floor"
)
APPROVALS: Final = Contender(
    "everhold-approval",
    "bench.ours",
    {Level.NORMAL: 50},
    options={"form": "approvals"},
    title="**everhold**, an approval",
)
TASK: Final = Contender(
    "langgraph-task",
    "bench.peers.langgraph_worker",
    {Level.NORMAL: 2},
    peer="langgraph",
    options={"form": "task"},
    title="LangGraph, a task",
)
