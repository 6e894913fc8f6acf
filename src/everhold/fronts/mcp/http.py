"""Serving over HTTP (streamable HTTP, at /mcp).

Rules
  1. Without a token only a loopback address is served, and only requests whose Host names it: a web page that has
     its own name resolve to this machine (DNS rebinding) gets nowhere.
  2. A request with an Origin comes from a web page: it must be a page of this very server.
  3. With a token, every request must bring it; it is compared in constant time.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import sys
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from everhold.answerers import Spec
from everhold.core.errors import BadSetting
from everhold.fronts.mcp.server import DEFAULT as PROFILE
from everhold.fronts.mcp.server import front
from everhold.ports.interrupt import signals_are_told

DEFAULT: Final = "127.0.0.1:8711"
PATH: Final = "/mcp"
#: Bytes of one request.
MOST: Final = 10_000_000


def place(given: str) -> tuple[str, int]:
    """Host and port of an address such as 127.0.0.1:8711, [::1]:8711, localhost or :8711."""
    try:
        parts = urlsplit(f"//{given}")
        host, port = parts.hostname or "127.0.0.1", parts.port
    except ValueError as error:
        raise BadSetting("--http", f"{given!r} is not HOST:PORT: {error}") from None
    if parts.path or parts.query or parts.username or " " in given:
        raise BadSetting("--http", f"{given!r} is not HOST:PORT")
    return host, int(DEFAULT.rpartition(":")[2]) if port is None else port


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def serve(database: str | None, *, llm: Spec, address: str, token: str | None, profile: str = PROFILE) -> None:
    """Serve any number of clients until a signal ends us."""
    host, port = place(address)
    token = (token or "").strip() or None  # a file or a shell leaves a line end, which no header can bring
    if token is None and not is_loopback(host):
        error = BadSetting("--http", f"{host} can be reached from other machines, and there is no token")
        error.hint = "Give a secret with --token or EVERHOLD_MCP_TOKEN, or serve 127.0.0.1 only."
        raise error
    bound = _bound(host, port)
    made = front(database, llm, profile)
    server = made.server()
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MOST,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # `Guard` does it
    )
    config = uvicorn.Config(
        Guard(app, token=token, loopback=is_loopback(host)),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    signals_are_told()  # uvicorn is told
    try:
        await made.open()
        sys.stderr.write(f"serving MCP at {_url(bound)}\n")
        sys.stderr.flush()
        await uvicorn.Server(config).serve(sockets=[bound])
    finally:
        signals_are_told(False)
        await made.close()


def _bound(host: str, port: int) -> socket.socket:
    """A socket at this address; raises `BadSetting` if it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise BadSetting("--http", f"{host}:{port} cannot be served: {error.strerror or error}") from None


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}{PATH}" if ":" in host else f"http://{host}:{port}{PATH}"


class Guard:
    """Stands before the application and lets in who may come in."""

    def __init__(self, app: Any, *, token: str | None, loopback: bool) -> None:
        self._app, self._token, self._loopback = app, token, loopback

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            refusal = self.refusal({name: value.decode("latin-1") for name, value in scope["headers"]})
            if refusal is not None:
                return await _refuse(send, *refusal)
            # We number no events: whoever names a last one is told what comes now. The library would not answer at all.
            scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != b"last-event-id"]}
        await self._app(scope, receive, send)

    def refusal(self, headers: dict[bytes, str]) -> tuple[int, str] | None:
        """Why a request is not let in: a status and a sentence."""
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if self._loopback and not _names_loopback(host):
            return 421, "this server answers to 127.0.0.1, localhost and [::1] only"
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "requests from web pages of other origins are refused"
        if self._token is not None and not _bears(headers.get(b"authorization", ""), self._token):
            return 401, "send the token: Authorization: Bearer …"
        return None


def _names_loopback(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _bears(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), token.encode())
    return same and scheme.lower() == "bearer"


async def _refuse(send: Any, status: int, words: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{words}\n".encode()})
