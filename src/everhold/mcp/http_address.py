"""Where the server is reached over HTTP."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from everhold.errors import BadSetting

DEFAULT_ADDRESS: Final = "127.0.0.1:8711"
MCP_PATH: Final = "/mcp"


def parse_http_address(given: str) -> tuple[str, int]:
    """Host and port of an address such as 127.0.0.1:8711, [::1]:8711, localhost or :8711."""
    try:
        parts = urlsplit(f"//{given}")
        host = parts.hostname or "127.0.0.1"
        port = parts.port
    except ValueError as error:
        raise BadSetting("--http", f"{given!r} is not HOST:PORT: {error}") from None
    if parts.path or parts.query or parts.username is not None or " " in given:
        raise BadSetting("--http", f"{given!r} is not HOST:PORT")
    return host, int(DEFAULT_ADDRESS.rpartition(":")[2]) if port is None else port


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def format_server_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}{MCP_PATH}" if ":" in host else f"http://{host}:{port}{MCP_PATH}"


def resolve_server_url(given: str) -> str:
    """The URL of a server that somebody names by its address or its URL."""
    if "://" not in given:
        return format_server_url(*parse_http_address(given))
    try:
        parts = urlsplit(given)
        sound = (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and parts.username is None
        )
    except ValueError:
        sound = False
    if not sound or not given.isprintable() or " " in given:
        raise BadSetting("--http", f"{given!r} is not HOST:PORT or the URL of a server")
    return given
