"""Serves clients over HTTP (streamable HTTP, at /mcp).

Rules
  1. Every request needs the token, also on loopback, which other users and programs of the machine
     can reach. It is compared in constant time. Without a token (`--no-token`), only a loopback
     address is served.
  2. A loopback server answers only requests whose Host is a loopback name. This refuses web pages
     that let their own name resolve to this machine (DNS rebinding).
  3. A request with an Origin comes from a web page. The page must be on this very server.
  4. A request whose head or body does not arrive in time is ended, however slowly it continues.
  5. A body is read whole, and strictly (`parse_rpc_message`), before anything is done with it.
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
    """The URL of a server, given by its address or its URL."""
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
#: Seconds within which the head of a request must arrive, and its body.
HEAD_SECONDS = 10.0
BODY_SECONDS = 60.0
#: A host and a port, without a user and a path.
_HOST: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
#: Where clients look for an OAuth server. There is none, and the answer says so.
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
    """Serve any number of clients until a signal ends the process."""
    host, port = parse_http_address(address)
    if token is None and not is_loopback(host):
        error = BadSetting(
            "--http", f"{host} can be reached from other machines, which requires a token"
        )
        error.hint = "Leave out --no-token, or serve 127.0.0.1 only."
        raise error
    bound = _open_socket(host, port)
    front = make_front(database, llm, profile)
    server = front.server()
    app = server.streamable_http_app(
        streamable_http_path=MCP_PATH,
        max_request_body_size=MAX_REQUEST_BYTES,
        # `RequestGuard` checks it, with a token and better messages
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    config = uvicorn.Config(
        RequestGuard(
            app,
            token=None if token is None else token.value,
            loopback=is_loopback(host),
            lost=front.forms.lost,
        ),
        http=TimedHttpProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    set_signals_handled()  # uvicorn handles them
    try:
        await front.open()
        sys.stderr.write(
            "".join(
                f"{line}\n"
                for line in _format_greeting(format_server_url(*bound.getsockname()[:2]), token)
            )
        )
        sys.stderr.flush()
        await uvicorn.Server(config).serve(sockets=[bound])
    finally:
        set_signals_handled(False)
        await front.close()


def _open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; raises `BadSetting` if that fails."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise BadSetting(
            "--http", f"{host}:{port} cannot be served: {error.strerror or error}"
        ) from None


def _format_greeting(here: str, token: Token | None) -> list[str]:
    """How to connect a client, for a person. The token itself is not shown."""
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
        lines.append(f'set the token for hosts with  export {TOKEN_VARIABLE}="{token.shell}"')
    return [
        *lines,
        f"connect a host, such as this one, with  everhold mcp install claude-code --http {here}",
    ]


class TimedHttpProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection if the head of a request does not arrive in time."""

    _ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._ends = self.loop.call_later(HEAD_SECONDS, self._late)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A request that is being served has its own limit (`BODY_SECONDS`). Other data is the
        # beginning of a head, or the rest of a refused body.
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
    """Wraps the application: refuses forbidden requests, and bodies that are not messages."""

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
        # Events have no numbers here. A client that sends a last one gets the events from now on;
        # with the header, the library would not answer at all.
        scope = {
            **scope,
            "headers": [header for header in scope["headers"] if header[0] != b"last-event-id"],
        }
        await self._app(scope, _replay_body(body, receive), send)

    def refusal(self, headers: dict[bytes, str], path: str = MCP_PATH) -> tuple[int, str] | None:
        """Why a request is refused, as a status and a sentence; None if it is accepted."""
        host = headers.get(b"host", "")
        origin = headers.get(b"origin")
        named = _HOST.fullmatch(host)
        if self._loopback and not (named and is_loopback(named["name"].strip("[]"))):
            return 421, "this server accepts only the hosts 127.0.0.1, localhost and [::1]"
        if named is None:
            return 400, "the Host header is not HOST or HOST:PORT"
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "requests from web pages of other origins are refused"
        if path.startswith(_WELL_KNOWN):
            return (
                404,
                "this server has no OAuth: send its token as Authorization: Bearer …",
            )
        if self._token is not None and not _has_token(
            headers.get(b"authorization", ""), self._token
        ):
            return 401, "send the token of this server as Authorization: Bearer …"
        return None


def _has_token(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), token.encode())
    return same and scheme.lower() == "bearer"


async def _body(receive: Any) -> bytes | None:
    """The body of a request, cut off above the limit; None if the client has gone."""
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        body += event.get("body", b"")
        if not event.get("more_body", False) or len(body) > MAX_REQUEST_BYTES:
            return bytes(body)


def _replay_body(body: bytes, receive: Any) -> Any:
    """A `receive` for the application, of a request whose body was read already."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return left.pop() if left else await receive()

    return again


async def _refuse(send: Any, status: int, words: str, authorization: str | None = None) -> None:
    if status != 401:
        return await _answer(send, status, {"error": words})
    # RFC 6750: a client that sent no token gets only the scheme, without an error
    error = {"error": "invalid_token", "error_description": words}
    challenge = 'Bearer realm="everhold"'
    if authorization is not None:
        challenge += ", " + ", ".join(f'{name}="{value}"' for name, value in error.items())
    await _answer(send, status, error, (b"www-authenticate", challenge.encode("ascii", "replace")))


async def _answer(send: Any, status: int, body: dict[str, Any], *more: tuple[bytes, bytes]) -> None:
    """Send a refusal as JSON. The connection ends if the body is late or too long."""
    content = json.dumps(body, ensure_ascii=False).encode() + b"\n"
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        *([(b"connection", b"close")] if status in (408, 413) else []),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
