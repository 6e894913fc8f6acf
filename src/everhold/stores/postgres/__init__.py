"""Sessions in PostgreSQL: any number of processes, on any number of machines, share them."""

from everhold.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
