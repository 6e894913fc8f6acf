"""everhold holds the conversation of bench/measures/agents.py, with `session.send`."""

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench import speak
from bench.ours import connections  # first: it notes SQLite's connections

import everhold  # isort: skip
from everhold.runtime import Runtime  # isort: skip
from everhold.stores.sqlite import SQLiteStore  # isort: skip

agent = everhold.Agent(instructions="Be brief.", name="bench")


class Talk:
    """One conversation; `young` ones are held in a file of their own."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.path = Path()
        self.said = ""
        self.answer = ""
        self.turns_held = 0
        self.session: Any = None
        self.young: Any = None

    async def open(self, path: str, said: str, answer: str) -> speak.Reply:
        self.path, self.said, self.answer = Path(path), said, answer
        runtime = await self.stack.enter_async_context(self._runtime(self.path))
        self.session = await runtime.session(agent, "chat")
        self.young = await self.stack.enter_async_context(self._runtime(Path(f"{path}-young")))
        return {"versions": {"everhold": version("everhold")}}

    def _runtime(self, path: Path) -> Runtime:
        async def model(query: everhold.Query) -> str:
            return self.answer

        return Runtime(SQLiteStore(path, durability="process"), llm=model, recover=False)

    async def reach(self, turn: int) -> speak.Reply:
        """Hold the conversation until it has this many turns."""
        await self._hold(self.session, turn - self.turns_held)
        self.turns_held = turn
        return {}

    async def turns(self, count: int) -> speak.Reply:
        """Seconds of each of the next turns."""
        seconds = await self._hold(self.session, count)
        self.turns_held += count
        return {"seconds": seconds}

    async def young_turns(self, name: str, reach: int, count: int) -> speak.Reply:
        """Seconds of turns of a young conversation, after as many as it takes to `reach`."""
        young = await self.young.session(agent, name)
        await self._hold(young, reach)
        return {"seconds": await self._hold(young, count)}

    async def _hold(self, session: everhold.AgentSession, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            before = perf_counter()
            await session.send(self.said)
            taken.append(perf_counter() - before)
        return taken

    async def reached(self) -> speak.Reply:
        return {"turns": self.turns_held}

    async def size(self) -> speak.Reply:
        return {"bytes": sum(self._checkpointed())}

    def _checkpointed(self) -> Iterator[int]:
        for connection in connections[:1]:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        yield os.path.getsize(self.path)

    async def count(self, turns: int) -> speak.Reply:
        """Python calls and SQL statements of a turn: medians."""
        calls, statements = [], []
        for _ in range(turns):
            with counting() as counted:
                await self.session.send(self.said)
            calls.append(counted["calls"])
            statements.append(counted["statements"])
        self.turns_held += turns
        return {"calls": median(calls), "statements": median(statements)}

    async def close(self) -> speak.Reply:
        connections.clear()
        await self.stack.aclose()
        return {}


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Count calls of Python functions, and SQL statements on the connections of this thread, where
    turns are made.
    """
    counted = {"calls": 0, "statements": 0}

    def called(_frame: Any, event: str, _arg: Any) -> None:
        if event == "call":
            counted["calls"] += 1

    def stated(_sql: str) -> None:
        counted["statements"] += 1

    traced = [connection for connection in connections if _trace(connection, stated)]
    threading.setprofile(called)
    sys.setprofile(called)
    try:
        yield counted
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        for connection in traced:
            connection.set_trace_callback(None)


def _trace(connection: Any, stated: Any) -> bool:
    """Trace a connection; False if it is closed or belongs to another thread."""
    try:
        connection.set_trace_callback(stated)
    except sqlite3.ProgrammingError:
        return False
    return True


VERBS = ("open", "reach", "reached", "turns", "young_turns", "size", "count", "close")


def main() -> None:
    talk = Talk()
    asyncio.run(speak.serve_async({name: getattr(talk, name) for name in VERBS}))


if __name__ == "__main__":
    main()
