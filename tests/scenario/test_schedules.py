"""Schedules: each moment starts one session, whoever looks, whoever dies, and whatever the clock
did meanwhile.
"""

import asyncio
import datetime as dates
import json
import subprocess
from zoneinfo import ZoneInfo

import pytest

import everhold
from everhold.errors import (
    BadArguments,
    BadSchedule,
    BadValue,
    NotAProgram,
    Outdated,
    UnknownSchedule,
    UnknownTimezone,
)
from everhold.schedules import Feed
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.answers import StandIns
from everhold.testing.clock import ManualClock
from everhold.testing.runtime import RuntimeForTests, StillClock
from tests.postgres import fresh
from tests.scenario.harness import opened
from tests.warm import start

START = dates.datetime(2026, 3, 2, tzinfo=dates.UTC).timestamp()  # a Monday
HOUR = 3600.0
DAY = 24 * HOUR


@everhold.program
async def report(ctx, of: str = "sales", at: str = ""):
    return f"{of} {at}".strip()


@everhold.program
async def slow(ctx):
    return await ctx.approval("Go on?")


@everhold.program
async def counter(ctx, ticks: int = 3):
    return [await ctx.receive("tick") for _ in range(ticks)]


class Home:
    """Runtimes on one store and one clock, in which nothing happens by itself."""

    def __init__(self, store=None, start=START):
        self.clock = StillClock(start)
        self.store = store or MemoryStore()

    async def open(self):
        house = RuntimeForTests(self.store, self.clock, StandIns())
        await house.__aenter__()
        return house


async def started(runtime, name="nightly"):
    """The moments at which sessions of a schedule were begun, oldest first."""
    return [
        info.created_at
        for info in reversed(await runtime.sessions(labels={"schedule": name}, limit=1000))
    ]


async def skip(house, seconds):
    await house.skip(seconds)


async def test_a_month_of_nights():
    """Thirty days pass in a moment, and each night has one session."""
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", report(of="nights"))
    await skip(house, 30 * DAY)
    found = await started(house)
    assert [round(at - START) % 86400 for at in found] == [3 * 3600] * 30
    assert (await house.status((await house.sessions())[0].session_id)).result == "nights"


async def test_a_timezone_is_kept_through_the_change_of_clocks():
    """Three o'clock in Berlin is an hour earlier in summer."""
    house = await Home(start=dates.datetime(2026, 3, 28, tzinfo=dates.UTC).timestamp()).open()
    await house.schedules.add("nightly", "0 3 * * *", report(), timezone="Europe/Berlin")
    await skip(house, 3 * DAY)
    berlin = ZoneInfo("Europe/Berlin")
    walls = [f"{dates.datetime.fromtimestamp(at, berlin):%d %H:%M}" for at in await started(house)]
    assert walls == ["28 03:00", "29 03:00", "30 03:00"]


async def test_every_quarter_of_an_hour():
    house = await Home().open()
    await house.schedules.add("nightly", dates.timedelta(minutes=15), report())
    await skip(house, 2 * HOUR + 60)
    assert len(await started(house)) == 8


async def test_a_single_moment_comes_once_and_is_remembered():
    """Said again by the next deploy, it does not come again."""
    house = await Home().open()
    when = dates.datetime(2026, 3, 2, 12)
    await house.schedules.add("nightly", when, report())
    await skip(house, DAY)
    assert len(await started(house)) == 1
    again = await house.schedules.add("nightly", when, report())
    assert (again.state, again.next_at) == ("done", None)
    await skip(house, DAY)
    assert len(await started(house)) == 1


async def test_the_program_is_told_the_moment():
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", report, args={"of": "x"}, give="at")
    await skip(house, DAY)
    (info,) = await house.sessions()
    assert (await house.status(info.session_id)).result == "x 2026-03-02T03:00:00+00:00"


