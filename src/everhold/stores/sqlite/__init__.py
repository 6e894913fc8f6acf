"""Sessions in one SQLite file: the embedded default."""

from everhold.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
