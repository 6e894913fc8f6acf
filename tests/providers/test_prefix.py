"""The beginning of a request never changes while a conversation grows, so that the prompt caches of
providers work.
"""

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold.agents import tool
from tests.providers.server import WAYS, Reply, Request, Server

#: Where each way to speak has the messages, and what comes before them in the provider's cache.
MESSAGES = {
    "openai-chat": "messages",
    "openai-responses": "input",
    "anthropic": "messages",
    "google": "contents",
}
BEFORE = ("system", "systemInstruction", "instructions", "tools")
ROUNDS = 50
TURNS = 5


@tool(read_only=True)
async def weather(city: str, days: int = 1) -> dict[str, Any]:
    """Tell the weather."""
    await asyncio.sleep(0.002 * (days % 3))  # results arrive in another order than they were asked
    if city == "Atlantis":
        raise LookupError("it has sunk")
    return {"wind": {"knots": 3.0, "from": "NW"}, "city": city, "air": [21, 20.5, None, "ünclear"]}


@tool(read_only=True)
async def note(text: str) -> str:
    """Write something down."""
    return f'noted "{text}"\n'


agent = everhold.Agent(
    instructions="You watch the weather.", tools=[weather, note], max_turns=20, name="watcher"
)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


def replies() -> Iterator[Reply]:
    """What the model says: 50 rounds in five turns."""
    for n in range(ROUNDS):
        if (n + 1) % (ROUNDS // TURNS) == 0:
            yield Reply(f"That was round {n}.")
        elif n % 3 == 0:
            calls = [
                (f"c{n}-{k}", "weather", {"days": k, "city": city})
                for k, city in enumerate(("Paris", "Atlantis", "Łódź"))
            ]
            yield Reply("I look.", thinking="Where?", tools=calls)
        else:
            yield Reply(tools=[(f"c{n}", "note", {"text": f"round {n}"})])


def message_bytes(request: Request, way: str) -> bytes:
    """The bytes of the messages in the body, without the bracket that closes them."""
    mark = f'"{MESSAGES[way]}":'.encode()
    start = request.raw.index(mark) + len(mark)
    text = request.raw[start:].decode()
    opening = len(text) - len(text.lstrip())
    _, end = json.JSONDecoder().raw_decode(text, opening)
    assert text[end - 1] == "]"
    return text[opening : end - 1].rstrip().encode()


@pytest.mark.parametrize("way", WAYS)
async def test_each_request_begins_with_the_bytes_of_the_one_before(
    server: Server, way: str, tmp_path: Path
) -> None:
    """Over 50 rounds with parallel tools, errors, options, steering and restarts: messages are only
    added, and what comes before them stays the same.
    """
    server.script(*replies())
    for turn in range(TURNS):
        async with everhold.open(tmp_path / "a.db", llm=server.name(way)) as runtime:
            session = await runtime.session(agent, "chat")
            if turn == 2:
                await session.configure({"temperature": 0.5})
            going = asyncio.ensure_future(session.send(f"Watch, please: {turn}", id=f"i-{turn}"))
            while len(server.requests) < turn * (ROUNDS // TURNS) + 3 and not going.done():
                await asyncio.sleep(0.01)
            await session.steer("And be quick.", id=f"quick-{turn}")
            assert (await going).text.startswith("That was round")

    assert len(server.requests) == ROUNDS
    sent = [message_bytes(request, way) for request in server.requests]
    for n, (one, after) in enumerate(pairwise(sent)):
        differing = (at for at, byte in enumerate(one) if after[at : at + 1] != bytes([byte]))
        same = next(differing, len(one))
        assert same == len(one) < len(after), (
            f"request {n + 2} differs: {one[same - 200 : same + 100]!r}"
            f" became {after[same - 200 : same + 100]!r}"
        )
    first = {name: server.requests[0].body.get(name) for name in BEFORE}
    assert first["tools"]
    for request in server.requests:
        assert json.dumps({name: request.body.get(name) for name in BEFORE}) == json.dumps(first)
