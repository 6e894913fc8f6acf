"""Every provider, spoken to as it wants to be: what is asked, what is answered, and what goes
wrong.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from everhold import Retry
from everhold.core.query import Query, QueryAnswer, Usage
from everhold.errors import AnswerFailed, ProviderUnconfigured
from everhold.models import Model
from everhold.ports.answerer import Answer
from everhold.ports.stream import Delta, DeltaKind, subscribe
from tests.providers import wire
from tests.providers.server import WAYS, Cut, Fail, Raw, Reply, Server, Stall

ways = pytest.mark.parametrize("way", WAYS)
streams = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

SEARCH = {
    "name": "search",
    "description": "Look something up.",
    "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # noqa: E501
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


class Waits:
    """A clock that only counts."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def never() -> float:
    """Dice that take nothing off a wait."""
    return 0.0


async def ask(model: Model, query: Query, session_id: str = "s-1") -> Any:
    try:
        return await model.answer(query, session_id)
    finally:
        await model.close()


def plain(prompt: str = "The capital of France?", **more: Any) -> Query:
    return Query(3, "0:3", prompt, **more)


def turn(*messages: Any, **more: Any) -> Query:
    """A query of an agent: stored by reference, asked in full."""
    return Query(3, "0:3", messages=list(messages), args={"leaf": "1.0"}, **more)


# ---- what is answered


@ways
@streams
async def test_a_question_gets_words(server: Server, way: str, stream: bool) -> None:
    """Text is text, whatever the model thought before, and the usage is the provider's own
    count.
    """
    server.script(Reply("Paris.", thinking="France?", cached=40, reasoning=7))
    said = await ask(Model(server.name(way), stream=stream), plain())

    assert said == Answer("Paris.", Usage(100, 20, 40, 0, 7, "the-model-itself"))
    assert server.requests[0].streams is stream


@ways
@streams
async def test_a_conversation_gets_blocks(server: Server, way: str, stream: bool) -> None:
    """Thinking, words and tool calls come as blocks, with the provider's id for the call."""
    server.script(
        Reply("Let me see.", thinking="Hm.", tools=[("call-1", "search", {"q": "Paris"})])
    )
    query = turn({"role": "user", "content": "Look it up."}, options={"tools": [SEARCH]})
    said = await ask(Model(server.name(way), stream=stream), query)

    thinking, words, call = said.value["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Hm.")
    assert (words["type"], words["text"]) == ("text", "Let me see.")
    assert (call["type"], call["id"], call["name"], call["input"]) == (
        "tool_use",
        "call-1",
        "search",
        {"q": "Paris"},
    )


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("openai-responses", (40, 10)),
        ("anthropic", (40, 10)),
        ("openai-chat", (40, 0)),
        ("google", (40, 0)),
    ],
)
async def test_what_was_cached_is_counted(
    server: Server, way: str, expected: tuple[int, int]
) -> None:
    """Reads everywhere, writes where the provider says."""
    server.script(Reply("Yes.", cached=40, written=10))
    said = await ask(Model(server.name(way)), plain())

    assert said.usage.prompt_tokens == 100
    assert (said.usage.cache_read_tokens, said.usage.cache_write_tokens) == expected


@ways
async def test_what_is_said_is_heard_meanwhile(server: Server, way: str) -> None:
    """Deltas put together are the answer, and the last one says that it is whole."""
    server.script(
        Reply("Let me see.", thinking="Hm, hm, hm.", tools=[("call-1", "search", {"q": "Paris"})])
    )
    query = turn({"role": "user", "content": "Look it up."}, options={"tools": [SEARCH]})
    with subscribe("s-1") as listener:
        await ask(Model(server.name(way)), query)
        heard = []
        while (one := listener.take()) is not None:
            assert one[0] == "q-3"
            heard.append(one[1])

    def whole(kind: DeltaKind) -> str:
        return "".join(delta.text for delta in heard if delta.kind is kind)

    assert whole(DeltaKind.TEXT) == "Let me see."
    assert whole(DeltaKind.THINKING) == "Hm, hm, hm."
    assert json.loads(whole(DeltaKind.TOOL)) == {"q": "Paris"}
    assert [(delta.call, delta.name) for delta in heard if delta.name] == [("call-1", "search")]
    assert heard[-1] == Delta(DeltaKind.END)
    assert len([delta for delta in heard if delta.kind is DeltaKind.TEXT]) == 3


