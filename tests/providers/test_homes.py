"""Providers as they are at home: their own variables and keys, models that they are known to have,
and options.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from everhold.core.query import Query
from everhold.models import Model
from tests.providers import wire
from tests.providers.server import Raw, Reply, Server

HOMES = {
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "/v1", "openai-responses"),
    "openai-chat": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "/v1", "openai-chat"),
    "openai-responses": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "/v1", "openai-responses"),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "", "anthropic"),
    "google": ("GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "", "google"),
}
OBJECT = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


async def ask(model: Model, query: Query) -> Any:
    try:
        return await model.answer(query, "s-1")
    finally:
        await model.close()


@pytest.mark.parametrize("provider", HOMES)
async def test_a_provider_gets_its_own_key_at_its_own_address(
    server: Server, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`openai` speaks the Responses API there."""
    key, base, path, way = HOMES[provider]
    monkeypatch.setenv(key, "the-real-key")
    monkeypatch.setenv(base, server.url + path)
    server.script(Reply("Paris."))
    said = await ask(Model(f"{provider}:some-model"), Query(0, "0:0", "Where?"))

    assert said.value == "Paris."
    assert server.requests[0].way == way
    assert "the-real-key" in json.dumps(server.requests[0].headers)


async def test_at_another_address_openai_means_the_chat_that_others_speak(server: Server) -> None:
    server.script(Reply("Paris."))
    await ask(Model(f"openai:some-model@{server.url}/v1"), Query(0, "0:0", "Where?"))

    assert server.requests[0].way == "openai-chat"


KNOWN = {
    "openai-chat": ("gpt-5-mini", lambda body: body["response_format"]["json_schema"]["schema"]),
    "openai-responses": ("gpt-5-mini", lambda body: body["text"]["format"]["schema"]),
    "anthropic": ("claude-sonnet-4-6", lambda body: body["output_config"]["format"]["schema"]),
    "google": ("gemini-2.5-flash", lambda body: body["generationConfig"]["responseJsonSchema"]),
}


@pytest.mark.parametrize("way", KNOWN)
async def test_a_model_that_can_is_held_to_the_form(server: Server, way: str) -> None:
    """By the provider itself, and not by asking nicely."""
    model, schema = KNOWN[way]
    server.script(Reply('{"city": "Paris"}'))
    said = await ask(Model(server.name(way, model)), Query(0, "0:0", "Where?", schema=OBJECT))

    assert said.value == {"city": "Paris"}
    assert schema(server.requests[0].body)["properties"]["city"]["type"] == "string"


THINKS = {
    "openai-chat": ("gpt-5-mini", lambda body: body["reasoning_effort"] == "low"),
    "openai-responses": ("gpt-5-mini", lambda body: body["reasoning"]["effort"] == "low"),
    "anthropic": (
        "claude-sonnet-4-6",
        lambda body: body["thinking"]["type"] in ("adaptive", "enabled"),
    ),
    "google": (
        "gemini-2.5-flash",
        lambda body: body["generationConfig"]["thinkingConfig"]["thinking_budget"] > 0,
    ),
}


@pytest.mark.parametrize("way", THINKS)
async def test_thinking_is_asked_for_as_each_provider_wants_it(server: Server, way: str) -> None:
    model, fits = THINKS[way]
    server.script(Reply("Paris."))
    query = Query(0, "0:0", "Where?", max_tokens=8000, options={"thinking": "low"})
    await ask(Model(server.name(way, model)), query)

    assert fits(server.requests[0].body)


@pytest.mark.parametrize("way", ["openai-chat", "openai-responses", "anthropic"])
async def test_what_only_the_server_knows_goes_into_the_body(server: Server, way: str) -> None:
    """What a question says in `extra` goes before what the answerer says for all, name by name."""
    server.script(Reply("Paris."))
    model = Model(
        server.name(way),
        extra={"guided": "for all", "speed": 3},
        temperature=0.9,
        extra_headers={"x-team": "blue"},
    )
    options = {"extra": {"guided": "for this"}}
    await ask(model, Query(0, "0:0", "Where?", options=options))

    request = server.requests[0]
    assert (request.body["guided"], request.body["speed"]) == ("for this", 3)
    assert request.body["temperature"] == 0.9
    assert request.headers["x-team"] == "blue"


async def test_an_option_of_one_provider_is_a_setting_of_that_provider(server: Server) -> None:
    """It is sent as the library sends it, and no other provider gets it."""
    options: dict[str, Any] = {"extra": {"openai_user": "u-1"}}
    bodies = []
    for way in ("openai-chat", "anthropic"):
        server.script(Reply("Paris."))
        await ask(Model(server.name(way)), Query(0, "0:0", "Where?", options=options))
        bodies.append(server.requests[-1].body)

    assert bodies[0]["user"] == "u-1"
    assert "openai_user" not in bodies[0]
    assert not {"user", "openai_user"} & bodies[1].keys()


async def test_the_body_of_a_question_that_an_earlier_version_stored_is_sent(
    server: Server,
) -> None:
    server.script(Reply("Paris."))
    options = {"extra_body": {"guided": "for this"}}
    await ask(
        Model(server.name("openai-chat"), extra={"guided": "for all", "speed": 3}),
        Query(0, "0:0", "Where?", options=options),
    )

    body = server.requests[0].body
    assert (body["guided"], body["speed"]) == ("for this", 3)


def _broken(way: str) -> bytes:
    """A stream with an error in its middle, as each provider says it."""
    events = {
        "openai-chat": wire.chat_events,
        "openai-responses": wire.responses_events,
        "anthropic": wire.anthropic_events,
        "google": wire.google_events,
    }[way](Reply("Paris, of course, what else?"))
    error: dict[str, Any] = {
        "message": "overloaded",
        "type": "server_error",
        "code": "server_error",
        "param": None,
    }
    said = {
        "openai-chat": wire.sse(None, {"error": error}),
        "openai-responses": wire.sse("error", {"type": "error", "sequence_number": 9, **error}),
        "anthropic": wire.sse(
            "error",
            {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}},
        ),
        "google": wire.sse(
            None, {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
        ),
    }[way]
    return b"".join(events[:3]) + said


@pytest.mark.parametrize("way", KNOWN)
async def test_an_error_in_the_middle_of_a_stream_is_no_answer(server: Server, way: str) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    server.script(Raw(_broken(way)), Reply("Paris."))
    said = await ask(
        Model(server.name(way), sleep=sleep, random=lambda: 0.0), Query(0, "0:0", "Where?")
    )

    assert said.value == "Paris."
    assert slept == [2.0]
