"""fluers' session envelopes in Postgres, in the table that fluers itself uses: both programs may
share it.
"""

from __future__ import annotations

from typing import Any, Final, Self

import msgspec
import psycopg
from psycopg import sql

from everhold.core.codec import JSON
from everhold.stores.address import split_address
from everhold.stores.envelope import SerializeFailed, encode_file, parse_session_id
from everhold.stores.postgres.address import PostgresAddress
from everhold.stores.postgres.connection import PgConnection, PostgresConnections

#: The lock that fluers takes while it creates its table: creating it twice at once would fail.
_CREATION_LOCK: Final = 0x666C7565
#: Seconds for which an operation is retried on a new connection.
_PATIENCE: Final = 10.0
_NO_TABLE: Final = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)
#: Error classes of text that jsonb cannot hold, such as \u0000.
_REFUSED_JSON: Final = "22"


class PostgresEnvelopes:
    """An adapter on a Postgres database, for any number of processes. The last save of a session
    wins.

    The table is `fluers_sessions`, in the schema that the address names with `?schema=…`, else in
    the first of the server's search path, as with fluers. It is created by the first save. Use it
    with `async with`, or call `close`.
    """

    def __init__(self, url: str) -> None:
        address = PostgresAddress(url)
        found = split_address(url)
        named = found is not None and any(name == "schema" for name, _ in found.options)
        self._schema = address.schema if named else None
        self._table = sql.Identifier(*([self._schema] if self._schema else []), "fluers_sessions")
        self._connections = PostgresConnections(address, patience=_PATIENCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connections.close()

    async def save_session(self, session_id: str, data: JSON) -> None:
        named = str(parse_session_id(session_id))
        text = encode_file(session_id, data).decode()
        query = sql.SQL(
            "INSERT INTO {} (id, data) VALUES (%s, %s::text::jsonb) ON CONFLICT (id)"
            " DO UPDATE SET data = excluded.data, updated_at = now()"
        ).format(self._table)

        async def save(line: PgConnection) -> None:
            try:
                try:
                    await line.execute(query, (named, text))
                except _NO_TABLE:
                    await self._create(line)
                    await line.execute(query, (named, text))
            except psycopg.DataError as error:
                if (error.sqlstate or "").startswith(_REFUSED_JSON):
                    raise SerializeFailed(
                        session_id, (str(error).strip().splitlines() or [type(error).__name__])[0]
                    ) from None
                raise

        await self._connections.run_retrying(save)

    async def load_session(self, session_id: str) -> JSON | None:
        named = str(parse_session_id(session_id))
        rows = await self._read("SELECT data::text FROM {} WHERE id = %s", named)
        return None if not rows else msgspec.json.decode(rows[0][0])

    async def list_sessions(self) -> list[str]:
        return [str(row[0]) for row in await self._read("SELECT id FROM {} ORDER BY id")]

    async def delete_session(self, session_id: str) -> bool:
        named = str(parse_session_id(session_id))
        return bool(await self._read("DELETE FROM {} WHERE id = %s RETURNING id", named))

    async def _read(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """The rows of a statement; none if there is no table yet. Creates nothing."""
        statement = sql.SQL(query).format(self._table)

        async def read(line: PgConnection) -> list[tuple[Any, ...]]:
            try:
                return await (await line.execute(statement, values)).fetchall()
            except _NO_TABLE:
                return []

        return await self._connections.run_retrying(read)

    async def _create(self, line: PgConnection) -> None:
        async with line.transaction():
            await line.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATION_LOCK,))
            if self._schema is not None:
                schema = sql.Identifier(self._schema)
                await line.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
            await line.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (id TEXT PRIMARY KEY, data JSONB NOT NULL,"
                    " updated_at TIMESTAMPTZ NOT NULL DEFAULT now())"
                ).format(self._table)
            )
