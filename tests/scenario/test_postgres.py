"""Sessions on Postgres: begun in one process and answered in another, carried there and back, read
with SQL.
"""

import asyncio
import json
import os
import sqlite3
import subprocess
from contextlib import closing

import pytest

import everhold
from everhold.errors import SessionExists
from everhold.runtime import Runtime
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SQLiteStore
from tests.fault.house import furnish
from tests.postgres import fresh
from tests.warm import start

pytestmark = pytest.mark.xdist_group("postgres")
VIEWS = ("sessions_v", "queries_v", "answers_v", "usage_v")


@everhold.program
async def refund(ctx, order: str):
    reason = await ctx.llm(f"Why did {order} come back?")
    if not await ctx.approval(f"Refund {order}? {reason}"):
        return "declined"
    return f"refunded {order}: {reason}"


@everhold.program
async def count(ctx, times: int):
    for _ in range(times):
        last = await ctx.state("shop").incr("n")
        await ctx.llm("go on?")
    return last


def command(url, *words):
    """The everhold command in a process of its own, in a folder without programs."""
    return subprocess.run(
        [*start.everhold(), *words, "-d", url],
        cwd="/",
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
    )


async def test_begun_in_one_process_and_answered_in_another(postgres):
    """The process that has the program is told at once that an answer is there, and goes on."""
    url = fresh(postgres)
    async with everhold.open(url) as runtime:
        status = await runtime.start(refund(order="7"), key="refund-7")
        done = await asyncio.to_thread(command, url, "answer", "refund-7", "The handle broke.")
        assert done.returncode in (0, 10), done.stderr
        for _ in range(400):
            if [
                query.kind
                for query in getattr(await runtime.status(status.session_id), "queries", ())
            ] == ["approval"]:
                break
            await asyncio.sleep(0.05)
        done = await asyncio.to_thread(command, url, "answer", "refund-7", "--yes", "--as", "ann")
        assert done.returncode in (0, 10), done.stderr
        result = await runtime.run(refund(order="7"), key="refund-7", wait=30)

        assert result == "refunded 7: The handle broke."
        assert runtime.store.maintenance.stats()["hears"] == "by notifications"


async def test_two_processes_answer_alternately_on_a_server(postgres):
    """P5: what another process has overtaken is rebuilt, and nobody notices."""
    url = fresh(postgres)
    async with everhold.open(url) as one, everhold.open(url) as two:
        status = await one.start(count(times=10))
        for number in range(10):
            status = await (one, two)[number % 2].answer(status.queries[0], "yes")
        assert status.result == 10
        assert await one.archive.verify() == []


async def test_a_hundred_sessions_at_once_on_a_server(postgres):
    """Commits that come together land together, and nobody's harms another's."""
    url = fresh(postgres)
    async with everhold.open(url) as runtime:

        async def one(number):
            status = await runtime.start(refund(order=str(number)), key=f"k{number}")
            status = await runtime.answer(status.queries[0], "broken")
            return (await runtime.answer(status.queries[0], True)).result

        results = await asyncio.gather(*(one(number) for number in range(100)))
        assert results == [f"refunded {number}: broken" for number in range(100)]
        assert await runtime.archive.verify() == []


async def journals(runtime):
    """What is known of every session, without the store's own numbers."""
    found = {}
    for info in await runtime.sessions(limit=1000):
        record = await runtime.store.load(info.session_id)
        found[info.session_id] = (record.birth, record.head.state, record.deliveries)
    return found


async def test_a_house_moves_to_a_server_and_back(postgres, tmp_path):
    """Every session arrives whole, with children, forks and values, and goes on there; and so again
    on the way back.
    """
    url = fresh(postgres)
    await furnish(tmp_path / "home.db")
    async with Runtime(SQLiteStore(tmp_path / "home.db"), recover=False) as home:
        before = await journals(home)
        await home.archive.export(tmp_path / "there.jsonl", values=True)
    async with Runtime(PostgresStore(url), recover=False) as there:
        await there.archive.import_(tmp_path / "there.jsonl")
        assert await journals(there) == before
        assert (await there.store.value("default", "trees"))[0] is not None
        assert await there.archive.verify() == []
        with pytest.raises(SessionExists):
            await there.archive.import_(tmp_path / "there.jsonl")
        await there.archive.export(tmp_path / "back.jsonl", values=True)
    async with Runtime(SQLiteStore(tmp_path / "back.db"), recover=False) as back:
        await back.archive.import_(tmp_path / "back.jsonl")
        assert await journals(back) == before