# ---- what is asked


@ways
async def test_the_whole_conversation_is_sent(server: Server, way: str) -> None:
    """System text, words, a picture, a call and its result arrive, each where the provider expects
    it.
    """
    server.script(Reply("Done."))
    query = turn(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image", "image": {"media_type": "image/png", "data": PIXEL}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "call-1", "name": "search", "input": {"q": "dot"}}
            ],
        },
        {
            "role": "tool",
            "content": [{"type": "tool_result", "tool_use_id": "call-1", "content": {"found": 3}}],
        },
        {"role": "user", "content": "Quick!"},
        system="Be short.",
        max_tokens=77,
        options={"tools": [SEARCH], "temperature": 0.25},
    )
    await ask(Model(server.name(way)), query)

    body = server.requests[0].body
    sent = json.dumps(body)
    assert PIXEL in sent.replace("-", "+").replace("_", "/")  # Google's base64 is that of addresses
    assert sent.count("Be short.") == 1
    for words in ("What is this?", "Quick!", "Look something up.", "call-1"):
        assert words in sent
    assert 77 in _numbers(body)
    assert 0.25 in _numbers(body)
    assert EXPECTED[way](body)


def _numbers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in _numbers(part)]
    return [value] if isinstance(value, int | float) else []


def _chat_fits(body: Any) -> bool:
    roles = [message["role"] for message in body["messages"]]
    result = body["messages"][3]
    return (
        roles == ["system", "user", "assistant", "tool", "user"]
        and (result["tool_call_id"], json.loads(result["content"])) == ("call-1", {"found": 3})
        and body["tools"][0]["function"]["name"] == "search"
    )


def _responses_fit(body: Any) -> bool:
    kinds = [item.get("type") or item["role"] for item in body["input"]]
    return (
        kinds == ["user", "function_call", "function_call_output", "user"]
        and body["instructions"] == "Be short."
        and json.loads(body["input"][2]["output"]) == {"found": 3}
    )


def _anthropic_fits(body: Any) -> bool:
    roles = [message["role"] for message in body["messages"]]
    result, words = body["messages"][2]["content"]
    return (
        roles == ["user", "assistant", "user"]
        and (result["type"], result["tool_use_id"], result["is_error"])
        == ("tool_result", "call-1", False)
        and words["text"] == "Quick!"
        and body["system"][0]["text"] == "Be short."
    )


def _google_fits(body: Any) -> bool:
    roles = [content["role"] for content in body["contents"]]
    result = body["contents"][2]["parts"][0]["functionResponse"]
    return (
        roles == ["user", "model", "user", "user"]
        and (result["id"], result["name"], result["response"]) == ("call-1", "search", {"found": 3})
        and body["systemInstruction"]["parts"][0]["text"] == "Be short."
    )


EXPECTED = {
    "openai-chat": _chat_fits,
    "openai-responses": _responses_fit,
    "anthropic": _anthropic_fits,
    "google": _google_fits,
}


@ways
async def test_what_failed_in_a_tool_is_told(server: Server, way: str) -> None:
    """In the words of the tool; Anthropic has a place for the fact as well."""
    server.script(Reply("Oh."))
    call = {"type": "tool_use", "id": "call-1", "name": "search", "input": {"q": "x"}}
    failed = {
        "type": "tool_result",
        "tool_use_id": "call-1",
        "content": "Error: it rains",
        "is_error": True,
    }
    query = turn(
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [call]},
        {"role": "tool", "content": [failed]},
    )
    await ask(Model(server.name(way)), query)

    sent = json.dumps(server.requests[0].body)
    assert "it rains" in sent
    assert way != "anthropic" or '"is_error": true' in sent


@ways
async def test_a_system_message_may_come_in_the_middle(server: Server, way: str) -> None:
    """Where a provider has no place for it there, it is said in another way, and not left out."""
    server.script(Reply("Done."))
    query = turn(
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello."},
        {"role": "system", "content": "From now on, rhyme."},
        {"role": "user", "content": "Go on."},
        system="Be short.",
    )
    await ask(Model(server.name(way)), query)

    sent = json.dumps(server.requests[0].body)
    assert [words in sent for words in ("Be short.", "From now on, rhyme.", "Go on.")] == [
        True,
        True,
        True,
    ]


