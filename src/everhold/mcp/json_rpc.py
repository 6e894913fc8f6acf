"""Reads one JSON-RPC message, from a pipe or an HTTP request.

Rules
  1. Text that two readers could read differently is refused: a key that is twice in an object, or
     NaN.
  2. A lone surrogate, as JavaScript clients produce when they cut text, is accepted here, because
     its request needs an answer. The tool refuses it.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, NoReturn

from everhold.mcp.protocol import INVALID_REQUEST, PARSE_ERROR
from everhold.mcp.sdk import types

#: What a request needs, for error messages.
_REQUEST: Final = (
    'it has "jsonrpc": "2.0", a method, an id that is text or a whole number, and'
    " params as an object"
)
_REPLY: Final = (
    "a reply has the id of its request, and a result that is an object or an error"
    " with a code and a message"
)
_REPLIED: Final = frozenset({"result", "error"})


class UnreadableMessage(ValueError):
    """Text that is not a message. `error` is the answer to it.

    `is_reply` says that it is a reply to the server, `may_reply` that it could be one.
    """

    def __init__(
        self,
        code: int,
        words: str,
        *,
        name: str | int | None = None,
        is_reply: bool = False,
        may_reply: bool = True,
    ) -> None:
        super().__init__(words)
        self.is_reply = is_reply
        self.may_reply = may_reply
        self.error = types.JSONRPCError(
            jsonrpc="2.0", id=name, error=types.ErrorData(code=code, message=words)
        )


def parse_json_text(text: bytes) -> tuple[Any, list[str]]:
    """The value in JSON text, and the keys that are twice in an object.

    Raises `UnreadableMessage` for text that is not JSON.
    """
    twice: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice.extend(
                key for key, times in Counter(key for key, _ in pairs).items() if times > 1
            )
        return found

    try:
        return json.loads(
            text.decode("utf-8", "surrogatepass"),
            object_pairs_hook=once,
            parse_constant=_refuse_constant,
        ), twice
    except (ValueError, RecursionError):
        raise UnreadableMessage(PARSE_ERROR, "A message was not read: it is not JSON.") from None


def parse_rpc_message(text: bytes) -> types.JSONRPCMessage:
    """The message in the text; raises `UnreadableMessage`."""
    given, twice = parse_json_text(text)
    if not isinstance(given, dict):
        words = "Not a message: a message is a JSON object. Batches are not supported."
        raise UnreadableMessage(INVALID_REQUEST, words)
    replies = not _REPLIED.isdisjoint(given)
    if twice:
        raise _invalid(given, replies, f"the key {twice[0][:100]!r} is in it twice")
    try:
        message = types.jsonrpc_message_adapter.validate_python(given, by_name=False)
    except ValueError:
        raise _invalid(given, replies) from None
    # The library accepts three forms that get no answer: a request with an invalid id becomes a
    # notification, the id of a reply may be null, and a reply with a method becomes a request.
    match message:
        case types.JSONRPCNotification():
            fits = "id" not in given and not replies
        case types.JSONRPCRequest():
            fits = not replies
        case _:
            fits = message.id is not None
    if not fits:
        raise _invalid(given, replies)
    return message


def _invalid(given: dict[str, Any], replies: bool, why: str = "") -> UnreadableMessage:
    name = given.get("id")
    known = name if isinstance(name, str | int) and not isinstance(name, bool) else None
    words = f"Not a JSON-RPC 2.0 message: {why or (_REPLY if replies else _REQUEST)}."
    may_reply = replies or "method" not in given
    return UnreadableMessage(
        INVALID_REQUEST, words, name=known, is_reply=replies, may_reply=may_reply
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
