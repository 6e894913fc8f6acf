"""Serving over HTTP (streamable HTTP, at /mcp).

Rules
  1. Every request brings the token, on loopback, too: other users and programs of the machine reach
     it there. It is compared in constant time. Without one (`--no-token`) only a loopback address
     is served.
  2. A loopback server answers only requests whose Host names it: a web page that has its own name
     resolve to this machine (DNS rebinding) is refused.
  3. A request with an Origin comes from a web page: it must be a page of this very server.
  4. A request whose head or body does not arrive in time is ended, however slowly it goes on.
  5. A body is read whole, and strictly (`parse_rpc_message`), before anything is done with it.

Where the server is reached over HTTP.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
import socket
import sys
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from uvicorn.protocols.http.h11_impl import H11Protocol

from everhold.errors import BadSetting
from everhold.mcp import DEFAULT_PROFILE, make_front
from everhold.mcp.elicitation import CONNECTION_HEADER
from everhold.mcp.json_rpc import UnreadableMessage, parse_rpc_message
from everhold.mcp.token import TOKEN_VARIABLE, Token
from everhold.models import AnswererSpec
from everhold.ports.program import set_signals_handled

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


#: Bytes of one request.
MAX_REQUEST_BYTES: Final = 10_000_000
#: Seconds within which the head of a request arrives, and its body.
HEAD_SECONDS = 10.0
BODY_SECONDS = 60.0
#: A host and a port, without a user in front or anything behind.
_HOST: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
#: Where clients look for an OAuth server before they give up; there is none.
_WELL_KNOWN: Final = "/.well-known/"
_TIMED_OUT: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


async def serve_http(
    database: str | None,
    *,
    llm: AnswererSpec,
    address: str,
    token: Token | None,
    profile: str = DEFAULT_PROFILE,
) -> None:
    """Serve any number of clients until a signal ends us."""
    host, port = parse_http_address(address)
    if token is None and not is_loopback(host):
        error = BadSetting(
            "--http", f"{host} can be reached from other machines, and there is no token"
        )
        error.hint = "Leave out --no-token, or serve 127.0.0.1 only."
        raise error
    bound = _bound(host, port)
    made = make_front(database, llm, profile)
    server = made.server()
    app = server.streamable_http_app(
        streamable_http_path=MCP_PATH,
        max_request_body_size=MAX_REQUEST_BYTES,
        # `RequestGuard` does it
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    config = uvicorn.Config(
        RequestGuard(
            app,
            token=None if token is None else token.value,
            loopback=is_loopback(host),
            lost=made.forms.lost,
        ),
        http=TimedHttpProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    set_signals_handled()  # uvicorn is told
    try:
        await made.open()
        sys.stderr.write(
            "".join(
                f"{line}\n"
                for line in _greeting(format_server_url(*bound.getsockname()[:2]), token)
            )
        )
        sys.stderr.flush()
        await uvicorn.Server(config).serve(sockets=[bound])
    finally:
        set_signals_handled(False)
        await made.close()


def _bound(host: str, port: int) -> socket.socket:
    """A socket at this address; raises `BadSetting` if it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise BadSetting(
            "--http", f"{host}:{port} cannot be served: {error.strerror or error}"
        ) from None


def _greeting(here: str, token: Token | None) -> list[str]:
    """What a person needs in order to connect a client; the token itself is not shown."""
    if token is None:
        return [
            "warning: --no-token: every user and program of this machine can use this server",
            f"serving MCP at {here}",
        ]
    lines = [
        f"serving MCP at {here}",
        f"clients send the header  Authorization: Bearer {token.shell}",
    ]
    if token.file is not None:
        lines.append(f'hosts find the token with  export {TOKEN_VARIABLE}="{token.shell}"')
    return [*lines, f"a host is told of it with  everhold mcp install HOST --http {here}"]


