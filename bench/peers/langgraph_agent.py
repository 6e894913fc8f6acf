"""LangGraph holds the conversation of bench/measures/agents.py: one node that asks the model, and
its SQLite saver.
"""

import json
import os
import sqlite3
import sys
import time
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph


def main(given: dict[str, Any]) -> dict[int, tuple[list[float], float]]:
    path = given["path"]
    said = given["said"]
    answer = given["answer"]
    connection = sqlite3.connect(path, check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    connection.execute("PRAGMA synchronous=NORMAL")
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [AIMessage(answer)]})
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    app = graph.compile(checkpointer=saver)
    found: dict[int, tuple[list[float], float]] = {}
    for turn in given["turns"]:
        config: Any = {"configurable": {"thread_id": f"at-{turn}"}}
        before = max(turn - given["around"] // 2, 0)
        messages = [
            message for _ in range(before) for message in (HumanMessage(said), AIMessage(answer))
        ]
        app.update_state(config, {"messages": messages}, as_node="model")
        began_with = size(path, connection)
        took = []
        for _ in range(given["around"]):
            began = time.perf_counter()
            app.invoke({"messages": [HumanMessage(said)]}, config)
            took.append((time.perf_counter() - began) * 1e3)
        found[turn] = took, (size(path, connection) - began_with) / given["around"]
    return found


def size(path: str, connection: sqlite3.Connection) -> int:
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return os.path.getsize(path)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.stdin.read()))))
