"""The floor on PostgreSQL: a bare coroutine and one statement per step, which commits by itself.

Answer, next question and the session's new position go to the server in one prepared statement, so
a step is one round trip and one commit.
"""

from typing import Any

import psycopg

from bench import player, speak, work
from bench.floor import Session, chain

SCHEMA = """
CREATE TABLE session (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint NOT NULL);
CREATE TABLE step (session bigint NOT NULL, n bigint NOT NULL, given text, asked text, UNIQUE (session, n));
"""  # noqa: E501
START = (
    "WITH new AS (INSERT INTO session (n) VALUES (0) RETURNING id)"
    " INSERT INTO step (session, n, asked) SELECT id, 0, %s FROM new RETURNING session"
)
STEP = (
    "WITH moved AS (UPDATE session SET n = %(n)s WHERE id = %(session)s)"
    " INSERT INTO step (session, n, given, asked)"
    " VALUES (%(session)s, %(n)s, %(given)s, %(asked)s)"
)


class Floor:
    """The player: one connection in autocommit."""

    def __init__(self, url: str) -> None:
        self.connection: Any = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self.connection.execute(SCHEMA, prepare=False)
        self.execute = self.connection.cursor(binary=True).execute

    def start(self, pauses: int) -> Session:
        session = Session(chain(pauses))
        asked = session.coroutine.send(None)  # type: ignore[arg-type]
        session.id = self.execute(START, (asked,)).fetchone()[0]
        return session

    def answer(self, session: Session, value: str) -> None:
        asked = None
        try:
            asked = session.coroutine.send(value)
        except StopIteration as end:
            session.result = end.value
        session.n = n = session.n + 1
        self.execute(STEP, {"session": session.id, "n": n, "given": value, "asked": asked})

    def result(self, session: Session) -> object:
        return session.result


def main() -> None:
    floors: list[Floor] = []

    def open(level: str, path: str) -> speak.Reply:
        assert level == work.Level.POSTGRES
        floors.append(Floor(path))
        said = floors[-1].execute("SHOW synchronous_commit").fetchone()[0]
        return {"versions": {"psycopg": psycopg.__version__}, "synchronous": said}

    def close() -> speak.Reply:
        floors.pop().connection.close()
        return {}

    speak.serve({"open": open, "close": close, **player.verbs(lambda: floors[-1])})


if __name__ == "__main__":
    main()
