"""A time that is not one is refused by every verb that takes one, before anything is done."""

import asyncio
import inspect
import math

import pytest

import everhold
from everhold.errors import BadArguments, BadSetting
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from tests.failures import collect_failures
from tests.scenario.harness import opened

WRONG = [-1, -0.001, math.nan, -math.inf, True, "1"]


@everhold.program
async def waits(ctx: everhold.Context) -> str:
    return await ctx.llm("Well?")


AGENT = everhold.Agent(name="times", instructions="Wait.")

VERBS = {
    "run": lambda runtime, id, time: runtime.run(waits(), wait=time),
    "start": lambda runtime, id, time: runtime.start(waits(), wait=time),
    "answer": lambda runtime, id, time: runtime.answer(id, "x", wait=time),
    "answer_many": lambda runtime, id, time: runtime.answer_many(id, {"q-0": "x"}, wait=time),
    "signal": lambda runtime, id, time: runtime.signal(id, "go", wait=time),
    "wait": lambda runtime, id, time: runtime.wait(id, time),
    "retry": lambda runtime, id, time: runtime.retry(id, wait=time),
    "fork": lambda runtime, id, time: runtime.fork(id, wait=time),
    "sessions, older": lambda runtime, id, time: runtime.sessions(older_than=time),
    "sessions, newer": lambda runtime, id, time: runtime.sessions(newer_than=time),
    "vacuum": lambda runtime, id, time: runtime.archive.vacuum(older_than=time),
    "sweep": lambda runtime, id, time: runtime.archive.gc(older_than=time),
    "sweep, by state": lambda runtime, id, time: runtime.archive.gc(older_than={"completed": time}),
    "sweep, intake": lambda runtime, id, time: runtime.archive.gc(keep_last=1, intake=time),
    "worker, ttl": lambda runtime, id, time: runtime.workers.worker(ttl=time),
    "worker, grace": lambda runtime, id, time: runtime.workers.worker(grace=time),
    "worker, poll": lambda runtime, id, time: runtime.workers.worker(poll=time),
    "close": lambda runtime, id, time: runtime.close(time),
    "Runtime, idle": lambda runtime, id, time: Runtime(MemoryStore(), idle=time),
    "Runtime, ttl": lambda runtime, id, time: Runtime(MemoryStore(), ttl=time),
    "conversation, send": lambda runtime, id, time: _talk(
        runtime, lambda session: session.send("hi", wait=time)
    ),
    "conversation, turn": lambda runtime, id, time: _talk(
        runtime, lambda session: session.turn("i-1", wait=time)
    ),
}


async def _talk(runtime, verb):
    return await verb(await runtime.session(AGENT, "talk"))


async def test_a_time_that_is_not_one_is_refused():
    """Negative ones, too; the session stands where it stood, and there is no other."""
    with collect_failures() as row:
        for name, verb in VERBS.items():
            async with opened(llm=None, replay=False) as runtime:
                one = await runtime.start(waits())
                for time in WRONG:
                    with row(name, repr(time)):
                        await check_refused(runtime, one.session_id, verb, time)


async def check_refused(runtime, session_id, verb, time):
    with pytest.raises((BadSetting, BadArguments)) as refused:
        found = verb(runtime, session_id, time)
        if inspect.isawaitable(found):
            await asyncio.wait_for(found, 60)
    assert refused.value.code in ("bad_setting", "bad_arguments")
    listed = [info for info in await runtime.sessions() if info.program.endswith("waits")]
    assert [(info.session_id, info.state) for info in listed] == [(session_id, "paused")]
    assert (await runtime.status(session_id)).queries[0].id == "q-0"


@pytest.mark.parametrize("time", [0, 0.0, 1, math.inf, None])
async def test_a_time_from_0_is_taken(time):
    async with opened(llm=None) as runtime:
        assert (await runtime.start(waits(), wait=time)).queries
