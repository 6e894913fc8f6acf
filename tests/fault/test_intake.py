"""What goes wrong around an intake: lines break, others hold locks, rows are damaged. Nothing
happens twice.
"""

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing

import msgspec
import psycopg
import pytest

from everhold.core.intake import Boundary, IntakeItem, ItemHold, ItemKind, ItemState
from everhold.core.lease import LeaseGranted
from everhold.errors import ClaimLost, Overtaken, StoreDamaged
from everhold.ports.store import Duty, Letter, StoreProblem, ValueWrite
from everhold.stores.memory import MemoryStore
from everhold.stores.postgres import PostgresStore
from everhold.stores.row_codec import make_item_row
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.conformance.factories import (
    commit_start,
    commit_step,
    make_query,
    make_start,
    make_step,
)
from everhold.testing.conformance.harness import (
    collect_refusals,
    dump_store,
    list_ready,
    using_store,
    wait_in_time,
)
from everhold.testing.conformance.intake import (
    act_on_intake,
    claim_existing,
    enqueue_items,
    list_all_items,
    list_waiting,
    make_input,
    make_task,
    start_working,
)
from everhold.testing.conformance.lease import (
    ADA,
    BOB,
    StoreClock,
    get_current_lease,
    take_free_lease,
    try_take_lease,
)
from tests.fault.wire import Wire
from tests.postgres import fresh

EARLY = Boundary.AFTER_WORK


# ---- a line breaks in the middle

BROKEN = pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
ON_POSTGRES = pytest.mark.xdist_group("postgres")


@asynccontextmanager
async def wired(postgres):
    """A wire that can be cut, an empty store behind it, and the address of that store without the
    wire.
    """
    url = fresh(postgres)
    async with Wire(postgres.port) as wire, using_store(PostgresStore(wire.url)) as store:
        yield wire, store, url


async def letting_in(store):
    """The fence of who works, and his claim of the one thing that waits."""
    await enqueue_items(store, make_input("i-1"))
    fence = await take_free_lease(store)
    return fence, await claim_existing(store, lambda intake: intake.claim_next(fence, "c"))


@ON_POSTGRES
@BROKEN
async def test_a_line_that_breaks_under_an_enqueue(postgres, landed):
    """Before or after it landed: it is acknowledged as new or as there, and it is there once."""
    async with wired(postgres) as (wire, store, _):
        await commit_start(store)
        wire.lose(b"needle", landed=landed)
        item = IntakeItem("i-1", ItemKind.INPUT, "needle", key="k")

        found = await wait_in_time(act_on_intake(store, lambda intake: intake.enqueue(item), "k"))

        assert wire.lost.is_set()
        assert (found.new, found.item.seq) == (not landed, 1)
        assert [*await list_all_items(store)] == ["i-1"]


@ON_POSTGRES
@BROKEN
async def test_a_line_that_breaks_under_a_take(postgres, landed):
    """LE14: The holder is told so, and it is the same generation."""
    async with wired(postgres) as (wire, store, _):
        await commit_start(store)
        wire.lose(b"needle", landed=landed)

        found = await wait_in_time(try_take_lease(store, token="needle"))

        assert wire.lost.is_set()
        assert isinstance(found, LeaseGranted) and found.lease == await get_current_lease(store)
        assert found.lease.generation == 1


@ON_POSTGRES
@BROKEN
async def test_a_line_that_breaks_under_a_claim(postgres, landed):
    """QW3: What was claimed is claimed once, and by who asked for it."""
    async with wired(postgres) as (wire, store, _):
        await commit_start(store)
        await enqueue_items(store, make_task("i-1"), make_task("i-2"))
        fence = await take_free_lease(store)
        wire.lose(b"needle", landed=landed)

        claim = await wait_in_time(
            claim_existing(store, lambda intake: intake.claim_work(fence, "needle"))
        )

        assert wire.lost.is_set()
        assert [item.id for item in claim.items] == ["i-1"] and claim.items[0].fence == 1
        assert await list_waiting(store) == ["i-2"]
        await act_on_intake(store, lambda intake: intake.complete(claim))


