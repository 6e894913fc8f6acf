"""Reading one JSON-RPC message, of a pipe or of an HTTP request.

Rules
  1. What two readers could read differently is refused: a key that stands twice in an object, or
     NaN.
  2. Half a character, as clients cut text that are written in JavaScript, is no reason to leave a
     request without an answer: it is read all the same, and the tool refuses it.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, NoReturn

import mcp_types as types

#: What a request looks like.
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
    """Text that is not a message: the error to answer with, and whether it is, or may be, a reply
    to us.
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


def parse_rpc_message(text: bytes) -> types.JSONRPCMessage:
    """The message in a text; raises `UnreadableMessage`."""
    twice: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice.extend(
                key for key, times in Counter(key for key, _ in pairs).items() if times > 1
            )
        return found

    try:
        given = json.loads(
            text.decode("utf-8", "surrogatepass"), object_pairs_hook=once, parse_constant=_no_number
        )
    except (ValueError, RecursionError):
        raise UnreadableMessage(
            types.PARSE_ERROR, "A message was not read: it is not JSON."
        ) from None
    if not isinstance(given, dict):
        words = "Not a message: one is a JSON object. Batches are not taken."
        raise UnreadableMessage(types.INVALID_REQUEST, words)
    replies = not _REPLIED.isdisjoint(given)
    if twice:
        raise _invalid(given, replies, f"the key {twice[0][:100]!r} stands twice")
    try:
        message = types.jsonrpc_message_adapter.validate_python(given, by_name=False)
    except ValueError:
        raise _invalid(given, replies) from None
    # The library takes an id that is none for a notification's, a reply's id may be null, and a
    # reply with a method is a request to it. Nobody waits for any of them.
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
        types.INVALID_REQUEST, words, name=known, is_reply=replies, may_reply=may_reply
    )


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
