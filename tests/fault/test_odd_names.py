"""What cannot be a name is the caller's mistake, and is never taken for damage or for a disk that
is full.
"""

import pytest

from everhold.core.intake import IntakeItem, ItemKind
from everhold.errors import BadValue
from everhold.ports.store import Duty, SessionFilter
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.conformance.factories import commit_start
from everhold.testing.conformance.harness import using_store
from tests.postgres import fresh

HALF = "\ud800"
LOOKS = {
    "duty": lambda store: store.duty("schedule", HALF),
    "duties": lambda store: store.duties("schedule", prefix=HALF),
    "list": lambda store: store.list(SessionFilter(labels={"a": HALF})),
    "inbox": lambda store: store.inbox(kind=None, to=HALF, limit=10),
    "item": lambda store: store.intake("s-1", lambda intake: intake.items.get(HALF), named=[HALF]),
}


@pytest.mark.parametrize("look", LOOKS)
async def test_half_a_character_is_no_name_in_a_file(tmp_path, look):
    async with using_store(SQLiteStore(tmp_path / "app.db")) as store:
        await commit_start(store, "s-1")
        await store.intake(
            "s-1", lambda intake: intake.enqueue(IntakeItem("i", ItemKind.INPUT, "hello"))
        )
        with pytest.raises(BadValue, match="surrogate"):
            await LOOKS[look](store)


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("look", LOOKS)
async def test_half_a_character_is_no_name_on_a_server(postgres, look):
    async with using_store(PostgresStore(fresh(postgres))) as store:
        await commit_start(store, "s-1")
        with pytest.raises(BadValue, match="surrogate"):
            await LOOKS[look](store)
        assert [summary.birth.id for summary in await store.list(SessionFilter())] == ["s-1"]


@pytest.mark.xdist_group("postgres")
async def test_a_name_that_no_index_can_hold_is_refused(postgres):
    """A server says so with the words for a limit; nothing of it is written."""
    long = "".join(chr(0x4E00 + number * 7919 % 20000) for number in range(5000))
    async with using_store(PostgresStore(fresh(postgres))) as store:
        await commit_start(store, "s-1")
        with pytest.raises(BadValue, match="too long"):
            await store.undertake([Duty("event", long, {})])
        with pytest.raises(BadValue, match="too long"):
            item = IntakeItem(long, ItemKind.INPUT, "hello")
            await store.intake("s-1", lambda intake: intake.enqueue(item))
        assert await store.duties("event") == []
        assert await store.intake("s-1", lambda intake: intake.waiting()) == []
