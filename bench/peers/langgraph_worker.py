"""LangGraph: `interrupt()`, resumed with `Command(resume=...)`, in four forms, on SQLite, on
PostgreSQL and in memory.

`loop` one node that asks in a loop, `durability="exit"`. `function` the same loop in the functional
API, `durability="exit"`. `visit` one question per visit of a node, the answers kept in the graph's
state, the default durability. `delta` is `visit` with the answers in a `DeltaChannel`, which stores
what each step adds and a snapshot every hundredth time (it is in beta). A fifth form, `task`, has
no pause: the functional API calls a `@task` in each step.

Which is the fastest differs with the level and the machine, so it is measured and not assumed.
`exit` is no less durable than the other modes here, because each `invoke` ends at the next
interrupt and returns after its writes are committed; `open` proves it by playing a session with a
new connection for each step.
"""

import operator
import sqlite3
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import count
from time import perf_counter
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from bench import player, speak, work


class State(TypedDict):
    pauses: int
    answers: Annotated[list[str], operator.add]


def extend(answers: list[str], writes: Sequence[list[str]]) -> list[str]:
    return answers + [answer for write in writes for answer in write]


class DeltaState(TypedDict):
    pauses: int
    answers: Annotated[list[str], DeltaChannel(extend)]


def ask_in_a_loop(state: State) -> dict[str, Any]:
    return {"answers": [interrupt(work.PROMPTS[n % 1000]) for n in range(state["pauses"])]}


def ask_once(state: Any) -> dict[str, Any]:
    return {"answers": [interrupt(work.PROMPTS[len(state["answers"]) % 1000])]}


def after_one(state: Any) -> str:
    return "ask" if len(state["answers"]) < state["pauses"] else END


Saver = BaseCheckpointSaver[Any]


def loop(saver: Saver) -> Any:
    graph = StateGraph(State)
    graph.add_node("ask", ask_in_a_loop)
    graph.add_edge(START, "ask")
    return graph.compile(checkpointer=saver)


def function(saver: Saver) -> Any:
    return entrypoint(checkpointer=saver)(ask_in_a_loop)


def visit(saver: Saver, state: type = State) -> Any:
    graph = StateGraph(state)
    graph.add_node("ask", ask_once)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", after_one, ["ask", END])
    return graph.compile(checkpointer=saver)


def delta(saver: Saver) -> Any:
    return visit(saver, DeltaState)


#: When `fetch` was called.
fetched: list[float] = []


@task
def fetch(prompt: str) -> str:
    fetched.append(perf_counter())
    return work.ANSWER


def calling(saver: Saver) -> Any:
    def run(steps: int) -> int:
        return sum(len(fetch(work.PROMPTS[n % 1000]).result()) for n in range(steps))

    return entrypoint(checkpointer=saver)(run)


FORMS = {"loop": loop, "function": function, "visit": visit, "delta": delta, "task": calling}
MODES: dict[str, dict[str, str]] = {
    "loop": {"durability": "exit"},
    "function": {"durability": "exit"},
    "visit": {},
    "delta": {},
    "task": {"durability": "sync"},
}


def connect(path: str, level: work.Level) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {level}")
    return connection


def save(where: str, level: work.Level) -> tuple[Saver, Any]:
    """A saver, and its connection."""
    if level is not work.Level.POSTGRES:
        connection = connect(where, level)
        return SqliteSaver(connection), connection
    # only here: SQLite's contenders do not load its library
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row

    line = psycopg.connect(where, autocommit=True, prepare_threshold=0, row_factory=dict_row)
    saver = PostgresSaver(line)
    saver.setup()
    return saver, line


def read_back(connection: Any, level: work.Level) -> Any:
    """What the database says about the durability of this connection."""
    if level is work.Level.POSTGRES:
        return connection.execute("SHOW synchronous_commit").fetchone()["synchronous_commit"]
    return connection.execute("PRAGMA synchronous").fetchone()[0]


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
        saver, connection = save(path, level)
        graph = LangGraph(form, saver, threads)
        if session is None:
            session = graph.start(3)
        else:
            graph.answer(session, work.ANSWER)
        connection.close()
    assert session is not None
    work.expect(graph.result(session), 3)


def main() -> None:
    played: list[LangGraph] = []
    connections: list[Any] = []

    def open(level: str, path: str, form: str) -> speak.Reply:
        threads = count()
        wanted = work.Level(level)
        names = ["langgraph", "langgraph-checkpoint-sqlite"]
        if wanted is work.Level.POSTGRES:
            names = ["langgraph", "langgraph-checkpoint-postgres"]
        versions = {name: version(name) for name in names}
        if wanted is work.Level.MEMORY:
            played.append(LangGraph(form, InMemorySaver(), threads))
            return {"versions": versions, "synchronous": None}
        if form != "task":
            prove_durable(form, path, wanted, threads)
        saver, connection = save(path, wanted)
        connections.append(connection)
        played.append(LangGraph(form, saver, threads))
        # the saver sets itself up at its first use
        if form == "task":
            calls(sessions=1, steps=1)
        else:
            player.sequence(played[-1], sessions=1, pauses=1)
        return {"versions": versions, "synchronous": read_back(connection, wanted)}

    def calls(sessions: int, steps: int) -> speak.Reply:
        """Sessions whose steps call a function; a step lasts from one call to the next."""
        taken = 0.0
        graph = played[-1]
        for _ in range(sessions):
            fetched.clear()
            config: Any = {"configurable": {"thread_id": f"calls-{next(graph.threads)}"}}
            result = graph.graph.invoke(steps + 1, config, **graph.mode)
            work.expect(result, steps + 1)
            taken += fetched[-1] - fetched[0]
        return {"step": taken / (sessions * steps)}

    def close() -> speak.Reply:
        for connection in connections:
            connection.close()
        return {}

    own = {"open": open, "close": close, "calls": calls}
    speak.serve({**player.verbs(lambda: played[-1]), **own})


if __name__ == "__main__":
    main()