class TimedHttpProtocol(H11Protocol):
    """HTTP/1.1 that ends a connection on which no whole head of a request arrives in time."""

    _ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._ends = self.loop.call_later(HEAD_SECONDS, self._late)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A request that is being served has a limit of its own (`BODY_SECONDS`). What comes when
        # none is, is the beginning of a head, or the rest of a body that was refused.
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._ends is None:
            self._ends = self.loop.call_later(HEAD_SECONDS, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None

    def _late(self) -> None:
        self._ends = None
        if not self.transport.is_closing():
            self.transport.write(_TIMED_OUT)
            self.transport.close()


class RequestGuard:
    """Stands before the application: refuses requests that may not come in, and those that are not
    messages.
    """

    def __init__(
        self,
        app: Any,
        *,
        token: str | None,
        loopback: bool,
        lost: Callable[[str], None] = lambda connection: None,
    ) -> None:
        self._app = app
        self._token = token
        self._loopback = loopback
        self._lost = lost

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)  # the application's start and end
            return None
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self.refusal(headers, scope["path"])
        if refusal is not None:
            return await _refuse(send, *refusal, headers.get(b"authorization"))
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body(receive)
        except TimeoutError:
            return await _refuse(
                send, 408, f"the body of the request did not arrive within {BODY_SECONDS:g} s"
            )
        if body is None:  # the client has gone
            return None
        if len(body) > MAX_REQUEST_BYTES:
            return await _refuse(send, 413, f"a request has at most {MAX_REQUEST_BYTES} bytes")
        if scope["method"] == "POST":
            try:
                parse_rpc_message(body)
            except UnreadableMessage as error:
                if error.may_reply:
                    self._lost(headers.get(CONNECTION_HEADER.encode(), ""))
                return await _answer(send, 400, error.error.model_dump(mode="json", by_alias=True))
        # We number no events: whoever names a last one is told what comes now. The library would
        # not answer at all.
        scope = {
            **scope,
            "headers": [header for header in scope["headers"] if header[0] != b"last-event-id"],
        }
        await self._app(scope, _replayed(body, receive), send)

    def refusal(self, headers: dict[bytes, str], path: str = MCP_PATH) -> tuple[int, str] | None:
        """Why a request is not let in: a status and a sentence."""
        host = headers.get(b"host", "")
        origin = headers.get(b"origin")
        named = _HOST.fullmatch(host)
        if self._loopback and not (named and is_loopback(named["name"].strip("[]"))):
            return 421, "this server answers to 127.0.0.1, localhost and [::1] only"
        if named is None:
            return 400, "the Host header is not HOST or HOST:PORT"
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "requests from web pages of other origins are refused"
        if path.startswith(_WELL_KNOWN):
            return (
                404,
                "there is no OAuth here: send the token of the server as Authorization: Bearer …",
            )
        if self._token is not None and not _bears(headers.get(b"authorization", ""), self._token):
            return 401, "send the token of the server as Authorization: Bearer …"
        return None


def _bears(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), token.encode())
    return same and scheme.lower() == "bearer"


async def _body(receive: Any) -> bytes | None:
    """The body of a request, or the first of it that is too long; None if the client has gone."""
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        body += event.get("body", b"")
        if not event.get("more_body", False) or len(body) > MAX_REQUEST_BYTES:
            return bytes(body)


def _replayed(body: bytes, receive: Any) -> Any:
    """What an application receives of a request whose body was read already."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return left.pop() if left else await receive()

    return again


async def _refuse(send: Any, status: int, words: str, authorization: str | None = None) -> None:
    if status != 401:
        return await _answer(send, status, {"error": words})
    # RFC 6750: a client that sent nothing is told what to send, one that sent something that it is
    # wrong.
    error = {"error": "invalid_token", "error_description": words}
    challenge = 'Bearer realm="everhold"'
    if authorization is not None:
        challenge += ", " + ", ".join(f'{name}="{value}"' for name, value in error.items())
    await _answer(send, status, error, (b"www-authenticate", challenge.encode("ascii", "replace")))


async def _answer(send: Any, status: int, body: dict[str, Any], *more: tuple[bytes, bytes]) -> None:
    """A refusal as JSON. A body that is late or too long is not read on: the connection ends."""
    content = json.dumps(body, ensure_ascii=False).encode() + b"\n"
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        *([(b"connection", b"close")] if status in (408, 413) else []),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
