"""Serves a client on pipes without the `mcp` library, as long as its messages are ordinary.

Rules
  1. Ordinary are the messages that hosts send every day, in the exact form that the protocol gives
     them. With any other message, also a malformed one, `serve` ends, and the library serves the
     connection from that message on (`stdio`).
  2. `replay` has the messages that bring the library into the state of the connection. Requests in
     progress are finished here, and replies and cancellations for them still arrive here.
  3. Answers are those of the library. `tests/scenario/test_mcp_pipe_server.py` sends the same
     messages to both.
  4. Requests of clients that can be asked in rounds, or that know tasks, are not served here: those
     need the library's models.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec

from everhold.archive.archive import get_everhold_version
from everhold.mcp.json_rpc import UnreadableMessage, parse_json_text
from everhold.mcp.pending_requests import PendingRequests
from everhold.mcp.protocol import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    CONNECTION_CLOSED,
    HANDSHAKE_VERSIONS,
    INTERNAL_ERROR,
    LOG_LEVEL_META_KEY,
    LOG_LEVELS,
    MODERN_VERSIONS,
    PROTOCOL_VERSION_KEY,
    SERVER_INFO_KEY,
    KeptRequest,
    Notification,
    ProtocolError,
    complete_result,
)
from everhold.mcp.sdk import get_error_class, types
from everhold.mcp.server import McpFront

log = logging.getLogger("everhold")

#: The first id of a request to the client. The library's ids start at 1.
FIRST_ID: Final = 1 << 30
_REPLAY_ID: Final = "everhold-replay"


# ---- what clients send


class _Wire(msgspec.Struct, rename="camel", frozen=True):
    """Other fields are ignored, as the protocol requires."""


class Icon(_Wire, frozen=True):
    """A picture of the client."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


class ClientInfo(_Wire, frozen=True):
    """The name of the client."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: list[Icon] | None = None


class _Roots(_Wire, frozen=True):
    list_changed: bool | None = None


class _Sampling(_Wire, frozen=True):
    context: dict[str, Any] | None = None
    tools: dict[str, Any] | None = None


class _Elicitation(_Wire, frozen=True):
    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None


class ClientCapabilities(_Wire, frozen=True):
    """What the client can be asked for."""

    experimental: dict[str, dict[str, Any]] | None = None
    roots: _Roots | None = None
    sampling: _Sampling | None = None
    elicitation: _Elicitation | None = None
    extensions: dict[str, dict[str, Any]] | None = None
    tasks: None = None  # any value is for the library to judge


class _ClientParams(_Wire, frozen=True):
    """The parameters of `initialize`, or the same facts of an envelope."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: ClientInfo


class _Params(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)

    # those of a round, which only the library reads
    @property
    def request_state(self) -> None:
        return None

    @property
    def input_responses(self) -> None:
        return None


class _ListParams(_Params, frozen=True):
    cursor: str | None = None


class _CallParams(_Params, frozen=True, kw_only=True):
    name: str
    arguments: dict[str, Any] | None = None


class _PromptParams(_Params, frozen=True, kw_only=True):
    name: str
    arguments: dict[str, str] | None = None


class _ResourceParams(_Params, frozen=True, kw_only=True):
    uri: str


class _LevelParams(_Params, frozen=True, kw_only=True):
    level: Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


_PARAMS: Final[dict[str, type[_Params]]] = {
    "tools/list": _ListParams,
    "tools/call": _CallParams,
    "prompts/list": _ListParams,
    "prompts/get": _PromptParams,
    "resources/list": _ListParams,
    "resources/templates/list": _ListParams,
    "resources/read": _ResourceParams,
    "logging/setLevel": _LevelParams,
    "ping": _Params,
    "server/discover": _Params,
}
#: Methods that only one of the two kinds of versions has.
_HANDSHAKE_ONLY: Final = frozenset({"ping", "logging/setLevel"})
_MODERN_ONLY: Final = frozenset({"server/discover"})
#: Notifications for which a server need not do anything.
_IDLE_NOTIFICATIONS: Final = frozenset({"notifications/roots/list_changed"})
_REQUEST: Final = frozenset({"jsonrpc", "id", "method", "params"})
_NOTIFICATION: Final = frozenset({"jsonrpc", "method", "params"})
_RESULT: Final = frozenset({"jsonrpc", "id", "result"})
_ERROR: Final = frozenset({"jsonrpc", "id", "error"})


