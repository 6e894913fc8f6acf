"""What goes wrong with a server: it restarts, it stays away, lines break in a commit, others get in
the way.
"""

import asyncio
import signal
from hashlib import sha256
from urllib.parse import quote

import psycopg
import pytest

import everhold
from everhold.core.query import Kind
from everhold.core.session import SessionId
from everhold.errors import (
    BadSetting,
    MissingExtra,
    Overtaken,
    ReadOnlyStore,
    StoreDamaged,
    StoreNewer,
    StoreUnavailable,
)
from everhold.ports.attachment import Attachment
from everhold.ports.store import Effect, Letter, SessionFilter, ValueWrite, WorkerRecord
from everhold.runtime import Runtime
from everhold.stores.address import hide_password
from everhold.stores.postgres import PostgresStore
from everhold.stores.postgres.address import PostgresAddress, qualify_schema
from everhold.stores.postgres.schema import load_migrations
from everhold.stores.registry import create_store as store_at
from everhold.testing.conformance.factories import (
    commit_start,
    commit_step,
    commit_touch,
    make_birth,
    make_head,
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
from everhold.testing.conformance.intake import enqueue_items, make_input
from everhold.testing.conformance.lease import take_free_lease
from everhold.testing.faults import Nursery, read_all_lines
from tests.fault.wire import Wire
from tests.postgres import fresh
from tools.postgres import Pooler

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture(scope="module")
def nursery():
    with Nursery("tests.fault.crowd") as found:
        yield found


def laden(record, words):
    """A change with a bit of everything that must not happen twice."""
    return make_step(
        record,
        answers={0: words},
        asked=[make_query(1, Kind.CALL)],
        effects=[Effect(1, "ada", 1.0)],
        letters=[
            Letter("signal", words, 1.0),
            Letter("signal", words, 1.0, to=SessionId("s-other")),
        ],
        writes=[ValueWrite("n", "k", [words], 0)],
        births=[(make_birth("s-child", parent=record.birth.id), make_head())],
        tip={"mail": 1},
    )


# ---- a line breaks in the middle of a commit


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("light", [False, True])
async def test_a_line_that_breaks_in_a_commit(postgres, landed, light):
    """Before or after it landed: the commit is acknowledged, and has happened once."""
    url = fresh(postgres)
    async with Wire(postgres.port) as wire, using_store(PostgresStore(wire.url)) as store:
        await commit_start(store, "s-other")
        record = await commit_start(store, "s-1", make_query(0))
        change = (
            make_step(record, answers={0: "needle"}, asked=[make_query(1)], light=True)
            if light
            else laden(record, "needle")
        )
        wire.lose(b"needle", landed=landed)

        await wait_in_time(store.commit(change, 1))

        assert wire.lost.is_set()
        async with using_store(PostgresStore(url)) as other:
            found = await other.load("s-1")
            assert (found.head.revision, [one.n for one in found.deliveries]) == (2, [0, 1])
            assert [letter.body for letter in found.letters] == ([] if light else ["needle"])
            assert len((await other.load("s-other")).letters) == (0 if light else 1)
            assert await other.value("n", "k") == ((None, 0) if light else (["needle"], 1))
            assert await other.maintenance.verify() == []


@pytest.mark.parametrize("landed", [False, True])
async def test_a_line_that_breaks_under_many(postgres, landed):
    """Ten changes in one transaction, one of them late: nine have happened once, and only the late
    one is refused.
    """
    fresh(postgres)
    async with Wire(postgres.port) as wire, using_store(PostgresStore(wire.url)) as store:
        records = [await commit_start(store, f"s-{n}", make_query(0)) for n in range(10)]
        await commit_step(store, records[4], answers={0: "first"})
        changes = [
            make_step(one, answers={0: f"needle {n}"}, light=n % 2 == 0)
            for n, one in enumerate(records)
        ]
        wire.lose(b"needle 7", landed=landed)

        refused = await wait_in_time(
            collect_refusals(*(store.commit(change, 1) for change in changes))
        )

        assert wire.lost.is_set()
        assert [type(error) for error in refused] == [
            Overtaken if n == 4 else type(None) for n in range(10)
        ]
        found = [(await store.load(f"s-{n}")).deliveries[1:] for n in range(10)]
        assert [[one.answers[0].value for one in rest] for rest in found] == [
            ["first"] if n == 4 else [f"needle {n}"] for n in range(10)
        ]


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("landed", [False, True])
async def test_somebody_else_moves_on_before_the_outcome_is_known(postgres, landed, light):
    """What had landed is acknowledged although others went on from there; what had not is
    overtaken.
    """
    url = fresh(postgres)
    async with Wire(postgres.port) as wire, using_store(PostgresStore(wire.url)) as store:
        record = await commit_start(store, "s-1", make_query(0))
        letters = [] if light else [Letter("signal", "once", 1.0)]
        change = make_step(
            record, answers={0: "needle"}, asked=[make_query(1)], light=light, letters=letters
        )
        wire.lose(b"needle", landed=landed)
        committing = asyncio.ensure_future(store.commit(change, 1))
        async with wire.away(), using_store(PostgresStore(url)) as other:
            seen = await other.load("s-1")
            assert seen.head.revision == (2 if landed else 1)
            await commit_step(
                other, seen, answers={1 if landed else 0: "other"}, asked=[make_query(2)]
            )

        (refused,) = await wait_in_time(collect_refusals(committing))

        assert type(refused) is (type(None) if landed else Overtaken)
        found = await store.load("s-1")
        assert found.head.revision == (3 if landed else 2)
        assert len(found.letters) == (1 if landed and not light else 0)


async def test_a_birth_whose_acknowledgement_is_lost(postgres):
    """A session is born once, and its key is not taken from it by itself."""
    fresh(postgres)
    async with Wire(postgres.port) as wire, using_store(PostgresStore(wire.url)) as store:
        await commit_start(store, "s-0")
        wire.lose(b"needle", landed=True)

        await wait_in_time(store.commit(make_start("s-1", make_query(0), key="needle"), 0))

        assert wire.lost.is_set()
        assert await store.find("needle") == "s-1"
        assert len(await store.list(SessionFilter())) == 2


async def test_a_delete_whose_acknowledgement_is_lost(postgres):
    """It is gone, and that is what is said."""
    fresh(postgres)
    async with Wire(postgres.port) as wire, using_store(PostgresStore(wire.url)) as store:
        await commit_start(store, "s-needle")
        wire.lose(b"pg_notify", landed=True)

        assert await wait_in_time(store.delete("s-needle", 1)) == 0
        assert await store.list(SessionFilter()) == []


# ---- the server goes


@everhold.program
async def ladder(ctx: everhold.Context, rungs: int) -> list[str]:
    return [await ctx.llm(f"rung {rung}") for rung in range(rungs)]


async def restarted(server, how):
    """Restart it while the loop goes on. (It ends with the thread that started it: that must be
    this one.)
    """
    await asyncio.to_thread(server.stop, how)
    await asyncio.sleep(0.1)
    server.start()


async def echo(query):
    await asyncio.sleep(0.005)
    return query.prompt


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_the_server_restarts_under_running_sessions(postgres, how):
    """In good order or as after a crash: all sessions end as if nothing had happened."""
    url = fresh(postgres)
    async with Runtime(PostgresStore(url), llm=echo) as runtime:
        running = [
            asyncio.ensure_future(runtime.run(ladder(rungs=30), key=f"k{n}")) for n in range(8)
        ]
        await asyncio.sleep(0.1)
        await restarted(postgres, how)
        results = await asyncio.wait_for(asyncio.gather(*running), 60)

        assert results == [[f"rung {rung}" for rung in range(30)]] * 8
        assert await runtime.archive.verify() == []


async def test_a_server_that_stays_away(postgres):
    """Reading and writing are refused, with what to do; when it is back, the same store goes on."""
    url = fresh(postgres)
    async with using_store(PostgresStore(url, patience=0.5)) as store:
        record = await commit_start(store, "s-1", make_query(0))
        postgres.stop()
        try:
            with pytest.raises(StoreUnavailable) as reading:
                await wait_in_time(store.load("s-1"))
            with pytest.raises(StoreUnavailable) as writing:
                await wait_in_time(store.commit(make_step(record, answers={0: "a"}), 1))
            with pytest.raises(StoreUnavailable):
                await wait_in_time(PostgresStore(url, patience=0.1).open())
        finally:
            postgres.start()

        assert "Start the server" in reading.value.hint
        assert writing.value.hint
        assert (await store.load("s-1")).head.revision == 1
        await commit_step(store, record, answers={0: "a"})


async def test_a_server_that_was_away_makes_nobody_dead(postgres, monkeypatch):
    """While it was away nobody could say that he lives: that time does not count."""
    monkeypatch.setattr("everhold.stores.outage.LONG", 0.1)
    loop = asyncio.get_running_loop()
    async with using_store(PostgresStore(fresh(postgres))) as store:
        began = loop.time()
        await store.beat(WorkerRecord("w-1", "elsewhere", 1))
        postgres.stop()
        beat = asyncio.create_task(store.beat(WorkerRecord("w-2", "here", 2)))
        await asyncio.sleep(1.0)
        postgres.start()
        await wait_in_time(beat)
        first, _ = await store.workers()
        # clock: both sides are times by the clock, and a machine that stalls makes them longer
        # alike.
        assert first.age <= loop.time() - began - 0.9


async def test_a_server_that_goes_for_good_in_a_commit(postgres):
    """Whether it landed is not known, and that is what is said; the same change again is not
    applied twice.
    """
    url = fresh(postgres)
    async with (
        Wire(postgres.port) as wire,
        using_store(PostgresStore(wire.url, patience=0.5)) as store,
    ):
        record = await commit_start(store, "s-1", make_query(0))
        change = make_step(
            record, answers={0: "needle"}, letters=[Letter("signal", 1, 1.0)], tip={"mail": 1}
        )
        wire.lose(b"needle", landed=True)
        wire.open = False

        with pytest.raises(StoreUnavailable) as refused:
            await wait_in_time(store.commit(change, 1))

        assert "unknown" in refused.value.hint
        assert str(refused.value).count("cannot be opened") == 1
        async with using_store(PostgresStore(url)) as other:
            with pytest.raises(Overtaken):
                await other.commit(change, 1)
            assert len((await other.load("s-1")).letters) == 1


async def test_a_waiting_process_hears_again_after_a_restart(postgres):
    """Who listens goes on to hear of others when the server is back."""
    url = fresh(postgres)
    async with using_store(PostgresStore(url)) as one, using_store(PostgresStore(url)) as two:
        woken = asyncio.Event()
        one.listen(lambda first: woken.set())
        await wait_in_time(woken.wait())
        await restarted(postgres, signal.SIGINT)
        await commit_start(two, "s-1")
        woken.clear()
        for n in range(2, 600):
            if woken.is_set():
                break
            await commit_start(two, f"s-{n}")
            await asyncio.sleep(0.1)

        assert woken.is_set()
        assert await one.changed()


async def test_others_are_told_who_sees_to_it_first(postgres):
    """Who looks for work sees to what it writes; what somebody else puts there is for the last who
    held the session.
    """
    url = fresh(postgres)
    async with (
        using_store(PostgresStore(url)) as one,
        using_store(PostgresStore(url)) as two,
        using_store(PostgresStore(url)) as three,
    ):
        heard = asyncio.Queue()
        one.listen(heard.put_nowait)
        two.listen(lambda first: None, "w-two")
        while "when asked" in (one.maintenance.stats()["hears"], two.maintenance.stats()["hears"]):
            await asyncio.sleep(0.01)
        await take_free_lease(three, id=(await commit_start(three, "s-1")).birth.id)
        await wait_in_time(_told(heard, ""))
        await commit_start(two, "s-2")
        await wait_in_time(_told(heard, "w-two"))
        holder = await three.intake("s-1", lambda intake: intake.lease.owner.incarnation)
        await enqueue_items(three, make_input("i-1"))
        await wait_in_time(_told(heard, holder))
        await two.release("w-two")
        await wait_in_time(_told(heard, ""))


async def _told(heard, wanted):
    while (await heard.get()).first != wanted:
        pass


async def test_a_slow_commit_is_told_when_it_has_landed(postgres):
    """What another process is told in between does not stand for what lands after it."""
    url = fresh(postgres)
    async with using_store(PostgresStore(url)) as one, using_store(PostgresStore(url)) as two:
        held = await commit_start(two, "s-held", make_query(0))
        woken = asyncio.Event()
        one.listen(lambda first: woken.set())
        while one.maintenance.stats()["hears"] != "by notifications":
            await asyncio.sleep(0.01)
        with psycopg.connect(postgres.url) as stranger:
            stranger.execute(
                "SELECT 1 FROM everhold.head_1 WHERE ref = %s FOR UPDATE", (held.head.ref,)
            )
            await commit_start(two, "s-1")  # of which others are told at once
            landing = asyncio.ensure_future(two.commit(make_step(held, answers={0: "a"}), 1))
            await asyncio.sleep(0.3)
            woken.clear()
        await wait_in_time(landing)

        await wait_in_time(woken.wait())


# ---- many processes


def test_processes_make_the_tables_and_start_one_key_at_once(postgres, nursery):
    """Eight processes open an empty database at once: the tables are made once, and the key is one
    session.
    """
    postgres.run("DROP SCHEMA IF EXISTS race CASCADE")
    children = [
        nursery.start("begin", path=f"{postgres.url}?schema=race", key="same") for _ in range(8)
    ]
    ids = {line for lines in read_all_lines(children) for line in lines}
    assert [child.wait() for child in children] == [0] * 8
    assert len(ids) == 1


def test_processes_count_together_on_a_server(postgres, nursery):
    """Four processes raise one durable number 15 times each: none of the 60 is lost."""
    url = fresh(postgres)
    children = [nursery.start("count", path=url, key=f"count-{n}", times=15) for n in range(4)]
    sums = read_all_lines(children)
    assert [child.wait() for child in children] == [0] * 4
    assert max(float(words.split(" ")[1]) for [words] in sums) == 60


async def test_processes_answer_the_same_sessions_on_a_server(postgres, nursery):
    """Three processes attend the same meetings: everybody's words are there once, and one wins
    where they compete.
    """
    url = fresh(postgres)
    assert nursery.run("prepare", path=url, meetings=3, rounds=4, people=3)[0] == 0
    children = [
        nursery.start("attend", path=url, person=n, meetings=3, rounds=4, rungs=10)
        for n in range(3)
    ]
    heard = [line.split(" ") for lines in read_all_lines(children) for line in lines]
    assert [child.wait() for child in children] == [0] * 3

    async with using_store(PostgresStore(url)) as store:
        records = [await store.load(one.birth.id) for one in await store.list(SessionFilter())]
        assert [record.head.state for record in records] == ["completed"] * 6
        assert await store.maintenance.verify() == []
    assert {words[3] for words in heard if words[0] == "refused"} <= {"answer_conflict"}


# ---- others get in the way


async def test_a_lock_of_somebody_else_stops_only_its_session(postgres):
    """While a program holds the row of one session, the others go on; the one lands when the row is
    free.
    """
    url = fresh(postgres)
    async with using_store(PostgresStore(url)) as store:
        held, free = (
            await commit_start(store, "s-held", make_query(0)),
            await commit_start(store, "s-free", make_query(0)),
        )
        with psycopg.connect(postgres.url) as stranger:
            stranger.execute(
                "SELECT 1 FROM everhold.head_1 WHERE ref = %s FOR UPDATE", (held.head.ref,)
            )
            waiting = asyncio.ensure_future(store.commit(make_step(held, answers={0: "a"}), 1))
            await asyncio.sleep(0)

            await wait_in_time(store.commit(make_step(free, answers={0: "a"}), 1))

            assert not waiting.done()
        await wait_in_time(waiting)
        assert (await store.load("s-held")).head.revision == 2


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("journal", "answers = replace(answers, 'said', 'sajd')"),
        ("journal", "n = n + 100"),
        ("head_1", "revision = revision + 1"),
        ("session", "birth = replace(birth, 'story', 'stork')"),
        ("session", 'labels = \'{"a": "b"}\''),
        ("notice", "query = replace(query, 'question', 'questyon')"),
        ("effect", "worker = 'bob'"),
        ("letter", "body = '2'"),
        ("value", "value = '[2]'"),
    ],
)
async def test_a_row_that_somebody_changed(postgres, table, change):
    """`verify` finds it."""
    url = fresh(postgres)
    async with using_store(PostgresStore(url)) as store:
        record = await commit_start(
            store, "s-1", make_query(0), make_query(1, Kind.INPUT), make_query(2, Kind.CALL)
        )
        record = await commit_touch(
            store, record, effects=[Effect(2, "ada", 1.0)], writes=[ValueWrite("n", "k", [1], 0)]
        )
        record = await commit_step(
            store, record, answers={0: "said"}, letters=[Letter("signal", 1, 1.0)], tip={"mail": 1}
        )
        assert await store.maintenance.verify() == []

        postgres.run(f"UPDATE everhold.{table} SET {change} WHERE true")

        assert await store.maintenance.verify() != []
        if table == "head_1":
            with pytest.raises(StoreDamaged):
                await store.load("s-1")


