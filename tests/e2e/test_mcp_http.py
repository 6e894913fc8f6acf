"""The server over HTTP: both protocols, and who is let in."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from everhold.errors import BadSetting
from everhold.mcp import http
from everhold.mcp.http import RequestGuard, is_loopback, parse_http_address, serve_http
from tests.e2e.mcp_harness import Host, answers, build
from tests.warm import start


@contextmanager
def serving(folder, *words, **env):
    """A server process on a free port; gives its address, and ends it."""
    process = subprocess.Popen(
        [*start.everhold(), "mcp", "--http", "127.0.0.1:0", *words],
        cwd=folder,
        env={**os.environ, "XDG_DATA_HOME": str(folder), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield address(process), process
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=250)
    assert out == ""


WARNED = []


def address(process):
    """Where a server says that it serves; what it warns of before is kept."""
    said = []
    for line in process.stderr:
        said.append(line)
        found = re.fullmatch(r"serving MCP at (http://127\.0\.0\.1:\d+/mcp)\n", line)
        if found:
            WARNED.append("".join(said))
            return found[1]
    raise AssertionError("".join(said))


async def test_both_protocols_and_a_killed_server_over_http(tmp_path):
    """A session begun over one protocol goes on over the other, on another process, after a
    SIGKILL.
    """
    build(tmp_path)
    with serving(tmp_path, "--no-token") as (url, process):
        async with Client(url) as client:
            assert client.protocol_version == "2026-07-28"
            host = Host(client)
            told = await host.call("run", program="panel", args={"task": "Why?"})
        async with Client(url, mode="legacy") as client:
            assert client.protocol_version == "2025-11-25"
            host = Host(client)
            told = await host.call("answer", session_id=told["session_id"], answers=answers(told))
            assert told["status"] == "needs_response"
        process.kill()
    with serving(tmp_path, "--no-token") as (url, _):
        async with Client(url) as client:
            host = Host(client)
            while told["status"] == "needs_response":
                told = await host.call(
                    "answer", session_id=told["session_id"], answers=answers(told)
                )
            assert told["status"] == "completed"


async def test_a_token_is_needed_where_one_is_set_and_rebinding_gets_nowhere(tmp_path):
    build(tmp_path)
    with serving(tmp_path, EVERHOLD_MCP_TOKEN="s3cret\n") as (url, _):
        async with httpx2.AsyncClient() as web:
            ping = {"json": {"jsonrpc": "2.0", "id": 1, "method": "ping"}, "timeout": 30}
            bearer = {"Authorization": "Bearer s3cret"}
            assert (await web.post(url, **ping)).status_code == 401
            assert (
                await web.post(url, headers={"Authorization": "Bearer wrong"}, **ping)
            ).status_code == 401
            assert (
                await web.post(url, headers={"Host": "evil.example", **bearer}, **ping)
            ).status_code == 421
            assert (
                await web.post(url, headers={"Origin": "http://evil.example", **bearer}, **ping)
            ).status_code == 403
        web = httpx2.AsyncClient(headers=bearer)
        async with web, Client(streamable_http_client(url, http_client=web)) as client:
            assert (await Host(client).call("sessions"))["sessions"] == []


async def test_a_stream_that_broke_is_taken_up_with_whatever_event_was_the_last(tmp_path):
    build(tmp_path)
    who = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who}
    kinds = {"Accept": "application/json, text/event-stream"}
    with serving(tmp_path, "--no-token") as (url, _):
        async with httpx2.AsyncClient(timeout=100) as web:
            begun = await web.post(url, json=begin, headers=kinds)
            broken = {"Mcp-Session-Id": begun.headers["mcp-session-id"], "Last-Event-ID": "7"}
            async with web.stream("GET", url, headers=kinds | broken) as stream:
                assert stream.status_code == 200
                assert stream.headers["content-type"].startswith("text/event-stream")


async def test_a_server_makes_a_token_that_lasts_and_says_how_to_use_it(tmp_path):
    """Loopback or not: what is printed leads to the token, which is in no log and in no process
    list.
    """
    build(tmp_path)
    file = tmp_path / "everhold" / "mcp-token"
    for _ in range(2):
        with serving(tmp_path) as (url, process):
            token = file.read_text().strip()
            assert len(token) > 40
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            told = [process.stderr.readline() for _ in range(3)]
            assert told[0] == f"clients send the header  Authorization: Bearer $(cat {file})\n"
            assert (
                told[1]
                == f'set the token for hosts with  export EVERHOLD_MCP_TOKEN="$(cat {file})"\n'
            )
            command = f"everhold mcp install claude-code --http {url}"
            assert told[2] == f"connect a host, such as this one, with  {command}\n"
            assert token not in Path(f"/proc/{process.pid}/cmdline").read_text()
            web = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"})
            async with web, Client(streamable_http_client(url, http_client=web)) as client:
                assert (await Host(client).call("sessions"))["sessions"] == []
    assert file.read_text().strip() == token


async def test_whoever_brings_no_token_is_told_what_to_send(tmp_path):
    """RFC 6750, and no OAuth server is pretended: a client that looks for one finds none."""
    build(tmp_path)
    with serving(tmp_path, "--token-file", "mine") as (url, _):
        assert (tmp_path / "mine").is_file()
        async with httpx2.AsyncClient(timeout=100) as web:
            none = await web.post(url, json={})
            assert (none.status_code, none.headers["www-authenticate"]) == (
                401,
                'Bearer realm="everhold"',
            )
            assert none.json()["error"] == "invalid_token"
            wrong = await web.post(url, json={}, headers={"Authorization": "Bearer wrong"})
            assert wrong.status_code == 401
            assert wrong.headers["www-authenticate"].startswith(
                'Bearer realm="everhold", error="invalid_token", '
            )
            found = await web.get(url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp"))
            assert found.status_code == 404


def refused(folder, *words, **env):
    """What a server that does not start says."""
    done = subprocess.run(
        [*start.everhold(), "mcp", *words],
        cwd=folder,
        env={**os.environ, "XDG_DATA_HOME": str(folder), **env},
        capture_output=True,
        text=True,
        timeout=250,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2, done.stderr
    assert "[bad_setting]" in done.stderr
    assert not re.search("Traceback|Uvicorn", done.stderr)
    return done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "example.com:80"])
def test_another_address_without_a_token_is_refused_before_anything_starts(tmp_path, address):
    said = refused(tmp_path, "--http", address, "--no-token")
    assert "which requires a token" in said
    assert "Leave out --no-token" in said


def test_a_token_is_never_taken_from_the_command_line(tmp_path):
    said = refused(tmp_path, "--http", "--token", "s3cret")
    assert "--token-file FILE, or set EVERHOLD_MCP_TOKEN" in said
    assert "s3cret" not in said


def test_a_server_without_a_token_warns_when_it_starts(tmp_path):
    with serving(tmp_path, "--no-token") as (_, process):
        pass
    assert process.returncode is not None
    assert not (tmp_path / "everhold" / "mcp-token").exists()
    assert "warning: --no-token" in WARNED[-1]


def test_options_of_the_token_that_mean_nothing_are_refused(tmp_path):
    assert "it needs --http" in refused(tmp_path, "--no-token")
    assert "it needs --http" in refused(tmp_path, "--token-file", "x")
    assert "not both" in refused(tmp_path, "--http", "--no-token", "--token-file", "x")
    assert not (tmp_path / "x").exists()


# Requests that never end, and those that are read in two ways


@asynccontextmanager
async def here(folder, monkeypatch, **limits):
    """A server in this process, without a token, with other limits of time; gives its port."""
    monkeypatch.chdir(build(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    for name, seconds in limits.items():
        monkeypatch.setattr(http, name, seconds)
    made = []

    class Kept(uvicorn.Server):
        def __init__(self, config):
            super().__init__(config)
            made.append(self)

    monkeypatch.setattr(http.uvicorn, "Server", Kept)
    running = asyncio.ensure_future(serve_http(None, llm=None, address="127.0.0.1:0", token=None))
    while not (made and made[0].started) and not running.done():
        await asyncio.sleep(0.01)
    try:
        yield made[0].servers[0].sockets[0].getsockname()[1]
    finally:
        made[0].should_exit = True
        await running


POST = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: */*\r\n"
PING = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /mcp HT",
        POST,
        POST + b"Content-Length: 45\r\n\r\n",
        POST + b"Content-Length: 45\r\n\r\n{",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        POST + b"Content-Length: 45\r\n\r\n" + PING + POST,
        POST.replace(b"127.0.0.1", b"evil.example") + b"Content-Length: 45\r\n\r\n{",
    ],
    ids=["nothing", "line", "head", "body", "some body", "chunk", "second head", "refused"],
)
@pytest.mark.parametrize("drips", [False, True])
async def test_a_request_that_never_ends_is_ended(tmp_path, monkeypatch, sent, drips):
    """Also one that goes on byte by byte."""
    async with (
        here(tmp_path, monkeypatch, HEAD_SECONDS=0.3, BODY_SECONDS=0.3) as port,
        asyncio.timeout(100),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        whole = asyncio.ensure_future(reader.read())
        while drips and not whole.done():
            writer.write(b"x")
            # clock: a pause between two bytes
            await asyncio.wait([whole], timeout=0.05)
        with suppress(ConnectionError):
            await whole
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def exchange(port, head, body=b""):
    """The status of one answer, and its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    first, _, rest = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), rest