@ways
async def test_a_tool_may_show_a_picture(server: Server, way: str) -> None:
    """It is sent as one, with the result or right after it."""
    server.script(Reply("A dot."))
    call = {"type": "tool_use", "id": "call-1", "name": "look", "input": {}}
    shown = [
        {"type": "text", "text": "seen"},
        {"type": "image", "image": {"media_type": "image/png", "data": PIXEL}},
    ]
    result = {"type": "tool_result", "tool_use_id": "call-1", "content": shown}
    query = turn(
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [call]},
        {"role": "tool", "content": [result]},
    )
    await ask(Model(server.name(way)), query)

    assert PIXEL in json.dumps(server.requests[0].body).replace("-", "+").replace("_", "/")


async def test_a_call_whose_input_is_no_object_is_kept_as_it_came(server: Server) -> None:
    """The model is told by whoever checks the input; the conversation can go on."""
    events = wire.chat_events(Reply(tools=[("call-1", "search", {"q": "Paris"})]))
    server.script(Raw(b"".join(events).replace(b'{\\"q\\"', b"oops")), Reply("Sorry."))
    model = Model(server.name("openai-chat"))
    first = {"role": "user", "content": "Go."}
    said = await model.answer(turn(first, options={"tools": [SEARCH]}), "s-1")
    [call] = said.value["content"]
    assert isinstance(call["input"], str)

    result = {"type": "tool_result", "tool_use_id": "call-1", "content": "Error", "is_error": True}
    await ask(
        model,
        turn(
            first, {"role": "assistant", "content": [call]}, {"role": "tool", "content": [result]}
        ),
    )
    assert "oops" in json.dumps(server.requests[1].body)


@ways
async def test_thinking_goes_back_to_where_it_came_from(server: Server, way: str) -> None:
    """A provider gets its signature again, for the reasoning and for the call that it signed."""
    server.script(
        Reply("See.", thinking="Hm.", tools=[("call-1", "search", {"q": "x"})]), Reply("Done.")
    )
    model = Model(server.name(way, "gpt-5"))
    first = {"role": "user", "content": "Go on."}
    said = await model.answer(turn(first, options={"tools": [SEARCH]}), "s-1")
    result = {
        "role": "tool",
        "content": [{"type": "tool_result", "tool_use_id": "call-1", "content": "nothing"}],
    }
    await ask(model, turn(first, {"role": "assistant", "content": said.value["content"]}, result))

    sent = json.dumps(server.requests[1].body)
    assert "call-1" in sent
    assert ("c2lnbmVk" in sent) is (way != "openai-chat")
    assert "Hm." in sent


async def test_thinking_of_another_provider_is_not_passed_off_as_ones_own(server: Server) -> None:
    """A signature means nothing to others; the conversation goes on without it."""
    server.script(Reply("See.", thinking="Hm.", signature="secret"), Reply("Done."))
    first = {"role": "user", "content": "Go on."}
    said = await ask(Model(server.name("anthropic")), turn(first))
    again = turn(
        first,
        {"role": "assistant", "content": said.value["content"]},
        {"role": "user", "content": "And?"},
    )
    await ask(Model(server.name("openai-responses")), again)

    assert "secret" not in json.dumps(server.requests[1].body)


@ways
async def test_an_answer_may_have_a_form(server: Server, way: str) -> None:
    """The provider is told the form, and the answer is its value."""
    server.script(Reply('{"city": "Paris"}'))
    said = await ask(Model(server.name(way)), plain(schema=OBJECT))

    assert said.value == {"city": "Paris"}
    assert '"city"' in json.dumps(server.requests[0].body).replace("\\", "")


@ways
async def test_an_answer_that_is_no_object_is_asked_for_inside_one(
    server: Server, way: str
) -> None:
    """Providers know objects only; a program that wants a list gets a list."""
    schema = {
        "type": "array",
        "items": {"$ref": "#/$defs/Year"},
        "$defs": {"Year": {"type": "integer"}},
    }
    server.script(Reply('{"value": [1789, 1871]}'))
    said = await ask(Model(server.name(way)), plain(schema=schema))

    assert said.value == [1789, 1871]


