"""What is kept of an exception, and how it is shown."""

import msgspec

from everhold.exception_info import (
    MAX_BYTES,
    MAX_RECENT,
    ExceptionInfo,
    FrameInfo,
    format_exception,
    keep_frames,
    limit_size,
    map_texts,
    recall_exception,
    remember_exception,
)


def frames(count, code="x = 1"):
    return [FrameInfo("shop.py", line, f"f{line}", code) for line in range(1, count + 1)]


def test_an_exception_is_shown_as_python_shows_it():
    """With its frames, their lines and marks, and its notes."""
    frame = FrameInfo("/shop.py", 3, "pay", 'order["sum"]', "~~~~~^^^^^^^")
    assert format_exception(ExceptionInfo("KeyError", "'sum'", [frame], notes=["order 7"])) == (
        "Traceback (most recent call last):\n"
        '  File "/shop.py", line 3, in pay\n'
        '    order["sum"]\n'
        "    ~~~~~^^^^^^^\n"
        "KeyError: 'sum'\n"
        "order 7"
    )


def test_an_exception_without_a_message_or_a_line_is_shown():
    """A type alone, and a file that cannot be read."""
    assert format_exception(ExceptionInfo("Stop")) == "Stop"
    assert format_exception(
        ExceptionInfo("Stop", frames=[FrameInfo("<string>", 1, "<module>")])
    ) == ('Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nStop')


def test_the_place_of_a_syntax_error_has_no_header():
    """Python shows only the place if a file cannot be compiled."""
    place = FrameInfo("/shop.py", 2, "", "f(1))", "    ^")
    assert format_exception(ExceptionInfo("SyntaxError", "unmatched ')'", [place])) == (
        "  File \"/shop.py\", line 2\n    f(1))\n        ^\nSyntaxError: unmatched ')'"
    )


def test_causes_come_first():
    """A cause that was named, and an exception that was being handled, have Python's sentences."""
    first = ExceptionInfo("KeyError", "'a'")
    named = format_exception(ExceptionInfo("ValueError", "b", cause=first))
    assert named == (
        "KeyError: 'a'\n\nThe above exception was the direct cause of the following exception:\n\n"
        "ValueError: b"
    )
    handled = format_exception(ExceptionInfo("ValueError", "b", cause=first, handled=True))
    assert "During handling of the above exception, another exception occurred:" in handled


def test_the_parts_of_a_group_are_numbered():
    """Those that are not kept are counted."""
    parts = [ExceptionInfo("KeyError", "'a'"), ExceptionInfo("ValueError", "b")]
    shown = format_exception(ExceptionInfo("ExceptionGroup", "two", group=parts, more=3))
    assert shown.splitlines() == [
        "ExceptionGroup: two",
        "  +---------------- 1 ----------------",
        "  | KeyError: 'a'",
        "  +---------------- 2 ----------------",
        "  | ValueError: b",
        "  +---------------- 3 more ----------------",
    ]


def test_a_recursion_is_shown_briefly():
    """A frame that is repeated is shown three times, and the frames left out are counted."""
    same = FrameInfo("shop.py", 3, "again", "again()")
    info = keep_frames(ExceptionInfo("RecursionError", "deep", [same] * 1000), 20)
    shown = format_exception(info).splitlines()
    assert len(info.frames) == 20
    assert info.left_out == 980
    assert shown.count("    again()") == 6
    assert shown.count("  [Previous line repeated 7 more times]") == 2
    assert shown.index("  [980 frames left out]") == 8


def test_the_first_and_the_last_frames_are_kept():
    kept = keep_frames(ExceptionInfo("E", frames=frames(30)), 5)
    assert [one.line for one in kept.frames] == [1, 2, 3, 29, 30]
    assert kept.left_out == 25
    again = keep_frames(kept, 2)
    assert [one.line for one in again.frames] == [1, 30]
    assert again.left_out == 28
    assert keep_frames(kept, 5) is kept


