"""The server as hosts start it: a process with pipes, which may be killed, doubled, and talked
over.
"""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

import everhold
from tests.e2e.mcp_harness import (
    Host,
    answers,
    asked,
    build,
    command,
    last_json,
    opened,
    prompt_of,
)
from tests.warm import start

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(build(tmp_path))
    return tmp_path


class Wire:
    """A client of our own: JSON lines, and every byte that the server writes is kept."""

    def __init__(self, folder, *, command=None, filled=None):
        self.process = subprocess.Popen(
            command or [*start.everhold(), "mcp"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines = []
        self.refused = []
        self.number = 0
        self.filled = filled  # what forms bring back
        told = self.ask(
            "initialize",
            protocolVersion="2025-11-25",
            capabilities={} if filled is None else {"elicitation": {}},
            clientInfo={"name": "wire", "version": "1"},
        )
        assert told["serverInfo"]["name"] == "everhold"
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method, **params):
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        while True:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read().decode()
            self.lines.append(line)
            message = json.loads(line)
            if message.get("method") == "elicitation/create":
                whole = isinstance(self.filled, dict) and "jsonrpc" in self.filled
                self.send(
                    self.filled
                    if whole
                    else {"jsonrpc": "2.0", "id": message["id"], "result": self.filled}
                )
            elif message.get("id") == self.number:
                return message["result"]
            elif "error" in message:
                self.refused.append((message["id"], message["error"]["code"]))

    def call(self, tool, **arguments):
        return self.ask("tools/call", name=tool, arguments=arguments)["structuredContent"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(250)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()

    def close(self):
        """What was left on its standard output and error when its input was closed."""
        out, err = self.process.communicate(timeout=250)
        return out, err.decode()


# Killing


def test_a_server_killed_between_any_two_calls_loses_nothing(shop):
    """Three rounds, each by another process; the one before was killed with SIGKILL."""
    wire = Wire(shop)
    told = wire.call("run", program="panel", args={"task": "Why?"})
    seen = list(asked(told))
    while told["status"] == "needs_response":
        wire.kill()
        wire = Wire(shop)
        told = wire.call("answer", **last_json(told["next"]))
        seen += asked(told)
    assert told["result"] == {"answer": ["…"] * 9}
    assert seen == [f"q-{number}" for number in range(9)]  # each was asked once
    wire.kill()


def test_an_answer_whose_reply_was_lost_is_sent_again(shop):
    wire = Wire(shop)
    told = wire.call("run", program="panel", args={"task": "Why?"})
    given = {"session_id": told["session_id"], "answers": answers(told)}
    wire.call("answer", **given)
    wire.kill()
    wire = Wire(shop)
    assert list(asked(wire.call("answer", **given))) == ["q-3", "q-4", "q-5"]
    wire.kill()


def test_a_server_ends_when_its_input_does_or_on_a_signal(shop):
    wire = Wire(shop)
    wire.close()
    assert wire.process.returncode == 0
    wire = Wire(shop)
    wire.process.send_signal(signal.SIGTERM)
    assert wire.process.wait(250) == 128 + signal.SIGTERM
    wire.close()


# Together


async def test_three_servers_on_one_database_take_turns_and_answer_at_once(shop):
    """Each round of a session is answered through another server, then one batch through all at the
    same time.
    """
    async with (
        Client(command(shop)) as one,
        Client(command(shop)) as two,
        Client(command(shop), mode="legacy") as three,
    ):
        hosts = [Host(one), Host(two), Host(three)]
        told = await hosts[0].call("run", program="panel", args={"task": "Why?"})
        session = told["session_id"]
        for turn in range(2):
            told = await hosts[turn + 1].call("answer", session_id=session, answers=answers(told))
        each = zip(hosts, answers(told), strict=True)
        await asyncio.gather(
            *(host.call("answer", session_id=session, answers=[said]) for host, said in each)
        )
        for host in hosts:
            told = await host.call("status", session_id=session)
            assert told["status"] == "completed"
            assert told["result"] == {"answer": [f"yes to q-{number}" for number in range(9)]}


# Standard output


def test_nothing_but_the_protocol_is_on_standard_output(shop):
    """A program that prints, writes to the descriptor, warns, and starts a child that prints."""
    wire = Wire(shop)
    told = wire.call("run", program="noisy")
    told = wire.call("answer", session_id=told["session_id"], answers=[{"response": "something"}])
    assert told["result"] == "something"
    wire.call("run", program="nobody")
    wire.send({"not": "a request"})
    left, err = wire.close()
    for line in [*wire.lines, *left.splitlines()]:
        assert json.loads(line)["jsonrpc"] == "2.0"
    for words in (
        "a program that prints",
        "straight to the descriptor",
        "a child that prints",
        "again",
    ):
        assert words in err


def test_long_messages_pass_both_ways_and_unreadable_ones_are_refused(shop):
    wire = Wire(shop)
    words = "é" * 1_000_000
    told = wire.call("run", program="greet", args={"name": words})
    assert prompt_of(told) == f"Greet {words}."
    wire.process.stdin.write(b"\xff\xfe not JSON\n\n[]\n")
    told = wire.call("answer", session_id=told["session_id"], answers=[{"response": words}])
    assert told["result"] == words
    assert wire.refused == [(None, -32700), (None, -32600)]
    wire.close()


@pytest.mark.parametrize(
    "filled",
    [
        {},
        {"action": "maybe"},
        {"action": "accept", "content": {"approve": [True]}},
        "yes",
        [True],
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": None, "result": {"action": "accept"}},
        {"jsonrpc": "2.0", "result": {"action": "accept"}},
    ],
    ids=json.dumps,
)
def test_a_form_that_brings_back_nonsense_leaves_the_question_open(shop, filled):
    """The result names the session all the same: it has begun."""
    wire = Wire(shop, filled=filled)
    told = wire.call("run", program="boss", args={"order": "7"})
    assert (told["status"], told["for_people"][0]["id"]) == ("waiting", "q-0")
    wire.close()


@pytest.mark.parametrize("call", [False, True])
def test_a_program_that_raises_what_ctrl_c_does_fails_and_ends_no_server(shop, call):
    wire = Wire(shop)
    told = wire.call("run", program="interrupts", args={"call": call})
    told = wire.call("answer", session_id=told["session_id"], answers=[{"response": "x"}])
    assert (told["status"], told["error"][-17:]) == ("error", "KeyboardInterrupt")
    assert wire.call("status", session_id=told["session_id"])["status"] == "error"
    wire.close()


def test_files_serve_as_well_as_pipes(shop):
    """Somebody who tries it by hand redirects both."""
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "file", "version": "1"},
    }
    lines = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {
            "id": 2,
            "method": "tools/call",
            "params": {"name": "run", "arguments": {"program": "greet"}},
        },
    ]
    (shop / "in").write_text(
        "".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in lines)
    )
    with (shop / "in").open() as given, (shop / "out").open("w") as kept:
        words = [sys.executable, "-m", "everhold", "mcp"]
        subprocess.run(words, cwd=shop, stdin=given, stdout=kept, timeout=250, check=True)
    told = [json.loads(line) for line in (shop / "out").read_text().splitlines()]
    assert [one["id"] for one in told] == [1, 2]