async def test_a_copy_to_a_server_goes_on_there(postgres, tmp_path):
    """`everhold db copy`: a paused session of a file is answered on the server, and its durable
    values count on.
    """
    url = fresh(postgres)
    file = f"sqlite:///{tmp_path / 'app.db'}"
    async with everhold.open(file) as runtime:
        status = await runtime.start(count(times=3), key="three")
        status = await runtime.answer(status.queries[0], "yes")

    done = await asyncio.to_thread(command, file, "db", "copy", url, "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == 1
    async with everhold.open(url) as runtime:
        for _ in range(2):
            status = await runtime.status(status.session_id)
            status = await runtime.answer(status.queries[0], "yes")
        assert status.result == 3

    done = await asyncio.to_thread(command, url, "db", "copy", f"sqlite:///{tmp_path / 'again.db'}")

    assert done.returncode == 0, done.stderr
    async with everhold.open(f"sqlite:///{tmp_path / 'again.db'}") as runtime:
        assert (await runtime.status(status.session_id)).result == 3

    done = await asyncio.to_thread(command, file, "db", "copy", url)
    assert (done.returncode, "[session_exists]" in done.stderr) == (2, True)
    assert "Copy to a database that has none of these sessions" in done.stderr


async def test_a_check_of_sessions_on_a_server(postgres):
    """What a deploy would break is found in a process of its own, as with a file."""
    url = fresh(postgres)
    async with everhold.open(url) as runtime:
        await runtime.start(refund(order="7"))
        report = await runtime.archive.check()

    assert [checked.verdict for checked in report.checked] == ["ok"]


def plain(row):
    """A row with numbers and JSON values as text, as a column of one type must show them."""
    return tuple(None if value is None else str(value) for value in row)


@pytest.mark.parametrize("view", VIEWS)
async def test_the_views_say_the_same_on_a_server(postgres, tmp_path, view):
    """The same columns in the same order, and the same rows, for a house with a bit of
    everything.
    """
    url = fresh(postgres)
    await furnish(tmp_path / "home.db")
    async with Runtime(SQLiteStore(tmp_path / "home.db"), recover=False) as home:
        await home.archive.export(tmp_path / "all.jsonl", values=True)
    async with Runtime(SQLiteStore(tmp_path / "copy.db"), recover=False) as copy:
        await copy.archive.import_(tmp_path / "all.jsonl")
    async with Runtime(PostgresStore(url), recover=False) as there:
        await there.archive.import_(tmp_path / "all.jsonl")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({view})")]
        rows = [plain(row) for row in connection.execute(f"SELECT * FROM {view}")]

    named = postgres.run(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'everhold' AND"
        " table_name = %s"
        " ORDER BY ordinal_position",
        view,
    )
    assert [name for (name,) in named] == columns
    assert len(rows) > 5
    assert sorted(
        map(repr, (plain(row) for row in postgres.run(f"SELECT * FROM everhold.{view}")))
    ) == sorted(map(repr, rows))


async def test_the_sql_for_an_owner_makes_the_tables(postgres):
    """What `--print-sql` prints is all that is needed; afterwards it prints nothing."""
    postgres.run("DROP SCHEMA IF EXISTS owned CASCADE")
    url = f"{postgres.url}?schema=owned"

    printed = await asyncio.to_thread(command, url, "db", "migrate", "--print-sql")
    postgres.run(printed.stdout)

    assert (await asyncio.to_thread(command, url, "db", "migrate", "--print-sql")).stdout == ""
    async with everhold.open(url) as runtime:
        assert (await runtime.start(refund(order="7"))).state == "paused"
    postgres.run("DROP SCHEMA owned CASCADE")


@everhold.program
async def again(ctx, times: int):
    for number in range(times):
        await ctx.llm(f"question {number}")
    await ctx.restart(times=3)


async def test_a_cold_resume_after_a_restart_reads_what_a_young_session_reads(postgres):
    """A thousand answers before it are not read again."""
    url, read = fresh(postgres), []
    for times in (2, 1000):
        async with everhold.open(url) as runtime:
            status = await runtime.start(again(times=times))
            for _ in range(times + 1):
                status = await runtime.answer(status.queries[0], "x")
        async with everhold.open(url) as other:
            load, found = other.store.load, []

            async def counted(*args, load=load, found=found, **more):
                found.append(await load(*args, **more))
                return found[-1]

            other.store.load = counted
            status = await other.answer(status.queries[0], "y")
            assert [query.prompt for query in status.queries] == ["question 2"]
            read.append(sum(len(record.deliveries) for record in found))
    assert read[0] == read[1] < 12


async def test_workers_do_not_pass_on_what_cannot_enter(postgres):
    """Each is notified of what the other releases: input that waits for the end of a turn is left
    in peace.
    """
    url, moves = fresh(postgres), 0
    agent = everhold.Agent(instructions="Go.", name="postgres_stuck")
    async with Runtime(PostgresStore(url), llm=None) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Go.", id="first")

    def counted(move):
        async def count(session_id, **more):
            nonlocal moves
            moves += 1
            return await move(session_id, **more)

        return count

    async with (
        Runtime(PostgresStore(url), llm=None, recover=False) as one,
        Runtime(PostgresStore(url), llm=None, recover=False) as two,
    ):
        for runtime in (one, two):
            runtime.engine.moves.move = counted(runtime.engine.moves.move)
        async with one.workers.worker(), two.workers.worker():
            await (await one.session(agent, "chat")).enqueue("Later.", key="later")
            await asyncio.sleep(1.5)
            assert [item.id for item in await (await two.session(agent, "chat")).intake()] == [
                "later"
            ]
    assert 0 < moves < 20
