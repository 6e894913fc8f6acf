"""What a conversation has cost, by source and model."""

import pytest

from everhold.core.ledger import Ledger, TokenCounts, count_usage_tokens
from everhold.core.query import Usage
from everhold.errors import BadValue

USED = Usage(
    prompt_tokens=100,
    completion_tokens=20,
    cache_read_tokens=60,
    cache_write_tokens=10,
    reasoning_tokens=5,
    model="m",
)


def entered(*entries):
    ledger = Ledger()
    for source, usage in entries:
        ledger.add(source, usage)
    return ledger


def test_the_caches_part_is_not_counted_twice():
    cost = count_usage_tokens(USED)
    assert cost == TokenCounts(input=30, output=20, cache_read=60, cache_write=10, reasoning=5)
    assert (cost.total, cost.context) == (120, 100)


def test_less_than_nothing_is_nothing():
    assert (
        count_usage_tokens(Usage(prompt_tokens=-5, completion_tokens=-1, cache_read_tokens=-2))
        == TokenCounts()
    )


def test_entries_of_one_source_and_model_add_up():
    ledger = entered(("turn", USED), ("turn", USED), ("compaction", USED))
    assert [(source, model, cost.total) for source, model, cost in ledger] == [
        ("compaction", "m", 120),
        ("turn", "m", 240),
    ]
    assert ledger.total.total == 360


def test_what_nobody_counted_or_cost_nothing_leaves_no_entry():
    assert len(entered(("turn", None), ("turn", Usage()))) == 0
    assert len(entered(("turn", Usage(reasoning_tokens=3)))) == 1


def test_the_report_tells_everything_by_source_and_by_model():
    report = entered(("turn", USED), ("compaction", Usage(prompt_tokens=1, model="n"))).report()
    assert report["entries"] == 2
    assert report["total"]["total"] == 121
    assert report["by_source"]["turn"]["output"] == 20
    assert report["by_model"]["n"]["input"] == 1
    assert [(row["source"], row["model"]) for row in report["rows"]] == [
        ("compaction", "n"),
        ("turn", "m"),
    ]


def test_what_was_added_since():
    before = entered(("turn", USED))
    after = before.copy()
    after.add("turn", USED)
    after.add("sub", USED)
    assert [(source, cost.total) for source, _, cost in after.since(before)] == [
        ("sub", 120),
        ("turn", 120),
    ]
    assert len(before.since(before)) == 0


def test_a_ledger_never_becomes_smaller():
    one, two = entered(("turn", USED)), entered(("turn", USED), ("turn", USED))
    with pytest.raises(BadValue):
        one.since(two)
    with pytest.raises(BadValue):
        Ledger().since(one)


def test_a_ledger_as_what_one_answer_cost():
    """Row 10: what a child spent reaches its parent model by model, and nothing is lost on the
    way.
    """
    one = entered(("turn", USED), ("compaction", USED))
    assert one.usage == Usage(
        prompt_tokens=200,
        completion_tokens=40,
        cache_read_tokens=120,
        cache_write_tokens=20,
        reasoning_tokens=10,
        model="m",
    )
    several = entered(("turn", USED), ("turn", Usage(prompt_tokens=1, model="n")))
    above = entered(("subagent:x", several.usage))
    assert [(source, model, cost.total) for source, model, cost in above] == [
        ("subagent:x", "m", 120),
        ("subagent:x", "n", 1),
    ]
    assert above.total == several.total
    assert Ledger().usage is None