def test_a_client_that_goes_away_ends_the_server(shop):
    wire = Wire(shop)
    wire.process.stdout.close()
    for number in range(3):
        with suppress(OSError):
            wire.send({"jsonrpc": "2.0", "id": 90 + number, "method": "ping"})
    with suppress(OSError):
        wire.process.stdin.close()
    assert wire.process.wait(250) is not None
    assert "store" not in wire.process.stderr.read().decode()
    wire.process.stderr.close()


def test_a_host_without_standard_error_gets_the_protocol_all_the_same(shop):
    words = f"exec {sys.executable} -m everhold mcp 2>&-"
    wire = Wire(shop, command=["sh", "-c", words])
    told = wire.call("run", program="noisy")
    # its child may miss standard error; the wire does not
    assert told["status"] in ("needs_response", "error")
    left, _ = wire.close()
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in [*wire.lines, *left.splitlines()])


def test_a_program_that_reads_standard_input_does_not_eat_the_protocol(shop):
    (shop / "shop.py").write_text(
        "import everhold, sys\n"
        "@everhold.program\n"
        "async def reads(ctx):\n"
        "    return [await ctx.call(sys.stdin.read), await ctx.llm('And?')]\n"
    )
    wire = Wire(shop)
    told = wire.call("run", program="reads")
    told = wire.call("answer", session_id=told["session_id"], answers=[{"response": "well"}])
    assert told["result"] == ["", "well"]
    wire.close()


