"""Prompts: contributions in slots, layers, and the one that is remembered."""

import pytest

from everhold.agents.model_calls import PromptBuilder, PromptLayer, parse_prompt_layer
from everhold.errors import BadArguments
from everhold.hooks import Contribute


def text(*contributions, layers=(), tools=()):
    return PromptBuilder().text(list(layers), list(contributions), tools)


def test_slots_come_in_their_order_and_priorities_within_them():
    """Row 23: sorted by slot, then by priority."""
    found = text(
        Contribute("environment", "Linux."),
        Contribute("intro", "Second.", priority=2),
        Contribute("intro", "First.", priority=1),
    )
    assert found == "First.\n\nSecond.\n\nLinux."


def test_what_is_said_twice_is_said_once():
    """Row 23: same slot, same priority, same words but for the space around them."""
    same = Contribute("guidance", "Be kind."), Contribute("guidance", "  Be kind.\n")
    assert text(*same) == "Be kind."
    assert text(same[0], Contribute("guidance", "Be kind.", priority=1)) == "Be kind.\n\nBe kind."
    assert text(same[0], Contribute("context", "Be kind.")) == "Be kind.\n\nBe kind."


def test_a_contribution_may_need_a_tool():
    """Row 23: it is said only where one of its tools is offered."""
    gated = Contribute("execution", "Search first.", tools=["search", "find"])
    assert text(gated) == ""
    assert text(gated, tools=["find"]) == "Search first."


def test_a_title_is_a_heading():
    assert text(Contribute("project", "Use tabs.", title="Style")) == "## Style\n\nUse tabs."
    assert text(Contribute("project", "  ", title="Style")) == ""


def test_layers_add_replace_clear_and_put_in_another_order():
    """Row 23: the turn's layer lies over the session's."""
    session = PromptLayer(add={"guidance": "Be brief."}, clear=["environment"])
    turn = PromptLayer(replace={"intro": "You are stern."}, template=["guidance", "intro"])
    said = Contribute("intro", "You are kind."), Contribute("environment", "Linux.")
    assert text(*said, layers=[session]) == "You are kind.\n\nBe brief."
    assert text(*said, layers=[session, turn]) == "Be brief.\n\nYou are stern."
    assert text(*said, layers=[None, None]) == "You are kind.\n\nLinux."


def test_one_prompt_is_remembered():
    """Row 23: the same inputs are not put together again; any change is."""
    prompt, said = PromptBuilder(), [Contribute("intro", "Hello.")]
    prompt.text([], said, ["a"])
    prompt.text([], said, ["a"])
    assert prompt.built == 1
    prompt.text([], said, ["a", "b"])
    prompt.text([PromptLayer(add={"intro": "x"})], said, ["a", "b"])
    prompt.text([], [Contribute("intro", "Hello!")], ["a", "b"])
    assert prompt.built == 4


def test_a_layer_is_read_from_options():
    assert parse_prompt_layer(None) is None
    assert parse_prompt_layer("Be brief.") == PromptLayer(add={"guidance": "Be brief."})
    assert parse_prompt_layer({"clear": ["intro"]}) == PromptLayer(clear=["intro"])


@pytest.mark.parametrize(
    "wrong",
    [3, {"remove": []}, {"add": {"nowhere": "x"}}, {"template": ["x"]}, {"add": {"intro": 1}}],
)
def test_what_is_no_layer_is_refused(wrong):
    with pytest.raises(BadArguments):
        parse_prompt_layer(wrong)


def test_an_unknown_slot_is_refused():
    with pytest.raises(BadArguments, match="nowhere"):
        text(Contribute("nowhere", "x"))
