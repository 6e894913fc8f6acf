"""LangGraph holds the conversation of bench/measures/agents.py: one node that asks the model, and
its SQLite saver.

`state` is `MessagesState`, which is written whole with each checkpoint. `delta` keeps the messages
in a `DeltaChannel`, with LangGraph's own reducer for it: a turn writes what it adds, and every
hundredth update a snapshot (it is in beta).
"""

import os
import sqlite3
from importlib.metadata import version
from time import perf_counter
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer

from bench import speak


class DeltaState(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


FORMS: dict[str, type] = {"state": MessagesState, "delta": DeltaState}


class Talk:
    def __init__(self) -> None:
        self.app: Any = None
        self.config: Any = {}
        self.held = 0

    def open(self, path: str, said: str, answer: str, form: str) -> speak.Reply:
        self.path, self.said, self.answer = path, said, answer
        self.connection = sqlite3.connect(path, check_same_thread=False)
        saver = SqliteSaver(self.connection)
        saver.setup()
        self.connection.execute("PRAGMA synchronous=NORMAL")
        graph = StateGraph(FORMS[form])
        graph.add_node("model", lambda state: {"messages": [AIMessage(answer)]})
        graph.add_edge(START, "model")
        graph.add_edge("model", END)
        self.app = graph.compile(checkpointer=saver)
        self.config = {"configurable": {"thread_id": "chat"}}
        self.turns(1)
        names = ("langgraph", "langgraph-checkpoint-sqlite")
        return {"versions": {name: version(name) for name in names}}

    def reach(self, turn: int) -> speak.Reply:
        """Hold the conversation until it has this many turns."""
        self.turns(turn - self.held)
        return {}

    def put(self, turn: int) -> speak.Reply:
        """Put this many turns there in one write, in a conversation of their own."""
        self.config = {"configurable": {"thread_id": f"at-{turn}"}}
        messages = [
            message
            for _ in range(turn)
            for message in (HumanMessage(self.said), AIMessage(self.answer))
        ]
        self.app.update_state(self.config, {"messages": messages}, as_node="model")
        self.held = turn
        return {}

    def turns(self, count: int) -> speak.Reply:
        """Seconds of each of the next turns."""
        taken = []
        for _ in range(count):
            before = perf_counter()
            self.app.invoke({"messages": [HumanMessage(self.said)]}, self.config)
            taken.append(perf_counter() - before)
        self.held += count
        return {"seconds": taken}

    def size(self) -> speak.Reply:
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return {"bytes": os.path.getsize(self.path)}

    def close(self) -> speak.Reply:
        found = self.app.get_state(self.config).values["messages"]
        if len(found) != 2 * self.held:
            raise AssertionError(f"{len(found)} messages after {self.held} turns")
        self.connection.close()
        return {}


def main() -> None:
    talk = Talk()
    verbs = ("open", "reach", "put", "turns", "size", "close")
    speak.serve({name: getattr(talk, name) for name in verbs})


if __name__ == "__main__":
    main()
