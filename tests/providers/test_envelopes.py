"""A session of fluers, resumed with a real provider's protocol."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import everhold
from everhold.agents import (
    Image,
    ImageData,
    Message,
    Role,
    Text,
    ToolResult,
    ToolUse,
    assistant,
    fluers,
    system,
    user,
)
from everhold.stores import EnvelopeSession
from tests.providers.server import WAYS, Reply, Server

PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d49484452")
SHOWN = {"content": [{"type": "text", "text": "a.txt"}], "details": {"n": 1}}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


@pytest.mark.parametrize("way", WAYS)
async def test_an_imported_session_is_understood_by_a_provider(
    server: Server, way: str, tmp_path: Path
) -> None:
    """Its prompt once, text, images, calls, results and signals; a call that was under way and
    messages without content do no harm.
    """
    server.script(Reply("Sure."))
    session = EnvelopeSession(
        model="theirs",
        max_turns=5,
        system_message="Be brief.",
        messages=(
            system("Be brief."),
            user("What is there?", Image(ImageData("image/png", PIXEL))),
            assistant("I look.", ToolUse("c1", "ls", {"p": "."}), ToolUse("c2", "ls", {})),
            Message(Role.TOOL, (ToolResult("c1", SHOWN),)),
            Message(Role.ASSISTANT),
            Message(Role.USER),
            Message(Role.SIGNAL, (Text("woken"),)),
            assistant("One file."),
        ),
    )
    async with everhold.open(tmp_path / "a.db") as runtime:
        await runtime.envelopes.import_(session, models={"theirs": server.name(way)})
        opened = await runtime.session(fluers, str(session.id))
        turn = await opened.send("And now?")
        assert turn.text == "Sure.", turn

    (request,) = server.requests
    body = json.dumps(request.body)
    assert body.count("Be brief.") == 1
    for words in ("What is there?", "I look.", "a.txt", "no result", "woken", "One file."):
        assert words in body, words
    assert base64.b64encode(PIXEL).decode() in body
    assert body.index("One file.") < body.index("And now?")
    if way == "openai-chat":  # a signal is sent as a system message, as by fluers
        told = [one["role"] for one in request.body["messages"] if "woken" in json.dumps(one)]
        assert told in (["system"], ["developer"])