def test_a_missing_library_is_one_line_with_the_command_to_install_it(shop):
    """Told on standard error: a host that reads standard output sees nothing odd."""
    (shop / "blocked").mkdir()
    (shop / "blocked" / "sitecustomize.py").write_text("import sys\nsys.modules['mcp'] = None\n")
    done = subprocess.run(
        [sys.executable, "-m", "everhold", "mcp"],
        cwd=shop,
        env={**os.environ, "PYTHONPATH": str(shop / "blocked")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.stdout == ""
    assert done.returncode == 2
    assert done.stderr.splitlines()[1] == "hint: pip install 'everhold[mcp]'"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_server_that_has_only_pipes_offers_what_any_other_does(shop, mode):
    words = ["-m", "everhold", "mcp"]
    server = StdioServerParameters(
        command=sys.executable, args=words, cwd=shop, env=dict(os.environ)
    )
    async with Client(server, mode=mode) as client, opened(mode=mode) as host:
        other = host.client
        assert client.protocol_version == other.protocol_version
        assert client.server_info == other.server_info
        assert client.server_capabilities == other.server_capabilities
        assert client.instructions == other.instructions
        for verb in ("list_tools", "list_prompts", "list_resources", "list_resource_templates"):
            assert await getattr(client, verb)() == await getattr(other, verb)()


# A store that cannot be opened


def damaged(file):
    file.write_bytes(b"this is no database" * 100)


def newer(file):
    asyncio.run(_made(file))
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 9999")
    db.close()


async def _made(file):
    async with everhold.open(file):
        pass


def a_folder(file):
    file.mkdir()


@pytest.mark.parametrize(
    ("harm", "codes"),
    [
        (damaged, {"store_damaged"}),
        (newer, {"store_newer"}),
        (a_folder, {"store_unavailable", "store_damaged"}),
    ],
)
def test_without_a_store_the_server_starts_and_each_tool_says_why(shop, harm, codes):
    harm(shop / "app.db")

    async def story():
        async with opened() as host:
            assert len((await host.client.list_tools()).tools) >= 10
            assert await host.client.list_prompts()
            for tool, arguments in (
                ("run", {"program": "greet"}),
                ("answer", {"session_id": "s-1", "answers": [{"response": "x"}]}),
                ("status", {"session_id": "s-1"}),
                ("sessions", {}),
            ):
                assert await host.refused(tool, **arguments) in codes
                assert str(shop / "app.db") in host.last["error"]
                assert (
                    "`everhold" not in host.last["hint"]
                    or f"-d {shop / 'app.db'}`" in host.last["hint"]
                )

    asyncio.run(story())


def test_a_session_whose_program_is_gone_says_so_where_next_points(shop):
    """A host that only waits would wait for ever."""
    wire = Wire(shop)
    session = wire.call("run", program="greet")["session_id"]
    wire.close()
    (shop / "shop.py").unlink()
    wire = Wire(shop)
    told = wire.call("answer", session_id=session, answers=[{"response": "Hello."}])
    assert (told["status"], told["next"].startswith("Your answers are recorded; ")) == (
        "accepted",
        True,
    )
    told = wire.call("status", session_id=session)
    assert told["next"].endswith("and `explain` if it does not move.")
    assert (
        "It cannot resume here: no program"
        in wire.call("explain", session_id=session)["because"][1]
    )
    wire.close()


async def test_a_database_that_is_taken_away_is_missed_by_each_tool_until_it_is_back(shop):
    """Else sessions would go on in a file that nobody will ever find."""
    async with opened() as host:
        session = await host.paused("greet")
        (shop / "app.db").rename(shop / "aside.db")
        assert await host.refused("run", program="greet") == "store_unavailable"
        assert (
            await host.refused("answer", session_id=session, answers=[{"response": "x"}])
            == "store_unavailable"
        )
        assert "Restore the file" in host.last["hint"]
        (shop / "aside.db").rename(shop / "app.db")
        assert (await host.call("answer", session_id=session, answers=[{"response": "x"}]))[
            "result"
        ] == "x"


async def test_bad_settings_are_told_by_each_tool_and_mended_while_it_runs(shop):
    good = (shop / "everhold.toml").read_text()
    (shop / "everhold.toml").write_text("databse = 1\n")
    async with opened() as host:
        assert await host.refused("run", program="greet") == "bad_setting"
        assert "did you mean 'database'" in host.text
        assert "retrying will not help" in host.last["hint"]
        (shop / "everhold.toml").write_text(good)
        assert (await host.call("run", program="greet"))["status"] == "needs_response"


READS_ONLY = """
import asyncio
from tests.e2e.mcp_harness import opened
from tests.fault.test_file import unprivileged

async def story():
    async with opened() as host:
        print(await host.refused("run", program="greet"))

unprivileged()
asyncio.run(story())
"""


@pytest.mark.parametrize("what", ["app.db", "."])
async def test_a_database_that_cannot_be_written_says_so(shop, what):
    """Read-only file, or read-only folder; in a process that has no right to overrule that."""
    await _made(shop / "app.db")
    (shop / what).chmod(0o500)
    done = subprocess.run(
        [sys.executable, "-c", READS_ONLY],
        cwd=shop,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    (shop / what).chmod(0o700)
    assert done.stdout.strip() in ("read_only_store", "store_unavailable"), done.stderr


async def test_a_database_that_another_process_locks_says_so_and_is_used_afterwards(shop):
    async with opened() as host:
        session = await host.paused("greet")
        (await host.front.holder.runtime()).store._group._patience = 0.2
        other = sqlite3.connect(shop / "app.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert await host.refused("run", program="greet") == "store_busy"
        assert (await host.call("status", session_id=session))["status"] == "needs_response"
        other.execute("ROLLBACK")
        other.close()
        assert (await host.call("run", program="greet"))["status"] == "needs_response"


# What a call tells while it waits


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_progress_is_told_while_an_answerer_works(mode):
    async def model(query):
        await asyncio.sleep(0.02)
        return f"said {query.id}"

    told = []

    async def hear(progress, total, message):
        told.append((progress, message))

    async with opened(llm=model, mode=mode) as host:
        arguments = {"program": "panel", "args": {"task": "Why?"}}
        result = await host.client.call_tool("run", arguments, progress_callback=hear)
        assert result.structured_content["status"] == "completed"
    assert told
    assert [progress for progress, _ in told] == sorted({progress for progress, _ in told})
    assert all(message for _, message in told)


async def test_logs_of_a_program_reach_a_client_that_asked_for_them(shop):
    heard = []

    async def hear(params):
        heard.append((params.level, params.data))

    async with opened(mode="auto", log_level="info", logging_callback=hear) as host:
        await host.paused("logs")
    async with opened(mode="auto", logging_callback=hear) as host:
        await host.paused("logs")  # did not ask
    async with opened(mode="auto", log_level="error", logging_callback=hear) as host:
        await host.paused("logs")  # asked for worse only
    assert heard == [("warning", "kept in the log")]


async def test_logs_reach_an_older_client_from_the_level_it_set(shop):
    heard = []

    async def hear(params):
        heard.append((params.level, params.data))

    async with opened(mode="legacy", logging_callback=hear) as host:
        await host.client.session.send_request(_level("error"), _empty())
        await host.paused("logs")
        await host.client.session.send_request(_level("debug"), _empty())
        await host.paused("logs")
    assert heard == [("warning", "kept in the log")]


def _level(level):
    from mcp.types import SetLevelRequest, SetLevelRequestParams

    return SetLevelRequest(params=SetLevelRequestParams(level=level))


def _empty():
    from mcp.types import EmptyResult

    return EmptyResult


async def test_a_call_that_the_client_gives_up_is_finished_by_the_server(shop):
    """What was begun lands: the answer is there when somebody looks."""
    async with opened() as host:
        session = await host.paused("greet")
        call = asyncio.ensure_future(
            host.call("answer", session_id=session, answers=[{"response": "Hello"}])
        )
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        for _ in range(200):
            told = await host.call("status", session_id=session)
            if told["status"] == "completed":
                break
            await asyncio.sleep(0.02)
        assert told["status"] in ("completed", "needs_response")
        done = await host.call(
            "answer", session_id=session, answers=[{"id": "q-0", "response": "Hello"}]
        )
        assert done["result"] == "Hello"
