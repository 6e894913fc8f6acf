"""What callers give is refused with a sentence of ours, before anything is done."""

import math

import pytest

import everhold
from everhold.errors import UsageError
from tests.failures import collect_failures


@everhold.program
async def naps(ctx: everhold.Context) -> None:
    await ctx.sleep(1000)


@everhold.program
async def asks(ctx: everhold.Context) -> str:
    return await ctx.llm("Well?")


TIMES = {
    "run": lambda runtime, id, time: runtime.run(naps(), wait=time),
    "start": lambda runtime, id, time: runtime.start(naps(), wait=time),
    "answer": lambda runtime, id, time: runtime.answer(id, "yes", wait=time),
    "answer_many": lambda runtime, id, time: runtime.answer_many(id, {"q-0": "yes"}, wait=time),
    "signal": lambda runtime, id, time: runtime.signal(id, "go", wait=time),
    "wait": lambda runtime, id, time: runtime.wait(id, time),
    "retry": lambda runtime, id, time: runtime.retry(id, wait=time),
    "fork": lambda runtime, id, time: runtime.fork(id, wait=time),
    "older_than": lambda runtime, id, time: runtime.sessions(older_than=time),
    "newer_than": lambda runtime, id, time: runtime.sessions(newer_than=time),
}
OTHERS = {
    "state": lambda runtime, id: runtime.sessions(state=5),
    "prefix": lambda runtime, id: runtime.sessions(prefix=5),
    "after": lambda runtime, id: runtime.sessions(after=5),
    "by": lambda runtime, id: runtime.answer(id, "yes", by=5),
    "answers": lambda runtime, id: runtime.answer_many(id, ["yes"]),
}


async def test_a_time_that_is_none_is_refused_before_anything_is_done():
    with collect_failures() as row:
        for name, verb in TIMES.items():
            async with everhold.open("memory://") as runtime:
                status = await runtime.start(asks())
                for time in ("5", [1], True, math.nan):
                    with row(name, repr(time)):
                        with pytest.raises(UsageError, match="must be a number ≥ 0, got"):
                            await verb(runtime, status.session_id, time)
                        assert await runtime.status(status.session_id) == status
                        assert len(await runtime.sessions()) == 1


@pytest.mark.parametrize("time", [0, 0.0])
async def test_who_does_not_want_to_wait_does_not(time):
    async with everhold.open("memory://") as runtime:
        status = await runtime.start(naps(), wait=time)
        assert (await runtime.wait(status.session_id, time)).state == "paused"


@pytest.mark.parametrize("what", OTHERS)
async def test_what_is_of_another_type_is_refused(what):
    async with everhold.open("memory://") as runtime:
        status = await runtime.start(asks())
        with pytest.raises(UsageError):
            await OTHERS[what](runtime, status.session_id)
        assert await runtime.status(status.session_id) == status
