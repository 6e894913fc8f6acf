"""The end of what comes in waits for the answers under way, and nobody waits for what was not
understood.
"""

import asyncio
import json

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from everhold.mcp import pending_requests
from everhold.mcp.pending_requests import PendingRequests
from everhold.mcp.stdio import IncomingStream, OutgoingStream

REQUEST = b'{"jsonrpc": "2.0", "id": 7, "method": "ping"}\n'
CANCEL = b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}\n'
ANSWER = SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=7, result={}))


def ends(*lines, write=None, lost=None):
    """Both directions over a list of lines."""
    left, written, ledger = [*lines, b""], [], PendingRequests()

    async def line():
        return left.pop(0)

    async def keep(words):
        written.append(words)

    outgoing = OutgoingStream(write or keep, ledger)
    return IncomingStream(line, ledger, outgoing, lost or (lambda: None)), outgoing, written


async def test_the_end_comes_after_the_answer():
    incoming, outgoing, written = ends(REQUEST)
    assert (await incoming.receive()).message.id == 7
    end = asyncio.ensure_future(anext(incoming))
    await asyncio.sleep(0)
    assert not end.done()
    await outgoing.send(ANSWER)
    with pytest.raises(StopAsyncIteration):
        await end
    assert written == [b'{"jsonrpc":"2.0","id":7,"result":{}}\n']


async def test_a_request_that_was_cancelled_holds_nothing_back():
    incoming, _, _ = ends(REQUEST, CANCEL)
    assert [message.message.method async for message in incoming] == [
        "ping",
        "notifications/cancelled",
    ]


@pytest.mark.parametrize("name", [b"[7]", b'{"a": 7}', b"null", b"7.5"])
async def test_a_cancelled_request_may_have_any_name(name):
    """Nothing that a client calls it ends the server."""
    incoming, _, _ = ends(CANCEL.replace(b"7", name))
    assert [message.message.method async for message in incoming] == ["notifications/cancelled"]


async def test_half_a_character_is_read_so_that_the_call_can_be_refused():
    incoming, _, _ = ends(REQUEST.replace(b"}", b', "params": {"x": "\\ud83d"}}'))
    message = (await incoming.receive()).message
    assert (message.id, message.params) == (7, {"x": "\ud83d"})


async def test_an_answer_that_never_comes_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(pending_requests, "GRACE", 0.01)
    incoming, _, _ = ends(REQUEST)
    assert len([message async for message in incoming]) == 1


async def test_what_cannot_be_read_comes_as_an_error_and_the_rest_follows():
    incoming, _, _ = ends(b"not JSON\n", b"\xff\n", b"[]\n", b"[" * 100_000 + b"\n", CANCEL)
    found = [message async for message in incoming]
    assert [isinstance(message, ValueError) for message in found] == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("line", "name", "code"),
    [
        (b"not JSON\n", None, -32700),
        (b"\xff\n", None, -32700),
        (b"[" * 100_000 + b"\n", None, -32700),
        (b"[]\n", None, -32600),
        (b"{}\n", None, -32600),
        (b'{"jsonrpc": "2.0", "id": 7}\n', 7, -32600),
        (b'{"jsonrpc": "1.0", "id": "a", "method": "ping"}\n', "a", -32600),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": []}\n', 7, -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}\n', None, -32600),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}\n', None, -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": 1}\n', None, -32600),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "method": "x"}\n', 7, -32600),
        (
            b'{"jsonrpc": "2.0", "id": 7, "method": "x", "params": {"a": {"b": 1, "b": 1}}}\n',
            7,
            -32600,
        ),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "x", "params": {"a": NaN}}\n', None, -32700),
        (b'{"jsonrpc": "2.0", "id": "\\ud83d", "method": 1}\n', "\ud83d", -32600),
    ],
)
async def test_a_line_that_is_no_message_is_answered_with_an_error(line, name, code):
    incoming, _, written = ends(line, CANCEL)
    assert len([message async for message in incoming]) == 2
    (told,) = map(json.loads, written)
    assert (told["jsonrpc"], told["id"], told["error"]["code"]) == ("2.0", name, code)


async def test_a_line_that_is_too_long_is_answered_and_an_empty_one_is_not():
    async def line():
        if not (left := lines.pop(0)):
            raise ValueError("Separator is not found, and chunk exceed the limit")
        return left

    lines = [b"", b"\n"]
    incoming, _, written = ends()
    incoming._line = line
    await incoming.receive()
    await incoming.receive()
    assert [json.loads(told)["error"]["code"] for told in written] == [-32700]


async def test_a_client_that_has_gone_need_not_hear_what_was_wrong():
    async def gone(line):
        raise BrokenPipeError

    incoming, _, _ = ends(b"not JSON\n", write=gone)
    assert len([message async for message in incoming]) == 1


@pytest.mark.parametrize(
    "reply", [b'"result": 5', b'"result": null', b'"error": "no"', b'"result": [1], "x": 1']
)
async def test_a_reply_that_cannot_be_read_is_an_error_to_whoever_waits_for_it(reply):
    incoming, _, written = ends(b'{"jsonrpc": "2.0", "id": 7, %s}\n' % reply)
    message = (await incoming.receive()).message
    assert isinstance(message, types.JSONRPCError)
    assert (message.id, written) == (7, [])


@pytest.mark.parametrize(
    ("line", "times"),
    [
        (b'{"jsonrpc": "2.0", "id": null, "result": {}}\n', 1),
        (b'{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "x"}}\n', 1),
        (b'{"jsonrpc": "2.0", "id": [7], "result": {}}\n', 1),
        (b'{"jsonrpc": "2.0", "result": {}}\n', 1),
        (b'{"jsonrpc": "2.0", "id": 7}\n', 1),
        (b'[{"jsonrpc": "2.0", "id": 7, "result": {}}]\n', 1),
        (b'{"jsonrpc": "2.0", "id": 7, "result": {"action":\n', 1),
        (b'{"jsonrpc": "2.0", "id": 7, "result": 5}\n', 0),  # says whose it is
        (b'{"jsonrpc": "2.0", "id": 7, "result": {}}\n', 0),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}\n', 0),
        (b"\n", 0),
        (REQUEST, 0),
    ],
)
async def test_a_reply_that_does_not_say_whose_it_is_ends_all_that_is_waited_for(line, times):
    lost = []
    incoming, _, _ = ends(line, lost=lambda: lost.append(line))
    await incoming.receive()
    assert len(lost) == times


async def test_an_id_with_half_a_character_is_given_back_as_it_came():
    _, outgoing, written = ends()
    await outgoing.send(
        SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id="\ud83d", result={}))
    )
    assert json.loads(written[0]) == {"jsonrpc": "2.0", "id": "\ud83d", "result": {}}


async def test_a_client_that_has_gone_is_a_broken_stream():
    async def gone(line):
        raise BrokenPipeError

    _, outgoing, _ = ends(write=gone)
    with pytest.raises(anyio.BrokenResourceError):
        await outgoing.send(ANSWER)