async def test_a_schema_of_a_newer_format(postgres):
    """It is refused before anything is written, also by a process that had it open."""
    url = fresh(postgres, "newer")
    async with using_store(PostgresStore(url)) as store:
        record = await commit_start(store, "s-1", make_query(0))
        postgres.run(
            "UPDATE newer.about SET format = 99; ALTER TABLE newer.head_1 RENAME TO head_99"
        )

        with pytest.raises(StoreNewer):
            await store.commit(make_step(record, answers={0: "a"}, light=True), 1)
        with pytest.raises(StoreNewer):
            await store.load("s-1")
        with pytest.raises(StoreNewer) as refused:
            await PostgresStore(url).open()
    postgres.run("DROP SCHEMA newer CASCADE")
    assert (refused.value.found, refused.value.known) == (99, len(load_migrations()))


async def test_a_schema_of_the_first_format_is_brought_up_to_date(postgres):
    """P8: its sessions are there, and can keep attachments and have an intake from now on."""
    postgres.run("DROP SCHEMA IF EXISTS older CASCADE; CREATE SCHEMA older")
    postgres.run(qualify_schema(load_migrations()[0], "older"))
    url = f"{postgres.url}?schema=older"
    made = Attachment(sha256(b"new").hexdigest(), 3, "text/plain")
    async with using_store(PostgresStore(url)) as store:
        record = await commit_start(store, "s-1", make_query(0))
        assert store.maintenance.stats()["format"] == len(load_migrations())
        await store.attach("s-1", made, b"new", 1.0)
    postgres.run(
        "DROP FUNCTION older.open_intake_1;"
        " DROP TABLE older.attachment, older.blob, older.lease, older.item, older.duty;"
        " ALTER TABLE older.worker DROP COLUMN ttl; DROP TABLE older.label;"
        " ALTER TABLE older.head_1 DROP COLUMN parked, DROP COLUMN ended_at, DROP COLUMN asking,"
        " DROP COLUMN created_at; ALTER TABLE older.notice DROP COLUMN created_at;"
        " CREATE INDEX head_live ON older.head_1 (ref); CREATE INDEX session_labels ON"
        " older.session (ref); DROP INDEX older.session_program;"
        " ALTER TABLE older.effect DROP COLUMN failed;"
        " UPDATE older.about SET format = 1"
    )

    async with using_store(PostgresStore(url)) as store:
        assert await store.load("s-1") == record
        assert await store.attachments("s-1") == []
        await store.attach("s-1", made, b"new", 1.0)
        assert await store.attachment("s-1", made.id) == (made, b"new")
        await enqueue_items(store, make_input("i-1"))
        assert await list_ready(store, 9) == ["s-1"]
        assert await store.maintenance.verify() == []
    postgres.run("DROP SCHEMA older CASCADE")


