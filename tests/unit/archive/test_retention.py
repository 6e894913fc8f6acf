"""Sessions that have ended are deleted only when asked, and never what another session needs."""

import asyncio

import pytest

import everhold
from everhold.core.intake import IntakeItem, ItemKind
from everhold.core.query import Kind
from everhold.errors import BadArguments, BadSetting, StoreFull, SweepFailed, UnknownSession
from everhold.ports.store import Duty, ReclaimResult
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock
from everhold.testing.conformance.attachment import make_attachment
from everhold.testing.conformance.factories import commit_end, commit_start, make_query
from tests.postgres import fresh

DAY = 86400.0


@everhold.program
async def asking(ctx: everhold.Context) -> str:
    return str(await ctx.llm("What?"))


@everhold.program
async def parent(ctx: everhold.Context) -> str:
    child = ctx.spawn(asking())
    word = await child
    return word + str(await ctx.llm("And you?"))


def opened(store=None, **options):
    return Runtime(store or MemoryStore(), clock=ManualClock(), **{"recover": False, **options})


async def ended(runtime, count=1):
    """Completed sessions, an hour apart, oldest first."""
    ids = []
    for _ in range(count):
        status = await runtime.start(asking())
        await runtime.answer(status.queries[0], "this")
        ids.append(status.session_id)
        runtime.clock.advance(3600)
    return ids


async def left(runtime):
    return {row.session_id for row in await runtime.sessions()}


async def test_old_ones_go_and_young_ones_stay():
    """Age is counted from when a session last moved."""
    async with opened() as runtime:
        old, middle, young = await ended(runtime, 3)
        swept = await runtime.archive.gc(older_than=2 * 3600 - 1)

        assert (swept.deleted, await left(runtime)) == ([old, middle], {young})


async def test_the_newest_stay():
    """`keep_last` counts those that fit, newest first."""
    async with opened() as runtime:
        ids = await ended(runtime, 4)

        assert (await runtime.archive.gc(keep_last=1)).deleted == ids[:3]
        assert await left(runtime) == {ids[3]}


async def test_what_has_not_ended_stays_however_old():
    """So do failed ones, which can be retried, unless they are named."""
    async with opened() as runtime:
        waiting = (await runtime.start(asking())).session_id
        failed = (await runtime.start(asking())).session_id
        await runtime.answer(failed, error="no")
        runtime.clock.advance(1e9)

        assert (await runtime.archive.gc(older_than=0)).deleted == []
        assert (await runtime.archive.gc("failed", older_than=0)).deleted == [failed]
        assert await left(runtime) == {waiting}


async def test_a_dry_run_says_what_would_go():
    """And nothing does."""
    async with opened() as runtime:
        ids = await ended(runtime, 2)
        swept = await runtime.archive.gc(keep_last=0, dry_run=True)

        assert (swept.deleted, swept.dry_run, await left(runtime)) == (ids, True, set(ids))


async def test_nothing_is_deleted_unasked():
    """Neither without an age and a number, nor in a state that is no end."""
    async with opened() as runtime:
        with pytest.raises(BadArguments, match="older_than or keep_last"):
            await runtime.archive.gc()
        with pytest.raises(BadArguments, match="keep_last"):
            await runtime.archive.gc(keep_last=-1)
        with pytest.raises(BadSetting, match="'paused' is not an ended state"):
            await runtime.archive.gc(["paused"], older_than=0)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_a_fork_shares_is_kept(tmp_path, kind):
    """The origin is gone from every list, and the fork still has its steps."""
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "app.db")
    async with opened(store) as runtime:
        (origin,) = await ended(runtime)
        fork = await runtime.fork(origin, at=0)
        swept = await runtime.archive.gc(keep_last=0)

        assert (swept.deleted, swept.shared_steps) == ([origin], 1)
        assert (await runtime.answer(fork.session_id, "that")).result == "that"
        assert await runtime.archive.verify() == []