async def test_the_same_again_changes_nothing_and_another_rhythm_does():
    house = await Home().open()
    first = await house.schedules.add("nightly", "0 3 * * *", report())
    assert await house.schedules.add("nightly", "0  3 * * *", report()) == first
    changed = await house.schedules.add("nightly", "0 4 * * *", report())
    assert (first.revision, changed.revision) == (1, 2)
    assert changed.next_at - first.next_at == HOUR


async def test_a_change_computed_from_an_old_revision_is_refused():
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", report(), revision=0)
    await house.schedules.add("nightly", "0 4 * * *", report(), revision=1)
    with pytest.raises(Outdated, match="revision 2, not 1"):
        await house.schedules.add("nightly", "0 5 * * *", report(), revision=1)
    (found,) = await house.schedules.list()
    assert found.when == "0 4 * * * (UTC)"


async def test_a_paused_schedule_misses_nothing():
    """What would have come while it was paused was called off."""
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", report(), catch_up="all")
    assert (await house.schedules.pause("nightly")).state == "paused"
    await skip(house, 5 * DAY)
    assert await started(house) == []
    await house.schedules.resume("nightly")
    await skip(house, 2 * DAY)
    assert len(await started(house)) == 2


async def test_pausing_and_resuming_twice_is_pausing_and_resuming_once():
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", report())
    assert (await house.schedules.pause("nightly")).revision == (
        await house.schedules.pause("nightly")
    ).revision
    assert (await house.schedules.resume("nightly")).revision == (
        await house.schedules.resume("nightly")
    ).revision


async def test_a_schedule_that_is_gone_starts_nothing():
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", report())
    await house.schedules.remove("nightly")
    await skip(house, 2 * DAY)
    assert await started(house) == []
    assert await house.schedules.list() == []


@pytest.mark.parametrize(("catch_up", "made_up"), [("one", 1), ("all", 3), ("none", 0)])
async def test_moments_that_nobody_was_there_for(catch_up, made_up):
    """Three nights without a process: the last is made up, or all, or none; then it goes on as
    ever.
    """
    home = Home()
    house = await home.open()
    await house.schedules.add("nightly", "0 3 * * *", report(), catch_up=catch_up)
    home.clock.advance(3 * DAY)
    await house.settle()
    assert len(await started(house)) == made_up
    await skip(house, DAY)
    assert len(await started(house)) == made_up + 1


async def test_a_moment_that_is_a_little_late_is_not_missed():
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", report(), catch_up="none")
    house.still.advance(3 * HOUR + 30)
    await house.settle()
    assert len(await started(house)) == 1


@pytest.mark.parametrize(("overlap", "begun"), [("allow", 3), ("skip", 1), ("queue", 1)])
async def test_moments_that_come_while_the_session_before_goes_on(overlap, begun):
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", slow(), overlap=overlap, catch_up="all")
    await skip(house, 3 * DAY)
    assert len(await started(house)) == begun


async def test_what_was_queued_begins_when_the_session_before_has_ended():
    """Two nights wait; each begins when the one before has ended, and in order."""
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", slow(), overlap="queue", catch_up="all")
    await skip(house, 2 * DAY + 4 * HOUR)
    for number in range(1, 4):
        sessions = await house.sessions(labels={"schedule": "nightly"})
        assert len(sessions) == number
        await house.answer(sessions[0].session_id, True)
        await skip(house, 61)
    keys = [info.key.rpartition(":")[2] for info in reversed(await house.sessions())]
    assert [float(key) - START for key in keys] == [3 * HOUR, 3 * HOUR + DAY, 3 * HOUR + 2 * DAY]


async def test_what_was_skipped_goes_on_after_the_session_before():
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", slow(), overlap="skip")
    await skip(house, 2 * DAY)
    (info,) = await house.sessions()
    await house.answer(info.session_id, True)
    await skip(house, DAY)
    assert len(await started(house)) == 2


