"""Schemas for tests on Postgres: `fresh(server)` is the address of one with our tables and nothing
in them.

The fixture `postgres` in conftest.py is the server. Its tests say `xdist_group("postgres")`, so
that one is enough.
"""

from everhold.stores.postgres.schema import build_upgrade_sql
from tools.postgres import Server

TABLES = (
    *(
        "session",
        "head_1",
        "journal",
        "notice",
        "effect",
        "letter",
        "value",
        "worker",
        "receipt",
        "pulse",
    ),
    *("attachment", "blob", "lease", "item", "duty"),
)


def fresh(server: Server, schema: str = "everhold") -> str:
    """An empty database; the same name again empties it."""
    (made,) = server.run("SELECT to_regclass(%s)::text", f"{schema}.about")
    server.run(
        build_upgrade_sql(schema)
        if made[0] is None
        else ";".join(f"DELETE FROM {schema}.{table}" for table in TABLES)
    )
    return f"{server.url}?schema={schema}"
