"""The tables: created, recognised and migrated.

Rules
  1. Everything is written in one transaction. Processes that open at the same moment wait for each
     other at an advisory lock.
  2. A schema with a newer format, or with tables of another program, is refused before anything is
     written.
"""

from __future__ import annotations

from importlib import resources
from typing import Final
from zlib import crc32

import psycopg

from everhold.errors import StoreNewer, StoreUnavailable
from everhold.stores.postgres.address import PostgresAddress, qualify_schema
from everhold.stores.postgres.connection import PgConnection, PostgresConnections

#: First half of the key of our advisory locks.
LOCKS: Final = 0x65766872
_FOREIGN: Final = "Name another schema: postgresql://…?schema=name"


def load_migrations() -> list[str]:
    """The migrations in order; the first one fills an empty schema."""
    folder = resources.files(__package__) / "migrations"
    return [
        entry.read_text()
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".sql")
    ]


def build_upgrade_sql(schema: str, found: int = 0) -> str:
    """The SQL that migrates a schema from a format to the current one."""
    steps = [qualify_schema(step, schema) for step in load_migrations()[found:]]
    begin = [f'CREATE SCHEMA IF NOT EXISTS "{schema}";'] if not found else []
    end = [qualify_schema(f"UPDATE everhold.about SET format = {len(load_migrations())};", schema)]
    return "\n\n".join([*begin, *steps, *end]) + "\n"


def make_lock_number(name: str) -> int:
    """The second half of the key of an advisory lock."""
    return crc32(name.encode()) - 2**31


async def prepare_schema(line: PgConnection, schema: str, where: str) -> int:
    """Creates or migrates the tables; returns their format."""
    known = len(load_migrations())
    if await read_schema_format(line, schema, where) == known:
        return known
    try:
        async with line.transaction():
            await line.execute("SET LOCAL lock_timeout = 0")  # a migration may take long: wait
            await line.execute(
                "SELECT pg_advisory_xact_lock(%s::int, %s::int)", (LOCKS, make_lock_number(schema))
            )
            there = await read_schema_format(
                line, schema, where
            )  # another process may have been faster
            if there < known:
                await line.execute(build_upgrade_sql(schema, there).encode())
    except psycopg.errors.InsufficientPrivilege as error:
        hint = "Ask a user with these rights to run what `everhold db migrate --print-sql` prints."
        raise StoreUnavailable(where, str(error).strip().splitlines()[0], hint) from None
    return known


async def build_pending_sql(address: str) -> str:
    """The SQL that opening a database would run; empty if it is up to date."""
    meant = PostgresAddress(address)
    lines = PostgresConnections(meant, patience=2.0)
    try:
        line = await lines.connect()
        lines.give(line)
        there = await read_schema_format(line, meant.schema, meant.where)
    finally:
        await lines.close()
    return (
        ""
        if there == len(load_migrations())
        else f"BEGIN;\n\n{build_upgrade_sql(meant.schema, there)}\nCOMMIT;\n"
    )


async def read_schema_format(line: PgConnection, schema: str, where: str) -> int:
    """The format of a schema; 0 if it is empty or missing. Refuses foreign tables and newer
    formats.
    """
    cursor = await line.execute(
        "SELECT (SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON"
        " s.oid = c.relnamespace"
        " WHERE s.nspname = %s), to_regclass(%s)::text",
        (schema, f'"{schema}".about'),
    )
    tables, about = (await cursor.fetchall())[0]
    if not tables:
        return 0
    if about is None:
        raise StoreUnavailable(where, f"schema {schema} has tables of another program", _FOREIGN)
    try:
        rows = await (
            await line.execute(qualify_schema("SELECT product, format FROM everhold.about", schema))
        ).fetchall()
    except (psycopg.errors.UndefinedColumn, psycopg.errors.InsufficientPrivilege) as error:
        raise StoreUnavailable(where, str(error).strip().splitlines()[0], _FOREIGN) from None
    if len(rows) != 1 or rows[0][0] != "everhold":
        raise StoreUnavailable(where, f"schema {schema} has tables of another program", _FOREIGN)
    there: int = rows[0][1]
    if there > len(load_migrations()):
        raise StoreNewer(where, there, len(load_migrations()))
    return there