@pytest.mark.parametrize(
    "table", ["about (product text, format int)", "about (x int)", "orders (id int)"]
)
async def test_a_schema_of_another_program(postgres, table):
    """It is refused, and left as it is."""
    postgres.run(
        f"DROP SCHEMA IF EXISTS shop CASCADE; CREATE SCHEMA shop; CREATE TABLE shop.{table}"
    )

    with pytest.raises(StoreUnavailable) as refused:
        await PostgresStore(f"{postgres.url}?schema=shop").open()

    assert "?schema=" in refused.value.hint
    assert len(postgres.run("SELECT 1 FROM pg_tables WHERE schemaname = 'shop'")) == 1


async def test_a_user_without_rights(postgres):
    """Who may not make tables is told how somebody else can; who may only read is told so."""
    postgres.run(
        "DROP SCHEMA IF EXISTS mine CASCADE; DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN"
    )
    guest = postgres.url.replace("postgres@", "guest@") + "?schema=mine"
    with pytest.raises(StoreUnavailable) as refused:
        await PostgresStore(guest).open()
    assert "--print-sql" in refused.value.hint

    fresh(postgres, "mine")
    rights = "GRANT USAGE ON SCHEMA mine TO guest; GRANT ALL ON ALL TABLES IN SCHEMA mine TO guest"
    postgres.run(f"{rights}; GRANT ALL ON ALL SEQUENCES IN SCHEMA mine TO guest")
    async with using_store(PostgresStore(guest)) as store:
        await commit_start(store, "s-1")
    async with using_store(PostgresStore(guest)) as store:
        postgres.run("ALTER ROLE guest SET default_transaction_read_only = on")
        postgres.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guest'"
        )
        with pytest.raises(ReadOnlyStore):
            await commit_start(store, "s-2")
    postgres.run("DROP OWNED BY guest; DROP ROLE guest; DROP SCHEMA mine CASCADE")


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ("{url}x", StoreUnavailable, "does not exist"),
        ("{url}?schema=pg_x", BadSetting, "must be at most 41"),
        ("{url}?schema=", BadSetting, "must be at most 41"),
        ("{url}?nonsense=1", BadSetting, "nonsense"),
        ("postgresql://127.0.0.1:notaport/x", BadSetting, "not a valid postgresql:// address"),
        ("{url}?schema=a%zz", BadSetting, "not a valid"),
        ("mysql://x", BadSetting, "postgresql://"),
    ],
)
async def test_a_wrong_address(postgres, wrong, error, words):
    """It is told at once, in a sentence, without the password."""
    with pytest.raises(error) as refused:
        await wait_in_time(PostgresStore(wrong.format(url=postgres.url)).open())

    assert words in str(refused.value)


