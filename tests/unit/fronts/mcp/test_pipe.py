"""The end of what comes in waits for the answers under way."""

import asyncio

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from everhold.fronts.mcp import pipe
from everhold.fronts.mcp.pipe import Incoming, Ledger, Outgoing

REQUEST = b'{"jsonrpc": "2.0", "id": 7, "method": "ping"}\n'
CANCEL = b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}\n'
ANSWER = SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=7, result={}))


def ends(*lines, write=None):
    """Both directions over a list of lines."""
    left, written, ledger = [*lines, b""], [], Ledger()

    async def line():
        return left.pop(0)

    async def keep(words):
        written.append(words)

    return Incoming(line, ledger), Outgoing(write or keep, ledger), written


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
    assert [message.message.method async for message in incoming] == ["ping", "notifications/cancelled"]


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
    monkeypatch.setattr(pipe, "GRACE", 0.01)
    incoming, _, _ = ends(REQUEST)
    assert len([message async for message in incoming]) == 1


async def test_what_cannot_be_read_comes_as_an_error_and_the_rest_follows():
    incoming, _, _ = ends(b"not JSON\n", b"\xff\n", b"[]\n", b"[" * 100_000 + b"\n", CANCEL)
    found = [message async for message in incoming]
    assert [isinstance(message, ValueError) for message in found] == [True, True, True, True, False]


async def test_a_client_that_has_gone_is_a_broken_stream():
    async def gone(line):
        raise BrokenPipeError

    _, outgoing, _ = ends(write=gone)
    with pytest.raises(anyio.BrokenResourceError):
        await outgoing.send(ANSWER)