@ON_POSTGRES
@BROKEN
@pytest.mark.parametrize("other", [False, True], ids=["own", "to another"])
async def test_a_line_that_breaks_in_a_commit_that_settles(postgres, landed, other):
    """QW21: The step and what it ends have happened once; the act is not repeated on what it has
    done.
    """
    async with wired(postgres) as (wire, store, _):
        record = await commit_start(store, "s-1", make_query(0))
        await commit_start(store, "s-2")
        fence, claim = await letting_in(store)
        wire.lose(b"needle", landed=landed)
        letters = [Letter("signal", "once", 1.0, to="s-2")] if other else []

        def settle(intake):
            intake.complete(claim, {"why": "needle"})
            intake.enqueue(make_input("i-2"))
            intake.release(fence)

        change = make_step(
            record,
            answers={0: "a"},
            letters=letters,
            writes=[ValueWrite("n", "k", [1], 0)],
            intake=settle,
        )
        await wait_in_time(store.commit(change, 1))

        assert wire.lost.is_set()
        assert (await store.load("s-1")).head.n == 1
        assert len((await store.load("s-2")).letters) == len(letters)
        assert await store.value("n", "k") == ([1], 1)
        items = await list_all_items(store)
        assert [(item.seq, item.state) for item in items.values()] == [
            (1, ItemState.COMPLETED),
            (2, ItemState.WAITING),
        ]
        assert isinstance(await try_take_lease(store, BOB, "t-2"), LeaseGranted)
        assert await store.maintenance.verify() == []


@ON_POSTGRES
@BROKEN
async def test_somebody_else_goes_on_before_the_outcome_is_known(postgres, landed):
    """What had landed is acknowledged although others went on from there; what had not is
    overtaken, all of it.
    """
    async with wired(postgres) as (wire, store, url):
        record = await commit_start(store, "s-1", make_query(0))
        _, claim = await letting_in(store)
        wire.lose(b"needle", landed=landed)
        change = make_step(
            record, answers={0: "a"}, intake=lambda intake: intake.complete(claim, "needle")
        )
        committing = asyncio.ensure_future(store.commit(change, 1))
        async with wire.away(), using_store(PostgresStore(url)) as other:
            seen = await other.load("s-1")
            assert seen.head.revision == (2 if landed else 1)
            await commit_step(other, seen, asked=[make_query(1)])

        (refused,) = await wait_in_time(collect_refusals(committing))

        assert type(refused) is (type(None) if landed else Overtaken)
        ended = (await list_all_items(store))["i-1"]
        assert ended.state is (ItemState.COMPLETED if landed else ItemState.WAITING)


@ON_POSTGRES
@BROKEN
async def test_a_birth_with_an_intake_whose_line_breaks(postgres, landed):
    """FA2: It is born once, with what waits for it."""
    async with wired(postgres) as (wire, store, _):
        await commit_start(store, "s-0")
        wire.lose(b"needle", landed=landed)
        change = make_start("s-1", make_query(0), key="mine")
        change.intake = lambda intake: intake.enqueue(IntakeItem("i-1", ItemKind.INPUT, "needle"))

        await wait_in_time(store.commit(change, 0))

        assert wire.lost.is_set()
        assert await store.find("mine") == "s-1"
        assert await list_waiting(store) == ["i-1"]


@ON_POSTGRES
@BROKEN
@pytest.mark.parametrize("body", ["more", None], ids=["change", "done"])
async def test_a_line_that_breaks_under_a_duty(postgres, landed, body):
    """Who changed it, or was done with it, is told so, though it is not as he saw it any more."""
    async with wired(postgres) as (wire, store, url):
        await store.undertake([Duty("n", "a", 1)])
        await asyncio.sleep(0.05)
        wire.lose(b"pg_notify", landed=landed)

        await wait_in_time(store.undertake([Duty("n", "a", body, None, 1), Duty("n", "b", 1)]))

        assert wire.lost.is_set()
        async with using_store(PostgresStore(url)) as other:
            found = await other.duties("n")
            assert [(one.id, one.version) for one in found] == [("a", 2), ("b", 1)][body is None :]


# ---- others hold locks


async def test_a_look_waits_for_nobody_at_a_file(tmp_path):
    """QW25: While another process writes, whoever only looks, or finds nothing to claim, is told at
    once.
    """
    async with using_store(SQLiteStore(tmp_path / "e.db", patience=0.2)) as store:
        _, fence = await start_working(store, make_task("i-1", available_at=9e9))
        with closing(sqlite3.connect(tmp_path / "e.db", isolation_level=None)) as stranger:
            stranger.execute("BEGIN IMMEDIATE")
            found = await act_on_intake(
                store, lambda intake: intake.claim_boundary(fence, "c", 1, EARLY)
            )

            assert found == (None, None)
            assert await list_waiting(store) == ["i-1"]
            stranger.execute("ROLLBACK")