def test_a_missing_library_is_told(monkeypatch):
    """With the command that installs it."""
    monkeypatch.setitem(__import__("sys").modules, "everhold.stores.postgres", None)

    with pytest.raises(MissingExtra) as refused:
        store_at("postgresql://host/db")

    assert refused.value.hint == "pip install 'everhold[postgres]'"


async def test_a_password_is_never_shown():
    """Not in `where`, which every error quotes."""
    store = PostgresStore("postgresql://ada:secret@host:5432/db?schema=mine&sslmode=require")

    assert store.where == "postgresql://ada@host:5432/db?schema=mine"


ODD = "p@ss/w?rd#[x]%41 &=+:;'\"\\é℀"


def test_a_password_with_odd_characters():
    """Percent-encoded, each of them is handed over, and none of them is shown; as it is, it is
    refused unquoted.
    """
    url = f"postgresql://odd:{quote(ODD, safe='')}@host/db"
    address = PostgresAddress(url)
    assert address.facts["password"] == ODD
    assert (address.where, hide_password(url)) == (
        "postgresql://odd@host/db",
        "postgresql://odd:***@host/db",
    )
    with pytest.raises(BadSetting) as refused:
        PostgresAddress(f"postgresql://odd:{ODD}@host/db")
    assert "ss/w" not in str(refused.value)


