"""Tokens, counted or estimated."""

import pytest

from everhold.core.query import Query, QueryAnswer, Usage
from everhold.core.usage import (
    TokenCost,
    TokenCount,
    TokenSource,
    estimate_tokens,
    measure_answer,
    measure_query,
    measure_text,
    parse_usage,
    price_exchange,
)
from everhold.errors import BadArguments


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abcd", 1),
        ("abcde", 2),
        ("é", 1),
        ("éé", 2),
        ("ééé", 2),
        ("abcdé", 2),
        ("日本語です", 4),
    ],
)
def test_an_estimate_rounds_both_parts_up(text, tokens):
    """ASCII characters count a quarter, others two thirds, and each part is rounded up."""
    assert estimate_tokens(text) == tokens


def test_size_is_in_bytes():
    """A text is measured in bytes of UTF-8, whatever the wire calls it."""
    assert measure_text("abc") == (3, 1)
    assert measure_text("héé") == (5, 3)


def test_a_lone_surrogate_is_measured_and_not_refused():
    """Counting is no door: text that could not be stored does not break it."""
    assert measure_text("\ud800") == (3, 1)


@pytest.mark.parametrize(
    ("one", "other", "weaker"),
    [
        ("definite", "definite", "definite"),
        ("definite", "provided", "provided"),
        ("definite", "estimated", "estimated"),
        ("provided", "provided", "provided"),
        ("provided", "estimated", "estimated"),
        ("estimated", "estimated", "estimated"),
    ],
)
def test_the_weakest_source_wins(one, other, weaker):
    """A merge is as weak as its weaker part, whichever comes first."""
    assert TokenSource(one).merge(TokenSource(other)) == weaker
    assert TokenSource(other).merge(TokenSource(one)) == weaker


def test_counts_add_up():
    """Adding counts adds their tokens and keeps the weaker source."""
    total = TokenCount(3, TokenSource.PROVIDED).plus(TokenCount(4, TokenSource.ESTIMATED))

    assert total == TokenCount(7, TokenSource.ESTIMATED)
    assert total.json() == {"tokens": 7, "source": "estimated"}
    assert type(total.json()["source"]) is str


def test_nothing_is_definitely_zero():
    """A count of nothing is 0 and definite."""
    assert TokenCount().json() == {"tokens": 0, "source": "definite"}


def test_a_prompt_includes_its_system_text():
    """What a model reads is the prompt and the system text, each estimated by itself."""
    assert measure_query(Query(0, "0:0", "hello", system="sys")) == (8, 3)


def test_a_prompt_includes_the_texts_of_its_messages():
    """Messages count by their texts; images and tool payloads are not text."""
    messages = [
        {"role": "user", "content": "abcd"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "ab"}, {"type": "image", "image": {}}, "abcd", 7],
        },
        {"role": "assistant"},
        "abc",
    ]

    assert measure_query(Query(0, "0:0", messages=messages)) == (13, 4)


def test_an_answer_is_measured_as_text_or_as_its_json():
    """A text counts as it is, a structured answer by its JSON, an error not at all."""
    assert measure_answer(QueryAnswer(0, "yes!!")) == (5, 2)
    assert measure_answer(QueryAnswer(0, {"a": 1})) == (7, 2)
    assert measure_answer(QueryAnswer(0, error={"code": "overloaded", "message": "later"})) == (
        0,
        0,
    )


def test_usage_that_is_provided_is_taken():
    """What the answerer counted is what it cost."""
    cost = price_exchange(Usage(10, 20), 1, 2)

    assert cost == TokenCost(10, TokenSource.PROVIDED, 20, TokenSource.PROVIDED)


def test_usage_that_is_missing_is_estimated():
    """Without a word from the answerer both parts are estimates."""
    assert price_exchange(None, 1, 2) == TokenCost(
        1, TokenSource.ESTIMATED, 2, TokenSource.ESTIMATED
    )


def test_usage_that_is_half_provided_is_half_estimated():
    """Each part that the answerer left out is estimated by itself."""
    assert price_exchange(Usage(prompt_tokens=10), 1, 2) == TokenCost(
        10, TokenSource.PROVIDED, 2, TokenSource.ESTIMATED
    )
    assert price_exchange(Usage(completion_tokens=20), 1, 2) == TokenCost(
        1, TokenSource.ESTIMATED, 20, TokenSource.PROVIDED
    )


def test_usage_of_several_models_is_their_sum():
    """Its source is the weakest of theirs."""
    parts = [Usage(10, 20, model="a"), Usage(3, model="b")]
    assert price_exchange(Usage(parts=parts), 1, 2) == TokenCost(
        13, TokenSource.PROVIDED, 22, TokenSource.ESTIMATED
    )


def test_a_negative_count_is_not_a_count():
    """Nobody can win tokens back for a budget by reporting less than nothing."""
    assert price_exchange(Usage(-5, -5), 1, 2) == TokenCost(
        1, TokenSource.ESTIMATED, 2, TokenSource.ESTIMATED
    )


@pytest.mark.parametrize("given", [{"prompt_tokens": 3, "completion_tokens": 1}, Usage(3, 1)])
def test_usage_from_outside(given):
    assert parse_usage(given) == Usage(3, 1)


@pytest.mark.parametrize(
    "given",
    [7, {"prompt_tokens": "3"}, Usage("3"), Usage(0.5), Usage(True), Usage(-1), Usage(1, -1)],
)
def test_usage_from_outside_that_is_none(given):
    """Whoever says it is told, whatever type it came in: a record of it could not be read again."""
    with pytest.raises(BadArguments, match="usage"):
        parse_usage(given)
