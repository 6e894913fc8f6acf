"""Messages and their JSON."""

import pytest

from everhold.core import codec
from everhold.core.message import (
    CopiedOnRead,
    Image,
    ImageData,
    Message,
    Role,
    Text,
    ToolResult,
    ToolUse,
    assistant,
    decode_message,
    encode_message,
    system,
    user,
)
from everhold.errors import BadValue

FORMS = [
    (Message(Role.SIGNAL), '{"role":"signal"}'),
    (system("Be brief."), '{"role":"system","content":[{"type":"text","text":"Be brief."}]}'),
    (
        user("Look:", Image(ImageData("image/png", b"\x00\xff\x10"))),
        '{"role":"user","content":[{"type":"text","text":"Look:"},'
        '{"type":"image","image":{"media_type":"image/png","data":"AP8Q"}}]}',
    ),
    (
        user(Image(ImageData("image/png", b""))),
        '{"role":"user","content":[{"type":"image","image":{"media_type":"image/png","data":""}}]}',
    ),
    (
        assistant(ToolUse("t1", "search", {"q": ["a", None]})),
        '{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"search","input":{"q":["a",null]}}]}',
    ),
    (
        Message(Role.TOOL, (ToolResult("t1", {"content": [], "details": 1.5}),)),
        '{"role":"tool","content":[{"type":"tool_result","tool_use_id":"t1","content":{"content":[],"details":1.5}}]}',
    ),
]


@pytest.mark.parametrize(("message", "text"), FORMS)
def test_a_message_has_one_json(message, text):
    """Every block is written as fluers writes it, and reads back as it was."""
    assert codec.dumps(encode_message(message)) == text
    assert decode_message(codec.loads(text)) == message


def test_empty_content_is_left_out_and_may_be_missing():
    """A message with nothing in it is its role, written either way."""
    assert encode_message(Message(Role.USER, ())) == {"role": "user"}
    assert (
        decode_message({"role": "user", "content": []})
        == decode_message({"role": "user"})
        == user()
    )


def test_other_keys_are_ignored():
    """What another program adds to a message or a block does not stop us."""
    value = {"role": "user", "id": 7, "content": [{"type": "text", "text": "a", "cache": True}]}

    assert decode_message(value) == Message(Role.USER, (Text("a"),))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"role": "robot"}, "message.role"),
        ({"content": []}, "message"),
        ([], "message"),
        ({"role": "user", "content": None}, "message.content"),
        ({"role": "user", "content": [{"type": "video"}]}, "message.content[0].type"),
        ({"role": "user", "content": [{"text": "a"}]}, "message.content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "message.content[0].text"),
        (
            {"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]},
            "message.content[0]",
        ),
        (
            {"role": "tool", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
            "message.content[0]",
        ),
    ],
)
def test_a_malformed_message_is_refused_with_its_path(value, path):
    """What is missing or of another kind is named."""
    with pytest.raises(BadValue) as refused:
        decode_message(value)

    assert refused.value.path == path


@pytest.mark.parametrize("data", ["QQ", "Q", "QQ=A", "Q Q==", "-_==", "QQ==\n", 7])
def test_bad_base64_is_not_an_image(data):
    """Only padded base64 of the standard alphabet is read."""
    block = {"type": "image", "image": {"media_type": "image/png", "data": data}}

    with pytest.raises(BadValue) as refused:
        decode_message({"role": "user", "content": [block]})

    assert refused.value.path == "message.content[0].image.data"


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (user("\ud800"), "message.content[0].text"),
        (user("a", ToolUse("t", "n", {"when": (1, 2)})), "message.content[1].input.when"),
        (user(ToolResult("t", [float("nan")])), "message.content[0].content[0]"),
    ],
)
def test_what_json_would_change_is_not_written(message, path):
    """Tuples, NaN and lone surrogates in a message are refused with their path."""
    with pytest.raises(BadValue) as refused:
        encode_message(message)

    assert refused.value.path == path


def test_values_that_are_copied_when_read_cannot_be_changed_by_readers() -> None:
    """Iteration, reversal, an index, a slice, `pop` and `copy` hand out copies."""
    shared = {"a": [1]}
    values = CopiedOnRead([shared, shared])
    for read in (next(iter(values)), next(reversed(values)), values[0], values[:1][0]):
        read["a"].append(2)
    values.copy()[0]["a"].append(2)
    values.pop()["a"].append(2)
    assert shared == {"a": [1]}
    assert values == [{"a": [1]}]