def test_options_reach_libpq_as_they_were_written():
    """A space stays a space, and `schema` is ours alone."""
    address = PostgresAddress(
        "postgresql://host/db?options=-c%20geqo%3Doff&schema=mine&password=a+b"
    )
    assert (address.facts["options"], address.facts["password"]) == ("-c geqo=off", "a+b")
    assert (address.schema, "schema" in address.facts) == ("mine", False)


async def test_a_pooler_in_between(postgres, caplog):
    """Through pgbouncer in transaction mode everything works, hearing by looking, and a warning
    says so.
    """
    fresh(postgres)
    with Pooler(postgres) as pooler:
        async with (
            using_store(PostgresStore(pooler.url)) as one,
            using_store(PostgresStore(pooler.url)) as two,
        ):
            records = [await commit_start(one, f"s-{n}", make_query(0)) for n in range(20)]
            changes = [
                make_step(each, answers={0: "a"}, light=n % 2 == 0)
                for n, each in enumerate(records)
            ]
            await asyncio.gather(
                *((one, two)[n % 2].commit(change, 1) for n, change in enumerate(changes))
            )
            assert await dump_store(one) == await dump_store(two)
            assert await two.maintenance.verify() == []

            woken = asyncio.Event()
            one.listen(lambda first: woken.set())
            for _ in range(600):
                if one.maintenance.stats()["hears"] == "by looking":
                    break
                await asyncio.sleep(0.1)
            woken.clear()
            await commit_start(two, "s-late")
            await wait_in_time(woken.wait())

            assert await one.changed()
            assert one.maintenance.stats()["pooled"]
    assert "does not deliver notifications" in caplog.text


