"""What handlers know of the protocol: requests, results as they are sent, and errors.

Handlers are served by `pipe_server` or by the `mcp` library, and cannot tell which. So they take a
request as the protocols below describe it, and return plain objects with the names of the wire.

Nothing here loads the library. `tests/unit/mcp/test_protocol.py` compares the constants with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

#: The versions that begin with `initialize`, and those whose requests carry their own envelope.
HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS: Final = ("2026-07-28",)

#: The keys of an envelope, and the key by which a result names its server.
PROTOCOL_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_META_KEY: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"

#: Codes of errors.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CONNECTION_CLOSED: Final = -32000

#: The levels of logs, least severe first.
LOG_LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)


class ProtocolError(Exception):
    """Answers a request with an error of the protocol."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class RequestContext(Protocol):
    """A request and its client. `session` has the methods of the library's `ServerSession`."""

    @property
    def session(self) -> Any: ...
    @property
    def method(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Any] | None: ...
    @property
    def meta(self) -> Any: ...
    @property
    def request_id(self) -> str | int | None: ...
    @property
    def request(self) -> Any: ...


class KeptRequest:
    """A request whose handler is not interrupted when the client cancels it.

    Its answer is dropped instead. That is cheaper than a task around every call.
    """

    cancelled = False


#: Handles a request: takes its context and its parameters, and returns its result.
Handler = Callable[[Any, Any], Awaitable[Any]]


class Notification(msgspec.Struct, frozen=True):
    """A notification to the client, in the form that sessions send."""

    method: str
    params: dict[str, Any]

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {"method": self.method, "params": self.params}


def list_deliverable_levels(version: str, meta: Mapping[str, Any] | None) -> frozenset[str]:
    """The levels of logs that may be sent for a request: since 2026-07-28 those that it names."""
    if version not in MODERN_VERSIONS:
        return frozenset(LOG_LEVELS)
    wanted = (meta or {}).get(LOG_LEVEL_META_KEY)
    return frozenset(LOG_LEVELS[LOG_LEVELS.index(wanted) :] if wanted in LOG_LEVELS else ())


#: Methods whose results say since 2026-07-28 for how long a client may keep them. It may not.
_CACHEABLE: Final = frozenset(
    {
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "server/discover",
        "tools/list",
    }
)


def complete_result(method: str, version: str, result: dict[str, Any]) -> dict[str, Any]:
    """A handler's result with what the version of the protocol requires besides."""
    if version not in MODERN_VERSIONS or "resultType" in result:
        return result
    caching = {"cacheScope": "private", "ttlMs": 0} if method in _CACHEABLE else {}
    return {**result, "resultType": "complete", **caching}


def make_text_content(text: str) -> dict[str, Any]:
    """One text of a result."""
    return {"text": text, "type": "text"}
