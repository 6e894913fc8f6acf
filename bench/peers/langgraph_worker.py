"""LangGraph: a node that calls `interrupt()` in a loop, resumed with `Command(resume=...)`.

Of the forms that its documentation shows (a loop in one node, one interrupt per visit of a node, the
functional API), the loop is the fastest and the smallest on disk at 20 pauses. `durability="exit"` is the
fastest of the three modes, and no less durable here: each `invoke` ends at the next interrupt and returns
after its writes are committed, which `open` proves by playing a session with a new connection for each step.
The synchronous API in one thread is as fast as it gets: a pool of threads was slower.
"""

import sqlite3
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from typing import Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from bench import player, speak, work


class State(TypedDict):
    pauses: int
    total: int


def ask(state: State) -> dict[str, int]:
    return {"total": sum(len(interrupt(work.PROMPTS[n % 1000])) for n in range(state["pauses"]))}


def connect(path: str, level: work.Level) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {level}")
    return connection


class Session:
    def __init__(self, thread: int) -> None:
        self.config: dict[str, Any] = {"configurable": {"thread_id": str(thread)}}
        self.value: dict[str, Any] = {}


class LangGraph:
    def __init__(self, saver: BaseCheckpointSaver[Any], threads: Iterator[int]) -> None:
        graph = StateGraph(State)
        graph.add_node("ask", ask)
        graph.add_edge(START, "ask")
        self.graph = graph.compile(checkpointer=saver)
        self.threads = threads

    def start(self, pauses: int) -> Session:
        session = Session(next(self.threads))
        session.value = self.graph.invoke({"pauses": pauses, "total": 0}, session.config, durability="exit")
        return session

    def answer(self, session: Session, value: str) -> None:
        session.value = self.graph.invoke(Command(resume=value), session.config, durability="exit")

    def result(self, session: Session) -> object:
        return session.value["total"]


def prove_durable(path: str, level: work.Level, threads: Iterator[int]) -> None:
    """Play one session with a new connection for each step: it ends right only if each step was committed."""
    session: Session | None = None
    for _ in range(4):
        connection = connect(path, level)
        graph = LangGraph(SqliteSaver(connection), threads)
        if session is None:
            session = graph.start(3)
        else:
            graph.answer(session, work.ANSWER)
        connection.close()
    assert session is not None
    work.expect(session.value["total"], 3)


def main() -> None:
    played: list[LangGraph] = []
    connections: list[sqlite3.Connection] = []

    def open(level: str, path: str) -> speak.Reply:
        threads, wanted = count(), work.Level(level)
        versions = {name: version(name) for name in ("langgraph", "langgraph-checkpoint-sqlite")}
        if wanted is work.Level.MEMORY:
            played.append(LangGraph(InMemorySaver(), threads))
            return {"versions": versions, "synchronous": None}
        prove_durable(path, wanted, threads)
        connections.append(connect(path, wanted))
        played.append(LangGraph(SqliteSaver(connections[-1]), threads))
        player.sequence(played[-1], sessions=1, pauses=1)  # the saver sets itself up at its first use
        said = connections[-1].execute("PRAGMA synchronous").fetchone()[0]
        return {"versions": versions, "synchronous": said}

    def close() -> speak.Reply:
        for connection in connections:
            connection.close()
        return {}

    speak.serve({"open": open, "close": close, **player.verbs(lambda: played[-1])})


if __name__ == "__main__":
    main()
