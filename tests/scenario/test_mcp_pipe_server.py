"""The server on pipes answers without the `mcp` library as with it.

Each test sends the same lines to both, and compares what they write.
"""

import asyncio
import json
import re

import pytest

from everhold.mcp import make_front
from everhold.mcp.pipe_server import FIRST_ID
from everhold.mcp.protocol import HANDSHAKE_VERSIONS, LOG_LEVELS
from everhold.mcp.stdio import serve_client

PROGRAMS = """
import everhold


@everhold.program
async def ask(ctx: everhold.Context, topic: str = "tea") -> str:
    ctx.progress(1, 2)
    ctx.log("begun")
    return await ctx.llm(f"One sentence about {topic}.")


@everhold.program
async def person(ctx: everhold.Context) -> str:
    return await ctx.input("Your name?")


@everhold.program
async def sleeps(ctx: everhold.Context) -> str:
    await ctx.sleep(40)
"""
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
#: What differs between two servers that do the same.
VARIES = re.compile(
    r"v1\.[\w.-]+|s-[0-9a-f]{16}(-[0-9a-f]{24})?|\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)"
    r"|\b1[6-9]\d{8}(\d{3})?\b"
    r'|(?<=_ms)(\\?": *)\d+|(?<=_at)(\\?": *)[\d.]+'
)


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(PROGRAMS)
    (tmp_path / "everhold.toml").write_text('programs = ["shop.py"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALC_HOME", str(tmp_path / "alc"))
    monkeypatch.setenv("EVERHOLD_DATA", str(tmp_path / "data"))


class Pipes:
    """A client's end of a server. Lines may be callables that take what was written before."""

    def __init__(self, lines):
        self.written = []
        self._lines = list(lines)
        self._news = asyncio.Event()
        self._waits = 0

    async def line(self):
        while self._lines:
            made = self._lines.pop(0)
            if callable(made):
                made = made(self.written)
            if isinstance(made, Exception):
                raise made
            if isinstance(made, bytes):
                return made
            if made is None:  # wait for one more message
                self._waits += 1
                async with asyncio.timeout(20):
                    while len(self.written) < self._waits:
                        self._news.clear()
                        await self._news.wait()
                continue
            return json.dumps({"jsonrpc": "2.0", **made}).encode() + b"\n"
        return b""

    async def write(self, line):
        self.written.append(json.loads(line))
        self._news.set()


async def converse(lines, profile, *, direct):
    """What a server writes, and whether the library was used."""
    front = make_front("memory://", None, profile)
    pipes, used = Pipes(lines), []
    make = front.server
    front.server = lambda **how: used.append(how) or make(**how)
    try:
        await serve_client(front, pipes.line, pipes.write, direct=direct)
    finally:
        await front.close()
    return pipes.written, bool(used)


async def same(*lines, profile="default", library=None):
    """Converse with both servers, compare, and return what was written."""
    ours, used = await converse(lines, profile, direct=True)
    theirs, must = await converse(lines, profile, direct=False)
    assert must
    if library is not None:
        assert used is library
    assert [show(message) for message in ours] == [show(message) for message in theirs]
    return ours


def show(message):
    words = json.dumps(message, sort_keys=True, indent=1)
    return VARIES.sub("…", words.replace(str(FIRST_ID), "1"))


def hello(version="2025-11-25", capabilities=None, **more):
    """A handshake. The client waits for the answer."""
    params = {
        "protocolVersion": version,
        "capabilities": capabilities or {},
        "clientInfo": {"name": "test", "version": "1", **more},
    }
    return (
        {"id": 0, "method": "initialize", "params": params},
        None,
        {"method": "notifications/initialized"},
    )


def request(number, method, **params):
    """A request whose answer the client awaits."""
    return ({"id": number, "method": method, **({"params": params} if params else {})}, None)


def call(number, name, **arguments):
    return request(number, "tools/call", name=name, arguments=arguments)


def modern(lines, **meta):
    """The lines with an envelope in each request."""
    for line in lines:
        if isinstance(line, dict) and "id" in line and "method" in line:
            if not isinstance(params := line.get("params", {}), dict):
                params = {}
            line = {**line, "params": {**params, "_meta": {**ENVELOPE, **meta}}}
        yield line


EVERYDAY = [
    *request(1, "ping"),
    *request(2, "tools/list"),
    *request(3, "resources/list"),
    *request(4, "resources/templates/list"),
    *request("five", "resources/read", uri="nothing://here"),
    *call(6, "no tool"),
]
DEFAULT = [
    *EVERYDAY,
    *request(10, "prompts/list"),
    *request(11, "prompts/get", name="cot", arguments={"task": "tea"}),
    *request(12, "prompts/get", name="cot"),
    *request(13, "prompts/get", name="nothing"),
    *request(14, "resources/read", uri="everhold://guide"),
    *call(15, "strategies"),
    *call(16, "run", program="nothing"),
    *call(17, "run", nonsense=1),
    *call(18, "run", program="ask", args={"topic": "snow ☃"}, title="a title"),
    *call(20, "sessions"),
    *call(21, "status", session_id="nothing"),
]
ALGOCLINE = [
    *EVERYDAY,
    *request(10, "resources/read", uri="alc://types/alc.d.lua"),
    *request(11, "resources/read", uri="alc://packages/nothing/meta"),
    *request(12, "resources/read", uri="alc://../x"),
    *call(13, "alc_run", code="return 1"),
    *call(14, "alc_run", code=1),
    *call(15, "alc_run", code="return alc.llm('Well?')"),
    *call(16, "alc_pkg_list"),
    *call(17, "alc_continue", session_id="nothing", response="x"),
]


@pytest.mark.parametrize("version", [*HANDSHAKE_VERSIONS, "1999-01-01"])
async def test_every_day_of_the_default_profile(version):
    told = await same(*hello(version), *DEFAULT, library=False)
    assert len(told) == 1 + len(DEFAULT) // 2


@pytest.mark.process
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25"])
async def test_every_day_of_the_other_profile(version):
    await same(*hello(version), *ALGOCLINE, profile="algocline", library=False)


async def test_every_day_of_the_default_profile_with_envelopes():
    lines = [*request(0, "server/discover"), *(x for x in DEFAULT[2:])]
    told = await same(*modern(lines), library=False)
    assert all(message["result"]["resultType"] for message in told if "result" in message)


@pytest.mark.process
async def test_every_day_of_the_other_profile_with_envelopes():
    lines = [*request(0, "server/discover"), *ALGOCLINE[2:]]
    await same(*modern(lines), profile="algocline", library=False)


def answer_last(number, **answer):
    """Answers the first question of the last result."""

    def made(written):
        shown = written[-1]["result"]["structuredContent"]
        answers = [{"id": shown["questions"][0]["id"], **answer}]
        params = {
            "name": "answer",
            "arguments": {"session_id": shown["session_id"], "answers": answers},
        }
        line = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        return json.dumps(line).encode() + b"\n"

    return (made, None)


async def test_a_question_and_its_answer():
    told = await same(
        *hello(), *call(1, "run", program="ask"), *answer_last(2, response="Warm."), library=False
    )
    assert told[-1]["result"]["structuredContent"]["result"] == "Warm."


@pytest.mark.parametrize("level", ["debug", "error"])
async def test_progress_and_logs(level):
    """The client that has asked for them gets them, as many as with the library."""
    params = {"name": "run", "arguments": {"program": "ask"}, "_meta": {"progressToken": "p-1"}}
    told = await same(
        *hello(),
        *request(1, "logging/setLevel", level=level),
        {"id": 2, "method": "tools/call", "params": params},
        library=False,
    )
    logs = [message for message in told if message.get("method") == "notifications/message"]
    assert [one["params"]["data"] for one in logs] == (["begun"] if level == "debug" else [])


async def test_a_person_is_asked():
    """The client shows a form, and its reply is the answer."""

    def reply(written):
        asked = written[-1]
        assert asked["method"] == "elicitation/create"
        result = {"action": "accept", "content": {"answer": "Ann"}}
        return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode() + b"\n"

    told = await same(
        *hello(capabilities={"elicitation": {}}),
        *call(1, "run", program="person"),
        reply,
        library=False,
    )
    assert told[-1]["result"]["structuredContent"]["result"] == "Ann"


@pytest.mark.parametrize(
    "outcome",
    [
        {"result": {"action": "decline"}},
        {"result": {"action": "nonsense"}},
        {"error": {"code": -1, "message": "no"}},
        {"error": {"code": "x"}},
        {"result": 7},
        {},
    ],
)
async def test_a_person_does_not_answer(outcome):
    def reply(written):
        line = {"jsonrpc": "2.0", "id": written[-1]["id"], **outcome}
        return json.dumps(line).encode() + b"\n"

    told = await same(
        *hello(capabilities={"elicitation": {"form": {}}}),
        *call(1, "run", program="person"),
        reply,
        None,
    )
    assert any(message.get("id") == 1 and "result" in message for message in told)


async def test_a_cancelled_request_is_not_answered():
    told = await same(
        *hello(),
        {
            "id": 1,
            "method": "tools/call",
            "params": {"name": "run", "arguments": {"program": "sleeps", "wait": 60}},
        },
        {"method": "notifications/cancelled", "params": {"requestId": 1, "reason": "enough"}},
        *request(2, "ping"),
        library=False,
    )
    assert [message["id"] for message in told] == [0, 2]


#: Messages that only the library judges.
UNUSUAL = {
    "not JSON": b"{nonsense\n",
    "bytes": b"\xff\xfe\n",
    "a batch": b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]\n',
    "a number": b"7\n",
    "a key twice": b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "ping"}\n',
    "NaN": b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": NaN}}\n',
    "another version of JSON-RPC": b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}\n',
    "no version of JSON-RPC": b'{"id": 1, "method": "ping"}\n',
    "an id that is null": {"id": None, "method": "ping"},
    "an id that is true": {"id": True, "method": "ping"},
    "an id that is a fraction": {"id": 1.5, "method": "ping"},
    "a method that is a number": {"id": 1, "method": 7},
    "parameters in a list": {"id": 1, "method": "ping", "params": []},
    "parameters that are null": {"id": 1, "method": "ping", "params": None},
    "another key": {"id": 1, "method": "ping", "more": 1},
    "a method and a result": {"id": 1, "method": "ping", "result": {}},
    "an unknown method": {"id": 1, "method": "nothing/here"},
    "a method without a handler": {
        "id": 1,
        "method": "completion/complete",
        "params": {
            "ref": {"type": "ref/prompt", "name": "cot"},
            "argument": {"name": "a", "value": "b"},
        },
    },
    "an unknown notification": {"method": "notifications/nothing"},
    "meta that is a list": {"id": 1, "method": "tools/list", "params": {"_meta": []}},
    "a token that is a fraction": {
        "id": 1,
        "method": "tools/list",
        "params": {"_meta": {"progressToken": 1.5}},
    },
    "a token that is an object": {
        "id": 1,
        "method": "tools/list",
        "params": {"_meta": {"progressToken": {}}},
    },
    "a call without a name": {"id": 1, "method": "tools/call", "params": {}},
    "a call whose name is a number": {"id": 1, "method": "tools/call", "params": {"name": 1}},
    "a call whose arguments are a list": {
        "id": 1,
        "method": "tools/call",
        "params": {"name": "strategies", "arguments": []},
    },
    "a call as a task": {
        "id": 1,
        "method": "tools/call",
        "params": {"name": "strategies", "task": {"ttl": 1}},
    },
    "a cursor that is a number": {"id": 1, "method": "tools/list", "params": {"cursor": 1}},
    "a prompt with a number": {
        "id": 1,
        "method": "prompts/get",
        "params": {"name": "cot", "arguments": {"task": 1}},
    },
    "a level that is none": {"id": 1, "method": "logging/setLevel", "params": {"level": "loud"}},
    "a second handshake": hello()[0] | {"id": 1},
    "a handshake without a version": {"id": 1, "method": "initialize", "params": {}},
    "an envelope after a handshake": {
        "id": 1,
        "method": "tools/list",
        "params": {"_meta": ENVELOPE},
    },
    "a reply to nothing": {"id": 99, "result": {}},
    "a reply that is no object": {"id": 99, "result": 1},
    "a discovery without an envelope": {"id": 1, "method": "server/discover"},
    "the subscription of a resource": {
        "id": 1,
        "method": "resources/subscribe",
        "params": {"uri": "everhold://guide"},
    },
    "a cancellation of a list": {
        "method": "notifications/cancelled",
        "params": {"requestId": [1]},
    },
    "a line that is too long": ValueError("Separator is not found"),
}
#: Of them, those that get no answer.
UNANSWERED = (
    "an unknown notification",
    "a method and a result",
    "a reply to nothing",
    "a reply that is no object",
    "a cancellation of a list",
)


