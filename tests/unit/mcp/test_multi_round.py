"""Questions to a client's model, its answers, and the sealed state between rounds."""

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from mcp.server.request_state import InvalidRequestState
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


# ---- the sealed state


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The data folder, which is not there yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "everhold"


def codec(database="sqlite:////a.db"):
    return multi_round.StateCodec(lambda: database)


def test_a_key_is_made_once_and_readable_by_its_owner_alone(folder):
    first = multi_round.load_state_key(folder)
    assert len(first) == multi_round.KEY_BYTES
    assert multi_round.load_state_key(folder) == first
    assert [file.name for file in folder.iterdir()] == [multi_round.KEY_FILE]
    assert (folder / multi_round.KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_many_that_make_a_key_at_once_get_the_same(folder):
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(lambda _: multi_round.load_state_key(folder), range(64)))) == 1
    assert [file.name for file in folder.iterdir()] == [multi_round.KEY_FILE]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_could_read_is_replaced(folder, mode, caplog):
    first = multi_round.load_state_key(folder)
    (folder / multi_round.KEY_FILE).chmod(mode)
    with caplog.at_level(logging.WARNING, "everhold"):
        second = multi_round.load_state_key(folder)
    assert second != first
    assert multi_round.load_state_key(folder) == second
    assert "readable by others" in caplog.text


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33, b"x" * 4096])
def test_a_damaged_key_is_replaced(folder, content, caplog):
    multi_round.load_state_key(folder)
    (folder / multi_round.KEY_FILE).write_bytes(content)
    with caplog.at_level(logging.WARNING, "everhold"):
        fresh = multi_round.load_state_key(folder)
    assert len(fresh) == multi_round.KEY_BYTES
    assert fresh != content
    assert "damaged" in caplog.text


def test_where_no_key_can_be_kept_the_process_has_its_own(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING, "everhold"):
        assert len(multi_round.load_state_key(tmp_path / "file")) == multi_round.KEY_BYTES
    assert "rounds that are open now end with this server" in caplog.text


@pytest.mark.skipif(os.name != "posix", reason="links to folders")
def test_a_key_that_is_a_folder_is_no_key(folder):
    (folder / multi_round.KEY_FILE).mkdir(parents=True)
    assert multi_round.load_state_key(folder) != multi_round.load_state_key(folder)


def test_what_one_process_seals_another_unseals_and_reads_nothing_else(folder):
    token = codec().seal(b"a state")
    assert codec().unseal(token) == b"a state"
    assert "state" not in token


def test_a_seal_is_good_for_one_database_only(folder):
    token = codec().seal(b"a state")
    with pytest.raises(InvalidRequestState):
        codec("sqlite:////b.db").unseal(token)


def test_nothing_is_written_before_it_is_needed_nor_for_what_does_not_outlive_the_process(folder):
    codec()
    one, other = codec("memory://"), codec("memory://")
    token = one.seal(b"a state")
    assert one.unseal(token) == b"a state"
    with pytest.raises(InvalidRequestState):
        other.unseal(token)
    assert not folder.exists()
