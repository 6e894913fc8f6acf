"""How questions are put to a client's model, and what counts as its answer."""

import json

import msgspec
import pytest
from mcp.types import (
    AudioContent,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitResult,
    ListRootsResult,
    TextContent,
    ToolUseContent,
)

from everhold.core.query import Kind, Query, Usage
from everhold.core.status import OpenQuery, Paused
from everhold.mcp import multi_round
from everhold.ports.answerer import Answer

TALK = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
BLOCKS = [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}]


def query(number=0, prompt="Well?", kind=Kind.LLM, **more):
    return OpenQuery("s-1", Query(number, f"0:{number}", prompt, kind=kind, **more), 0)


def said_to(asked, note=""):
    """Who says what to the model."""
    request = multi_round.build_input_requests({asked.id: asked}, "", {asked.id: note})[asked.id]
    assert request.method == "sampling/createMessage"
    return [(one.role, one.content.text) for one in request.params.messages]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (query(), [("user", "Well?")]),
        (query(messages=TALK), [("user", "Hi."), ("assistant", "Hello."), ("user", "Well?")]),
        (query(messages=TALK, prompt=""), [("user", "Hi."), ("assistant", "Hello.")]),
        (query(messages=TALK, args={"leaf": 3}, prompt="All of it."), [("user", "All of it.")]),
        (query(messages=BLOCKS, args={"leaf": 3}, prompt="All of it."), [("user", "All of it.")]),
    ],
)
def test_a_model_is_told_everything_once(asked, said):
    assert said_to(asked) == said


def test_messages_that_sampling_does_not_have_are_told_as_text():
    ((role, words),) = said_to(query(messages=BLOCKS))
    assert role == "user"
    messages, prompt = words.split("\n\n")
    assert (json.loads(messages), prompt) == (BLOCKS, "Well?")


def test_a_schema_and_a_refusal_are_told_after_the_prompt():
    ((_, words),) = said_to(query(schema={"type": "integer"}), "it is a text")
    prompt, schema, refusal = words.split("\n\n")
    assert prompt == "Well?"
    assert json.loads(schema.partition(": ")[2]) == {"type": "integer"}
    assert refusal == "An earlier answer was refused: it is a text"


@pytest.mark.parametrize("odd", ["hot", None, [1]])
def test_options_that_sampling_does_not_have_are_left_out(odd):
    request = multi_round.build_input_requests(
        {"q-0": query(options={"temperature": odd, "top_k": 3})}, ""
    )["q-0"]
    assert request.params.temperature is None


def text(words):
    return TextContent(type="text", text=words)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (CreateMessageResult(role="assistant", model="m", content=text("yes")), "yes"),
        (
            CreateMessageResultWithTools(
                role="assistant", model="m", content=[text("y"), text("es")]
            ),
            "yes",
        ),
        (CreateMessageResultWithTools(role="assistant", model="m", content=text("")), ""),
    ],
)
def test_the_text_of_a_models_message_is_its_answer(response, words):
    assert multi_round.read_round_answer(query(), response) == Answer(words, Usage(model="m"))


@pytest.mark.parametrize(
    "response",
    [
        None,
        "yes",
        ElicitResult(action="accept", content={"answer": "yes"}),
        ListRootsResult(roots=[]),
        CreateMessageResultWithTools(role="assistant", model="m", content=[]),
        CreateMessageResult(
            role="assistant",
            model="m",
            content=AudioContent(type="audio", data="", mime_type="audio/wav"),
        ),
        CreateMessageResultWithTools(
            role="assistant",
            model="m",
            content=[text("yes"), ToolUseContent(type="tool_use", id="1", name="rm", input={})],
        ),
    ],
)
def test_nothing_else_is_a_models_answer(response):
    assert multi_round.read_round_answer(query(), response) is msgspec.UNSET


def test_a_models_message_is_no_persons_answer():
    for kind in (Kind.APPROVAL, Kind.INPUT):
        said = CreateMessageResult(role="assistant", model="m", content=text("true"))
        assert multi_round.read_round_answer(query(kind=kind), said) is msgspec.UNSET


def test_what_is_addressed_or_fits_no_form_is_put_to_no_client():
    status = Paused(
        "s-1",
        (
            query(0),
            query(1, kind=Kind.APPROVAL),
            query(2, kind=Kind.APPROVAL, to="alice"),
            query(3, kind=Kind.INPUT, schema={"type": "array", "items": {"type": "string"}}),
            query(4, kind=Kind.SIGNAL, name="go"),
        ),
    )
    assert list(multi_round.select_client_questions(status)) == ["q-0", "q-1"]