@ways
async def test_free_text_is_not_asked_for_as_a_form(server: Server, way: str) -> None:
    """`returns=str` is what a model does anyway."""
    server.script(Reply("Paris."))
    said = await ask(Model(server.name(way)), plain(schema={"type": "string"}))

    assert said.value == "Paris."
    assert "json_schema" not in json.dumps(server.requests[0].body)


async def test_a_form_that_is_not_kept_is_left_to_the_check_at_the_door(server: Server) -> None:
    """What a model says instead of JSON stays what it said."""
    server.script(Reply("I would rather not."))
    said = await ask(Model(server.name("openai-chat")), plain(schema=OBJECT))

    assert said.value == "I would rather not."


async def test_conversations_are_marked_for_the_cache_and_single_questions_are_not(
    server: Server,
) -> None:
    """Anthropic is told what repeats: system, tools and the conversation; a question may say
    otherwise.
    """
    server.script(*[Reply("Yes.")] * 3)
    model = Model(server.name("anthropic"))
    told = {"system": "Be short.", "options": {"tools": [SEARCH]}}
    await model.answer(turn({"role": "user", "content": "So?"}, **told), "s-1")
    off = {**told, "options": {"tools": [SEARCH], "cache": False}}
    await model.answer(turn({"role": "user", "content": "So?"}, **off), "s-1")
    await ask(model, plain(system="Be short."))

    marked, unmarked, single = (request.body for request in server.requests)
    assert marked["system"][0]["cache_control"]["type"] == "ephemeral"
    assert marked["tools"][0]["cache_control"]["type"] == "ephemeral"
    assert marked["cache_control"]["type"] == "ephemeral"
    assert "cache_control" not in json.dumps(unmarked)
    assert "cache_control" not in json.dumps(single)


@ways
async def test_a_provider_gets_the_key_that_was_given(
    server: Server, way: str, monkeypatch: Any
) -> None:
    """And never its own key at another address."""
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(variable, "the-real-key")
    server.script(Reply("Yes."), Reply("Yes."), Reply("Yes."))
    await ask(Model(server.name(way)), plain())
    monkeypatch.setenv("EVERHOLD_MODEL_KEY", "from-the-variable")
    await ask(Model(server.name(way)), plain())
    await ask(Model(server.name(way), api_key="from-the-code"), plain())

    sent = [json.dumps(request.headers) for request in server.requests]
    assert not any("the-real-key" in headers for headers in sent)
    assert "from-the-variable" in sent[1]
    assert "from-the-code" in sent[2]


# ---- what goes wrong


@ways
async def test_a_failure_that_may_pass_is_waited_for(server: Server, way: str) -> None:
    """Longer each time; whoever listens is told to forget what was said."""
    clock = Waits()
    server.script(Fail(500), Fail(503), Reply("Paris."))
    with subscribe("s-1") as listener:
        said = await ask(Model(server.name(way), sleep=clock.sleep, random=never), plain())
        heard = []
        while (one := listener.take()) is not None:
            heard.append(one[1].kind)

    assert said.value == "Paris."
    assert clock.slept == [2.0, 4.0]
    assert heard[:2] == [DeltaKind.RESET, DeltaKind.RESET]


@ways
async def test_four_attempts_are_enough(server: Server, way: str) -> None:
    """Then the program sees that the provider cannot be had."""
    clock = Waits()
    server.script(*[Fail(500, "out of order")] * 5)
    with pytest.raises(AnswerFailed) as caught:
        await ask(Model(server.name(way), sleep=clock.sleep, random=never), plain())

    assert caught.value.kind == "provider_unavailable"
    assert "out of order" in str(caught.value)
    assert (len(server.requests), clock.slept) == (4, [2.0, 4.0, 8.0])


