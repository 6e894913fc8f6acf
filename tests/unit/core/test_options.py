"""Options of turns, frame by frame."""

from everhold.core.graph import INITIAL_FRAME, Frame
from everhold.core.turn import (
    FrameOptions,
    OptionsConfigured,
    SettledTurn,
    StateApplied,
    TurnAnswered,
    compute_frame_options,
    merge_options,
)


def test_one_set_lies_over_another_name_by_name():
    """None takes a name away; nothing leaves everything."""
    assert merge_options({"a": 1, "b": 2}, {"b": None, "c": 3}) == {"a": 1, "c": 3}
    assert merge_options({"a": 1}, None) == {"a": 1}


def test_a_frame_inherits_and_then_has_its_own():
    """Row 4: setting the current frame leaves earlier ones; setting all changes them too."""
    options = FrameOptions()
    options.set(INITIAL_FRAME, {"a": 1})
    options.opened("2.0", INITIAL_FRAME)
    assert options.of("2.0") == {"a": 1}
    options.set("2.0", {"a": 2})
    assert options.of(INITIAL_FRAME) == {"a": 1}
    options.set("2.0", {"a": 3}, everywhere=True)
    assert (options.of(INITIAL_FRAME), options.of("2.0"), options.of("unknown")) == (
        {"a": 3},
        {"a": 3},
        {},
    )


def test_receipts_tell_what_holds():
    """Row 4: who has the receipts and the frames needs no program."""
    frames = [Frame(INITIAL_FRAME, INITIAL_FRAME, None), Frame("2.0", "reset", INITIAL_FRAME)]
    turns = [
        SettledTurn(1, "a", OptionsConfigured({"a": 1}, INITIAL_FRAME)),
        SettledTurn(2, "b", TurnAnswered()),
        SettledTurn(3, "c", OptionsConfigured({"a": 2}, "2.0")),
    ]
    assert compute_frame_options({}, turns, frames).of("2.0") == {"a": 2}
    assert compute_frame_options({}, turns, frames).of(INITIAL_FRAME) == {"a": 1}
    assert (
        compute_frame_options(
            {},
            [*turns, SettledTurn(4, "d", OptionsConfigured({}, "2.0", True))],
            frames,
        ).of(INITIAL_FRAME)
        == {}
    )


def test_what_a_session_was_given_when_it_began_holds_until_it_is_changed():
    """Row 4: frames that come later inherit it."""
    frames = [Frame(INITIAL_FRAME, INITIAL_FRAME, None), Frame("1.0", "reset", INITIAL_FRAME)]
    assert compute_frame_options({"a": 1}, [SettledTurn(1, "x", TurnAnswered())], frames).of(
        "1.0"
    ) == {"a": 1}
    assert compute_frame_options({"a": 1}, [], frames[:1]).of(INITIAL_FRAME) == {"a": 1}


def test_an_applied_state_sets_the_options_of_the_frames_it_names():
    """Row 4: the other frames keep theirs; a later change holds over it."""
    frames = [Frame(INITIAL_FRAME, INITIAL_FRAME, None), Frame("2.0", "reset", INITIAL_FRAME)]
    turns = [
        SettledTurn(1, "a", OptionsConfigured({"a": 1}, INITIAL_FRAME)),
        SettledTurn(3, "b", StateApplied("s-2", 4, options={"2.0": {"b": 2}})),
    ]
    held = compute_frame_options({}, turns, frames)
    assert (held.of(INITIAL_FRAME), held.of("2.0")) == ({"a": 1}, {"b": 2})
    later = SettledTurn(4, "c", OptionsConfigured({"c": 3}, "2.0"))
    assert compute_frame_options({}, [*turns, later], frames).of("2.0") == {"c": 3}
    nothing = [turns[0], SettledTurn(3, "b", StateApplied("s-2", 4))]
    assert compute_frame_options({}, nothing, frames).of("2.0") == {"a": 1}


def test_a_frame_of_the_running_turn_has_the_options_of_the_one_before():
    """Row 4: although that turn has no receipt yet."""
    frames = [
        Frame(INITIAL_FRAME, INITIAL_FRAME, None),
        Frame("2.0", "reset", INITIAL_FRAME),
        Frame("2.3", "reset", "2.0"),
    ]
    turns = [SettledTurn(1, "a", OptionsConfigured({"a": 1}, INITIAL_FRAME))]
    held = compute_frame_options({}, turns, frames)
    assert (held.of("2.0"), held.of("2.3")) == ({"a": 1}, {"a": 1})
