"""LangGraph: `interrupt()`, resumed with `Command(resume=...)`, in three forms.

`loop` one node that asks in a loop, `durability="exit"`. `function` the same loop in the functional
API, `durability="exit"`. `visit` one question per visit of a node, the answers kept in the graph's
state, the default durability.

Which is the fastest differs with the level and the machine, so it is measured and not assumed.
`exit` is no less durable than the other modes here, because each `invoke` ends at the next
interrupt and returns after its writes are committed; `open` proves it by playing a session with a
new connection for each step.
"""

import operator
import sqlite3
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from bench import player, speak, work


class State(TypedDict):
    pauses: int
    answers: Annotated[list[str], operator.add]


def ask_in_a_loop(state: State) -> dict[str, Any]:
    return {"answers": [interrupt(work.PROMPTS[n % 1000]) for n in range(state["pauses"])]}


def ask_once(state: State) -> dict[str, Any]:
    return {"answers": [interrupt(work.PROMPTS[len(state["answers"]) % 1000])]}


def after_one(state: State) -> str:
    return "ask" if len(state["answers"]) < state["pauses"] else END


Saver = BaseCheckpointSaver[Any]


def loop(saver: Saver) -> Any:
    graph = StateGraph(State)
    graph.add_node("ask", ask_in_a_loop)
    graph.add_edge(START, "ask")
    return graph.compile(checkpointer=saver)


def function(saver: Saver) -> Any:
    return entrypoint(checkpointer=saver)(ask_in_a_loop)


def visit(saver: Saver) -> Any:
    graph = StateGraph(State)
    graph.add_node("ask", ask_once)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", after_one, ["ask", END])
    return graph.compile(checkpointer=saver)


FORMS = {"loop": loop, "function": function, "visit": visit}
MODES: dict[str, dict[str, str]] = {
    "loop": {"durability": "exit"},
    "function": {"durability": "exit"},
    "visit": {},
}


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
    """The player; `threads` numbers the sessions of one database."""

    def __init__(self, form: str, saver: Saver, threads: Iterator[int]) -> None:
        self.graph = FORMS[form](saver)
        self.mode = MODES[form]
        self.threads = threads

    def start(self, pauses: int) -> Session:
        session = Session(next(self.threads))
        session.value = self.graph.invoke(
            {"pauses": pauses, "answers": []}, session.config, **self.mode
        )
        return session

    def answer(self, session: Session, value: str) -> None:
        session.value = self.graph.invoke(Command(resume=value), session.config, **self.mode)

    def result(self, session: Session) -> object:
        return sum(map(len, session.value["answers"]))


def prove_durable(form: str, path: str, level: work.Level, threads: Iterator[int]) -> None:
    """Play a session with a new connection for each step: it ends right only if each step was
    committed.
    """
    session: Session | None = None
    for _ in range(4):
        connection = connect(path, level)
        graph = LangGraph(form, SqliteSaver(connection), threads)
        if session is None:
            session = graph.start(3)
        else:
            graph.answer(session, work.ANSWER)
        connection.close()
    assert session is not None
    work.expect(graph.result(session), 3)


def main() -> None:
    played: list[LangGraph] = []
    connections: list[sqlite3.Connection] = []

    def open(level: str, path: str, form: str) -> speak.Reply:
        threads = count()
        wanted = work.Level(level)
        versions = {name: version(name) for name in ("langgraph", "langgraph-checkpoint-sqlite")}
        if wanted is work.Level.MEMORY:
            played.append(LangGraph(form, InMemorySaver(), threads))
            return {"versions": versions, "synchronous": None}
        prove_durable(form, path, wanted, threads)
        connections.append(connect(path, wanted))
        played.append(LangGraph(form, SqliteSaver(connections[-1]), threads))
        # the saver sets itself up at its first use
        player.sequence(played[-1], sessions=1, pauses=1)
        said = connections[-1].execute("PRAGMA synchronous").fetchone()[0]
        return {"versions": versions, "synchronous": said}

    def close() -> speak.Reply:
        for connection in connections:
            connection.close()
        return {}

    speak.serve({"open": open, "close": close, **player.verbs(lambda: played[-1])})


if __name__ == "__main__":
    main()