async def test_two_processes_look_and_one_session_begins(tmp_path):
    """On one SQLite file, in real tasks, at the same moments: a week of hours."""
    clock = ManualClock(START)
    async with opened(tmp_path, clock=clock) as one, opened(tmp_path, clock=clock) as two:
        await one.schedules.add("nightly", "0 * * * *", report())
        for hour in range(1, 25):
            clock.advance(HOUR)
            for _ in range(2000):
                if len(await one.sessions(labels={"schedule": "nightly"}, limit=1000)) == hour:
                    break
                await asyncio.sleep(0.01)
        (schedule,) = await two.schedules.list()
        assert (len(await started(two)), schedule.problem) == (24, "")
        keys = {info.key for info in await one.sessions(limit=1000)}
        assert len(keys) == 24


@pytest.mark.parametrize("after", ["decided", "started"])
async def test_a_process_that_dies_in_the_middle_is_followed_by_another(after, tmp_path):
    """Whether it had begun the session or only said that it would: there is one, and the schedule
    moves on.
    """
    store = SQLiteStore(tmp_path / "app.db")
    home = Home(store)
    dying = await home.open()
    await dying.schedules.add("nightly", "0 3 * * *", report())
    do = dying.schedules._actions.do

    async def die(*given):
        if after == "started":
            await do(*given)
        raise asyncio.CancelledError

    dying.schedules._actions.do = die
    home.clock.advance(3 * HOUR + 1)
    with pytest.raises(asyncio.CancelledError):
        await dying.settle()
    await dying.die()
    house = RuntimeForTests(store, home.clock, StandIns())
    house._opened = True
    await house.settle()
    assert len(await started(house)) == (after == "started")
    await skip(house, 60)
    assert len(await started(house)) == 1
    (schedule,) = await house.schedules.list()
    assert (schedule.last_at, schedule.next_at) == (START + 3 * HOUR, START + 3 * HOUR + DAY)
    await store.close()


async def test_the_terms_may_change_while_a_moment_is_being_done():
    """Who began it moves the schedule on to what its author says now."""
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", report())
    do = house.schedules._actions.do

    async def changing(*given):
        await house.schedules.add("nightly", "0 5 * * *", report(of="new"))
        return await do(*given)

    house.schedules._actions.do = changing
    house.still.advance(3 * HOUR + 1)
    await house.settle()
    house.schedules._actions.do = do
    await skip(house, 3 * HOUR)
    results = [
        (await house.status(info.session_id)).result for info in reversed(await house.sessions())
    ]
    assert results == ["sales", "new"]


async def test_what_cannot_start_says_why_and_is_tried_again():
    """The program's parameters have changed: nothing is lost when it is mended."""
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", report, args={"wrong": 1})
    await skip(house, 3 * HOUR + 30)
    (schedule,) = await house.schedules.list()
    assert "there is no argument 'wrong'" in schedule.problem
    await house.schedules.add("nightly", "0 3 * * *", report, args={"of": "mended"})
    await skip(house, HOUR)
    (info,) = await house.sessions()
    assert (await house.status(info.session_id)).result == "mended"
    assert (await house.schedules.list())[0].problem == ""


async def test_a_process_without_the_program_leaves_it_to_one_that_has_it():
    """It changes nothing, and does not keep others from being done."""
    home = Home()
    house = await home.open()
    await house.schedules.add("nightly", "0 3 * * *", report())
    await house.schedules.add("absent", "0 3 * * *", report())
    able = house.schedules._actions.able
    house.schedules._actions.able = lambda deed: False
    home.clock.advance(3 * HOUR + 1)
    await house.settle()
    assert await house.sessions() == []
    house.schedules._actions.able = able
    await house.settle()
    assert len(await house.sessions()) == 2


async def test_a_schedule_signals_a_session_once_for_each_moment():
    house = await Home().open()
    status = await house.start(counter(), key="count")
    await house.schedules.add("ticks", "0 * * * *", Feed("count", signal="tick"))
    await skip(house, 3 * HOUR + 60)
    assert (await house.status(status.session_id)).result == [
        f"2026-03-02T0{hour}:00:00+00:00" for hour in (1, 2, 3)
    ]