async def test_notifications_that_did_not_arrive_at_first(postgres, caplog, monkeypatch):
    """A server that was slow as a process began is asked again: nobody looks three times a second
    for life.
    """
    fresh(postgres)
    monkeypatch.setattr("everhold.stores.postgres.listen.AGAIN", 0.05)
    async with (
        Wire(postgres.port) as wire,
        using_store(PostgresStore(wire.url)) as one,
        using_store(PostgresStore(wire.url)) as two,
    ):
        wire.deaf, woken = True, asyncio.Event()
        one.listen(lambda first: woken.set())
        await _until(lambda: one.maintenance.stats()["hears"] == "by looking")
        await commit_start(two, "s-1")
        await wait_in_time(woken.wait())
        wire.deaf = False
        await _until(lambda: one.maintenance.stats()["hears"] == "by notifications")
        woken.clear()
        await commit_start(two, "s-2")
        await wait_in_time(woken.wait())
    assert caplog.text.count("does not deliver notifications") == 1


async def _until(done):
    for _ in range(600):
        if done():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not happen within a minute")


@pytest.mark.parametrize("light", [False, True])
async def test_a_large_text_with_nul(postgres, light):
    """A large text with signs that SQL cannot hold is kept as given, and the views can be read
    beside it.
    """
    url = fresh(postgres)
    large = "0123456\0\\u0000é\1" * 120_000
    async with using_store(PostgresStore(url)) as store:
        record = await commit_start(store, "s-1", make_query(0))
        record = await commit_step(
            store, record, answers={0: large}, asked=[make_query(1)], light=light
        )

        assert record.deliveries[1].answers[0].value == large
    (shown,) = postgres.run("SELECT value FROM everhold.answers_v")
    assert shown[0] == large.replace("\0", "\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize(
    ("level", "plain", "durable"),
    [("process", "off", "on"), ("mixed", "off", "on"), ("power", "on", "on")],
)
async def test_each_level_waits_for_the_disk_as_it_says(postgres, level, plain, durable):
    """`synchronous_commit` of a commit is off or on, by level and by what the change asks."""
    url = fresh(postgres, "levels")
    postgres.run(
        "CREATE TABLE IF NOT EXISTS public.seen (n int8, strength text); TRUNCATE public.seen;"
        "CREATE OR REPLACE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.seen VALUES (NEW.n, current_setting('synchronous_commit')); RETURN"
        " NEW; END $$;"
        "CREATE OR REPLACE TRIGGER see AFTER INSERT ON levels.journal FOR EACH ROW EXECUTE"
        " FUNCTION public.see()"
    )
    async with using_store(PostgresStore(url, durability=level)) as store:
        record = await commit_start(store, "s-1", make_query(0))
        record = await commit_step(
            store, record, answers={0: "a"}, asked=[make_query(1)], light=True
        )
        record = await commit_step(
            store, record, answers={1: "a"}, asked=[make_query(2)], durable=True
        )
        record = await commit_step(store, record, answers={2: "a"}, asked=[make_query(3)])

    assert postgres.run("SELECT strength FROM public.seen ORDER BY n") == [
        (plain,),
        (plain,),
        (durable,),
        (plain,),
    ]