@pytest.mark.parametrize("what", UNUSUAL)
async def test_the_library_serves_what_is_unusual_and_all_that_follows(what):
    after = [*call(90, "run", program="ask"), *answer_last(91, response="x"), *request(92, "ping")]
    waits = [] if what in UNANSWERED else [None]
    told = await same(*hello(), *request(80, "tools/list"), UNUSUAL[what], *waits, *after)
    assert told[-1] == {"jsonrpc": "2.0", "id": 92, "result": {}}


@pytest.mark.parametrize("what", UNUSUAL)
async def test_what_is_unusual_with_envelopes(what):
    lines = list(modern([*request(80, "server/discover"), UNUSUAL[what]]))
    waits = [] if what in UNANSWERED else [None]
    await same(*lines, *waits, *modern(call(90, "strategies")))


@pytest.mark.parametrize("what", [name for name in UNUSUAL if name not in UNANSWERED])
async def test_what_is_unusual_as_the_first_message(what):
    usual = what in ("a second handshake", "an envelope after a handshake")
    await same(UNUSUAL[what], None, library=not usual)


@pytest.mark.parametrize(
    "meta",
    [
        {"io.modelcontextprotocol/protocolVersion": "2099-01-01"},
        {"io.modelcontextprotocol/protocolVersion": 7},
        {"io.modelcontextprotocol/clientInfo": {"name": 7}},
        {"io.modelcontextprotocol/clientInfo": None},
        {"io.modelcontextprotocol/clientCapabilities": None},
        {"io.modelcontextprotocol/clientCapabilities": {"roots": 7}},
        {"io.modelcontextprotocol/clientCapabilities": {"sampling": {}}},
        {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}},
        {
            "io.modelcontextprotocol/clientCapabilities": {
                "extensions": {"io.modelcontextprotocol/tasks": {}},
                "sampling": {},
            }
        },
        {"io.modelcontextprotocol/logLevel": "debug"},
        {"io.modelcontextprotocol/logLevel": "loud"},
        {"progressToken": 7},
    ],
)
async def test_envelopes(meta):
    """Of every kind, before and after one that is usual."""
    mine = request(1, "tools/call", name="run", arguments={"program": "ask"})[:1]
    await same(*modern(mine, **meta))
    await same(*modern(request(0, "tools/list")), *modern(mine, **meta))