@ways
async def test_being_told_to_slow_down_costs_no_attempt(server: Server, way: str) -> None:
    """The wait is what the provider says, and there may be more of them than attempts."""
    clock = Waits()
    server.script(*[Fail(429, retry_after=7)] * 6, Reply("Paris."))
    said = await ask(
        Model(server.name(way), sleep=clock.sleep, random=never, retry=Retry(1)),
        plain(),
    )

    assert said.value == "Paris."
    assert clock.slept == [7.0] * 6


@ways
async def test_the_patience_with_slowing_down_has_an_end(server: Server, way: str) -> None:
    """Ninety seconds in all, and one wait is never longer than a minute."""
    clock = Waits()
    server.script(*[Fail(429, retry_after=600)] * 3)
    with pytest.raises(AnswerFailed) as caught:
        await ask(Model(server.name(way), sleep=clock.sleep, random=never), plain())

    assert caught.value.kind == "rate_limited"
    assert clock.slept == [60.0]


STAYS = {
    "key": (Fail(401, "no such key"), None),
    "unknown": (Fail(404, "no such model"), "model_not_found"),
    "request": (Fail(400, "what is this?"), "model_rejected"),
}


@ways
@pytest.mark.parametrize(("step", "code"), STAYS.values(), ids=STAYS)
async def test_a_failure_that_stays_is_not_repeated(
    server: Server, way: str, step: Fail, code: str | None
) -> None:
    """A refused key is no answer: the question stays open for when there is another."""
    clock = Waits()
    server.script(step)
    with pytest.raises(AnswerFailed if code else ProviderUnconfigured) as caught:
        await ask(Model(server.name(way), sleep=clock.sleep, random=never), plain())

    assert step.message in str(caught.value)
    assert getattr(caught.value, "kind", None) == code
    assert (len(server.requests), clock.slept) == (1, [])


@pytest.mark.parametrize("way", ["openai-chat", "openai-responses"])
async def test_a_used_up_quota_is_not_repeated(server: Server, way: str) -> None:
    """Although its status is that of being told to slow down."""
    clock = Waits()
    server.script(
        *[Fail(429, "You exceeded your current quota.", code="insufficient_quota", retry_after=1)]
        * 2
    )
    with pytest.raises(AnswerFailed) as caught:
        await ask(Model(server.name(way), sleep=clock.sleep, random=never), plain())

    assert caught.value.kind == "quota_exceeded"
    assert (len(server.requests), clock.slept) == (1, [])


OVERFLOW = {
    "openai-chat": Fail(
        400, "This model's maximum context length is 8 tokens.", code="context_length_exceeded"
    ),
    "openai-responses": Fail(
        400, "Your input exceeds the context window.", code="context_length_exceeded"
    ),
    "anthropic": Fail(400, "prompt is too long: 250000 tokens > 200000 maximum"),
    "google": Fail(
        400,
        "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).",
    ),
}


@ways
async def test_too_much_context_has_its_own_code(server: Server, way: str) -> None:
    """Whoever can make the conversation shorter has to know."""
    server.script(OVERFLOW[way])
    with pytest.raises(AnswerFailed) as caught:
        await ask(Model(server.name(way)), plain())

    assert caught.value.kind == "context_overflow"
    assert len(server.requests) == 1


@ways
@streams
@pytest.mark.parametrize(
    ("finish", "code"), [("length", "output_limit"), ("filter", "content_filter")]
)
async def test_an_answer_that_ended_for_a_reason_that_stays(
    server: Server, way: str, stream: bool, finish: str, code: str
) -> None:
    """It is an error with a code, is not asked for again, and its tokens are counted."""
    server.script(Reply("Par", finish=finish))
    said = await ask(Model(server.name(way), stream=stream), plain(max_tokens=9))

    assert isinstance(said, QueryAnswer)
    assert said.error is not None
    assert said.error["code"] == code
    assert said.usage is not None
    assert said.usage.completion_tokens == 20
    assert len(server.requests) == 1


@ways
@pytest.mark.parametrize("broken", [False, True], ids=["ended", "broken"])
async def test_a_stream_that_breaks_off_is_no_answer(
    server: Server, way: str, broken: bool
) -> None:
    """Half an answer is never taken for a whole one: it is asked for again."""
    clock = Waits()
    server.script(
        Cut(Reply("Paris, of course, what else?"), after=4, broken=broken), Reply("Paris.")
    )
    said = await ask(Model(server.name(way), sleep=clock.sleep, random=never), plain())

    assert said.value == "Paris."
    # a line that has just been closed may cost one more
    assert len(server.requests) == 2 and clock.slept[0] == 2.0