async def test_a_child_stays_while_its_parent_may_need_it():
    """It goes with its parent."""
    async with opened(recover=True) as runtime:
        status = await runtime.start(parent())
        while not (asked := await runtime.inbox()):
            await runtime.engine.reconciler.move()
        child = asked[0].session_id
        await runtime.answer(child, "x")
        status = await runtime.wait(status.session_id)
        swept = await runtime.archive.gc(keep_last=0)
        assert swept.kept == {child: f"its parent {status.session_id} is paused"}

        await runtime.answer(status.session_id, "y")
        assert set((await runtime.archive.gc(keep_last=0)).deleted) == {status.session_id, child}


async def test_only_those_that_fit_are_swept():
    """By program and by label."""
    async with opened() as runtime:
        ids = []
        for customer in ("1", "2"):
            status = await runtime.start(asking(), labels={"customer": customer})
            await runtime.answer(status.queries[0], "x")
            ids.append(status.session_id)

        assert (
            await runtime.archive.gc(keep_last=0, labels={"customer": "2"}, program="asking")
        ).deleted == ids[1:]
        assert (await runtime.archive.gc(keep_last=0, program="other")).deleted == []


async def test_a_session_that_moved_meanwhile_is_left_alone():
    """Between looking and deleting somebody may have retried it."""
    async with opened() as runtime:
        status = await runtime.start(asking())
        await runtime.answer(status.session_id, error="no")
        delete = runtime.store.delete

        async def late(session_id, fence):
            await runtime.retry(session_id)
            return await delete(session_id, fence)

        runtime.store.delete = late
        assert (await runtime.archive.gc("failed", keep_last=0)).kept == {
            status.session_id: "it has moved since it was listed"
        }


# By state


async def ends(runtime, state):
    """A session that has just ended so."""
    status = await runtime.start(asking())
    match state:
        case "completed":
            await runtime.answer(status.queries[0], "x" * 1000)
        case "failed":
            await runtime.answer(status.session_id, error="no")
        case "cancelled":
            await runtime.cancel(status.session_id)
    return status.session_id


async def test_each_state_has_an_age_of_its_own():
    """In one call; a state that is not named stays."""
    async with opened() as runtime:
        days = {}
        for day in (9, 3, 1):
            for state in ("completed", "failed", "cancelled"):
                days[state, day] = await ends(runtime, state)
            runtime.clock.advance({9: 6, 3: 2, 1: 1}[day] * DAY)
        swept = await runtime.archive.gc(older_than={"completed": 2 * DAY, "failed": 5 * DAY})

        wanted = {days["completed", 9], days["completed", 3], days["failed", 9]}
        assert set(swept.deleted) == wanted
        assert (swept.counts, swept.result) == ({"completed": 2, "failed": 1}, "swept")
        assert await left(runtime) == set(days.values()) - wanted


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"older_than": {"paused": 1}}, "'paused' is not an ended state"),
        ({"older_than": {}}, "names no state"),
        ({"older_than": {"failed": "soon"}}, "is not a number of seconds"),
        ({"older_than": {"failed": True}}, "is not a number of seconds"),
        ({"older_than": {"failed": float("nan")}}, "is not a number of seconds"),
        ({"older_than": -1}, "is not a number of seconds"),
        ({"older_than": {"failed": 1}, "states": ["failed"]}, "already names the states"),
    ],
)
async def test_an_age_that_is_none_is_refused(given, why):
    async with opened() as runtime:
        with pytest.raises(BadSetting, match=why):
            await runtime.archive.gc(**given)


async def test_the_newest_of_each_program_stay():
    """Those of a program that runs often do not push out those of another."""

    @everhold.program
    async def other(ctx: everhold.Context) -> str:
        return str(await ctx.llm("What?"))

    async with opened() as runtime:
        (rare,) = [(await runtime.start(other())).session_id]
        await runtime.answer(rare, "x")
        often = await ended(runtime, 3)
        swept = await runtime.archive.gc(keep_last=1, per_program=True)

        assert swept.deleted == often[:2]
        assert await left(runtime) == {rare, often[2]}


