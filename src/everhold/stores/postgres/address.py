"""The address of a database: what libpq understands, and `schema`, which is ours.

    postgresql://user@host:5432/name?schema=everhold&sslmode=require

Text that goes into a column outside JSON is made free of NUL by `escape_nul`, and read back by
`unescape_nul`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from everhold.errors import BadSetting, BadValue
from everhold.stores.address import MALFORMED, AddressParts, split_address
from everhold.stores.checksums import LONE_SURROGATE

SCHEMA: Final = "everhold"
#: A line that is dead without saying so is found within half a minute.
_DEFAULTS: Final = {
    "application_name": "everhold",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


class PostgresAddress:
    """Where a database is, and which of its schemas is ours."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        if not url.startswith(("postgresql://", "postgres://")):
            raise BadSetting(
                "database", "the address of a Postgres database begins with postgresql://"
            )
        found = split_address(url)
        if found is None:
            raise BadSetting("database", MALFORMED)
        named = [unquote(value) for name, value in found.options if unquote(name) == "schema"]
        self.schema = schema if schema is not None else (named or [SCHEMA])[-1]
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,40}", self.schema) or self.schema.startswith(
            "pg_"
        ):
            raise BadSetting(
                "schema",
                f"{self.schema!r} should be letters, digits and _, at most 41, and not pg_…",
            )
        try:
            given = conninfo_to_dict(found.url(without=frozenset({"schema"})))
        except psycopg.ProgrammingError:  # what it says quotes the address
            raise BadSetting("database", _unknown(found)) from None
        self.facts: dict[str, Any] = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
        self.where = self._shown(given)

    def _shown(self, given: dict[str, Any]) -> str:
        """The address for people, without its password."""
        user = f"{given['user']}@" if given.get("user") else ""
        port = f":{given['port']}" if given.get("port") else ""
        schema = "" if self.schema == SCHEMA else f"?schema={self.schema}"
        return f"postgresql://{user}{given.get('host') or ''}{port}/{given.get('dbname') or ''}{schema}"  # noqa: E501


def _unknown(found: AddressParts) -> str:
    """What libpq does not take of an address that can be read: an option."""
    for name, _ in found.options:
        if re.fullmatch(r"[A-Za-z_]{1,30}", name) and name != "schema":
            try:
                conninfo_to_dict(f"postgresql:///?{name}=")
            except psycopg.ProgrammingError:
                return f"there is no option {name!r} of a connection"
    return MALFORMED


@lru_cache(maxsize=1024)
def qualify_schema(statement: str, schema: str) -> str:
    """A statement about the schema `everhold`, said of another."""
    return re.sub(r"\beverhold\.", f'"{schema}".', statement)


def escape_nul(text: str) -> str:
    """Text without NUL, which no column can hold: the same order, and nothing is lost; raises
    `BadValue`.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadValue(repr(text), LONE_SURROGATE) from None
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def unescape_nul(text: str) -> str:
    """The text that `escape_nul` was given."""
    if "\1" in text:
        return re.sub(
            "\1(.)", lambda found: "\0" if found[1] == "\1" else "\1", text, flags=re.DOTALL
        )
    return text