@ways
@pytest.mark.parametrize("after", [0, 3], ids=["at once", "in the middle"])
async def test_silence_has_a_limit(server: Server, way: str, after: int) -> None:
    """A provider that says nothing for too long is asked again (and again, where the machine is
    what was slow).
    """
    clock = Waits()
    server.script(Stall(Reply("Paris, of course."), after=after), *[Reply("Paris.")] * 9)
    limits = {"retry": Retry(10, backoff=2), "chunk_timeout": 0.3, "timeout": 60}
    said = await ask(Model(server.name(way), sleep=clock.sleep, random=never, **limits), plain())

    assert said.value == "Paris."
    assert clock.slept[0] == 2.0


@ways
async def test_an_attempt_has_a_limit(server: Server, way: str) -> None:
    """Whatever else happens in it."""
    clock = Waits()
    server.script(Stall(Reply("Paris."), after=2))
    limits = {"retry": Retry(1), "timeout": 0.3}
    with pytest.raises(AnswerFailed) as caught:
        await ask(Model(server.name(way), sleep=clock.sleep, random=never, **limits), plain())

    assert caught.value.kind == "timeout"


@ways
async def test_a_withdrawn_question_closes_the_request(server: Server, way: str) -> None:
    """Nothing is paid for that nobody wants any more."""
    server.script(Stall(Reply("Paris, of course."), after=3))
    model = Model(server.name(way))
    asking = asyncio.ensure_future(ask(model, plain()))
    while not server.requests:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert await asyncio.to_thread(server.left.wait, 30)


@ways
@pytest.mark.parametrize(
    "body", [b"data: {not json\n\n", b"<html>busy</html>", b""], ids=["broken", "page", "nothing"]
)
async def test_nonsense_is_no_answer(server: Server, way: str, body: bytes) -> None:
    """What does not speak the language of its provider is asked again, and then said to be bad."""
    clock = Waits()
    server.script(*[Raw(body)] * 2)
    with pytest.raises(AnswerFailed) as caught:
        await ask(
            Model(server.name(way), sleep=clock.sleep, random=never, retry=Retry(2)),
            plain(),
        )

    assert caught.value.kind in ("bad_response", "provider_unavailable", "empty_response")
    assert len(server.requests) == 2


@ways
async def test_an_empty_answer_is_asked_for_again(server: Server, way: str) -> None:
    """Thinking alone is no answer."""
    clock = Waits()
    server.script(Reply("", thinking="Hm."), Reply("Paris."))
    said = await ask(Model(server.name(way), sleep=clock.sleep, random=never), plain())

    assert said.value == "Paris."


# ---- others instead


@ways
async def test_the_next_model_is_asked_when_one_cannot_answer(server: Server, way: str) -> None:
    """The answer counts for the one that gave it."""
    server.script(Fail(404, "no such model"), Reply("Paris.", model="the-second"))
    said = await ask(
        Model(f"{server.name(way, 'first')} | {server.name('anthropic', 'second')}"), plain()
    )

    assert (said.value, said.usage.model) == ("Paris.", "the-second")
    assert [request.way for request in server.requests] == [way, "anthropic"]


async def test_when_no_model_can_answer_all_are_named(server: Server) -> None:
    """With what each of them said."""
    server.script(Fail(404, "gone"), Fail(400, "bad"))
    with pytest.raises(AnswerFailed) as caught:
        await ask(
            Model(server.name("openai-chat", "first"), server.name("google", "second")), plain()
        )

    assert caught.value.kind == "model_rejected"
    assert "first" in str(caught.value)
    assert "second" in str(caught.value)


async def test_what_a_model_will_not_say_is_not_asked_of_another(server: Server) -> None:
    """A filter and a limit are answers."""
    server.script(Reply("", finish="filter"))
    said = await ask(
        Model(server.name("anthropic", "first"), server.name("anthropic", "second")), plain()
    )

    assert isinstance(said, QueryAnswer)
    assert len(server.requests) == 1
