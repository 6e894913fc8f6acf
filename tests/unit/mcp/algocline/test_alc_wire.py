"""Arguments that do not fit: the words that clients of algocline look for, and where it is."""

import pytest

from everhold.mcp.algocline.alc_wire import parse_alc_arguments
from everhold.mcp.algocline.server import BY_NAME
from everhold.mcp.protocol import ProtocolError


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("alc_run", {"code": 5}, "invalid type: `code` is an integer, expected a string"),
        ("alc_run", {"code": ["x"]}, "invalid type: `code` is an array, expected a string"),
        (
            "alc_status",
            {"include_history": "yes"},
            "invalid type: `include_history` is a string, expected a boolean",
        ),
        (
            "alc_continue",
            {"session_id": "s", "responses": {}},
            "invalid type: `responses` is an object, expected an array",
        ),
        (
            "alc_continue",
            {"session_id": "s", "responses": [{"query_id": 3, "response": "x"}]},
            "invalid type: `responses[0].query_id` is an integer, expected a string",
        ),
        (
            "alc_continue",
            {"session_id": "s", "usage": {"prompt_tokens": 1.5}},
            "invalid type: `usage.prompt_tokens` is a number, expected an integer",
        ),
        ("alc_note", {"session_id": "s"}, "missing field `content`"),
        (
            "alc_continue",
            {"session_id": "s", "responses": [{}]},
            "missing field `query_id` in `responses[0]`",
        ),
        ("alc_log_view", {"limit": -1}, "invalid value: `limit`: expected `int` >= 0"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(tool, arguments, words):
    with pytest.raises(ProtocolError) as raised:
        parse_alc_arguments(BY_NAME[tool], arguments)
    assert raised.value.code == -32602
    assert str(raised.value) == f"failed to deserialize parameters: {words}"


def test_null_and_unknown_parameters_are_ignored():
    given = parse_alc_arguments(BY_NAME["alc_run"], {"code": "return 1", "ctx": None, "more": 3})
    assert (given.code, given.ctx) == ("return 1", None)
