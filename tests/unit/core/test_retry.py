"""The retry policy: which failures are tried again, and the wait between two attempts."""

import math
from typing import Any

import msgspec
import pytest

from everhold.core.query import Kind, Query, has_new_wording
from everhold.core.retry import (
    Retry,
    convert_older_retries,
    get_error_code,
    parse_retry,
    parse_timeout,
    read_retry_after,
)
from everhold.errors import AnswerFailed, BadSetting, BadValue, StoreBusy
from tests.failures import collect_failures


def test_a_policy_is_stored_with_the_names_of_its_errors() -> None:
    retry = Retry(2, on=(OSError, "rate_limited", OSError))
    assert retry.on == ("OSError", "rate_limited")
    assert Retry(on=OSError).on == Retry(on="OSError").on == ("OSError",)
    assert msgspec.json.decode(msgspec.json.encode(retry), type=Retry) == retry


def test_a_stored_policy_with_a_name_like_a_code_loads() -> None:
    """Codes may be added later; only what is written now is checked."""
    stored = msgspec.json.decode(b'{"on":["rate_limit"]}', type=Retry)
    assert stored.on == ("rate_limit",)
    with pytest.raises(BadSetting, match="rate_limited"):
        parse_retry(stored)


def test_which_failures_are_tried_again() -> None:
    cases: list[tuple[Retry, BaseException, bool]] = [
        (Retry(), OSError(), True),
        (Retry(), StoreBusy("db", 1.0), True),
        (Retry(), BadValue("x", "y"), False),
        (Retry(), KeyboardInterrupt(), False),
        (Retry(), AnswerFailed("x", "rate_limited"), True),
        (Retry(), AnswerFailed("x"), False),
        (Retry(on=OSError), ConnectionError(), True),
        (Retry(on=OSError), KeyError(), False),
        (Retry(on="mine"), AnswerFailed("x", "mine"), True),
        (Retry(on="store_busy"), StoreBusy("db", 1.0), True),
        (Retry(on=AnswerFailed), AnswerFailed("x", "mine"), True),
    ]
    with collect_failures() as row:
        for retry, error, again in cases:
            with row(f"{retry.on} {error!r}"):
                assert retry.is_retried(error) is again


def test_the_code_of_an_error_is_the_one_a_program_sees() -> None:
    assert [get_error_code(one) for one in (AnswerFailed("x", "k"), AnswerFailed("x"))] == [
        "k",
        "answer_failed",
    ]
    assert get_error_code(KeyError("x")) == "KeyError"


def test_waits_grow_up_to_the_longest_minus_a_random_part() -> None:
    retry = Retry(9, backoff=1, factor=3, max_backoff=20, jitter=0.5)
    assert [retry.compute_wait(n, lambda: 0.0) for n in (1, 2, 3, 4)] == [1, 3, 9, 20]
    assert [retry.compute_wait(n, lambda: 0.5) for n in (1, 4)] == [0.75, 15]
    assert Retry(2, factor=1000).compute_wait(10**9, lambda: 0.0) == 60


def test_limits_are_read_or_refused() -> None:
    assert (parse_retry(None), parse_timeout(None)) == (None, None)
    for known in (Retry(2, on="mine"), Retry(2, on=("OSError", "timeout"))):
        assert parse_retry(known) is known
    assert (parse_timeout(5), parse_timeout(math.inf)) == (5.0, 1e9)  # JSON has no infinity
    with collect_failures() as row:
        for given in (0, -1, "5", True, math.nan, -math.inf, 2e9):
            with row(repr(given)), pytest.raises(BadSetting, match="timeout"):
                parse_timeout(given)
        for name, wrong in (
            ("attempts", 0),
            ("attempts", 10**10),
            ("backoff", -1),
            ("factor", 0.5),
            ("jitter", 2),
        ):
            with row(name), pytest.raises(BadSetting, match=f"retry.{name}"):
                Retry(**{name: wrong})
    with pytest.raises(BadSetting, match="Retry"):
        parse_retry(3)
    with pytest.raises(BadSetting, match="neither"):
        Retry(on="")


def test_how_long_a_failure_asks_to_wait_is_a_time_that_can_be_stored() -> None:
    """Code of others says it. What is no time counts as nothing."""
    assert read_retry_after(OSError()) == read_retry_after(AnswerFailed("x")) == 0
    cases: list[tuple[Any, float]] = [
        (30, 30),
        (0.5, 0.5),
        (0, 0),
        (-3, 0),
        (math.nan, 0),
        ("soon", 0),
        (math.inf, 1e9),
        (10**400, 1e9),
    ]
    with collect_failures() as row:
        for given, wait in cases:
            with row(repr(given)[:20]):
                assert read_retry_after(AnswerFailed("x", retry_after=given)) == wait


def test_the_retries_of_older_databases_become_a_policy() -> None:
    assert convert_older_retries(None) is convert_older_retries(0) is None
    assert convert_older_retries(2) == Retry(3, 0.1, max_backoff=10.0, jitter=0.0)


def test_limits_among_the_options_of_an_older_call_are_not_its_wording() -> None:
    now = Query(0, "0:0", kind=Kind.CALL)
    assert not has_new_wording(Query(0, "0:0", kind=Kind.CALL, options={"retries": 2}), now)
    assert has_new_wording(Query(0, "0:0", kind=Kind.CALL, options={"call": "c"}), now)
