"""Which durable values the session of a Lua program may ask for."""

import pytest

from everhold.core.query import make_own_namespace
from everhold.programs.lua.values import may_use_namespace


@pytest.mark.parametrize(
    ("namespace", "may"),
    [
        ("lua/default", True),
        ("card", True),  # the verbs of cards
        ("card/body", False),  # their values: only a verb may change them
        ("card/id", False),
        ("lua/other", False),
        (make_own_namespace("s-1", "0.0"), True),
        (make_own_namespace("s-2", "0.0"), False),
        (None, False),
    ],
)
def test_a_session_asks_for_its_own_values_and_for_cards(namespace: object, may: bool) -> None:
    assert may_use_namespace({"in": namespace, "do": "get"}, "lua/default", "s-1") is may
    assert may_use_namespace([], "lua/default", "s-1") is False
