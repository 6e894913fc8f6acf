"""Turns: their outcomes, and the names of their events."""

import pytest

from everhold.core.turn import FrameOpened, check_event_name
from everhold.errors import BadArguments


def test_a_frame_that_was_not_opened_is_false():
    opened, refused = FrameOpened("reset", "2.0"), FrameOpened("reset", None, "it is empty")
    assert (bool(opened), bool(refused)) == (True, False)


@pytest.mark.parametrize("name", ["paid", "order paid", "zahlung-überfällig", "n" * 200])
def test_a_name_of_an_event(name):
    check_event_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "  ", "a/b", "a\nb", "n" * 201, 5, None],
    ids=["empty", "blank", "slash", "two lines", "too long", "a number", "nothing"],
)
def test_what_is_no_name_of_an_event(name):
    """The error says what was to be named."""
    with pytest.raises(BadArguments, match="1 to 200 printable") as refused:
        check_event_name(name, "trigger")
    assert "trigger" in str(refused.value) and repr(name) in str(refused.value)
