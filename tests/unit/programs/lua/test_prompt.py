"""A worker whose last answer came at once is waited for in place; one that takes longer never holds
the loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any

import pytest

from everhold.errors import Overtaken
from everhold.programs.lua import pool, protocol
from everhold.programs.lua.pool import LuaWorker
from everhold.programs.lua.protocol import LuaLimits
from tests.unit.programs.lua.test_pool import (
    begin,
    hosted,
    is_alive,
    kind,
    pool_of,
    prompt,
    told,
    until,
)

pytestmark = pytest.mark.process

SPIN = 'alc.llm("ready?") while true do end'


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment is long: the machine may be busy."""
    monkeypatch.setattr(pool, "_MOMENT", 30.0)


def in_place(step: Coroutine[Any, Any, Any]) -> Any:
    """What comes of a step that never gives the loop its turn."""
    with pytest.raises(StopIteration) as done:
        step.send(None)
    return done.value.value


def prompt_worker(host: Any) -> LuaWorker:
    (worker, *_) = pool_of(host).workers
    worker._is_prompt = True
    return worker


async def test_its_answer_is_taken_in_place() -> None:
    async with hosted() as host:
        execution = begin(host)
        await told(execution, 0)
        prompt_worker(host)
        assert [prompt(in_place(told(execution, n, "go on"))) for n in (1, 2, 3)] == [
            "question 2",
            "question 3",
            "question 4",
        ]


async def test_one_that_has_died_is_noticed_in_place() -> None:
    async with hosted() as host:
        execution = begin(host)
        await told(execution, 0)
        worker = prompt_worker(host)
        os.kill(worker.process.pid, signal.SIGKILL)
        await asyncio.to_thread(worker.process.popen.wait)
        step = told(execution, 1, "go on")
        with pytest.raises(Overtaken):
            step.send(None)
        assert worker.dead


async def test_one_that_does_not_answer_gives_the_loop_back_and_is_killed_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "_MOMENT", 0.001)
    async with hosted(LuaLimits(wall=0.5, cpu=60.0)) as host:
        execution = begin(host, SPIN)
        await told(execution, 0)
        worker = prompt_worker(host)
        assert kind(await told(execution, 1, "yes")) == "spinning"
        await until(lambda: not is_alive(worker.process.pid))


async def test_one_that_took_long_is_not_waited_for_in_place_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosted() as host:
        execution = begin(host)
        await told(execution, 0)
        worker = prompt_worker(host)
        monkeypatch.setattr(pool, "_MOMENT", 0.0)
        await told(execution, 1, "go on")
        assert not worker._is_prompt


async def test_its_answer_is_looked_for_before_the_processor_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "BLINK", 30.0)
    async with hosted() as host:
        execution = begin(host)
        await told(execution, 0)
        monkeypatch.setattr(prompt_worker(host), "_came", None)  # by which it would sleep
        assert prompt(in_place(told(execution, 1, "go on"))) == "question 2"
