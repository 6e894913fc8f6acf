"""MCP servers as sources of tools: real servers, on pipes and over HTTP, that die, stall and list
too much.
"""

import asyncio
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from everhold.agents.agent import Agent
from everhold.core.schema import parse_answer
from everhold.core.turn import TurnCancelled
from everhold.errors import AnswerFailed, AnswerRefused, BadArguments, ToolServerFailed
from everhold.plugins import sanitize
from everhold.plugins.mcp import McpServer
from everhold.ports.tool import OfferedTool, tool
from everhold.testing.clock import ManualClock
from tests.scenario.harness import die, dying, opened, rows
from tests.scenario.talk import Scripted, told, use, uses
from tests.warm import start

ROOT = Path(__file__).parents[2]


def server(folder, *options, name="test", **more):
    command = [*start.python(), "-m", "tests.scenario.mcp_server", str(folder), *options]
    return McpServer(name, command=command, cwd=ROOT, startup=60, **more)


def done(folder):
    return (folder / "done").read_text().splitlines()


async def offer(source, origin):
    return next(one for one in await source.offered() if one.origin == origin)


@contextmanager
def at_an_address(folder):
    """The same server over HTTP."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [*start.python(), "-m", "tests.scenario.mcp_server", str(folder), "--http", str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        for _ in range(600):
            with socket.socket() as reached:
                if reached.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()


async def talk(source, *lines, **options):
    """Hold a turn; returns the conversation's results and what the model was told, call by call."""
    model = Told(*lines)
    agent = Agent(
        instructions="You help.", tools=[source, *options.pop("tools", [])], name="mcp-user"
    )
    async with opened(llm=model, replay=False, **options) as runtime:
        session = await runtime.session(agent, "s")
        for words in ("Go.",) * options.pop("turns", 1):
            await session.send(words)
        return told(await session.history()), model


class Told(Scripted):
    """It also remembers which tools it was told of, and its instructions."""

    def __init__(self, *lines):
        super().__init__(*lines)
        self.tools, self.systems = [], []

    async def __call__(self, query):
        self.tools.append({one["name"]: one for one in (query.options or {}).get("tools", [])})
        self.systems.append(query.system)
        line = await super().__call__(query)
        return await line() if callable(line) else line


# ---- using them


@pytest.mark.process
async def test_tools_of_a_server_on_pipes(tmp_path):
    """They are offered under the server's name, called like any others, and their texts are
    joined.
    """
    calls = uses(("mcp__test__echo", {"text": "hi"}), ("mcp__test__write", {"text": "x"}))
    results, model = await talk(server(tmp_path), calls)
    assert results == ["you said hi", "one\n\ntwo"]
    assert model.tools[0]["mcp__test__echo"]["description"] == "Say it again."
    assert model.tools[0]["mcp__test__echo"]["input_schema"]["required"] == ["text"]


@pytest.mark.process
async def test_tools_of_a_server_at_an_address(tmp_path):
    """The same over HTTP."""
    with at_an_address(tmp_path) as (url, _):
        results, _ = await talk(
            McpServer("web", url=url, headers={"x-key": "1"}), use("mcp__web__echo", text="hi")
        )
    assert results == ["you said hi"]


@pytest.mark.process
async def test_inputs_are_checked_before_they_are_sent(tmp_path):
    """By the schema that the server gave."""
    results, _ = await talk(server(tmp_path), use("mcp__test__echo", text=7))
    assert results == ["Error: input.text should be a string, got 7"]
    assert done(tmp_path) == ["started"]


@pytest.mark.process
async def test_errors_and_pictures(tmp_path):
    """What a server calls an error is one; a picture is shown as a picture."""
    results, _ = await talk(
        server(tmp_path), uses(("mcp__test__fail", {}), ("mcp__test__picture", {}))
    )
    assert results[0] == "Error: it went wrong"
    assert [block["type"] for block in results[1]] == ["text", "image"]


@pytest.mark.process
async def test_the_environment_of_a_server(tmp_path, monkeypatch):
    """It has what it was given and what every program needs, and none of our secrets."""
    monkeypatch.setenv("SECRET_KEY", "x")
    results, _ = await talk(server(tmp_path, env={"GIVEN": "1"}), use("mcp__test__env"))
    assert '"GIVEN"' in results[0] and '"PATH"' in results[0] and "SECRET_KEY" not in results[0]


