"""DBOS on a database, for its synchronous and its asynchronous worker.

Given what DBOS does not do by itself: WAL (faster than its default, the rollback journal), and a
listener that polls every 5 ms instead of every second (1 and 20 ms made no visible difference).
"""

from importlib.metadata import version
from typing import Any

import sqlalchemy
from dbos import DBOS

from bench import speak, work

TOPIC = "answer"
WAIT = 60.0
said: set[Any] = set()
#: When a step called its function.
fetched: list[float] = []


def keep_level(level: work.Level) -> None:
    """Set the level on every SQLite connection that DBOS opens from now on, and note what the
    database says of it.
    """

    @sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        if level is work.Level.POSTGRES:
            said.add(connection.execute("SHOW synchronous_commit").fetchone()[0])
            connection.rollback()
        else:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {level}")
            said.add(connection.execute("PRAGMA synchronous").fetchone()[0])


def configure(level: str, path: str) -> None:
    """Make DBOS on this database, and keep the level on all of its connections."""
    wanted = work.Level(level)
    keep_level(wanted)
    DBOS(
        config={
            "name": "bench",
            "system_database_url": path if wanted is work.Level.POSTGRES else f"sqlite:///{path}",
            "notification_listener_polling_interval_sec": 0.005,
            "log_level": "ERROR",
        }
    )


def opened() -> speak.Reply:
    return {
        "versions": {"dbos": version("dbos")},
        "synchronous": next(iter(said)) if len(said) == 1 else None,
    }
