"""Options of turns, frame by frame."""

from everhold.core.graph import INITIAL, Frame
from everhold.core.options import Options, over, told
from everhold.core.turn import Answered, Configured, Settled


def test_one_set_lies_over_another_name_by_name():
    """None takes a name away; nothing leaves everything."""
    assert over({"a": 1, "b": 2}, {"b": None, "c": 3}) == {"a": 1, "c": 3}
    assert over({"a": 1}, None) == {"a": 1}


def test_a_frame_inherits_and_then_has_its_own():
    """Row 4: setting the current frame leaves earlier ones; setting all changes them too."""
    options = Options()
    options.set(INITIAL, {"a": 1})
    options.opened("2.0", INITIAL)
    assert options.of("2.0") == {"a": 1}
    options.set("2.0", {"a": 2})
    assert options.of(INITIAL) == {"a": 1}
    options.set("2.0", {"a": 3}, everywhere=True)
    assert (options.of(INITIAL), options.of("2.0"), options.of("unknown")) == (
        {"a": 3},
        {"a": 3},
        {},
    )


def test_receipts_tell_what_holds():
    """Row 4: who has the receipts and the frames needs no program."""
    frames = [Frame(INITIAL, INITIAL, None), Frame("2.0", "reset", INITIAL)]
    turns = [
        Settled(1, "a", Configured({"a": 1}, INITIAL)),
        Settled(2, "b", Answered()),
        Settled(3, "c", Configured({"a": 2}, "2.0")),
    ]
    assert told({}, turns, frames, "2.0") == {"a": 2}
    assert told({}, turns, frames, INITIAL) == {"a": 1}
    assert told({}, [*turns, Settled(4, "d", Configured({}, "2.0", True))], frames, INITIAL) == {}


def test_what_a_session_was_given_when_it_began_holds_until_it_is_changed():
    """Row 4: frames that come later inherit it."""
    frames = [Frame(INITIAL, INITIAL, None), Frame("1.0", "reset", INITIAL)]
    assert told({"a": 1}, [Settled(1, "x", Answered())], frames, "1.0") == {"a": 1}
    assert told({"a": 1}, [], frames[:1], INITIAL) == {"a": 1}