# What a report says


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_dry_run_says_how_much_would_go_and_the_sweep_how_much_went(tmp_path, kind):
    """Steps and attachments; not what another session reads."""
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "app.db")
    async with opened(store) as runtime:
        gone, stays = await ended(runtime), (await runtime.start(asking())).session_id
        for session_id, data in (
            (gone[0], b"a" * 5000),
            (gone[0], b"b" * 700),
            (stays, b"b" * 700),
        ):
            await store.attach(session_id, make_attachment(data), data, 1.0)
        dry = await runtime.archive.gc(keep_last=0, dry_run=True)
        wet = await runtime.archive.gc(keep_last=0)

        assert 5000 < dry.bytes < 5700
        assert (wet.bytes, wet.counts, dry.counts) == (
            dry.bytes,
            {"completed": 1},
            {"completed": 1},
        )
        assert (await runtime.archive.gc(keep_last=0)).result == "nothing"
        assert await runtime.attachment(stays, make_attachment(b"b" * 700).id) == b"b" * 700


async def test_a_report_says_only_what_this_call_did():
    """What another process deleted meanwhile is not ours to report, and what is kept makes it
    incomplete.
    """
    async with opened() as runtime:
        ids = await ended(runtime, 3)
        delete = runtime.store.delete

        async def quicker(session_id, fence):
            kept = await delete(session_id, fence)
            if session_id == ids[1]:
                raise UnknownSession(session_id)
            return kept

        runtime.store.delete = quicker
        swept = await runtime.archive.gc(keep_last=0)
        assert (swept.deleted, swept.counts, swept.result) == (
            [ids[0], ids[2]],
            {"completed": 2},
            "swept",
        )


async def test_a_sweep_that_fails_says_so_and_what_it_did():
    """It never looks like one that ended."""
    async with opened() as runtime:
        ids = await ended(runtime, 3)
        delete = runtime.store.delete

        async def full(session_id, fence):
            if session_id == ids[1]:
                raise StoreFull("here")
            return await delete(session_id, fence)

        runtime.store.delete = full
        with pytest.raises(SweepFailed) as caught:
            await runtime.archive.gc(keep_last=0)

        assert (caught.value.deleted, caught.value.report.deleted) == (1, [ids[0]])
        assert isinstance(caught.value.__cause__, StoreFull)
        assert await left(runtime) == set(ids[1:])


async def test_whoever_else_lives_on_the_loop_comes_in_between(tmp_path):
    """A long sweep of a file holds up no session for longer than one deletion."""
    async with opened(SQLiteStore(tmp_path / "app.db")) as runtime:
        for number in range(60):
            await commit_end(runtime.store, await commit_start(runtime.store, f"s-{number:02}"))
        turns = 0

        async def live():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        living = asyncio.create_task(live())
        await asyncio.sleep(0)
        turns = 0
        assert len((await runtime.archive.gc(keep_last=0)).deleted) == 60
        living.cancel()
        assert turns >= 60


# What somebody needs


async def test_a_parent_stays_while_a_child_lives():
    """It may have ended without waiting for it."""

    @everhold.program
    async def leaves(ctx: everhold.Context) -> str:
        ctx.spawn(asking())
        return str(await ctx.llm("And you?"))

    async with opened(recover=True) as runtime:
        parent_id = (await runtime.start(leaves())).session_id
        await runtime.answer(parent_id, "bye")
        child = next(one.session_id for one in await runtime.sessions() if one.parent == parent_id)
        while not await runtime.inbox():
            await runtime.engine.reconciler.move()
        swept = await runtime.archive.gc(keep_last=0)
        assert (swept.deleted, swept.result) == ([], "incomplete")
        assert swept.kept == {parent_id: f"its child {child} is paused"}

        await runtime.answer(child, "x")
        assert set((await runtime.archive.gc(keep_last=0)).deleted) == {parent_id, child}


async def test_a_session_for_which_something_waits_stays():
    """Until whoever sent it was told."""
    async with opened() as runtime:
        record = await commit_start(runtime.store, "s-1", make_query(0))
        await runtime.store.intake(
            "s-1", lambda intake: intake.enqueue(IntakeItem("i-1", ItemKind.INPUT, "hello"))
        )
        await commit_end(runtime.store, record)
        assert (await runtime.archive.gc(keep_last=0)).kept == {"s-1": "it has queued input"}

        await runtime.store.intake("s-1", lambda intake: intake.end_all({"code": "session_ended"}))
        assert (await runtime.archive.gc(keep_last=0)).deleted == ["s-1"]


