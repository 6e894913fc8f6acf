"""Limits on what a session may spend."""

import msgspec
import pytest

from everhold.core.budget import Budget, find_reached_limit
from everhold.errors import BadSetting, BudgetExceeded

ALL = Budget(max_llm_calls=3, max_elapsed_ms=1000, max_tokens=50)


def refusal(budget, asking=1, **used):
    spent = {"llm_calls": 0, "elapsed_ms": 0, "tokens": 0} | used
    with pytest.raises(BudgetExceeded) as caught:
        budget.check(asking, **spent)
    return str(caught.value)


def test_calls_that_are_used_up():
    """The fourth call of three is refused in the words of the wire."""
    assert refusal(ALL, llm_calls=3) == "budget_exceeded: max_llm_calls (3) reached: 3 used"


def test_time_that_is_used_up():
    """Reaching the limit is enough."""
    assert (
        refusal(ALL, elapsed_ms=1000)
        == "budget_exceeded: max_elapsed_ms (1000ms) reached: 1000ms have passed"
    )


def test_tokens_that_are_used_up():
    """Tokens are part of every check."""
    assert refusal(ALL, tokens=51) == "budget_exceeded: max_tokens (50) reached: 51 used"


def test_what_is_below_its_limits_passes():
    """The last call, millisecond and token below the limits are allowed."""
    ALL.check(1, llm_calls=2, elapsed_ms=999, tokens=49)


def test_calls_come_before_time_and_time_before_tokens():
    """Of several limits reached the first in that order is named."""
    assert "max_llm_calls" in refusal(ALL, llm_calls=3, elapsed_ms=1000, tokens=50)
    assert "max_elapsed_ms" in refusal(ALL, elapsed_ms=1000, tokens=50)


def test_a_batch_cannot_overshoot():
    """Four calls where two are left are refused whole, and the refusal says how many were asked."""
    assert (
        refusal(ALL, 4, llm_calls=1)
        == "budget_exceeded: max_llm_calls (3) reached: 1 used, 4 asked"
    )


def test_a_batch_that_just_fits_passes():
    """Two calls where two are left are allowed."""
    ALL.check(2, llm_calls=1, elapsed_ms=0, tokens=0)


def test_asking_nothing_of_a_model_needs_no_calls():
    """A query of another kind passes when the calls are used up."""
    ALL.check(0, llm_calls=3, elapsed_ms=0, tokens=0)


def test_a_limit_that_is_not_set_never_refuses():
    """Only the limits that are set are checked."""
    Budget().check(9, llm_calls=10**9, elapsed_ms=10**9, tokens=10**9)


def test_a_limit_of_zero_allows_nothing():
    """Zero is a limit."""
    assert refusal(Budget(max_llm_calls=0)) == "budget_exceeded: max_llm_calls (0) reached: 0 used"


def test_what_remains_never_falls_below_zero():
    """What is left saturates at 0; a limit that is not set leaves None."""
    budget = Budget(max_llm_calls=3, max_tokens=50)

    left = budget.remaining(llm_calls=5, elapsed_ms=9, tokens=20)

    assert left == {"llm_calls": 0, "elapsed_ms": None, "tokens": 30}


def test_time_that_remains():
    """Elapsed time is counted in milliseconds."""
    left = Budget(max_elapsed_ms=1000).remaining(llm_calls=0, elapsed_ms=400, tokens=0)

    assert left == {"llm_calls": None, "elapsed_ms": 600, "tokens": None}


@pytest.mark.parametrize(
    "given",
    [
        None,
        "3",
        [],
        {},
        {"other": 1},
        {"max_llm_calls": -1},
        {"max_tokens": "9"},
        {"max_tokens": True},
        {"max_tokens": 1.5},
    ],
)
def test_reading_without_a_valid_limit_is_no_budget(given):
    """What holds no valid limit is read as no budget at all."""
    assert Budget.read(given) is None


def test_reading_keeps_what_is_valid():
    """Valid limits are kept, the rest is ignored."""
    found = Budget.read({"max_llm_calls": 0, "max_elapsed_ms": None, "max_tokens": -2, "note": "x"})

    assert found == Budget(max_llm_calls=0)


@pytest.mark.parametrize("limit", [-1, 1.0, True, "3", 2**63])
def test_a_python_caller_is_told_of_a_bad_limit(limit):
    """What is not a whole number from 0 is refused by name."""
    with pytest.raises(BadSetting, match="max_tokens"):
        Budget(max_tokens=limit)


def test_a_budget_shows_the_limits_that_are_set():
    """On the wire and in the store a limit that is not set is absent."""
    assert ALL.json() == {"max_llm_calls": 3, "max_elapsed_ms": 1000, "max_tokens": 50}
    assert Budget(max_tokens=0).json() == {"max_tokens": 0}
    assert msgspec.json.encode(Budget(max_tokens=5)) == b'{"max_tokens":5}'


def test_a_changed_budget_keeps_the_limits_that_are_not_named():
    """None lifts a limit."""
    budget = Budget(max_llm_calls=2, max_tokens=900)

    assert budget.changed({"max_llm_calls": 3}) == Budget(max_llm_calls=3, max_tokens=900)
    assert budget.changed({"max_tokens": None}) == Budget(max_llm_calls=2)
    assert budget.changed({}) == budget


def test_only_larger_limits_are_raises():
    """A limit that the budget does not have is none: there is nothing to raise."""
    budget = Budget(max_llm_calls=2, max_tokens=900)

    assert budget.find_raises(Budget(max_llm_calls=3, max_tokens=900, max_elapsed_ms=1)) == {
        "max_llm_calls": 3
    }
    assert budget.find_raises(Budget()) == {}


@pytest.mark.parametrize(
    ("asking", "used", "found"),
    [
        (1, {"llm_calls": 2}, ("max_llm_calls", 2)),
        (5, {"llm_calls": 1}, ("max_llm_calls", 6)),
        (1, {"elapsed_ms": 6000}, ("max_elapsed_ms", 6000)),
        (1, {"tokens": 931}, ("max_tokens", 931)),
    ],
)
def test_the_message_of_a_refusal_names_the_limit_and_what_was_needed(asking, used, found):
    """Also inside another message."""
    budget = Budget(max_llm_calls=2, max_elapsed_ms=5000, max_tokens=900)
    with pytest.raises(BudgetExceeded) as refused:
        budget.check(asking, **{"llm_calls": 0, "elapsed_ms": 0, "tokens": 0, **used})

    assert find_reached_limit(f"LuaError: desk.lua:3: {refused.value}, it said") == found


def test_another_message_names_no_limit():
    assert find_reached_limit("max_tokens (5) reached") is None