@pytest.mark.parametrize(
    "capabilities",
    [
        {"roots": {"listChanged": True}, "experimental": {"x": {"y": 1}}, "other": 7},
        {"roots": {"listChanged": "yes"}},
        {"roots": []},
        {"sampling": {"tools": {}, "context": {}}},
        {"sampling": True},
        {"elicitation": {"form": {}, "url": {}}},
        {"elicitation": None},
        {"tasks": {"list": {}, "requests": {"sampling": {"createMessage": {}}}}},
        {"tasks": 7},
        {"experimental": {"x": 1}},
    ],
)
async def test_handshakes(capabilities):
    await same(
        {
            "id": 0,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities,
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        None,
    )


@pytest.mark.parametrize(
    "info",
    [
        {"title": "Test", "websiteUrl": "https://example.com", "more": 1},
        {"icons": [{"src": "data:", "sizes": ["48x48"], "mimeType": "image/png"}]},
        {"icons": [{"sizes": "any"}]},
        {"icons": {}},
        {"name": None},
        {"version": 1},
        {"title": 7},
        {"description": None},
    ],
)
async def test_names_of_clients(info):
    await same(*hello(**info)[:2])


@pytest.mark.parametrize("level", LOG_LEVELS)
async def test_the_library_knows_the_level_of_logs_that_was_set_before(level):
    """A message for the library comes between the level and the call."""
    told = await same(
        *hello(),
        *request(1, "logging/setLevel", level=level),
        *request(2, "nothing/here"),
        {
            "id": 3,
            "method": "tools/call",
            "params": {"name": "run", "arguments": {"program": "ask"}},
        },
        library=True,
    )
    logs = sum(message.get("method") == "notifications/message" for message in told)
    assert logs == (level in ("debug", "info"))


async def test_a_form_that_was_shown_before_is_answered_after():
    """The reply to a request of ours comes when the library has the connection."""

    def reply(written):
        asked = next(message for message in written if "method" in message)
        result = {"action": "accept", "content": {"answer": "Ann"}}
        return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode() + b"\n"

    told = await same(
        *hello(capabilities={"elicitation": {}}),
        *call(1, "run", program="person"),
        *request(2, "nothing/here"),
        reply,
        None,
        library=True,
    )
    assert told[-1]["result"]["structuredContent"]["result"] == "Ann"


async def test_a_call_that_began_before_is_cancelled_after():
    told = await same(
        *hello(),
        {
            "id": 1,
            "method": "tools/call",
            "params": {"name": "run", "arguments": {"program": "sleeps", "wait": 60}},
        },
        *request(2, "nothing/here"),
        {"method": "notifications/cancelled", "params": {"requestId": 1}},
        *request(3, "ping"),
        library=True,
    )
    assert [message["id"] for message in told] == [0, 2, 3]
