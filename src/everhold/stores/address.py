"""Addresses of Postgres databases, read strictly, so that no part of a password is taken for
something else.

    postgresql://user:password@host:5432/name?option=value

Rules
  1. An address that can be read in two ways is refused. A password that holds one of @ / ? # [ ] %
     has them percent-encoded; else a part of it would be a host, a port or a name, and be shown as
     such.
  2. What is said about an address never quotes it.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import msgspec

#: What is wrong with an address that cannot be read, and what to do.
MALFORMED: Final = (
    "it is not a valid postgresql:// address (it is not shown, because it may hold a password);"
    " say postgresql://user:password@host:5432/name, with @ / ? # [ ] % in user and password"
    " percent-encoded (@ is %40)"
)
#: What the path of an SQLite file ends in.
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
    """An address in pieces, each as it was written."""

    user: str | None
    password: str | None
    hosts: str
    path: str
    options: list[tuple[str, str]]

    def url(self, *, without: frozenset[str] = frozenset(), shown: bool = False) -> str:
        """The address again, without these options; if it is `shown`, without its secrets."""
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
    """The pieces of an address; None if it is not one."""
    found = _ADDRESS.fullmatch(address)
    if found is None or _PERCENT.search(address):
        return None
    query = found["query"] or ""
    hosts = found["hosts"]
    if "@" in query and found["user"] is None and ":" in hosts:
        return None  # user:password with a ? in the password looks like host:port and an option
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
    """An address without its password; of one that cannot be read, only the scheme."""
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


def may_hold_secret(text: str) -> bool:
    """Whether text that is not an address may be one with a slip in it, or another form of one."""
    return "@" in text or "password" in text.lower()
