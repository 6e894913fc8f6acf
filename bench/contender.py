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


CONTENDERS: Final = {
    contender.name: contender
    for contender in (
        Contender(
            FLOOR,
            "bench.floor",
            {Level.NORMAL: 100, Level.FULL: 20},
            title="floor",
        ),
        Contender(
            OURS,
            "bench.ours",
            {Level.NORMAL: 100, Level.FULL: 20, Level.MEMORY: 100},
            title="**everhold**",
        ),
        Contender(
            "langgraph-loop",
            "bench.peers.langgraph_worker",
            {Level.NORMAL: 2, Level.FULL: 2, Level.MEMORY: 2},
            peer="langgraph",
            options={"form": "loop"},
            title="LangGraph, a loop in a node",
        ),
        Contender(
            "langgraph-function",
            "bench.peers.langgraph_worker",
            {Level.NORMAL: 2, Level.FULL: 2, Level.MEMORY: 2},
            peer="langgraph",
            options={"form": "function"},
            title="LangGraph, functional API",
        ),
        Contender(
            "langgraph-visit",
            "bench.peers.langgraph_worker",
            {Level.NORMAL: 2, Level.FULL: 2, Level.MEMORY: 2},
            peer="langgraph",
            options={"form": "visit"},
            title="LangGraph, a visit per question",
        ),
        Contender(
            "dbos-step",
            "bench.peers.dbos_worker",
            {Level.NORMAL: 2, Level.FULL: 2},
            peer="dbos",
            options={"form": "step"},
            title="DBOS, a step (no pause)",
        ),
        Contender(
            "dbos-recv",
            "bench.peers.dbos_worker",
            {Level.NORMAL: 1, Level.FULL: 1},
            peer="dbos",
            options={"form": "recv"},
            title="DBOS, `recv`",
        ),
    )
}
