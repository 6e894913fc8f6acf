"""Forks of forks: the last of thousands costs what the tenth costs, and each can be read and
deleted.
"""

import random
import sqlite3
import sys
from contextlib import asynccontextmanager, closing, contextmanager

import msgspec
import psycopg
import pytest

from everhold.core.codec import checksum_row, dumps
from everhold.core.session import Birth
from everhold.ports.store import SessionFilter
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.conformance.attachment import make_attachment
from everhold.testing.conformance.factories import (
    commit_fork,
    commit_start,
    commit_step,
    make_fork,
    make_query,
)
from tests.postgres import fresh

CUT = 2


@contextmanager
def python_calls():
    """Counts the functions that are called."""
    count = [0]

    def note(frame, event, given):
        count[0] += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        yield count
    finally:
        sys.setprofile(None)


@contextmanager
def sqlite_steps(store):
    """Counts the steps of SQLite's virtual machine: rows that are looked at in vain too."""
    count = [0]

    def note():
        count[0] += 1

    store._connection.set_progress_handler(note, 1)
    try:
        yield count
    finally:
        store._connection.set_progress_handler(None, 1)


async def root(store):
    """A session with deliveries 0 to 3, of which forks share those up to `CUT`, and an attachment
    they share.
    """
    record = await commit_start(store, "s-0", make_query(0))
    await store.attach("s-0", make_attachment(b"leaf"), b"leaf", 1.0)
    for q in range(3):
        record = await commit_step(store, record, answers={q: q}, asked=[make_query(q + 1)])
    return record


async def forked(store, record, count, meter=None, grow=False):
    """Fork a session, then the fork, and so on; returns the last one, and what each fork has
    cost.
    """
    costs = []
    for n in range(1, count + 1):
        change = make_fork(record, f"s-{n}", CUT)
        if meter is None or n not in (10, count):
            await store.commit(change, 0)
            record = await store.load(change.id)
        else:
            with meter() as cost:
                await store.commit(change, 0)
                record = await store.load(change.id)
                await store.attachments(change.id)
            costs += cost
        if grow:
            record = await commit_step(
                store, record, answers={CUT: f"mine {n}"}, asked=[make_query(CUT + 1)]
            )
    return record, costs


@pytest.mark.parametrize("grow", [False, True], ids=["as it is", "with another answer"])
async def test_the_three_thousandth_fork_of_a_fork_in_memory_costs_what_the_tenth_does(grow):
    """Counted in calls of Python functions; all of them can be read, and nothing is wrong."""
    store = MemoryStore()

    last, (tenth, thousandth) = await forked(store, await root(store), 3000, python_calls, grow)

    assert abs(thousandth - tenth) <= tenth * 0.05
    assert (last.birth.origin, last.birth.origin_n) == ("s-2999", CUT)
    assert [
        len((await store.load(one.birth.id)).deliveries)
        for one in await store.list(SessionFilter(limit=5000))
    ] == ([CUT + 1 + grow] * 3000 + [4])
    assert await store.maintenance.verify() == []


