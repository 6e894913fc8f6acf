"""Signals: messages that wait until the program receives them."""

import pytest

import everhold
from everhold.errors import BadValue, SessionEnded
from everhold.ports.program import REGISTRY
from tests.scenario.harness import at_top, opened, rows


@everhold.program
async def listener(ctx):
    await ctx.llm("Ready?")
    first = await ctx.receive("news")
    second = await ctx.receive("news")
    return [first, second]


async def test_a_signal_for_a_program_that_listens():
    """It goes on at once."""
    async with opened() as runtime:
        status = await runtime.start(listener())
        await runtime.answer(status.session_id, "yes")
        await runtime.signal(status.session_id, "news", {"n": 1})
        assert (await runtime.signal(status.session_id, "news", 2)).result == [{"n": 1}, 2]


async def test_signals_before_the_program_listens():
    """They are kept, in the order sent."""
    async with opened() as runtime:
        status = await runtime.start(listener())
        assert await runtime.signal(status.session_id, "news", 1) == status
        await runtime.signal(status.session_id, "news", 2)
        assert (await runtime.answer(status.session_id, "yes")).result == [1, 2]


async def test_a_signal_of_another_name_waits():
    """A name nobody listens for does not disturb."""
    async with opened() as runtime:
        status = await runtime.start(listener())
        await runtime.answer(status.session_id, "yes")
        await runtime.signal(status.session_id, "weather", "rain")
        await runtime.signal(status.session_id, "news", 1)
        assert (await runtime.signal(status.session_id, "news", 2)).result == [1, 2]


async def test_a_kept_signal_survives_a_restart(tmp_path):
    """It is in the file before it is acknowledged."""
    async with opened(tmp_path) as runtime:
        status = await runtime.start(listener())
        await runtime.signal(status.session_id, "news", 1)
    async with opened(tmp_path) as runtime:
        await runtime.signal(status.session_id, "news", 2)
        assert (await runtime.answer(status.session_id, "yes")).result == [1, 2]


async def test_a_signal_without_the_program(tmp_path):
    """A process that does not have the program keeps it; where the program is, it goes on by
    itself.
    """

    @at_top
    async def waits(ctx):
        return await ctx.receive("news")

    async with opened(tmp_path) as runtime:
        session_id = (await runtime.start(waits())).session_id
    home = REGISTRY.pop((waits.ref, 1))
    async with opened(tmp_path, replay=False) as runtime:
        status = await runtime.signal(session_id, "news", 1)
        assert status.state == "running"
    REGISTRY[(waits.ref, 1)] = home
    async with opened(tmp_path) as runtime:
        assert (await runtime.wait(session_id, 60)).result == 1


async def test_a_signal_to_an_ended_session():
    """It is refused: nobody will ever receive it."""
    async with opened() as runtime:
        status = await runtime.start(listener())
        await runtime.cancel(status.session_id)
        with pytest.raises(SessionEnded):
            await runtime.signal(status.session_id, "news", 1)


@everhold.program
async def typed(ctx):
    return await ctx.receive("count", returns=int)


async def test_a_signal_that_does_not_fit():
    """With returns= it is checked at the door while the program listens."""
    async with opened() as runtime:
        status = await runtime.start(typed())
        with pytest.raises(everhold.EverholdError) as refused:
            await runtime.signal(status.session_id, "count", "many")
        assert refused.value.code == "answer_refused"
        assert (await runtime.signal(status.session_id, "count", 3)).result == 3


@everhold.program
async def late_typed(ctx):
    await ctx.llm("Ready?")
    try:
        return await ctx.receive("count", returns=int)
    except everhold.EverholdError as error:
        return error.code


async def test_a_kept_signal_that_does_not_fit():
    """It was taken before the program said what it wants: the program sees that it does not fit."""
    async with opened() as runtime:
        status = await runtime.start(late_typed())
        await runtime.signal(status.session_id, "count", "many")
        assert (await runtime.answer(status.session_id, "yes")).result == "answer_refused"


async def test_a_signal_name_is_text():
    """What cannot be stored is refused."""
    async with opened() as runtime:
        status = await runtime.start(listener())
        with pytest.raises(BadValue):
            await runtime.signal(status.session_id, "\ud800", 1)


async def test_reading_a_kept_signal_is_one_commit():
    """The letter leaves the intake with the delivery that hands it over."""
    async with opened() as runtime:
        status = await runtime.start(listener())
        await runtime.signal(status.session_id, "news", 1)
        await runtime.answer(status.session_id, "yes")
        record = await runtime.store.load(status.session_id)
        assert (record.head.mail, record.letters) == (0, [])
        assert len(await rows(runtime, status.session_id)) == 3
