"""Whoever keeps a database open sweeps it, as often as the settings say, and only if they say
so.
"""

import asyncio
import logging

import pytest

import everhold
from everhold.archive.retention import AutoRetention, RetentionPlan, load_retention
from everhold.core.session import SessionState
from everhold.errors import BadArguments, BadSetting, StoreFull
from everhold.packages.settings import settings
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from everhold.testing.conformance.factories import commit_end, commit_start

HOUR = 3600.0
PLAN = RetentionPlan(ages={SessionState.COMPLETED: 0.0})


class House:
    def __init__(self, store=None, clock=None, every=HOUR):
        self.store, self.clock = store or MemoryStore(), clock or ManualClock()
        self.tasks = set()
        self.keeper = AutoRetention(self.store, self.clock, PLAN, every, self.tasks)

    async def look(self):
        assert await self.keeper.see_to(self.clock.now()) is False
        while self.tasks:
            await asyncio.wait(set(self.tasks))

    async def ended(self, id):
        await commit_end(self.store, await commit_start(self.store, id))

    async def there(self, id):
        return id in self.store._sessions


async def test_it_sweeps_at_first_and_then_every_so_often():
    house = House()
    for hour in range(3):
        await house.ended(f"s-{hour}")
        await house.look()
        assert not await house.there(f"s-{hour}")
        await house.ended(f"t-{hour}")
        house.clock.advance(HOUR / 2)
        await house.look()
        assert await house.there(f"t-{hour}")
        house.clock.advance(HOUR / 2)


async def test_one_of_many_sweeps():
    """Others see that it was done; one that comes later waits for its time, one that is hastier
    does not.
    """
    house = House()
    other = House(house.store, house.clock)
    await house.look()
    await house.ended("s-1")
    await other.look()
    assert await house.there("s-1")
    house.clock.advance(HOUR)
    reclaim, swept = house.store.maintenance.reclaim, []

    async def counted():
        swept.append(house.clock.now())
        return await reclaim()

    house.store.maintenance.reclaim = counted
    await asyncio.gather(house.look(), other.look())
    assert len(swept) == 1

    hasty = House(house.store, house.clock, every=60.0)
    await house.ended("s-2")
    await hasty.look()
    house.clock.advance(61)
    await hasty.look()
    assert not await house.there("s-2")


async def test_a_sweep_that_fails_is_told_and_the_next_is_tried(caplog):
    house = House()
    await house.ended("s-1")
    reclaim = house.store.maintenance.reclaim

    async def full():
        raise StoreFull("here")

    house.store.maintenance.reclaim = full
    await house.look()
    assert "the sweep failed" in caplog.text
    house.store.maintenance.reclaim = reclaim
    await house.ended("s-2")
    house.clock.advance(HOUR)
    with caplog.at_level(logging.INFO, "everhold"):
        await house.look()
    assert not await house.there("s-2")
    assert "swept 1 sessions" in caplog.text


# The settings


def told(tmp_path, text):
    (tmp_path / "everhold.toml").write_text(text)
    return settings("memory://", start=tmp_path)


def test_the_settings_say_how_long_what_is_kept(tmp_path):
    found = load_retention(
        told(
            tmp_path,
            """
            [retention]
            completed = "30d"
            failed = 7776000
            keep_last = 100
            per_program = true
            intake = "1w"
            every = "12h"
            """,
        )
    )
    assert found.every == 12 * HOUR
    assert found.plan == RetentionPlan(
        ages={SessionState.COMPLETED: 30 * 86400.0, SessionState.FAILED: 90 * 86400.0},
        keep_last=100,
        per_program=True,
        intake=7 * 86400.0,
    )


def test_a_number_alone_is_about_what_is_swept_usually(tmp_path):
    found = load_retention(told(tmp_path, "[retention]\nkeep_last = 5"))
    assert (found.plan.ages, found.every) == (
        {SessionState.COMPLETED: 0.0, SessionState.CANCELLED: 0.0},
        None,
    )


def test_without_a_word_nothing_is_swept(tmp_path):
    assert load_retention(told(tmp_path, "llm = 'x:y'")) is None
    assert load_retention(told(tmp_path, "[retention]")) is None
    assert load_retention(None) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("retention = '30d'", "should be a table"),
        ("[retention]\nrunning = '30d'", "there is no 'running'"),
        ("[retention]\ncompleted = 'soon'", "'soon' is not a duration"),
        ("[retention]\ncompleted = true", "True is not a duration"),
        ("[retention]\ncompleted = -1", "-1 is not a duration"),
        ("[retention]\ncompleted = [1]", "is not a duration"),
        ("[retention]\nkeep_last = '5'", "keep_last cannot be '5'"),
        ("[retention]\nkeep_last = -5", "keep_last cannot be -5"),
        ("[retention]\nkeep_last = 5\nper_program = 1", "per_program cannot be 1"),
        ("[retention]\nevery = '1d'", "give an age for"),
        ("[retention]\ncompleted = '1d'\nevery = '5s'", "at least one minute"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, text, why):
    with pytest.raises(BadSetting, match=why):
        load_retention(told(tmp_path, text))


@everhold.program
async def asking(ctx: everhold.Context) -> str:
    return str(await ctx.llm("What?"))


async def test_a_runtime_sweeps_as_its_settings_say(tmp_path):
    """When asked without a word, and by itself."""
    found = told(tmp_path, "[retention]\ncompleted = '1h'\nevery = '1h'\n")
    clock = ManualClock()
    async with Runtime(MemoryStore(), found=found, clock=clock) as runtime:
        status = await runtime.start(asking())
        await runtime.answer(status.session_id, "x")
        assert (await runtime.archive.gc(dry_run=True)).deleted == []
        clock.advance(HOUR + 1)
        assert (await runtime.archive.gc(program="asking", dry_run=True)).deleted == [
            status.session_id
        ]
        with pytest.raises(BadArguments, match="nothing is deleted"):
            await runtime.archive.gc("failed")
        async with asyncio.timeout(60):
            while await runtime.sessions():
                clock.advance(HOUR)
                await asyncio.sleep(0.02)


async def test_who_only_looks_does_not_sweep(tmp_path):
    found = told(tmp_path, "[retention]\ncompleted = '0s'\nevery = '1h'\n")
    async with Runtime(MemoryStore(), found=found, clock=ManualClock(), recover=False) as runtime:
        await runtime.answer((await runtime.start(asking())).session_id, "x")
        assert len(await runtime.sessions()) == 1