@pytest.mark.process
async def test_the_agents_own_tools_keep_their_names(tmp_path):
    """A server cannot take the name of a tool that the agent has."""

    @tool(name="mcp__test__echo")
    def mine() -> str:
        """Mine."""
        return "mine"

    results, model = await talk(server(tmp_path), use("mcp__test__echo"), tools=[mine])
    assert results == ["mine"] and "mcp__test__write" in model.tools[0]


# ---- what they offer


@pytest.mark.process
async def test_read_only_tools_are_known_as_such(tmp_path):
    """What a server says of a tool decides what happens to a call whose outcome is unknown."""
    source = server(tmp_path)
    found = {one.origin: source.tool(one) for one in await source.offered()}
    await source.close()
    assert found["echo"].read_only and found["echo"].rerun == "safe"
    assert not found["write"].read_only and found["write"].rerun == "ask"


@pytest.mark.process
@pytest.mark.parametrize("options", [["--many", "300"], ["--many", "300", "--page", "7"]])
async def test_a_server_lists_so_many(tmp_path, options):
    """At most 256, in however many pages."""
    source = server(tmp_path, *options)
    assert len(await source.offered()) == 256
    await source.close()


@pytest.mark.process
async def test_pages_that_never_end(tmp_path):
    """A cursor that comes again ends the list."""
    source = server(tmp_path, "--page", "3", "--loop")
    names = [one.origin for one in await source.offered()]
    await source.close()
    assert len(names) == len(set(names)) == 8


def test_names_as_models_may_know_them():
    """Other characters become underscores; long names stay different."""
    assert (
        sanitize.make_tool_name("My server!", "die quietly/again")
        == "mcp__My_server__die_quietly_again"
    )
    long = [sanitize.make_tool_name("server", "x" * 70 + end) for end in "ab"]
    assert [len(name) for name in long] == [64, 64] and long[0] != long[1]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "string", "pattern": "("},
        {"type": "string", "pattern": "^(a+)+$"},
        {"$ref": "http://somewhere/else"},
        {"$ref": "#/$defs/none"},
        {"type": "banana"},
        {"enum": 5},
        {"minimum": "x"},
        {"items": 7, "required": [1], "properties": []},
        True,
    ],
)
def test_a_strangers_schema_breaks_nothing(part):
    """What cannot be checked here, or should not, is told to the model and left to the server."""
    source = McpServer("a", command=["x"])
    schema = {
        "type": "object",
        "properties": {"a": part, "b": {"type": "integer"}},
        "required": ["b"],
    }
    made = source.tool(OfferedTool("t", "t", schema=schema))
    assert made.spec()["input_schema"] == schema
    assert parse_answer({"a": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "b": 1}, made.schema)["b"] == 1
    with pytest.raises(AnswerRefused):
        parse_answer({"b": "x"}, made.schema)


def test_a_schema_that_is_too_much():
    """A model is told nothing of one that is too long, or none at all."""
    long = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2000)}}
    assert sanitize.limit_schema(long, "t") == {"type": "object"} == sanitize.limit_schema([], "t")
    nested = {"type": "object"}
    for _ in range(50):
        nested = {"type": "object", "properties": {"a": nested}}
    assert str(sanitize.reduce_schema(nested)).count("properties") <= 9
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    assert sanitize.reduce_schema(closed) == closed
    assert "additionalProperties" not in sanitize.reduce_schema({**closed, "anyOf": []})


@pytest.mark.process
async def test_what_is_offered_is_asked_once_a_turn_and_kept_once(tmp_path):
    """Row 2: a tool that comes is there in the next turn; an offer that stays the same is not
    stored again.
    """
    model = Told("One.", "Two.", "Three.")
    agent = Agent(instructions="You help.", tools=[server(tmp_path)], name="mcp-user")
    async with opened(llm=model, replay=False) as runtime:
        session = await runtime.session(agent, "s")
        await session.send("Go.")
        await session.send("Go.")
        (tmp_path / "extra").touch()
        await session.send("Go.")
        kept = await rows(runtime, session.id)
    answers = [
        answer.value for row in kept for answer in row.answers if "digest" in str(answer.value)
    ]
    assert [len(answer.get("offers", [])) for answer in answers] == [8, 0, 9]
    assert ["mcp__test__extra" in told_of for told_of in model.tools] == [False, False, True]


