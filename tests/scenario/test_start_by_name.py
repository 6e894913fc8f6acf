"""A session started by the reference of its program: checked here, or accepted as it is."""

import pytest

import everhold
from everhold.errors import BadArguments, UnknownProgram
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from tests.scenario.harness import opened


@everhold.program
async def greet(ctx, name: str, times: int = 1) -> str:
    return f"hello {name}" * times


HERE = f"{__name__}:greet"


async def test_a_reference_and_arguments_are_a_call():
    async with opened() as runtime:
        status = await runtime.start(HERE, args={"name": "Ada"}, key="k")
        assert status.result == "hello Ada"
        assert (await runtime.start(greet(name="Ada"), key="k")).session_id == status.session_id


async def test_what_is_not_here_or_does_not_fit_is_refused():
    """Nothing is stored for it."""
    async with opened() as runtime:
        with pytest.raises(UnknownProgram):
            await runtime.start("nowhere:program")
        with pytest.raises(BadArguments):
            await runtime.start(HERE, args={"nam": "Ada"})
        with pytest.raises(BadArguments, match="need a reference"):
            await runtime.start(greet(name="Ada"), unchecked=True)
        assert await runtime.sessions() == []


async def test_an_unchecked_start_begins_where_its_program_is():
    """The process that accepts it needs nothing but the name."""
    store, clock = MemoryStore(), ManualClock()
    async with opened(on=store, clock=clock, recover=False, replay=False) as front:
        status = await front.start(HERE, args={"name": "Ada"}, unchecked=True, key="k")
        assert status.state == "running"
        again = await front.start(HERE, args={"name": "Ada"}, unchecked=True, key="k")
        assert again.session_id == status.session_id
    async with opened(on=store, clock=clock) as runtime:
        assert (await runtime.wait(status.session_id, 60)).result == "hello Ada"


async def test_an_unchecked_start_with_wrong_arguments_ends_with_that_error():
    store, clock = MemoryStore(), ManualClock()
    async with opened(on=store, clock=clock, recover=False, replay=False) as front:
        session_id = (await front.start(HERE, args={"nam": "Ada"}, unchecked=True)).session_id
        explained = await front.explain(session_id)
        assert explained.because[0].startswith("It has not started")
    async with opened(on=store, clock=clock, replay=False) as runtime:
        status = await runtime.wait(session_id, 60)
        assert status.state == "failed" and "nam" in status.error


@everhold.program(version=2)
async def newer(ctx) -> str:
    return "second"


async def test_an_unchecked_start_names_the_version():
    async with opened() as runtime:
        started = await runtime.start(f"{__name__}:newer", version=2, unchecked=True)
        assert (await runtime.wait(started.session_id, 60)).result == "second"


async def test_a_session_that_failed_because_of_its_arguments_is_retried_by_code_that_takes_them():
    """Its start is over: after the retry it waits for what its program asks, and for nothing
    else.
    """

    def edition(wanted):
        @everhold.program
        async def sure(ctx, what: wanted):
            return await ctx.approval(f"{what}?")

        return sure

    async with opened() as runtime:
        started = await runtime.start(edition(int).ref, args={"what": "this"}, unchecked=True)
        assert (await runtime.wait(started.session_id, 60)).state == "failed"
        edition(str)
        status = await runtime.retry(started.session_id)
        assert status.state == "paused" and [query.prompt for query in status.queries] == ["this?"]
        assert (await runtime.store.load(started.session_id)).letters == []
        assert (await runtime.answer(status.queries[0], True)).result is True