@pytest.mark.parametrize("name", ["s-1", "by-key"])
async def test_a_session_that_is_fed_by_a_schedule_or_a_trigger_stays(name):
    """Whether it is named by its id or by its key; what was handed over is no reason."""
    async with opened() as runtime:
        await commit_end(runtime.store, await commit_start(runtime.store, "s-1", key="by-key"))
        feed = {"do": {"do": "feed", "session": name}}
        for kind, due in (("schedule", 1.0), ("trigger", None), ("handover", 5.0)):
            await runtime.store.undertake([Duty(kind, "x", feed, due)])
            assert (await runtime.archive.gc(keep_last=0)).kept == {
                "s-1": "a schedule or a trigger sends it input"
            }
            await runtime.store.undertake([Duty(kind, "x", None, None, 1)])
        await runtime.store.undertake([Duty("handover", "x", feed)])
        await runtime.store.undertake(
            [Duty("schedule", "y", {"do": {"do": "start", "program": "s-1"}})]
        )

        assert (await runtime.archive.gc(keep_last=0)).deleted == ["s-1"]


# What goes with it


async def test_ended_inputs_of_the_others_are_forgotten_if_asked():
    """Those that are old enough."""
    async with opened() as runtime:
        store = runtime.store
        await commit_start(store, "s-1", make_query(0))
        for number in (1, 2):
            await store.intake(
                "s-1",
                lambda intake, n=number: intake.enqueue(IntakeItem(f"i-{n}", ItemKind.INPUT, "x")),
            )
            runtime.clock.advance(DAY)
        await store.intake("s-1", lambda intake: intake.cancel(["i-1", "i-2"]))
        assert (await runtime.archive.gc(keep_last=0)).vacuumed == 0
        assert (await runtime.archive.gc(keep_last=0, intake=1.5 * DAY)).vacuumed == 1
        kept = await store.intake("s-1", lambda intake: [*intake.items], whole=True)
        assert kept == ["i-2"]


async def test_bytes_that_a_crash_left_behind_go_and_nothing_else():
    """Once; what is read stays."""
    store = MemoryStore()
    async with opened(store) as runtime:
        stays = (await runtime.start(asking())).session_id
        await store.attach(stays, make_attachment(b"read"), b"read", 1.0)
        store._blobs["0" * 64] = b"left"
        assert await runtime.archive.reclaim() == ReclaimResult(1, 4, 0)
        assert await runtime.archive.reclaim() == ReclaimResult()
        assert await runtime.attachment(stays, make_attachment(b"read").id) == b"read"


@pytest.mark.parametrize(
    "kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))]
)
async def test_what_is_left_over_in_a_database_is_reclaimed(tmp_path, request, kind):
    """Blobs that nobody names, more than fit into one transaction, and rows of sessions that are
    gone.
    """
    if kind == "sqlite":
        store = SQLiteStore(tmp_path / "app.db")
        await store.open()
        say, mark, schema = store._run, "?", ""
    else:
        server = request.getfixturevalue("postgres")
        store = PostgresStore(fresh(server))
        await store.open()
        mark, schema = "%s", "everhold."

        def say(statement, values):
            return server.run(statement, *values)

    record = await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    await store.attach("s-1", make_attachment(b"read"), b"read", 1.0)
    for number in range(450):
        say(
            f"INSERT INTO {schema}blob (id, data) VALUES ({mark}, {mark})",
            (f"{number:064x}", b"left"),
        )
    say(
        f"INSERT INTO {schema}notice VALUES ({', '.join([mark] * 8)})",
        (999, 0, "input", None, 1.0, "{}", 0, 1.0),
    )
    columns = "session, q, worker, since, seal"
    values = ", ".join([mark] * 5)
    say(f"INSERT INTO {schema}effect ({columns}) VALUES ({values})", (999, 0, "w", 1.0, 0))

    assert await store.maintenance.reclaim() == ReclaimResult(450, 1800, 2)
    assert await store.maintenance.reclaim() == ReclaimResult()
    assert (await store.attachment("s-1", make_attachment(b"read").id))[1] == b"read"
    assert await store.load("s-1") == record
    assert await store.maintenance.verify() == []
    await store.close()
