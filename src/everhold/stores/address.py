"""Strict parsing of database addresses, so that no part of a password leaks as something else.

    postgresql://user:password@host:5432/name?option=value

Rules
  1. An ambiguous address is refused. The characters @ / ? # [ ] % in a password must be
     percent-encoded; otherwise a part of it would be read, and shown, as a host, port or name.
  2. Error messages never quote the address.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import msgspec

#: Message and hint for an address that cannot be parsed.
MALFORMED: Final = (
    "it is not a valid postgresql:// address (it is not shown, because it may hold a password);"
    " say postgresql://user:password@host:5432/name, with @ / ? # [ ] % in user and password"
    " percent-encoded (@ is %40)"
)
#: File name endings of SQLite databases.
SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")
_HOST: Final = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.~%-]*)(?::[0-9]*)?"
_ADDRESS: Final = re.compile(
    r"postgres(?:ql)?://"
    r"(?:(?P<user>[^:/?#\[\]@\x00-\x1f\x7f]*)(?P<password>:[^/?#\[\]@\x00-\x1f\x7f]*)?@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<path>/[^/?#@\x00-\x1f\x7f]*)?"
    r"(?:\?(?P<query>[^#\x00-\x1f\x7f]*))?"
)
_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_SECRETS: Final = frozenset({"password", "sslpassword"})


class AddressParts(msgspec.Struct, frozen=True):
    """The parts of an address, as written."""

    user: str | None
    password: str | None
    hosts: str
    path: str
    options: list[tuple[str, str]]

    def url(self, *, without: frozenset[str] = frozenset(), shown: bool = False) -> str:
        """Joins the parts again without these options; `shown` also leaves out the secrets."""
        secret = None if self.password is None else "***" if shown else self.password
        who = (
            "" if self.user is None else self.user + ("" if secret is None else f":{secret}") + "@"
        )
        pairs = [(name, value) for name, value in self.options if unquote(name) not in without]
        told = [
            f"{name}={'***' if shown and unquote(name) in _SECRETS else value}"
            for name, value in pairs
        ]
        return f"postgresql://{who}{self.hosts}{self.path}" + ("?" + "&".join(told) if told else "")


def split_address(address: str) -> AddressParts | None:
    """Splits an address into its parts; None if the text is not an address."""
    found = _ADDRESS.fullmatch(address)
    if found is None or _PERCENT.search(address):
        return None
    query = found["query"] or ""
    hosts = found["hosts"]
    if "@" in query and found["user"] is None and ":" in hosts:
        return None  # user:password with a ? in the password looks like host:port with an option
    pairs = [one.partition("=") for one in query.split("&") if one]
    if not all(mark for _, mark, _ in pairs):
        return None
    password = None if found["password"] is None else found["password"][1:]
    return AddressParts(
        found["user"],
        password,
        hosts,
        found["path"] or "",
        [(name, value) for name, _, value in pairs],
    )


def hide_password(address: str) -> str:
    """An address without its password. Of an address that cannot be parsed, only the scheme."""
    scheme, mark, _ = address.partition("://")
    if not mark:
        is_file = address.endswith(SUFFIXES) and not address.startswith("postgres")
        return address if is_file or not may_hold_secret(address) else "***"
    if address.startswith("sqlite:///") or address == "memory://":
        return address
    found = split_address(address)
    return (
        "***"
        if may_hold_secret(scheme)
        else f"{scheme}://***"
        if found is None
        else found.url(shown=True)
    )


def strip_password(address: str) -> str:
    """An address for a command: without its password, which PGPASSWORD or ~/.pgpass supplies."""
    found = split_address(address)
    if found is None:
        return hide_password(address)
    return msgspec.structs.replace(found, password=None).url(without=_SECRETS)


def may_hold_secret(text: str) -> bool:
    """Whether text that is not an address looks like a mistyped one."""
    return "@" in text or "password" in text.lower()
