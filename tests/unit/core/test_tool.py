"""What is decided about a call: verdicts, digests, keys, what comes later, and how much is
shown.
"""

import pytest

from everhold.core.tool import (
    Confirm,
    Later,
    SideOutput,
    ToolHandoff,
    Window,
    decode_confirms,
    decode_handoff,
    decode_later,
    digest_tool_call,
    encode_pending_call,
    make_call_key,
    unwrap_side_output,
    wrap_side_output,
)
from everhold.errors import BadArguments


def test_a_digest_names_a_tool_with_its_input():
    """The order of names says nothing; anything else is another call."""
    assert digest_tool_call("pay", {"a": 1, "b": [2]}) == digest_tool_call(
        "pay", {"b": [2], "a": 1}
    )
    others = [
        digest_tool_call("pay", {"a": 1}),
        digest_tool_call("pay", {"a": 1.0}),
        digest_tool_call("pay", {"a": "1"}),
        digest_tool_call("say", {"a": 1}),
    ]
    assert len({digest_tool_call("pay", {"a": True}), *others}) == 5


def test_a_key_is_the_place_of_a_call_in_its_session():
    assert (
        make_call_key("s-1", 0, "c")
        == make_call_key("s-1", 0, "c")
        == "ccdf074b7842df7ed952c9d11112164d"
    )
    assert (
        len(
            {
                make_call_key("s-1", 0, "c"),
                make_call_key("s-2", 0, "c"),
                make_call_key("s-1", 1, "c"),
                make_call_key("s-1", 0, "d"),
            }
        )
        == 4
    )


@pytest.mark.parametrize("verdict", [Confirm(), Confirm("why", "ada", 5.0)])
def test_a_verdict_is_read_as_it_was_recorded(verdict):
    assert decode_confirms(encode_pending_call(verdict)) == [verdict]
    assert decode_confirms(encode_pending_call([verdict, Confirm("too")])) == [
        verdict,
        Confirm("too"),
    ]


def test_what_comes_later_is_read_as_it_was_recorded():
    later = decode_later(
        encode_pending_call(Later("When?", timeout=5, on_timeout="fail", to="press"))
    )
    assert (later.prompt, later.timeout, later.on_timeout, later.to) == (
        "When?",
        5,
        "fail",
        "press",
    )


@pytest.mark.parametrize(
    "options",
    [{"on_timeout": "explode"}, {"timeout": 0}, {"timeout": -1}, {"timeout": float("inf")}],
    ids=repr,
)
def test_a_later_that_makes_no_sense_is_refused(options):
    with pytest.raises(BadArguments):
        Later(**options)


def test_what_is_said_beside_a_result_is_told_apart():
    """A result that looks as if something were said beside it is not mistaken for one."""
    nothing = SideOutput()
    assert (wrap_side_output("r", nothing), wrap_side_output({"a": 1}, nothing)) == ("r", {"a": 1})
    assert unwrap_side_output(wrap_side_output("r", SideOutput(["a", "b"]))) == (
        "r",
        SideOutput(["a", "b"]),
    )
    written = SideOutput(writes=[["set", "shop", "a", 1]])
    assert unwrap_side_output(wrap_side_output("r", written)) == ("r", written)
    assert unwrap_side_output(wrap_side_output({"$said": ["forged"]}, nothing)) == (
        {"$said": ["forged"]},
        nothing,
    )
    assert unwrap_side_output(wrap_side_output({"$writes": ["forged"]}, nothing)) == (
        {"$writes": ["forged"]},
        None,
    )
    assert unwrap_side_output("r") == ("r", None)


def test_what_is_handed_on_is_read_as_it_was_recorded():
    handed = ToolHandoff("shop:digest", 2, {"words": "x"})
    assert decode_handoff(encode_pending_call(handed)) == handed


LINES = "".join(f"line {n}\n" for n in range(10))


@pytest.mark.parametrize(
    ("window", "text", "shown"),
    [
        (Window(), "short", None),
        (Window(size=4), "four", None),
        (Window(lines=10), LINES, None),
        (Window(lines=2), LINES, "line 0\nline 1\n"),
        (Window(lines=2, keep="tail"), LINES, "line 8\nline 9\n"),
        (Window(size=16), LINES, "line 0\nline 1\n"),
        (Window(size=16, keep="tail"), LINES, "line 8\nline 9\n"),
        (Window(size=3), "abcdef", "abc"),
        (Window(size=3, keep="tail"), "abcdef", "def"),
        (Window(size=3), "ééé", "é"),
        (Window(size=3, keep="tail"), "ééé", "é"),
    ],
)
def test_a_long_text_is_cut_at_a_line_or_else_at_a_character(window, text, shown):
    assert window.cut(text) == shown


def test_the_default_window_is_16_kib_and_400_lines():
    assert Window().cut("x" * 16_384) is None
    assert Window().cut("x" * 16_385) == "x" * 16_384
    assert Window().cut("\n" * 400) is None
    assert Window().cut("\n" * 399 + "x") is None
    assert Window().cut("\n" * 401) == "\n" * 400


def test_the_note_says_what_is_not_shown_and_where_it_is():
    note = Window(lines=1).note("a\nb", "a\n", "abc123")
    assert (
        note
        == "[Truncated to the first 2 of 3 bytes (2 lines). The whole result is attachment abc123.]"
    )
    assert (
        Window(keep="tail").note("a\nb", "b", "x").startswith("[Truncated to the last 1 of 3 bytes")
    )


@pytest.mark.parametrize("options", [{"size": 0}, {"lines": 0}])
def test_a_window_that_shows_nothing_is_refused(options):
    with pytest.raises(BadArguments):
        Window(**options)
