"""Schemas for tests on Postgres: `fresh(server)` is the address of one with our tables and nothing in them.

The fixture `postgres` in conftest.py is the server. Its tests say `xdist_group("postgres")`, so that one is enough.
"""

import psycopg

from everhold.stores.postgres.schema import script
from tools.postgres import Server

TABLES = ("session", "head_1", "journal", "notice", "effect", "letter", "value", "worker", "receipt", "pulse")


def fresh(server: Server, schema: str = "everhold") -> str:
    """An empty database; the same name again empties it."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        made = connection.execute("SELECT to_regclass(%s)", (f"{schema}.about",)).fetchall()[0][0]
        if made is None:
            connection.execute(script(schema).encode())
        else:
            connection.execute(";".join(f"DELETE FROM {schema}.{table}" for table in TABLES))
    return f"{server.url}?schema={schema}"