@pytest.mark.process
async def test_a_replay_reaches_no_server(tmp_path):
    """Row 2: what was offered and called comes from the journal, in a process that cannot reach the
    server.
    """
    model = Told(use("mcp__test__echo", text="hi"), "Done.")
    agent = Agent(instructions="You help.", tools=[server(tmp_path)], name="mcp-user")
    async with opened(tmp_path, llm=model, replay=False) as runtime:
        session = await runtime.session(agent, "s")
        await session.send("Go.")
    (tmp_path / "broken").touch()
    before = done(tmp_path)
    async with opened(tmp_path, llm=Told("Again."), replay=False) as runtime:
        session = await runtime.session(agent, "s")
        assert told(await session.history()) == ["you said hi"]
        assert (await session.send("And?")).text == "Again."
    assert before == ["started", 'echo {"text": "hi"}']


# ---- what goes wrong


@pytest.mark.process
async def test_a_server_that_dies_in_a_call(tmp_path):
    """The model is told, and not told that it did not happen; the next call finds it alive."""
    results, _ = await talk(
        server(tmp_path), use("mcp__test__die"), use("mcp__test__echo", text="hi")
    )
    assert results[0].startswith("Error: tool server 'test' failed: ")
    assert "the call was not sent again, and may or may not have run" in results[0]
    assert results[1] == "you said hi" and done(tmp_path).count("started") == 2


@pytest.mark.process
async def test_what_only_reads_is_called_again(tmp_path):
    """A lost call that does no harm is sent once more, to the server as it starts again."""
    results, _ = await talk(server(tmp_path), use("mcp__test__die_quietly_again"))
    assert results == ["alive again"]


@pytest.mark.process
async def test_a_server_that_does_not_start(tmp_path):
    """The turn goes on without its tools; the model is told why, with the server's last words."""
    (tmp_path / "broken").touch()
    results, model = await talk(server(tmp_path), "Sorry.")
    assert results == [] and model.tools == [{}]
    assert (
        "tool server 'test' failed: " in model.systems[0]
        and "the server is broken" in model.systems[0]
    )


@pytest.mark.process
async def test_a_command_that_is_not_there():
    """The same."""
    _, model = await talk(McpServer("none", command=["/nowhere/at-all"]), "Sorry.")
    assert "tool server 'none' failed" in model.systems[0]


async def test_an_address_where_nobody_is():
    """The same."""
    _, model = await talk(McpServer("none", url="http://127.0.0.1:9/mcp"), "Sorry.")
    assert "tool server 'none' failed" in model.systems[0]


@pytest.mark.process
async def test_a_server_that_says_nothing(tmp_path):
    """It has so long to be ready."""
    (tmp_path / "mute").touch()
    source = server(tmp_path)
    source.startup = 2.0
    with pytest.raises(ToolServerFailed, match="not ready within 2 s"):
        await source.offered()


@pytest.mark.process
async def test_a_failed_listing_keeps_what_was_offered(tmp_path):
    """Row 2: the tools stay, so that the model can try; a call says that the server cannot be
    reached.
    """
    with at_an_address(tmp_path) as (url, process):

        async def killed():
            process.kill()
            process.wait()
            return use("mcp__web__echo", text="hi")

        source = McpServer("web", url=url)
        agent = Agent(instructions="You help.", tools=[source], name="mcp-user")
        model = Told("One.", killed, "Two.", "Three.")
        async with opened(llm=model, replay=False) as runtime:
            session = await runtime.session(agent, "s")
            for _ in range(3):
                await session.send("Go.")
            (result,) = told(await session.history())
    assert result.startswith("Error: tool server 'web' failed")
    assert "mcp__web__echo" in model.tools[-1] and "tool server 'web' failed" in model.systems[-1]


@pytest.mark.process
async def test_waiting_longer_after_each_failure(tmp_path):
    """Row 2: a server that failed is not tried again at once, then after 0.5 s, 1 s, … at most
    30.
    """
    (tmp_path / "broken").touch()
    source = server(tmp_path)
    line, waits = source._line(), []
    for _ in range(9):
        line._not_before = 0.0
        with pytest.raises(ToolServerFailed):
            await source.offered() if len(waits) < 2 else await failing(line)
        waits.append(line._wait)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    line._not_before = asyncio.get_running_loop().time() + 20
    with pytest.raises(ToolServerFailed, match="the next try is possible in"):
        await source.offered()
    assert done(tmp_path).count("started") == 2


