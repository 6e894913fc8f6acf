"""Whatever forks, children, attachments and inputs there are: a sweep takes what it may, and harms
nothing else.
"""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everhold.archive.retention import DEFAULT_STATES, RetentionPlan, sweep_sessions
from everhold.core.intake import IntakeItem, ItemKind
from everhold.core.session import ENDED, SessionState
from everhold.core.status import Raised, Returned, Stopped
from everhold.ports.store import ReclaimResult, SessionFilter
from everhold.stores.memory import MemoryStore
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.conformance.attachment import make_attachment
from everhold.testing.conformance.factories import (
    DAWN,
    commit_end,
    commit_fork,
    commit_start,
    commit_step,
    make_query,
)
from tests.postgres import fresh

ENDS = {
    SessionState.COMPLETED: Returned("done"),
    SessionState.FAILED: Raised("it broke", "ValueError"),
    SessionState.CANCELLED: Stopped("enough"),
}
NOW = DAWN + 1000

#: One session: what it comes from, how far it goes, how it ends, what it keeps, and whether
#: something waits for it.
session = st.fixed_dictionaries(
    {
        "kin": st.sampled_from(["none", "child", "fork"]),
        "of": st.integers(0, 30),
        "at": st.integers(0, 3),
        "steps": st.integers(0, 3),
        "state": st.sampled_from([*ENDS, SessionState.PAUSED]),
        "keeps": st.lists(st.integers(0, 4), max_size=2),
        "waits": st.booleans(),
    }
)
plan = st.builds(
    RetentionPlan,
    ages=st.dictionaries(
        st.sampled_from([*ENDS]), st.sampled_from([0.0, 985.0, 995.0]), min_size=1
    ),
    keep_last=st.sampled_from([0, 0, 0, 1, 3]),
    intake=st.sampled_from([None, 0.0]),
)


async def made_up(store, number, facts, ids):
    """Make one session of a random family."""
    id, born = f"s-{number:02}", DAWN + number
    kin = ids[facts["of"] % len(ids)] if ids and facts["kin"] != "none" else None
    if kin is not None and facts["kin"] == "fork":
        origin = await store.load(kin)
        last = origin.head.n - origin.head.ended  # before its end
        record = await commit_fork(store, origin, id, min(facts["at"], last), created_at=born)
    else:
        more = {} if kin is None else {"parent": kin}
        record = await commit_start(store, id, make_query(0), created_at=born, **more)
    for step in range(facts["steps"]):
        if step < len(facts["keeps"]):
            await keep(store, id, facts["keeps"][step])
        asked = make_query(1000 + number * 10 + step)
        record = await commit_step(store, record, asked=[asked], at=born)
    if facts["waits"]:
        await store.intake(
            id, lambda intake: intake.enqueue(IntakeItem("i-1", ItemKind.INPUT, "hello"))
        )
    if facts["state"] in ENDS:
        await commit_end(store, record, ENDS[facts["state"]])
    if facts["keeps"]:
        await keep(store, id, facts["keeps"][-1])
    return id


async def keep(store, id, what):
    data = f"data {what}".encode() * 50
    await store.attach(id, make_attachment(data), data, 1.0)


async def looked_at(store):
    """Everything that can be read, by session."""
    found = {}
    for row in await store.list(SessionFilter(limit=1000)):
        id = row.birth.id
        attached = [await store.attachment(id, one.id) for one in await store.attachments(id)]
        waits = await store.intake(
            id, lambda intake: any(item.waits for item in intake.items.values())
        )
        found[id] = (await store.load(id), attached, waits)
    return found


async def check(store, family, wanted):
    await store.open()
    try:
        ids = []
        for number, facts in enumerate(family):
            ids.append(await made_up(store, number, facts, ids))
        before = await looked_at(store)

        dry = await sweep_sessions(store, wanted, NOW, dry_run=True)
        assert await looked_at(store) == before
        swept = await sweep_sessions(store, wanted, NOW)
        after = await looked_at(store)

        gone = set(before) - set(after)
        assert set(swept.deleted) == gone == set(dry.deleted)
        assert sum(swept.counts.values()) == len(gone)
        assert {id: found for id, found in before.items() if id not in gone} == after
        for id in gone:
            record, _, waits = before[id]
            assert record.head.state in ENDED
            assert record.head.state in wanted.ages
            assert not waits
        for record, _, _ in after.values():
            parent = record.birth.parent
            assert parent not in gone or record.head.ended, (
                "a parent goes after its living children"
            )
        for id in gone:
            parent = before[id][0].birth.parent
            assert (
                parent is None or parent in gone or before[parent][0].head.state in DEFAULT_STATES
            )
        assert await store.maintenance.verify() == []
        assert await store.maintenance.reclaim() == ReclaimResult()
        again = await sweep_sessions(store, wanted, NOW)
        assert set(again.deleted) <= set(swept.kept) | set(after)
        assert {id: after[id] for id in after if id not in again.deleted} == await looked_at(store)
    finally:
        await store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(family=st.lists(session, min_size=1, max_size=10), wanted=plan)
def test_nothing_that_anybody_needs_is_ever_deleted(kind, family, wanted):
    with tempfile.TemporaryDirectory() as folder:
        store = MemoryStore() if kind == "memory" else SQLiteStore(Path(folder) / "app.db")
        asyncio.run(check(store, family, wanted))


@pytest.mark.xdist_group("postgres")
@settings(max_examples=12, deadline=None, suppress_health_check=[*HealthCheck])
@given(family=st.lists(session, min_size=1, max_size=8), wanted=plan)
def test_nothing_that_anybody_needs_is_ever_deleted_on_postgres(postgres, family, wanted):
    asyncio.run(check(PostgresStore(fresh(postgres)), family, wanted))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(family=st.lists(session, min_size=1, max_size=10))
def test_in_the_end_nothing_is_left(kind, family):
    """When all have ended and nothing waits, one sweep of every state takes every session and every
    byte.
    """
    family = [
        {**facts, "state": facts["state"] if facts["state"] in ENDS else SessionState.FAILED}
        for facts in family
    ]
    family = [{**facts, "waits": False} for facts in family]

    async def act(store):
        await store.open()
        ids = []
        for number, facts in enumerate(family):
            ids.append(await made_up(store, number, facts, ids))
        swept = await sweep_sessions(store, RetentionPlan(ages=dict.fromkeys(ENDS, 0.0)), NOW)
        assert (set(swept.deleted), swept.kept) == (set(ids), {})
        assert await store.maintenance.reclaim() == ReclaimResult()
        rows = [store._blobs, store._buried] if kind == "memory" else _rows(store)
        assert [len(each) for each in rows] == [0] * len(rows)
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(
            act(MemoryStore() if kind == "memory" else SQLiteStore(Path(folder) / "app.db"))
        )


def _rows(store):
    tables = (
        "session",
        "journal",
        "head_2",
        "blob",
        "attachment",
        "item",
        "lease",
        "notice",
        "effect",
        "letter",
    )
    return [store._run(f"SELECT 1 FROM {table}").fetchall() for table in tables]
