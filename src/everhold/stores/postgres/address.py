"""Postgres addresses: the options of libpq, and our own option `schema`.

    postgresql://user@host:5432/name?schema=everhold&sslmode=require

Text for a column outside JSON is freed of NUL by `escape_nul` and restored by `unescape_nul`.
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
from everhold.stores.row_codec import LONE_SURROGATE

SCHEMA: Final = "everhold"
#: A dead connection is detected within half a minute.
_DEFAULTS: Final = {
    "application_name": "everhold",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


class PostgresAddress:
    """The address of a database, and the schema that is ours."""

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
                f"{self.schema!r} must be at most 41 letters, digits and _, and not start with pg_",
            )
        try:
            given = conninfo_to_dict(found.url(without=frozenset({"schema"})))
        except psycopg.ProgrammingError:  # the message quotes the address
            raise BadSetting("database", _unknown(found)) from None
        self.facts: dict[str, Any] = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
        user = f"{given['user']}@" if given.get("user") else ""
        port = f":{given['port']}" if given.get("port") else ""
        suffix = "" if self.schema == SCHEMA else f"?schema={self.schema}"
        place = f"{given.get('host') or ''}{port}/{given.get('dbname') or ''}"
        self.where = f"postgresql://{user}{place}{suffix}"


def _unknown(found: AddressParts) -> str:
    """The option that libpq does not accept, in a message."""
    for name, _ in found.options:
        if re.fullmatch(r"[A-Za-z_]{1,30}", name) and name != "schema":
            try:
                conninfo_to_dict(f"postgresql:///?{name}=")
            except psycopg.ProgrammingError:
                return f"{name!r} is not a connection option"
    return MALFORMED


@lru_cache(maxsize=1024)
def qualify_schema(statement: str, schema: str) -> str:
    """Rewrites a statement about the schema `everhold` for another schema."""
    return re.sub(r"\beverhold\.", f'"{schema}".', statement)


def escape_nul(text: str) -> str:
    """Text without NUL, which no column can hold. Order and content are preserved; raises
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
    """Reverses `escape_nul`."""
    if "\1" in text:
        return re.sub(
            "\1(.)", lambda found: "\0" if found[1] == "\1" else "\1", text, flags=re.DOTALL
        )
    return text