async def failing(line):
    """As if it had been tried once more, without the cost of a process."""
    line._server.command = ("/nowhere/at-all",)
    return await line._connected()


@pytest.mark.process
async def test_a_call_that_takes_too_long(tmp_path):
    """It is given up after its time, and the server can be used again."""
    for timeout in (2.0, 20.0):  # a busy machine may need more for the second call
        source = server(tmp_path, timeout=timeout)
        (stalled, said), _ = await talk(
            source, use("mcp__test__stall"), use("mcp__test__echo", text="hi")
        )
        assert stalled == f"Error: mcp__test__stall took longer than {timeout:g} s"
        if said == "you said hi":
            return
    raise AssertionError(said)


@pytest.mark.process
async def test_a_call_is_cancelled_with_its_turn(tmp_path):
    """The server is told that nobody waits any more."""
    agent = Agent(instructions="You help.", tools=[server(tmp_path)], name="mcp-user")
    async with opened(llm=Told(use("mcp__test__stall"), "Later."), replay=False) as runtime:
        session = await runtime.session(agent, "s")
        going = asyncio.ensure_future(session.send("Go."))
        while not (tmp_path / "done").exists() or "stall {}" not in done(tmp_path):
            await asyncio.sleep(0.05)
        turn = await session.cancel_turn("enough")
        assert isinstance(turn.outcome, TurnCancelled)
        await going
        for _ in range(1200):
            if "stall was cancelled" in done(tmp_path):
                break
            await asyncio.sleep(0.05)
        assert (await session.send("And now?")).text == "Later."
    assert "stall was cancelled" in done(tmp_path)


@pytest.mark.process
async def test_a_call_whose_process_died_is_a_persons_to_decide(tmp_path):
    """Killed in the middle of a call that may have been done, everhold asks before it is sent
    again.
    """
    clock, home = ManualClock(), tmp_path / "home"
    home.mkdir()
    agent = Agent(instructions="You help.", tools=[server(tmp_path)], name="mcp-user")
    runtime = await dying(home, clock, llm=Told(use("mcp__test__stall")))
    session = await runtime.session(agent, "s")
    going = asyncio.ensure_future(session.send("Go.", id="one"))
    while not (tmp_path / "done").exists() or "stall {}" not in done(tmp_path):
        await asyncio.sleep(0.05)
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)
    await die(runtime, clock)
    async with opened(home, clock=clock, llm=Told("Done."), replay=False) as runtime:
        session = await runtime.session(agent, "s")
        turn = await session.turn("one")
        assert turn.waiting and "mcp__test__stall" in turn.queries[0].prompt
    assert done(tmp_path).count("stall {}") == 1


@pytest.mark.process
async def test_an_unknown_tool_of_the_server(tmp_path):
    """What the server refuses is an error of the tool, not of the server."""
    source = server(tmp_path)
    found = await offer(source, "echo")
    with pytest.raises(AnswerFailed):
        await source.call(type(found)("mcp__test__gone", "gone"), {})
    assert await source.call(found, {"text": "x"}) == "you said x"
    await source.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "", "command": ["x"]}, "a letter or a digit"),
        ({"name": "a"}, "either command, as a list of words, or url"),
        (
            {"name": "a", "command": ["x"], "url": "http://x"},
            "either command, as a list of words, or url",
        ),
        ({"name": "a", "command": "run this"}, "a list of words"),
        ({"name": "a", "url": "ftp://x"}, "must begin with http"),
        ({"name": "a", "url": "http://x", "env": {"A": "1"}}, "neither env nor cwd"),
        ({"name": "a", "command": ["x"], "headers": {"A": "1"}}, "headers are only for url"),
        ({"name": "a", "command": ["x"], "timeout": 0}, "must be a number > 0"),
    ],
)
def test_servers_that_cannot_be(given, words):
    """What does not make sense is refused when the server is named."""
    with pytest.raises(BadArguments, match=words):
        McpServer(**given)


def test_two_sources_of_one_name():
    """They are refused: nobody could tell their tools apart."""
    with pytest.raises(BadArguments, match="two tool sources have the name 'a'"):
        Agent(tools=[McpServer("a", command=["x"]), McpServer("a", command=["y"])])


def test_secrets_are_not_shown():
    """Whoever prints a server sees its name."""
    assert (
        repr(McpServer("a", url="http://x", headers={"authorization": "secret"}))
        == "McpServer('a')"
    )
