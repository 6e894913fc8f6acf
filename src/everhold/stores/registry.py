"""Stores by the scheme of their address: our own, and those that installed packages register.

[project.entry-points."everhold.stores"]
redis = "my_package.store:open_store"      # for redis://…
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Protocol

from everhold.core.unknown_names import find_close_name
from everhold.errors import BadSetting, MissingExtra
from everhold.ports.entry_points import STORES, list_entry_point_names, load_entry_point
from everhold.ports.store import Store


class StoreFactory(Protocol):
    """Creates the store for an address, without opening it. `durability` comes from
    `everhold.open`.
    """

    def __call__(self, address: str, *, durability: str) -> Store: ...


def _memory(address: str, *, durability: str) -> Store:
    from everhold.stores.memory import MemoryStore

    return MemoryStore()


def _sqlite(address: str, *, durability: str) -> Store:
    from everhold.stores.sqlite import SQLiteStore

    return SQLiteStore(Path(address.removeprefix("sqlite:///")), durability=durability)


def _postgres(address: str, *, durability: str) -> Store:
    try:
        from everhold.stores.postgres import PostgresStore
    except ImportError:
        raise MissingExtra("postgres", "a postgresql:// database") from None
    return PostgresStore(address, durability=durability)


#: The built-in stores take precedence over those of other packages.
_OWN: Final[dict[str, StoreFactory]] = {
    "sqlite": _sqlite,
    "memory": _memory,
    "postgresql": _postgres,
}


def create_store(address: str, *, durability: str = "mixed") -> Store:
    """Creates the store for a full address, without opening it; raises `BadSetting` for an unknown
    scheme.
    """
    factory = find_store_factory(address.partition("://")[0])
    return factory(address, durability=durability)


def find_store_factory(scheme: str, setting: str = "database") -> StoreFactory:
    """The factory for a scheme; raises `BadSetting` if there is none."""
    if scheme in _OWN:
        return _OWN[scheme]
    found = load_entry_point(STORES, scheme)
    if found is None:
        known = list_store_schemes()
        close = find_close_name(scheme, known)
        meant = f"; did you mean {close!r}?" if close else ""
        listed = ", ".join(f"{one}://" for one in known)
        raise BadSetting(
            setting,
            f"{scheme}:// is not known{meant}; known: {listed}. A package can add others with the"
            f" entry point {STORES}.",
        )
    if not callable(found.value):
        raise found.refuse("is not a function that makes a store")
    factory: StoreFactory = found.value
    return factory


def list_store_schemes() -> list[str]:
    """The known schemes: the built-in ones, then those of installed packages."""
    return list(dict.fromkeys([*_OWN, *list_entry_point_names(STORES)]))


def get_pending_sql(address: str) -> str:
    """The SQL that opening this Postgres database would run; empty if the database is up to
    date.
    """
    if not address.startswith("postgresql://"):
        raise BadSetting(
            "--print-sql", "only a Postgres database can be brought up to date by hand"
        )
    try:
        from everhold.stores.postgres.schema import build_pending_sql
    except ImportError:
        raise MissingExtra("postgres", "a postgresql:// database") from None
    return asyncio.run(build_pending_sql(address))