@ON_POSTGRES
async def test_a_look_waits_for_nobody_at_a_server(postgres):
    """QW25: While somebody holds the session's rows, whoever only looks, or finds nothing to claim,
    is told at once.
    """
    async with using_store(PostgresStore(fresh(postgres))) as store:
        _, fence = await start_working(store, make_task("i-1", available_at=9e9))
        with psycopg.connect(postgres.url) as stranger:
            for table in ("head_1", "lease", "item"):
                stranger.execute(f"SELECT 1 FROM everhold.{table} FOR UPDATE")
            found = await asyncio.wait_for(
                act_on_intake(store, lambda intake: intake.claim_boundary(fence, "c", 1, EARLY)), 30
            )

            assert found == (None, None)
            assert await list_ready(store, 10) == []
            sending = asyncio.ensure_future(enqueue_items(store, make_input("i-2")))
            await asyncio.sleep(0.05)
            assert not sending.done()
        await wait_in_time(sending)
        assert await list_waiting(store) == ["i-1", "i-2"]


@ON_POSTGRES
async def test_a_renewal_and_a_takeover_at_one_moment(postgres):
    """LE15: A renewal that waits for a takeover finds that the lease is another's, and renews
    nothing.
    """
    async with using_store(PostgresStore(fresh(postgres))) as store:
        clock = StoreClock(store)
        record = await commit_start(store)
        await take_free_lease(store)
        with psycopg.connect(postgres.url) as stranger:
            stranger.execute(
                "SELECT 1 FROM everhold.lease WHERE session = %s FOR UPDATE", (record.head.ref,)
            )
            renewing = asyncio.ensure_future(store.keep(ADA, 10.0))
            await asyncio.sleep(0.05)
            stranger.execute("UPDATE everhold.lease SET owner = 'bob', generation = 2")
        clock.now += 1

        assert await wait_in_time(renewing) == []


# ---- what survives power loss

LEVELS = pytest.mark.parametrize(
    ("level", "moved", "sent"), [("process", 0, 0), ("mixed", 0, 1), ("power", 1, 1)]
)
ACTS = (
    lambda store: enqueue_items(store, make_input("i-1")),
    lambda store: take_free_lease(store, ttl=1e6),
    lambda store: act_on_intake(store, lambda intake: intake.claim_next(intake.lease.fence, "c")),
    lambda store: act_on_intake(store, lambda intake: intake.end_all("over")),
    lambda store: store.undertake([Duty("n", "a", 1)]),
)


@LEVELS
async def test_each_level_syncs_a_file_as_it_says(tmp_path, level, moved, sent):
    """What comes in and what has ended is synced at "mixed"; a lease or a claim that moves is
    not.
    """
    store = SQLiteStore(tmp_path / "e.db", durability=level)
    async with using_store(store):
        await commit_start(store)
        run, strengths = store._run, []

        def seen(statement, *values):
            if statement == "COMMIT" and store._connection.total_changes > before:
                strengths.append(int(run("PRAGMA synchronous").fetchone()[0] == 2))
            return run(statement, *values)

        store._run = seen
        for act in ACTS:
            before = store._connection.total_changes
            await act(store)

        assert strengths == [sent, moved, moved, sent, sent]


@ON_POSTGRES
@LEVELS
async def test_each_level_waits_for_the_server_as_it_says(postgres, level, moved, sent):
    """What comes in and what has ended waits for the disk at "mixed"; a lease or a claim that moves
    never does.
    """
    url = fresh(postgres, "strengths")
    seen = "INSERT INTO public.strengths (strength) VALUES (current_setting('synchronous_commit'))"
    trigger = (
        "AFTER INSERT OR UPDATE ON strengths.{0} DEFERRABLE INITIALLY DEFERRED FOR EACH"
        " ROW EXECUTE FUNCTION"
    )
    postgres.run(
        "CREATE TABLE IF NOT EXISTS public.strengths (n serial, strength text); TRUNCATE"
        " public.strengths;"
        "CREATE OR REPLACE FUNCTION public.strong() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN {seen};"
        " RETURN NEW; END $$;"
        + "".join(
            f"DROP TRIGGER IF EXISTS see ON strengths.{table};"
            f"CREATE CONSTRAINT TRIGGER see {trigger.format(table)} public.strong();"
            for table in ("item", "lease", "duty")
        )
    )
    async with using_store(PostgresStore(url, durability=level)) as store:
        await commit_start(store)
        for act in ACTS:
            await act(store)

    found = [
        strength for (strength,) in postgres.run("SELECT strength FROM public.strengths ORDER BY n")
    ]
    strong = "on" if sent else "off"
    # the first act is a row of the counter, and an item
    assert found == [strong, strong, "off", "off", strong, strong]


# ---- rows that somebody changed

