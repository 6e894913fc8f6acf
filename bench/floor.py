"""The floor: a bare coroutine and one SQLite commit per step, and nothing else.

A durable runtime must at least send the answer into the program, and commit the answer, the next
question and the session's new position. This file does only that: no checks, no encoding, no
event loop, no second process.
"""

import sqlite3
from collections.abc import Coroutine, Generator
from typing import Any

from bench import player, speak, work

SCHEMA = """
CREATE TABLE session (id INTEGER PRIMARY KEY, n INTEGER NOT NULL);
CREATE TABLE step (session INTEGER NOT NULL, n INTEGER NOT NULL, given TEXT, asked TEXT, UNIQUE (session, n));
"""  # noqa: E501


class Ask:
    """Awaiting it yields the prompt and returns the answer."""

    __slots__ = ("prompt",)

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt

    def __await__(self) -> Generator[str, str, str]:
        return (yield self.prompt)


async def chain(pauses: int) -> int:
    total = 0
    for n in range(pauses):
        total += len(await Ask(work.PROMPTS[n % 1000]))
    return total


class Session:
    __slots__ = ("coroutine", "id", "n", "result")

    def __init__(self, coroutine: Coroutine[Any, str, int]) -> None:
        self.coroutine = coroutine
        self.id: int | None = None
        self.n = 0
        self.result: int | None = None


class Floor:
    """The player: one connection, one kept cursor, `BEGIN IMMEDIATE` to `COMMIT`."""

    def __init__(self, path: str, level: work.Level) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(f"PRAGMA synchronous = {level}")
        self.connection.executescript(SCHEMA)
        self.execute = self.connection.cursor().execute

    def start(self, pauses: int) -> Session:
        session = Session(chain(pauses))
        asked = session.coroutine.send(None)  # type: ignore[arg-type]
        execute = self.execute
        execute("BEGIN IMMEDIATE")
        session.id = execute("INSERT INTO session (n) VALUES (0)").lastrowid
        execute("INSERT INTO step (session, n, asked) VALUES (?, 0, ?)", (session.id, asked))
        execute("COMMIT")
        return session

    def answer(self, session: Session, value: str) -> None:
        asked = None
        try:
            asked = session.coroutine.send(value)
        except StopIteration as end:
            session.result = end.value
        session.n = n = session.n + 1
        execute = self.execute
        execute("BEGIN IMMEDIATE")
        execute(
            "INSERT INTO step (session, n, given, asked) VALUES (?, ?, ?, ?)",
            (session.id, n, value, asked),
        )
        execute("UPDATE session SET n = ? WHERE id = ?", (n, session.id))
        execute("COMMIT")

    def result(self, session: Session) -> object:
        return session.result


def main() -> None:
    floors: list[Floor] = []

    def open(level: str, path: str) -> speak.Reply:
        floors.append(Floor(path, work.Level(level)))
        said = floors[-1].execute("PRAGMA synchronous").fetchone()[0]
        return {"versions": {"sqlite": sqlite3.sqlite_version}, "synchronous": said}

    def close() -> speak.Reply:
        floors.pop().connection.close()
        return {}

    speak.serve({"open": open, "close": close, **player.verbs(lambda: floors[-1])})


if __name__ == "__main__":
    main()
