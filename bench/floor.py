"""The floor: a bare coroutine and one SQLite commit per step, and nothing else.

A durable runtime must at least send the answer into the program, and commit the answer, the next
question and the session's new position. This file does only that: no checks, no encoding, no
event loop, no second process.

`calls` is the floor of a step that calls a function: it commits that the function begins, and then
what it returned. `replay` is that of a cold resume: it selects a session's answers in everhold's
own file, decodes them and sends them into a new coroutine.
"""

import sqlite3
from collections.abc import Coroutine, Generator
from contextlib import closing
from time import perf_counter
from typing import Any

import msgspec

from bench import player, speak, work

SCHEMA = """
CREATE TABLE session (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, began INTEGER);
CREATE TABLE step (session INTEGER NOT NULL, n INTEGER NOT NULL, given TEXT, asked TEXT, UNIQUE (session, n));
"""  # noqa: E501


JOURNAL = (
    "SELECT j.answers, j.asked FROM journal j JOIN session s ON s.ref = j.session"
    " WHERE s.id = ? ORDER BY j.n"
)


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
        self.level = level
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

    def call(self, session: Session, prompt: str) -> str:
        """A call: that it begins is committed before it is made."""
        session.n = n = session.n + 1
        execute = self.execute
        execute("BEGIN IMMEDIATE")
        execute("UPDATE session SET began = ? WHERE id = ?", (n, session.id))
        execute("COMMIT")
        value = fetch(prompt)
        execute("BEGIN IMMEDIATE")
        execute(
            "INSERT INTO step (session, n, given, asked) VALUES (?, ?, ?, ?)",
            (session.id, n, value, prompt),
        )
        execute("UPDATE session SET n = ?, began = NULL WHERE id = ?", (n, session.id))
        execute("COMMIT")
        return value


def fetch(prompt: str) -> str:
    return work.ANSWER


def replay(path: str, session: str, answers: int) -> speak.Reply:
    """Rebuild a session of everhold's file: select, decode, send."""
    decode = msgspec.json.Decoder().decode
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        before = perf_counter()
        rows = connection.execute(JOURNAL, (session,)).fetchall()
        coroutine = chain(2 * answers)
        coroutine.send(None)  # type: ignore[arg-type]
        sent = 0
        for given, asked in rows:
            decode(asked)
            for answer in decode(given):
                coroutine.send(answer["value"])
                sent += 1
        taken = perf_counter() - before
    coroutine.close()
    if sent < answers:
        raise AssertionError(f"the session has {sent} answers, not {answers}")
    return {"answer": taken}


def main() -> None:
    floors: list[Floor] = []

    def open(level: str, path: str) -> speak.Reply:
        floors.append(Floor(path, work.Level(level)))
        said = floors[-1].execute("PRAGMA synchronous").fetchone()[0]
        return {"versions": {"sqlite": sqlite3.sqlite_version}, "synchronous": said}

    def close() -> speak.Reply:
        floors.pop().connection.close()
        return {}

    def fresh(path: str, sessions: int, pauses: int) -> speak.Reply:
        """The first steps of a new file."""
        level = work.Level(floors[-1].level)
        close()
        floors.append(Floor(path, level))
        return player.sequence(floors[-1], sessions=sessions, pauses=pauses)

    def calls(sessions: int, steps: int) -> speak.Reply:
        taken = 0.0
        floor = floors[-1]
        for _ in range(sessions):
            session = floor.start(steps)
            before = perf_counter()
            total = sum(len(floor.call(session, work.PROMPTS[n % 1000])) for n in range(steps))
            taken += perf_counter() - before
            work.expect(total, steps)
        return {"step": taken / (sessions * steps)}

    own = {"open": open, "close": close, "fresh": fresh, "calls": calls, "replay": replay}
    speak.serve({**player.verbs(lambda: floors[-1]), **own})


if __name__ == "__main__":
    main()