async def test_what_two_readers_may_read_differently_is_refused(tmp_path, monkeypatch):
    async with here(tmp_path, monkeypatch) as port, asyncio.timeout(100):
        for body in (
            b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "method": "tools/call"}',
            b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "run",'
            b' "name": "cancel"}}',
        ):
            status, told = await exchange(port, POST, body)
            told = json.loads(told)
            assert (status, told["id"], told["error"]["code"]) == (400, 7, -32600)
            assert "is in it twice" in told["error"]["message"]
        status, told = await exchange(port, POST, b'{"jsonrpc": "2.0", "id"')
        assert (status, json.loads(told)["error"]["code"]) == (400, -32700)
        status, told = await exchange(port, POST, b" " * (http.MAX_REQUEST_BYTES + 1))
        assert status == 413
        for name in (
            b"evil@127.0.0.1",
            b"127.0.0.1:80@evil.example",
            b"127.0.0.1/x",
            b"127.0.0.1:8711, evil.example",
        ):
            status, told = await exchange(port, POST.replace(b"127.0.0.1", name), PING)
            assert status == 421, name


@pytest.mark.parametrize(
    "reply",
    [
        {"result": {}},
        {"result": {"action": "maybe"}},
        {"result": {"action": "accept", "content": {"approve": [True]}}},
        {"result": "yes"},
        {"result": [True]},
        {"result": None},
        {"error": "no"},
        {"id": None, "result": {"action": "decline"}},
        {},
    ],
    ids=json.dumps,
)
async def test_a_form_that_brings_back_nonsense_ends_its_call_at_once(tmp_path, monkeypatch, reply):
    """Over HTTP the reply is a request of its own; the call goes on with the question open."""
    who = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}}
    who["clientInfo"] = {"name": "x", "version": "1"}
    kinds = {"Accept": "application/json, text/event-stream"}
    call = {"name": "run", "arguments": {"program": "boss", "args": {"order": "7"}}}
    async with (
        here(tmp_path, monkeypatch) as port,
        httpx2.AsyncClient(timeout=100) as web,
        asyncio.timeout(100),
    ):
        url = f"http://127.0.0.1:{port}/mcp"
        begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who}
        begun = await web.post(url, json=begin, headers=kinds)
        kinds |= {
            "Mcp-Session-Id": begun.headers["mcp-session-id"],
            "Mcp-Protocol-Version": "2025-11-25",
        }
        await web.post(
            url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=kinds
        )
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
        async with web.stream("POST", url, json=asked, headers=kinds) as stream:
            async for line in stream.aiter_lines():
                message = (
                    json.loads(line.removeprefix("data:")) if line.startswith("data: {") else {}
                )
                if message.get("method") == "elicitation/create":
                    said = {"jsonrpc": "2.0", "id": message["id"]} | reply
                    await web.post(url, json=said, headers=kinds)
                elif message.get("id") == 2:
                    break
        told = message["result"]["structuredContent"]
        assert (told["status"], told["for_people"][0]["id"]) == ("waiting", "q-0")