# ---- intakes that are changed together


async def test_who_has_a_session_locked_keeps_nobody_from_the_others(postgres):
    """Of leases that are taken together, one waits for whoever has its session in his hands; the
    others do not.
    """
    url = fresh(postgres)
    async with (
        using_store(PostgresStore(url)) as store,
        await psycopg.AsyncConnection.connect(postgres.url) as other,
    ):
        for n in range(5):
            await commit_start(store, f"s-{n}")
        await other.execute("SELECT 1 FROM everhold.head_1 ORDER BY ref LIMIT 1 FOR UPDATE")
        tasks = [asyncio.create_task(take_free_lease(store, id=f"s-{n}")) for n in range(5)]
        await wait_in_time(asyncio.gather(*tasks[1:]))
        assert not tasks[0].done()
        await other.rollback()
        assert (await wait_in_time(tasks[0])).generation == 1


async def test_one_that_cannot_land_is_refused_and_the_others_land(postgres):
    """An id that was given before breaks the transaction: each is tried alone, and only the guilty
    one is refused.
    """
    async with using_store(PostgresStore(fresh(postgres))) as store:
        for id in ("s-1", "s-2", "s-3"):
            await commit_start(store, id)
        await enqueue_items(store, make_input("one"), id="s-2")
        fence = await take_free_lease(store, id="s-2")
        await store.intake("s-2", lambda intake: intake.complete(intake.choose(fence, "t-1"), None))

        found = await asyncio.gather(
            take_free_lease(store, id="s-1"),
            enqueue_items(store, make_input("one"), id="s-2"),
            take_free_lease(store, id="s-3"),
            return_exceptions=True,
        )
        assert [type(one).__name__ for one in found] == ["Fence", "BadArguments", "Fence"]
