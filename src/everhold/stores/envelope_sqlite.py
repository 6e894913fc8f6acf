"""fluers' session envelopes in a table of an SQLite file.

fluers has no adapter for SQLite; the table is that of its adapter for Postgres.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from everhold.core.codec import JSON
from everhold.errors import StoreDamaged
from everhold.stores.envelope import encode_file, parse_session_id
from everhold.stores.sqlite.database import connect_file, translate_sqlite_error

T = TypeVar("T")

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS fluers_sessions (
    id TEXT NOT NULL PRIMARY KEY,
    data TEXT NOT NULL,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
)
"""
_SAVE: Final = """
INSERT INTO fluers_sessions (id, data) VALUES (?, ?)
ON CONFLICT (id) DO UPDATE SET data = excluded.data, updated_at = excluded.updated_at
"""
#: Milliseconds to wait for another process that writes.
_BUSY_TIMEOUT: Final = 10_000


class SQLiteEnvelopes:
    """An adapter on an SQLite file, for any number of processes. The last save of a session wins.

    A save is durable when it returns. The file and its table are created by the first save. Every
    call opens the file for itself, so there is nothing to close.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    async def save_session(self, session_id: str, data: JSON) -> None:
        named = str(parse_session_id(session_id))
        text = encode_file(session_id, data).decode()

        def save(connection: sqlite3.Connection) -> None:
            connection.execute(_TABLE)
            connection.execute(_SAVE, (named, text))

        await asyncio.to_thread(self._run, save)

    async def load_session(self, session_id: str) -> JSON | None:
        named = str(parse_session_id(session_id))
        query = "SELECT data FROM fluers_sessions WHERE id = ?"
        rows = await asyncio.to_thread(self._read, query, named)
        if not rows:
            return None
        try:
            return msgspec.json.decode(rows[0][0])
        except (msgspec.DecodeError, RecursionError) as error:
            raise StoreDamaged(str(self.path), f"session {named}: {error}") from None

    async def list_sessions(self) -> list[str]:
        query = "SELECT id FROM fluers_sessions ORDER BY id"
        return [str(row[0]) for row in await asyncio.to_thread(self._read, query)]

    async def delete_session(self, session_id: str) -> bool:
        named = str(parse_session_id(session_id))

        def delete(connection: sqlite3.Connection) -> bool:
            if not _has_table(connection):
                return False
            query = "DELETE FROM fluers_sessions WHERE id = ?"
            return connection.execute(query, (named,)).rowcount > 0

        return self.path.exists() and await asyncio.to_thread(self._run, delete)

    def _read(self, query: str, *values: str) -> list[tuple[str]]:
        """The rows of a query; none if there is no such file or table. Creates nothing."""
        if not self.path.exists():
            return []
        return self._run(
            lambda connection: (
                connection.execute(query, values).fetchall() if _has_table(connection) else []
            )
        )

    def _run(self, act: Callable[[sqlite3.Connection], T]) -> T:
        with closing(connect_file(self.path)) as connection:
            try:
                connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT}")
                connection.execute("PRAGMA synchronous = FULL")
                return act(connection)
            except sqlite3.Error as error:
                raise translate_sqlite_error(error, str(self.path)) from None


def _has_table(connection: sqlite3.Connection) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'fluers_sessions'"
    return connection.execute(query).fetchone() is not None
