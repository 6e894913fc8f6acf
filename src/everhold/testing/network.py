"""No network while a test runs: a connection to another machine is refused, whoever makes it.

An audit hook cannot be taken away again, so there is one for the life of the process, and a count
of who wants it. This machine itself (localhost, Unix sockets) can be reached.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_EVENTS: Final = frozenset(
    {"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"}
)
_HERE: Final = frozenset({"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "None"})


class NetworkRefused(ConnectionRefusedError):
    """Something reached for the network in a test."""


class _Guard:
    hooked = False
    wanted = 0


@contextmanager
def refuse_network() -> Iterator[None]:
    """Refuse the network meanwhile."""
    if not _Guard.hooked:
        sys.addaudithook(_hear)
        _Guard.hooked = True
    _Guard.wanted += 1
    try:
        yield
    finally:
        _Guard.wanted -= 1


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if not _Guard.wanted or event not in _EVENTS:
        return
    named = event in ("socket.getaddrinfo", "socket.gethostbyname")
    if not named and args[0].family == getattr(socket, "AF_UNIX", None):
        return
    address = args[0] if named else args[-1]
    host = address[0] if isinstance(address, tuple) and address else address
    name = host.decode(errors="replace") if isinstance(host, bytes) else str(host)
    if name not in _HERE and not name.startswith("127."):
        raise NetworkRefused(
            f"this test reaches for {name!r}, and tests with the everhold fixture have no network;"
            " give what needs it a stand-in (everhold.calls), or say everhold.allow_network()"
        )