def test_the_place_is_where_it_was_raised():
    """The last frame, in a few words for a table."""
    info = ExceptionInfo("E", frames=[FrameInfo("C:\\app\\shop.py", 7, "pay")])
    assert info.place == "shop.py, line 7, in pay"
    assert ExceptionInfo("E", frames=[FrameInfo("shop.py", 7)]).place == "shop.py, line 7"
    assert ExceptionInfo("E").place == ""


def deep(depth, **fields):
    return ExceptionInfo("E", **fields, cause=deep(depth - 1, **fields) if depth else None)


def test_what_is_too_large_loses_the_least_first():
    """Notes, then lines of code, then frames, then what belongs to it; never its type."""
    notes = ["n" * 500] * 5
    small = ExceptionInfo("E", "m", frames(20), notes=notes)
    assert limit_size(small) is small
    no_notes = limit_size(deep(1, frames=frames(20, "c" * 100), notes=notes))
    assert no_notes.notes == [] and no_notes.frames[0].code
    no_code = limit_size(deep(2, frames=frames(20, "c" * 200)))
    assert [bool(one.code) for one in no_code.frames] == [False] * 19 + [True]
    few = limit_size(deep(3, message="m" * 1000, frames=frames(20, "c" * 200)))
    assert [one.line for one in few.frames] == [1, 20] and few.cause is not None
    group = [deep(3, message="m" * 1000)] * 3
    alone = limit_size(ExceptionInfo("E", "m", frames(2), group=group))
    assert (alone.group, alone.more, alone.type) == ([], 3, "E")


def test_no_exception_has_more_bytes_than_the_limit():
    """Whatever characters it is made of: the worst take six bytes each."""
    wild = "\x01" * 1000
    one = ExceptionInfo(
        wild[:300], wild, [FrameInfo(wild[:300], 1, wild[:300], wild[:200])] * 20, 0, [wild] * 5
    )
    for info in (one, msgspec.structs.replace(one, cause=one, group=[one] * 3)):
        limited = limit_size(info)
        assert len(msgspec.json.encode(limited)) <= MAX_BYTES
        assert limited.type.startswith("\x01")


def test_texts_are_changed_wherever_they_are():
    """A redaction reaches messages, notes and lines of code; a mark does not fit a changed line."""
    frame = FrameInfo("shop.py", 1, "f", "secret()", "^^^^^^")
    other = FrameInfo("shop.py", 2, "f", "plain()", "^^^^^")
    inner = ExceptionInfo("K", "secret", [frame, other], notes=["a secret"])
    changed = map_texts(
        ExceptionInfo("E", "secret", cause=inner, group=[inner]),
        lambda text: text.replace("secret", "***"),
    )
    assert "secret" not in msgspec.json.encode(changed).decode()
    assert changed.cause.frames == [FrameInfo("shop.py", 1, "f", "***()"), other]
    assert changed.group == [changed.cause]


def test_it_is_stored_and_read_as_json():
    info = ExceptionInfo("E", "m", frames(2), 1, ["n"], ExceptionInfo("C"), True, [], 0)
    assert msgspec.json.decode(msgspec.json.encode(info), type=ExceptionInfo) == info
    assert msgspec.to_builtins(ExceptionInfo("E", "m", frames(1))) == {
        "type": "E",
        "message": "m",
        "frames": [{"file": "shop.py", "line": 1, "function": "f1", "code": "x = 1"}],
    }


def test_few_exceptions_are_remembered_and_only_for_their_outcome():
    """The newest ones; another outcome of the same session has another exception."""
    errors = [ValueError(number) for number in range(MAX_RECENT + 1)]
    for number, error in enumerate(errors):
        remember_exception(f"test-{number}", "outcome", error)
    assert recall_exception("test-0", "outcome") is None
    assert recall_exception("test-1", "outcome") is errors[1]
    assert recall_exception("test-1", "another") is None
    remember_exception("test-1", "another", errors[0])
    assert recall_exception("test-1", "another") is errors[0]