# Starting


async def test_an_address_that_is_taken_is_a_refusal_in_a_sentence():
    taken = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{taken.getsockname()[1]}"
    with taken, pytest.raises(BadSetting, match="cannot be served: Address already in use"):
        await serve_http(None, llm=None, address=address, token=None)


# The guard by itself

HEADERS = {b"host": "127.0.0.1:8711"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, None),
        ({b"host": "localhost:8711"}, None),
        ({b"host": "[::1]:8711"}, None),
        ({b"host": "127.0.0.1"}, None),
        ({b"origin": "http://127.0.0.1:8711"}, None),
        ({b"host": "evil.example:8711"}, 421),
        ({b"host": "127.0.0.1.evil.example"}, 421),
        ({b"host": "localhost.evil.example"}, 421),
        ({b"host": ""}, 421),
        ({b"host": "[::1"}, 421),
        ({b"host": "evil@127.0.0.1"}, 421),
        ({b"host": "@127.0.0.1"}, 421),
        ({b"host": "127.0.0.1?x"}, 421),
        ({b"origin": "http://evil.example"}, 403),
        ({b"origin": "http://127.0.0.1:9999"}, 403),
        ({b"origin": "null"}, 403),
        ({b"origin": "http://[::1"}, 403),
        ({b"origin": ""}, 403),
    ],
)
def test_a_loopback_server_looks_at_host_and_origin(headers, status):
    refusal = RequestGuard(None, token=None, loopback=True).refusal(HEADERS | headers)
    assert (refusal and refusal[0]) == status


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer s3cret", None),
        ("bearer s3cret", None),
        ("Bearer s3cret2", 401),
        ("Bearer ", 401),
        ("Basic s3cret", 401),
        ("s3cret", 401),
        ("Bearer s3cr\u00e9t", 401),
        ("", 401),
    ],
)
def test_a_token_is_compared_whole(header, status):
    guard = RequestGuard(None, token="s3cret", loopback=False)
    refusal = guard.refusal({b"host": "example.com", b"authorization": header})
    assert (refusal and refusal[0]) == status


@pytest.mark.parametrize(
    "host", ["", "evil@example.com", "example.com/x", "exämple.com", "example.com:1:2"]
)
def test_a_host_that_is_none_is_refused_at_every_address(host):
    guard = RequestGuard(None, token="s3cret", loopback=False)
    assert guard.refusal({b"host": host, b"authorization": "Bearer s3cret"})[0] == 400


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("127.0.0.1:8711", ("127.0.0.1", 8711)),
        ("localhost", ("localhost", 8711)),
        (":9000", ("127.0.0.1", 9000)),
        ("[::1]:80", ("::1", 80)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
    ],
)
def test_an_address_is_host_and_port(given, found):
    assert parse_http_address(given) == found


@pytest.mark.parametrize(
    "given",
    ["localhost:http", "a b:1", "host:99999", "http://x:1", "u@host:1", "@host:1", "[::1", "h/x"],
)
def test_what_is_no_address_is_refused(given):
    with pytest.raises(BadSetting, match="HOST:PORT"):
        parse_http_address(given)


def test_only_this_machine_is_loopback():
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "localhost.example", ""]))