# ---- one request


class PipeConnection:
    """What is kept for all requests of a client."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}


class PipeSession:
    """The client, as a handler sees it during one request."""

    def __init__(
        self,
        server: PipeServer,
        client: _ClientParams | None,
        version: str,
        capabilities: ClientCapabilities | None,
        token: str | int | None,
    ) -> None:
        self._server = server
        self._connection = server.connection
        self.client_params = client
        self.client_capabilities = capabilities
        self.protocol_version = version
        self._token = token
        self.closed = False

    async def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report progress, if the client has asked for it."""
        if self._token is None:
            return
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        await self.send_notification(Notification("notifications/progress", params))

    async def send_notification(
        self, notification: Notification, related_request_id: str | int | None = None
    ) -> None:
        if not self.closed:
            await self._server.notify(notification)

    async def elicit_form(
        self, message: str, schema: dict[str, Any], related_request_id: str | int | None = None
    ) -> Any:
        """Ask the person at the client; returns the library's `ElicitResult`."""
        request = types.ElicitRequest(
            params=types.ElicitRequestFormParams(message=message, requested_schema=schema)
        )
        shown = request.model_dump(by_alias=True, mode="json", exclude_none=True)
        result = await self._server.ask(shown["method"], shown["params"])
        return types.ElicitResult.model_validate(result, by_name=False)


class PipeRequest(KeptRequest):
    """One request (`RequestContext`)."""

    request = None  # a pipe has no HTTP request

    def __init__(
        self,
        session: PipeSession,
        method: str,
        params: dict[str, Any] | None,
        meta: dict[str, Any] | None,
        request_id: str | int,
    ) -> None:
        self.session = session
        self.method = method
        self.params = params
        self.meta = meta
        self.request_id = request_id


# ---- the connection