@pytest.mark.parametrize("sweeps", [False, True], ids=["", "and_a_vacuum_follows"])
async def test_a_signal_is_sent_once_also_if_the_process_dies_after_it(sweeps):
    """Its key is in the session as long as somebody may try again: who does changes nothing."""
    home = Home()
    dying = await home.open()
    await dying.start(counter(2), key="count")
    await dying.schedules.add("ticks", "0 * * * *", Feed("count", signal="tick", value="now"))
    do = dying.schedules._actions.do

    async def die(*given):
        await do(*given)
        raise asyncio.CancelledError

    dying.schedules._actions.do = die
    home.clock.advance(HOUR + 1)
    with pytest.raises(asyncio.CancelledError):
        await dying.settle()
    dying.schedules._actions.do = do
    if sweeps:
        assert await dying.archive.vacuum() == 0
    await skip(dying, 60)
    (info,) = await dying.sessions()
    assert info.state == "paused"
    assert await dying.archive.vacuum() == 1
    await skip(dying, HOUR)
    assert (await dying.status(info.session_id)).result == ["now", "now"]


async def test_feeding_a_session_that_is_not_there_says_so():
    house = await Home().open()
    await house.schedules.add("ticks", "0 * * * *", Feed("nobody", signal="tick"))
    await skip(house, HOUR + 1)
    assert "unknown_session" in (await house.schedules.list())[0].problem


async def test_the_next_moments_are_told():
    house = await Home().open()
    await house.schedules.add("nightly", "0 3 * * *", report())
    assert await house.schedules.next_runs("nightly", 2) == [
        START + 3 * HOUR,
        START + 3 * HOUR + DAY,
    ]
    await house.schedules.add("once", dates.datetime(2026, 3, 3), report())
    assert await house.schedules.next_runs("once") == [START + DAY]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"name": ""}, BadArguments),
        ({"name": " "}, BadArguments),
        ({"name": "a\nb"}, BadArguments),
        ({"name": "x" * 201}, BadArguments),
        ({"name": None}, BadArguments),
        ({"when": "every day"}, BadSchedule),
        ({"timezone": "Mars/Olympus"}, UnknownTimezone),
        ({"do": "report"}, NotAProgram),
        ({"do": None}, NotAProgram),
        ({"overlap": "sometimes"}, BadArguments),
        ({"catch_up": "two"}, BadArguments),
        ({"overlap": "queue", "catch_up": "none"}, BadSchedule),
        ({"args": {"of": "x"}}, BadArguments),
        ({"give": "at"}, BadArguments),
        ({"do": report, "give": "*"}, BadArguments),
        ({"do": report, "give": 7}, BadArguments),
        ({"do": report, "args": {"of": object()}}, BadValue),
        ({"do": Feed(""), "when": "0 3 * * *"}, BadArguments),
        ({"do": Feed("x", signal=3)}, BadArguments),
        ({"do": Feed("x"), "title": "t"}, BadArguments),
        ({"do": Feed("x", value={1})}, BadValue),
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_is_kept(wrong, error):
    house = await Home().open()
    given = {"name": "nightly", "when": "0 3 * * *", "do": report()} | wrong
    with pytest.raises(error):
        await house.schedules.add(given.pop("name"), given.pop("when"), given.pop("do"), **given)
    assert await house.schedules.list() == []


async def test_a_schedule_that_is_not_there_is_told():
    house = await Home().open()
    schedules = house.schedules
    for act in (schedules.pause, schedules.resume, schedules.remove, schedules.next_runs):
        with pytest.raises(UnknownSchedule):
            await act("nightly")


async def test_three_hundred_schedules_are_all_listed_and_done():
    house = await Home().open()
    for number in range(300):
        await house.schedules.add(f"s{number:03}", "0 3 * * *", report())
    assert len(await house.schedules.list()) == 300
    assert len(await house.schedules.list("s29")) == 10
    await skip(house, 4 * HOUR)
    assert len(await house.sessions(limit=1000)) == 300


