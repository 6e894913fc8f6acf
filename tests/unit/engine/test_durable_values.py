"""Durable values as one step sees them: the whole of a namespace in one question."""

import pytest

from everhold.core.query import Kind, Query
from everhold.engine.durable_values import DurableValues
from everhold.errors import BadValue
from everhold.stores.memory import MemoryStore


def asked(verb, namespace="n", key="", value=None):
    return Query(
        0, "0", kind=Kind.STATE, name=key, args={"in": namespace, "do": verb, "value": value}
    )


async def test_a_scan_sees_what_begins_so():
    """Keys and values in the order of the keys, what this step wrote and deleted included; other
    rooms are apart.
    """
    values = DurableValues(MemoryStore())
    for key, value in {"b/2": 2, "a/1": 1, "b/1": None, "b/3": 3, "bb": 4}.items():
        await values.answer(asked("set", key=key, value=[value]))
    await values.answer(asked("set", "other", "b/9", [9]))
    await values.answer(asked("delete", key="b/3"))

    assert await values.answer(asked("scan", key="b/")) == [["b/1", None], ["b/2", 2]]
    assert await values.answer(asked("scan")) == [["a/1", 1], ["b/1", None], ["b/2", 2], ["bb", 4]]
    assert await values.answer(asked("scan", "nowhere")) == []


@pytest.mark.parametrize(
    ("before", "delta"),
    [(2**63 - 1, 1), (1e308, 1e308), (1, "1"), (1, None), (1, [1]), (1, True), (True, 1), ("1", 1)],
    ids=str,
)
async def test_a_count_that_is_no_number_is_refused(before, delta):
    """Also one that JSON cannot hold: a program would see another value when it is replayed.
    Nothing is written.
    """
    values = DurableValues(MemoryStore())
    await values.answer(asked("set", key="n", value=[before]))

    with pytest.raises(BadValue, match="'n'"):
        await values.answer(asked("incr", key="n", value=[delta, 0]))
    assert await values.answer(asked("get", key="n")) == [before]
