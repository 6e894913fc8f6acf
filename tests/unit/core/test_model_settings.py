"""The settings of a question are checked where they are written."""

from typing import Any

import pytest

from everhold.core.model_settings import parse_model_settings
from everhold.errors import BadArguments, BadValue

FIT: dict[str, Any] = {
    "temperature": 0,
    "top_p": 0.5,
    "top_k": 3,
    "seed": -1,
    "stop_sequences": ["."],
    "presence_penalty": -0.5,
    "frequency_penalty": 2,
    "logit_bias": {"50256": -100},
    "thinking": "low",
    "cache": False,
    "tool_choice": ["search"],
    "parallel_tool_calls": True,
    "service_tier": "flex",
    "extra": {"anthropic_metadata": {"user_id": "u-1"}, "rank": [1, None]},
}


def test_settings_are_kept_as_they_are_given() -> None:
    assert parse_model_settings("ctx.llm", FIT) == FIT


def test_none_is_no_setting() -> None:
    assert parse_model_settings("ctx.llm", dict.fromkeys(FIT)) == {}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"temperature": "hot"}, "temperature must be a number ≥ 0, got 'hot'"),
        ({"temperature": True}, "temperature must be a number ≥ 0, got True"),
        ({"top_p": 2}, "top_p must be a number ≥ 0 and ≤ 1, got 2"),
        ({"top_k": 0}, "top_k must be an integer ≥ 1, got 0"),
        ({"stop_sequences": "."}, "stop_sequences must be a list, got '.'"),
        ({"extra": ["x"]}, "extra must be an object, got ['x']"),
        ({"temprature": 1}, "there is no option 'temprature' (did you mean 'temperature'?)"),
        ({"max_token": 5}, "there is no option 'max_token' (did you mean 'max_tokens'?)"),
        (
            {"colour": 1},
            "there is no option 'colour' (options of a single provider go into extra={…})",
        ),
        (
            {"extra": {"temperature": 1}},
            "'temperature' is an option of its own; take it out of extra={…}",
        ),
        ({"extra": {"model": "x"}}, "'model' is an option of its own; take it out of extra={…}"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadArguments) as caught:
        parse_model_settings("ctx.llm", given, also=["max_tokens"])

    assert (caught.value.program, caught.value.reason) == ("ctx.llm", reason)


def test_extra_is_stored_so_it_must_be_json() -> None:
    with pytest.raises(BadValue, match="extra"):
        parse_model_settings("ctx.llm", {"extra": {"callback": print}})
