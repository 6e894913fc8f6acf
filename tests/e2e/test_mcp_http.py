"""The server over HTTP: both protocols, and who is let in."""

import os
import re
import signal
import socket
import subprocess
from contextlib import contextmanager

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from everhold.core.errors import BadSetting
from everhold.fronts.mcp.http import Guard, is_loopback, place, serve
from tests.e2e.mcp_house import Host, answers, build
from tests.warm import start


@contextmanager
def serving(folder, *words, **env):
    """A server process on a free port; gives its address, and ends it."""
    process = subprocess.Popen(
        [*start.everhold(), "mcp", "--http", "127.0.0.1:0", *words],
        cwd=folder,
        env={**os.environ, **env},
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


def address(process):
    """Where a server says that it serves; a busy machine may have it warn of something before."""
    said = []
    for line in process.stderr:
        said.append(line)
        found = re.fullmatch(r"serving MCP at (http://127\.0\.0\.1:\d+/mcp)\n", line)
        if found:
            return found[1]
    raise AssertionError("".join(said))


async def test_both_protocols_and_a_killed_server_over_http(tmp_path):
    """A session begun over one protocol goes on over the other, on another process, after a SIGKILL."""
    build(tmp_path)
    with serving(tmp_path) as (url, process):
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
    with serving(tmp_path) as (url, _):
        async with Client(url) as client:
            host = Host(client)
            while told["status"] == "needs_response":
                told = await host.call("answer", session_id=told["session_id"], answers=answers(told))
            assert told["status"] == "completed"


async def test_a_token_is_needed_where_one_is_set_and_rebinding_gets_nowhere(tmp_path):
    build(tmp_path)
    with serving(tmp_path, EVERHOLD_MCP_TOKEN="s3cret\n") as (url, _):
        async with httpx2.AsyncClient() as web:
            ping = {"json": {"jsonrpc": "2.0", "id": 1, "method": "ping"}, "timeout": 30}
            bearer = {"Authorization": "Bearer s3cret"}
            assert (await web.post(url, **ping)).status_code == 401
            assert (await web.post(url, headers={"Authorization": "Bearer wrong"}, **ping)).status_code == 401
            assert (await web.post(url, headers={"Host": "evil.example", **bearer}, **ping)).status_code == 421
            assert (await web.post(url, headers={"Origin": "http://evil.example", **bearer}, **ping)).status_code == 403
        web = httpx2.AsyncClient(headers=bearer)
        async with web, Client(streamable_http_client(url, http_client=web)) as client:
            assert (await Host(client).call("sessions"))["sessions"] == []


async def test_a_stream_that_broke_is_taken_up_with_whatever_event_was_the_last(tmp_path):
    build(tmp_path)
    who = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who}
    kinds = {"Accept": "application/json, text/event-stream"}
    with serving(tmp_path) as (url, _):
        async with httpx2.AsyncClient(timeout=100) as web:
            begun = await web.post(url, json=begin, headers=kinds)
            broken = {"Mcp-Session-Id": begun.headers["mcp-session-id"], "Last-Event-ID": "7"}
            async with web.stream("GET", url, headers=kinds | broken) as stream:
                assert stream.status_code == 200
                assert stream.headers["content-type"].startswith("text/event-stream")


def test_another_address_without_a_token_is_refused_before_anything_starts(tmp_path):
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:80", "example.com:80", "0.0.0.0:1"):
        blank = ["--token", " \n"] if address.endswith(":1") else []
        done = subprocess.run(
            [*start.everhold(), "mcp", "--http", address, *blank],
            cwd=tmp_path,
            env={key: value for key, value in os.environ.items() if key != "EVERHOLD_MCP_TOKEN"},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 2, done.stderr
        assert "there is no token [bad_setting]" in done.stderr
        assert "--token" in done.stderr
        assert not re.search("Traceback|Uvicorn", done.stderr)


async def test_an_address_that_is_taken_is_a_refusal_in_a_sentence():
    taken = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{taken.getsockname()[1]}"
    with taken, pytest.raises(BadSetting, match="cannot be served: Address already in use"):
        await serve(None, llm=None, address=address, token=None)


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
        ({b"origin": "http://evil.example"}, 403),
        ({b"origin": "http://127.0.0.1:9999"}, 403),
        ({b"origin": "null"}, 403),
        ({b"origin": "http://[::1"}, 403),
        ({b"origin": ""}, 403),
    ],
)
def test_a_loopback_server_looks_at_host_and_origin(headers, status):
    refusal = Guard(None, token=None, loopback=True).refusal(HEADERS | headers)
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
    guard = Guard(None, token="s3cret", loopback=False)
    refusal = guard.refusal({b"host": "example.com", b"authorization": header})
    assert (refusal and refusal[0]) == status


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
    assert place(given) == found


@pytest.mark.parametrize("given", ["localhost:http", "a b:1", "host:99999", "http://x:1", "u@host:1", "[::1", "h/x"])
def test_what_is_no_address_is_refused(given):
    with pytest.raises(BadSetting, match="HOST:PORT"):
        place(given)


def test_only_this_machine_is_loopback():
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "localhost.example", ""]))