async def test_what_cannot_be_done_here_does_not_make_others_late(tmp_path):
    """A schedule that waits for another process, and an input that waits for its turn, hide no
    later moment.
    """
    clock = ManualClock(START)
    async with opened(tmp_path, clock=clock) as runtime:
        able = runtime.schedules._actions.able
        runtime.schedules._actions.able = lambda deed: (
            deed.args.get("of") != "absent" and able(deed)
        )
        await runtime.schedules.add("absent", "0 1 * * *", report(of="absent"))
        await runtime.schedules.add("nightly", "0 2 * * *", report())
        clock.advance(HOUR + 1)
        async with asyncio.timeout(60):
            while START + 2 * HOUR not in {round(at) for at in clock.waiting}:
                await asyncio.sleep(0.01)
        assert await runtime.sessions() == []


@pytest.mark.xdist_group("postgres")
async def test_a_copy_of_the_database_has_schedules_triggers_and_events(postgres, tmp_path):
    """From a file to Postgres: they go on there as they are; what is there under the same name
    stays.
    """
    url = fresh(postgres)
    source = f"sqlite:///{tmp_path / 'app.db'}"
    async with everhold.open(source, recover=False) as runtime:
        await runtime.schedules.add("nightly", "0 3 * * *", report())
        await runtime.schedules.add("weekly", "@weekly", report())
        await runtime.triggers.add("order.paid", report, give="of")
        await runtime.triggers.emit("order.paid", "x", key="7")
    async with everhold.open(url, recover=False) as runtime:
        await runtime.schedules.add("nightly", "0 5 * * *", report())
    told = await asyncio.to_thread(copied, source, url)
    assert (told["sessions"], told["schedules"], told["triggers"], told["events"]) == (1, 1, 1, 1)
    async with everhold.open(url, recover=False) as runtime:
        assert [one.when for one in await runtime.schedules.list()] == [
            "0 5 * * * (UTC)",
            "@weekly (UTC)",
        ]
        assert (await runtime.triggers.emit("order.paid", "x", key="7")).new is False
        assert [one.state for one in await runtime.triggers.handovers()] == ["started"]


def copied(source, target):
    words = [*start.everhold(), "db", "copy", target, "-d", source, "--json"]
    return json.loads(
        subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
    )


async def test_a_session_that_is_fed_is_not_swept_away():
    """Neither by a schedule nor by a trigger."""
    house = await Home().open()
    for key in ("one", "two", "three"):
        status = await house.start(report(), key=key)
        assert status.state == "completed"
    await house.schedules.add("ticks", "@daily", Feed("one", signal="tick"))
    await house.triggers.add("order.paid", Feed("two", signal="paid"))
    house.still.advance(90 * DAY)
    await house.archive.gc(older_than=30 * DAY)
    assert {info.key for info in await house.sessions()} >= {"one", "two"}
    assert await house.store.find("three") is None


async def test_a_schedule_that_cannot_be_counted_here_holds_up_no_other(monkeypatch, caplog):
    """Where its timezone is not known it is left to a process that knows it, which is told once."""
    house = await Home().open()
    await house.schedules.add("far", "0 3 * * *", report(of="far"), timezone="Europe/Berlin")
    await house.schedules.add("near", "0 4 * * *", report(of="near"))

    def unknown(name):
        raise UnknownTimezone(name)

    with monkeypatch.context() as patched:
        patched.setattr("everhold.schedules.recurrence.load_timezone", unknown)
        await skip(house, 2 * DAY)
    assert (len(await started(house, "far")), len(await started(house, "near"))) == (0, 2)
    assert caplog.text.count("schedule far is left to other processes") == 1
    await skip(house, DAY)
    assert len(await started(house, "far")) == 2  # the last one that was missed, and that of today
