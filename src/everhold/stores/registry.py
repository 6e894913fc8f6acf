"""The one place that knows which address means which store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from everhold.errors import BadSetting, MissingExtra
from everhold.ports.store import Store


def create_store(address: str, *, durability: str = "mixed") -> Store:
    """The store at a full address: sqlite:////abs/olute.db, memory:// or postgresql://…; not opened
    yet.
    """
    scheme, _, rest = address.partition("://")
    match scheme:
        case "memory":
            from everhold.stores.memory import MemoryStore

            return MemoryStore()
        case "sqlite":
            from everhold.stores.sqlite import SQLiteStore

            return SQLiteStore(Path(rest[1:]), durability=durability)
        case "postgresql":
            try:
                from everhold.stores.postgres import PostgresStore
            except ImportError:
                raise MissingExtra("postgres", "a postgresql:// database") from None
            return PostgresStore(address, durability=durability)
    raise BadSetting("database", f"{scheme}:// is not known")


def get_pending_sql(address: str) -> str:
    """The SQL that opening this Postgres database would run; an empty text if it is up to date."""
    if not address.startswith("postgresql://"):
        raise BadSetting(
            "--print-sql", "only a Postgres database can be brought up to date by hand"
        )
    try:
        from everhold.stores.postgres.schema import build_pending_sql
    except ImportError:
        raise MissingExtra("postgres", "a postgresql:// database") from None
    return asyncio.run(build_pending_sql(address))
