"""Names that do not exist are refused, with the one that was probably meant."""

import inspect

import pytest

from everhold.core.unknown_names import (
    checks_keywords,
    find_close_name,
    list_keyword_names,
    refuse_unknown_names,
)
from everhold.errors import BadArguments


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("sytem", "system"),
        ("max_token", "max_tokens"),
        ("stop", "stop_sequences"),  # a beginning goes before a name that looks alike
        ("st", None),  # too short to be a beginning
        ("colour", None),
    ],
)
def test_the_name_that_was_meant(said: str, meant: str | None) -> None:
    assert find_close_name(said, ["system", "max_tokens", "top_p", "stop_sequences"]) == meant


def test_all_unknown_names_are_said_at_once() -> None:
    with pytest.raises(BadArguments) as caught:
        refuse_unknown_names("Agent", ["name", "modle", "odd"], ["name", "model"], "use extra")

    assert caught.value.reason == (
        "there is no option 'modle' (did you mean 'model'?); there is no option 'odd' (use extra)"
    )


def test_a_name_like_no_other_without_advice() -> None:
    with pytest.raises(BadArguments, match=r"there is no option 'colour'$"):
        refuse_unknown_names("Agent", ["colour"], ["name"])


def test_known_names_are_accepted() -> None:
    refuse_unknown_names("Agent", ["name"], ["name", "model"])


def test_the_keywords_of_a_function() -> None:
    """Not those that are given by position only, and not what `*` and `**` take."""

    def function(self, first, /, second, *rest, third=3, **others):  # type: ignore[no-untyped-def]
        fourth = 4
        return fourth

    assert list_keyword_names(function) == ("second", "third")


def test_a_function_that_checks_its_keywords() -> None:
    """It keeps its name and signature, and everything else passes through."""

    @checks_keywords("Agent")
    def make(first: int, *, second: int = 2) -> tuple[int, int]:
        return first, second

    assert (make(1), make(1, second=3), make(first=4)) == ((1, 2), (1, 3), (4, 2))
    assert make.__name__ == "make"
    assert list(inspect.signature(make).parameters) == ["first", "second"]
    with pytest.raises(BadArguments) as caught:
        make(1, secnd=3)
    assert caught.value.reason == "there is no option 'secnd' (did you mean 'second'?)"