class PipeServer:
    """Serves one client. `line` reads a line, `write` writes one."""

    def __init__(
        self,
        front: McpFront,
        line: Callable[[], Awaitable[bytes]],
        write: Callable[[bytes], Awaitable[None]],
        pending: PendingRequests,
    ) -> None:
        self.connection = PipeConnection()
        self.replay: list[dict[str, Any]] = []
        self._front = front
        self._handlers = front.handlers
        self._line = line
        self._write = write
        self._pending = pending
        self._client: _ClientParams | None = None  # of `initialize`
        self._version = ""  # until the first request decides it
        self._running: dict[str | int, PipeRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next_id = FIRST_ID

    async def serve(self) -> bytes | ValueError | None:
        """Serve until a message comes that is for the library, and return its line, or the error
        of reading it. Returns None at the end of the input.
        """
        while True:
            try:
                line = await self._line()
            except ValueError as error:  # the line is longer than the limit
                return error
            if not line:
                await self._pending.wait_until_answered()
                return None
            if line.strip() and not self._take_line(line):
                return line

    async def close(self) -> None:
        """End the requests that are still in progress, each with an error."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take_line(self, line: bytes) -> bool:
        """Serve a message; False if it is for the library, and nothing was done."""
        try:
            given, twice = parse_json_text(line)
        except UnreadableMessage:
            return False
        if twice or not isinstance(given, dict) or given.get("jsonrpc") != "2.0":
            return False
        keys = given.keys()
        method, params = given.get("method"), given.get("params", {})
        if "method" not in keys:
            return self.take_reply(given)
        if not isinstance(method, str) or not isinstance(params, dict):
            return False
        if "id" not in keys:
            return keys <= _NOTIFICATION and self._take_notification(method, params)
        return (
            keys <= _REQUEST
            and _is_id(given["id"])
            and self._take_request(given["id"], method, given.get("params"))
        )

    # ---- requests

    def _take_request(self, name: str | int, method: str, params: dict[str, Any] | None) -> bool:
        meta = (params or {}).get("_meta")
        if meta is not None and not isinstance(meta, dict):
            return False
        token = (meta or {}).get("progressToken")
        if token is not None and not _is_id(token):
            return False
        if method == "initialize":
            return not self._version and self._initialize(name, params)
        if PROTOCOL_VERSION_KEY not in (meta or {}):
            if self._version not in HANDSHAKE_VERSIONS or method in _MODERN_ONLY:
                return False
            client: _ClientParams | None = self._client
            capabilities = None if client is None else client.capabilities
        else:
            if self._version in HANDSHAKE_VERSIONS or method in _HANDSHAKE_ONLY:
                return False
            envelope = _read_envelope(meta or {})
            if envelope is None:
                return False
            client, capabilities = envelope
        kind = _PARAMS.get(method)
        known = method in self._handlers or method in ("ping", "server/discover")
        if kind is None or not known:
            return False
        try:
            read = msgspec.convert(params or {}, kind)
        except msgspec.ValidationError:
            return False
        if not self._version:
            self._version = MODERN_VERSIONS[-1]
            self._note_replay("server/discover", {"_meta": meta})
        session = PipeSession(self, client, self._version, capabilities, token)
        request = PipeRequest(session, method, params, meta, name)
        self._start(request, lambda: self._handle(request, read))
        return True

    def _initialize(self, name: str | int, params: dict[str, Any] | None) -> bool:
        try:
            client = msgspec.convert(params or {}, _ClientParams)
        except msgspec.ValidationError:
            return False
        offered = client.protocol_version
        self._version = offered if offered in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        self._client = client
        self._note_replay("initialize", params)
        session = PipeSession(self, client, self._version, client.capabilities, None)
        request = PipeRequest(session, "initialize", params, None, name)
        self._start(request, lambda: self._describe(request))
        return True

    def _note_replay(self, method: str, params: dict[str, Any] | None) -> None:
        name = f"{_REPLAY_ID}-{len(self.replay)}"
        self.replay.append({"jsonrpc": "2.0", "id": name, "method": method, "params": params})

    def _start(self, request: PipeRequest, work: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._pending.open(request.request_id)
        self._running[_correlate(request.request_id)] = request
        task = asyncio.get_running_loop().create_task(self._answer(request, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, request: PipeRequest, work: Callable[[], Awaitable[dict[str, Any]]]
    ) -> None:
        """Answer a request with the result of its handler, or with an error."""
        try:
            answer: dict[str, Any] = {"result": await work()}
        except asyncio.CancelledError:
            if not request.cancelled:
                answer = _make_error(CONNECTION_CLOSED, "Connection closed")
                await self._finish(request, answer)
            raise
        except Exception as error:
            answer = self._describe_error(request, error)
        await self._finish(request, answer)

    async def _finish(self, request: PipeRequest, answer: dict[str, Any]) -> None:
        request.session.closed = True
        key = _correlate(request.request_id)
        if self._running.get(key) is request:  # a client may use an id twice
            del self._running[key]
        try:
            if not request.cancelled:
                await self._send({"jsonrpc": "2.0", "id": request.request_id, **answer})
        finally:
            self._pending.close(request.request_id)

    def _describe_error(self, request: PipeRequest, error: Exception) -> dict[str, Any]:
        if isinstance(error, ProtocolError):
            return _make_error(error.code, str(error), error.data)
        if isinstance(error, get_error_class()):
            found: Any = error
            return _make_error(found.error.code, found.error.message, found.error.data)
        log.error("handler for %r raised", request.method, exc_info=error)
        if self._version in MODERN_VERSIONS:
            return _make_error(INTERNAL_ERROR, "Internal server error")
        return _make_error(0, str(error))

    async def _handle(self, request: PipeRequest, read: _Params) -> dict[str, Any]:
        method, version = request.method, self._version
        if method == "ping":
            return {}
        if method == "server/discover":
            result = await self._describe(request)
        else:
            result = await self._handlers[method](request, read)
        if method == "logging/setLevel":
            self._note_replay(method, request.params)
        if version not in MODERN_VERSIONS:
            return result
        result = complete_result(method, version, result)
        meta = {SERVER_INFO_KEY: self._describe_server(), **(result.get("_meta") or {})}
        return {**result, "_meta": meta}

    async def _describe(self, request: PipeRequest) -> dict[str, Any]:
        """The result of `initialize`, or of `server/discover`."""
        offers: dict[str, Any] = {}
        modern = self._version in MODERN_VERSIONS
        if modern and self._front.extensions:
            offers["extensions"] = {name: {} for name in self._front.extensions}
        if "logging/setLevel" in self._handlers:
            offers["logging"] = {}
        if "prompts/list" in self._handlers:
            offers["prompts"] = {"listChanged": False}
        if "resources/list" in self._handlers:
            offers["resources"] = {"listChanged": False, "subscribe": False}
        offers["tools"] = {"listChanged": False}
        shown = {"capabilities": offers, "instructions": self._front.instructions}
        if modern:
            return {**shown, "supportedVersions": list(MODERN_VERSIONS)}
        return {
            **shown,
            "protocolVersion": self._version,
            "serverInfo": self._describe_server(),
        }

    def _describe_server(self) -> dict[str, Any]:
        return {
            "name": "everhold",
            "title": self._front.title,
            "version": get_everhold_version(),
        }

    # ---- notifications

    def _take_notification(self, method: str, params: dict[str, Any]) -> bool:
        if not self._version or method not in ("notifications/cancelled", *_IDLE_NOTIFICATIONS):
            if method != "notifications/initialized" or self._version not in HANDSHAKE_VERSIONS:
                return False
            if params:
                return False
            self.replay.append({"jsonrpc": "2.0", "method": method})
            return True
        if method == "notifications/cancelled":
            reason = params.get("reason")
            if not _is_id(params.get("requestId")) or not isinstance(reason, str | None):
                return False
            self.cancel(params["requestId"])
        return True

    def cancel(self, name: Any) -> None:
        """Cancel a request that is served here. It gets no answer."""
        self._pending.close(name)
        found = self._running.pop(_correlate(name), None) if _is_id(name) else None
        if found is not None:
            found.cancelled = True

    async def notify(self, notification: Notification) -> None:
        await self._send({"jsonrpc": "2.0", **notification.model_dump()})

    # ---- requests to the client

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the client and return its result; raises `ProtocolError`."""
        name = self._next_id
        self._next_id += 1
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[name] = reply
        try:
            await self._send({"jsonrpc": "2.0", "id": name, "method": method, "params": params})
            return await reply
        except asyncio.CancelledError:
            abandoned = {"requestId": name, "reason": "caller cancelled"}
            await self.notify(Notification("notifications/cancelled", abandoned))
            raise
        finally:
            del self._asked[name]

    def take_reply(self, given: dict[str, Any]) -> bool:
        """Take a reply to a request that was sent here; False if it is none, or malformed."""
        name = given.get("id")
        try:
            reply = self._asked.get(int(name)) if _is_id(name) and name is not None else None
        except ValueError:
            reply = None
        if reply is None or reply.done():
            return False
        if given.keys() == _RESULT and isinstance(given["result"], dict):
            reply.set_result(given["result"])
            return True
        if given.keys() == _ERROR and isinstance(error := given["error"], dict):
            code, words = error.get("code"), error.get("message")
            if type(code) is int and isinstance(words, str):
                reply.set_exception(ProtocolError(code, words, error.get("data")))
                return True
        return False

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            await self._write(_encode_line(message))
        except OSError:  # the client has gone: the end of the input follows
            pass


def _read_envelope(
    meta: dict[str, Any],
) -> tuple[_ClientParams | None, ClientCapabilities] | None:
    """The client of a request with an envelope; None if the library is needed."""
    version, level = meta[PROTOCOL_VERSION_KEY], meta.get(LOG_LEVEL_META_KEY)
    if version not in MODERN_VERSIONS or (level is not None and level not in LOG_LEVELS):
        return None
    try:
        capabilities = msgspec.convert(meta.get(CLIENT_CAPABILITIES_KEY), ClientCapabilities)
        info = (
            msgspec.convert(meta[CLIENT_INFO_KEY], ClientInfo) if CLIENT_INFO_KEY in meta else None
        )
    except msgspec.ValidationError:
        return None
    if capabilities.sampling or capabilities.elicitation or capabilities.extensions is not None:
        return None
    client = None if info is None else _ClientParams(version, capabilities, info)
    return client, capabilities


def _is_id(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _correlate(name: str | int) -> str | int:
    """The id by which a cancellation finds its request: "7" and 7 are one."""
    try:
        return int(name)
    except ValueError:
        return name


def _make_error(code: int, words: str, data: Any = None) -> dict[str, Any]:
    error = {"code": code, "message": words}
    return {"error": error if data is None else {**error, "data": data}}


def _encode_line(message: dict[str, Any]) -> bytes:
    """A message as a line. A lone surrogate, as in the id of a client, is returned unchanged."""
    try:
        return msgspec.json.encode(message) + b"\n"
    except (ValueError, OverflowError):
        return json.dumps(message).encode() + b"\n"