CHANGES = [
    ("item", "body = replace(body, 'words', 'swords')", "broken_seal"),
    ("item", "state = 'completed'", "broken_seal"),
    ("item", "key = 'k2'", "broken_seal"),
    ("item", "session = session + 100", "dangling_item"),
    ("lease", "session = session + 100", "dangling_lease"),
    ("lease", "generation = 7", "broken_seal"),
    ("lease", "token = 't-9'", "broken_seal"),
    ("duty", "body = '2'", "broken_seal"),
    ("duty", "due_at = 1.0", "broken_seal"),
]


async def furnished(store):
    _, fence = await start_working(store, IntakeItem("i-1", ItemKind.INPUT, "words", key="k"))
    await claim_existing(store, lambda intake: intake.claim_next(fence, "c"))
    await store.undertake([Duty("n", "a", 1, 5.0)])
    assert await store.maintenance.verify() == []


async def refuses(store, table):
    with pytest.raises(StoreDamaged):
        await (
            store.duties("n")
            if table == "duty"
            else act_on_intake(store, lambda intake: intake.items, "k")
        )


@pytest.mark.parametrize(("table", "change", "code"), CHANGES)
async def test_a_changed_row_of_a_file_is_found(tmp_path, table, change, code):
    """`verify` finds it; whoever reads it is refused."""
    async with using_store(SQLiteStore(tmp_path / "e.db")) as store:
        await furnished(store)
        with closing(sqlite3.connect(tmp_path / "e.db")) as connection:
            connection.execute(f"UPDATE {table} SET {change}")
            connection.commit()

        assert code in {problem.code for problem in await store.maintenance.verify()}
        if code == "broken_seal":
            await refuses(store, table)


@ON_POSTGRES
@pytest.mark.parametrize(("table", "change", "code"), CHANGES)
async def test_a_changed_row_of_a_server_is_found(postgres, table, change, code):
    """`verify` finds it; whoever reads it is refused."""
    async with using_store(PostgresStore(fresh(postgres))) as store:
        await furnished(store)
        postgres.run(f"UPDATE everhold.{table} SET {change}")

        assert code in {problem.code for problem in await store.maintenance.verify()}
        if code == "broken_seal":
            await refuses(store, table)


def impossible(item):
    """The item as if a lease that never was had claimed it."""
    return msgspec.structs.replace(item, hold=ItemHold("i-1-9", "c", 9))


NEVER = StoreProblem("s-1", "hold", "item 1 is claimed under lease 9, but the last lease is 1")


async def test_a_claim_of_a_lease_that_never_was_is_found(tmp_path):
    """LE8, QW15: In a file, though every seal is right."""
    async with using_store(SQLiteStore(tmp_path / "e.db")) as store:
        await furnished(store)
        row = make_item_row(impossible((await list_all_items(store))["i-1"]))
        with closing(sqlite3.connect(tmp_path / "e.db")) as connection:
            connection.execute("UPDATE item SET hold = ?, seal = ?", (row[8], row[-1]))
            connection.commit()

        assert await store.maintenance.verify() == [NEVER]


@ON_POSTGRES
async def test_a_claim_of_a_lease_that_never_was_is_found_on_a_server(postgres):
    """LE8, QW15: On a server, though every seal is right."""
    async with using_store(PostgresStore(fresh(postgres))) as store:
        await furnished(store)
        row = make_item_row(impossible((await list_all_items(store))["i-1"]))
        postgres.run("UPDATE everhold.item SET hold = %s, seal = %s", row[8], row[-1])

        assert await store.maintenance.verify() == [NEVER]


async def test_a_claim_of_a_lease_that_never_was_is_found_in_memory():
    """LE8, QW15: And an item with a number that nobody has given."""
    store = MemoryStore()
    await furnished(store)
    door = store._intakes["s-1"]
    door.items["i-1"] = impossible(door.items["i-1"])
    assert await store.maintenance.verify() == [NEVER]

    door.seq = 0
    assert (
        StoreProblem("s-1", "intake", "item 1 exists, but only 0 were accepted")
        in await store.maintenance.verify()
    )


async def test_a_refused_commit_leaves_a_file_as_it_was(tmp_path):
    """QW22: Nothing of it is there after opening again."""
    async with using_store(SQLiteStore(tmp_path / "e.db")) as store:
        await furnished(store)
        record = await store.load("s-1")
        before = await dump_store(store)
        old = (await act_on_intake(store, lambda intake: intake.items["i-1"])).hold

        def settle(intake):
            intake.enqueue(make_input("i-2"))
            raise ClaimLost("s-1", old.claim)

        with pytest.raises(ClaimLost):
            await store.commit(
                make_step(record, asked=[make_query(5)], intake=settle), record.head.revision
            )

    async with using_store(SQLiteStore(tmp_path / "e.db")) as store:
        StoreClock(store)
        assert await dump_store(store) == before