@pytest.mark.parametrize("grow", [False, True], ids=["as it is", "with another answer"])
async def test_the_three_thousandth_fork_of_a_fork_in_a_file_costs_what_the_tenth_does(
    tmp_path, grow
):
    """Counted in steps of SQLite's virtual machine; the births are as long, nothing is wrong, the
    views tell.
    """
    store = SQLiteStore(tmp_path / "app.db", durability="process")
    await store.open()

    last, (tenth, thousandth) = await forked(
        store, await root(store), 3000, lambda: sqlite_steps(store), grow
    )

    assert abs(thousandth - tenth) <= tenth * 0.05
    assert [one.n for one in last.deliveries] == [*range(CUT + 1 + grow)]
    assert await store.attachment("s-3000", make_attachment(b"leaf").id) == (
        make_attachment(b"leaf"),
        b"leaf",
    )
    assert await store.maintenance.verify() == []
    lengths = store._run(
        "SELECT max(length(birth)) - min(length(birth)) FROM session WHERE origin IS NOT NULL"
    )
    assert lengths.fetchone()[0] < 40
    shown = store._run(
        "SELECT origin_id, origin_step FROM sessions_v WHERE session_id = 's-3000'"
    ).fetchone()
    assert shown == ("s-2999", CUT)
    assert store._run("SELECT count(*) FROM answers_v WHERE session_id = 's-3000'").fetchone() == (
        2 + grow,
    )
    await store.close()


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("grow", [False, True], ids=["as it is", "with another answer"])
async def test_the_three_hundredth_fork_of_a_fork_on_postgres_costs_what_the_tenth_does(
    postgres, monkeypatch, grow
):
    """As many statements, and no chain with a session in it that contributes nothing; nothing is
    wrong.
    """
    store = PostgresStore(fresh(postgres, "lineage"))
    await store.open()
    said = []
    execute = psycopg.AsyncConnection.execute

    async def heard(line, statement, *given, **options):
        said.append(statement)
        return await execute(line, statement, *given, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", heard)

    @contextmanager
    def statements():
        count, before = [0], len(said)
        yield count
        count[0] = sum("pulse" not in one and "nextval" not in one for one in said[before:])

    last, (tenth, hundredth) = await forked(store, await root(store), 300, statements, grow)

    assert abs(hundredth - tenth) <= 2
    assert [one.n for one in last.deliveries] == [*range(CUT + 1 + grow)]
    assert postgres.run(
        "SELECT DISTINCT o.id FROM lineage.session s JOIN lineage.session o ON o.ref = s.origin"
    ) == [("s-0",)]
    assert (await store.attachment("s-300", make_attachment(b"leaf").id))[1] == b"leaf"
    assert await store.maintenance.verify() == []
    await store.close()


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("first", ["s-0", None], ids=["the root first", "in any order"])
async def test_five_hundred_forks_of_forks_are_deleted(tmp_path, kind, first):
    """What is left reads as before, and in the end nothing is left."""
    store = (
        MemoryStore()
        if kind == "memory"
        else SQLiteStore(tmp_path / "app.db", durability="process")
    )
    await store.open()
    dice, records = random.Random(3), [await root(store)]
    for n in range(1, 501):
        record = await commit_fork(
            store, records[-1], f"s-{n}", dice.randrange(CUT, records[-1].head.n + 1)
        )
        if dice.random() < 0.05:
            record = await commit_step(
                store, record, answers={record.head.n: n}, asked=[make_query(record.head.n + 1)]
            )
        records.append(record)
    last = records[-1]
    order = dice.sample(records[:-1], 500)
    order.sort(key=lambda one: one.birth.id != first)

    for count, one in enumerate(order, 1):
        await store.delete(one.birth.id, one.head.revision)
        if count % 100 == 0:
            assert await store.load(last.birth.id) == last
            assert await store.maintenance.verify() == []

    assert (await store.load(last.birth.id), await store.maintenance.verify()) == (last, [])
    await store.delete(last.birth.id, last.head.revision)
    assert (await store.list(SessionFilter()), await store.maintenance.verify()) == ([], [])
    if kind == "file":
        tables = ("session", "journal", "attachment", "blob")
        assert [store._run(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables] == [
            0
        ] * 4
    else:
        assert (store._buried, store._blobs) == ({}, {})
    await store.close()


async def test_a_long_chain_is_exported_and_imported(tmp_path):
    """Where it arrives, each fork reads and refers to its origin as it did."""
    target = SQLiteStore(tmp_path / "target.db", durability="process")
    async with Runtime(MemoryStore(), recover=False) as source:
        last, _ = await forked(source.store, await root(source.store), 1100)
        await source.archive.export(tmp_path / "all.jsonl")
    async with Runtime(target, recover=False) as arrived:
        await arrived.archive.import_(tmp_path / "all.jsonl")

        found = await target.load("s-1100")
        assert (found.birth, found.deliveries) == (last.birth, last.deliveries)
        assert await arrived.archive.verify() == []


async def test_a_changed_source_is_found(tmp_path):
    """The birth of a fork tells whose steps it shares, under its seal; its row may not tell
    another.
    """
    store = SQLiteStore(tmp_path / "app.db", durability="process")
    await store.open()
    await forked(store, await root(store), 5)
    await store.delete("s-4", 1)
    assert await store.maintenance.verify() == []

    store._run(
        "UPDATE session SET origin = (SELECT ref FROM session WHERE id = 's-2') WHERE id = 's-5'"
    )

    assert [(one.session, one.code) for one in await store.maintenance.verify()] == [
        ("s-5", "mismatch")
    ]
    await store.close()


# ---- chains that older versions wrote


def as_before(path):
    """Make of each fork what older versions wrote: it refers to the session it was forked from,
    whatever that has.
    """
    with closing(sqlite3.connect(path)) as connection:
        for ref, text in connection.execute(
            "SELECT ref, birth FROM session WHERE origin IS NOT NULL"
        ).fetchall():
            birth = msgspec.json.decode(text, type=Birth)
            plain = dumps(birth)
            connection.execute(
                "UPDATE session SET birth = ?, seal = ?, origin = (SELECT ref FROM session WHERE"
                " id = ?) WHERE ref = ?",
                (plain, checksum_row(plain), birth.origin, ref),
            )
        connection.commit()


@asynccontextmanager
async def old_chain(tmp_path):
    """A file with a chain of 1,200 forks of forks as older versions wrote it."""
    store = SQLiteStore(tmp_path / "old.db", durability="process")
    await store.open()
    await forked(store, await root(store), 1200)
    await store.close()
    as_before(store.path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_an_old_chain_reads_and_is_sound(tmp_path):
    """Deep as it is, the last one is loaded, lists what it shares, and is right."""
    async with old_chain(tmp_path) as old:
        record = await old.load("s-1200")

        assert [one.n for one in record.deliveries] == [0, 1, 2]
        assert await old.attachments("s-1200") == [make_attachment(b"leaf")]
        assert await old.maintenance.size("s-0") > 0
        assert await old.maintenance.verify() == []


async def test_a_fork_of_an_old_chain_is_short(tmp_path):
    """It reads from the session that has the steps."""
    async with old_chain(tmp_path) as old:
        record = await commit_fork(old, await old.load("s-1200"), "s-new", 1)

        assert [one.n for one in record.deliveries] == [0, 1]
        assert old._run(
            "SELECT o.id FROM session s JOIN session o ON o.ref = s.origin WHERE s.id = 's-new'"
        ).fetchone() == ("s-0",)
        assert await old.maintenance.verify() == []


@pytest.mark.parametrize("order", ["oldest first", "newest first", "any"])
async def test_an_old_chain_is_deleted_in_any_order(tmp_path, order):
    """What is left reads as before, and in the end nothing is left."""
    async with old_chain(tmp_path) as old:
        ids = [f"s-{n}" for n in range(1201)]
        if order != "oldest first":
            ids.reverse()
        if order == "any":
            random.Random(7).shuffle(ids)
        for count, id in enumerate(ids, 1):
            await old.delete(id, 4 if id == "s-0" else 1)
            if count % 300 == 0:
                assert len((await old.load(ids[-1])).deliveries) == (4 if ids[-1] == "s-0" else 3)
                assert await old.maintenance.verify() == []

        tables = ("session", "journal", "attachment", "blob")
        assert [old._run(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables] == [
            0
        ] * 4


@pytest.mark.xdist_group("postgres")
async def test_an_old_chain_on_postgres(postgres):
    """It is read, forked and found sound, and is deleted with the oldest first and the rest in any
    order.
    """
    store = PostgresStore(fresh(postgres, "lineage"))
    await store.open()
    await forked(store, await root(store), 150)
    for ref, text in postgres.run(
        "SELECT ref, birth FROM lineage.session WHERE origin IS NOT NULL"
    ):
        birth = msgspec.json.decode(text, type=Birth)
        plain = dumps(birth)
        postgres.run(
            "UPDATE lineage.session SET birth = %s, seal = %s,"
            " origin = (SELECT ref FROM lineage.session WHERE id = %s) WHERE ref = %s",
            *(plain, checksum_row(plain), birth.origin, ref),
        )
    assert await store.maintenance.verify() == []
    new = await commit_fork(store, await store.load("s-150"), "s-new", 1)

    ids = [f"s-{n}" for n in range(1, 151)]
    random.Random(5).shuffle(ids)
    for id in ("s-0", *ids):
        await store.delete(id, 4 if id == "s-0" else 1)
    assert (await store.load("s-new"), await store.maintenance.verify()) == (new, [])
    assert postgres.run("SELECT id FROM lineage.session ORDER BY ref") == [("s-0",), ("s-new",)]
    await store.delete("s-new", 1)
    assert postgres.run("SELECT count(*) FROM lineage.session") == [(0,)]
    await store.close()


async def test_a_circle_of_origins_is_damage_and_no_endless_work(tmp_path):
    """Damage that makes a circle of a chain is refused and found; nothing hangs."""
    async with old_chain(tmp_path) as old:
        old._run(
            "UPDATE session SET origin = (SELECT ref FROM session WHERE id = 's-9') WHERE id ="
            " 's-3'"
        )

        with pytest.raises(Exception, match="rows missing"):
            await old.load("s-9")
        assert {"mismatch"} <= {problem.code for problem in await old.maintenance.verify()}
