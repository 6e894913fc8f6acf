"""Finalizers that the garbage collector runs in the middle of a program have nothing to do with
it.
"""

import asyncio
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.programs.python import determinism_guard, execution
from tests.unit.programs.driving import Life, result


class Garbage:
    """Something that only the collector ends, with whatever it does then."""

    def __init__(self, finalizer: Callable[[], None]) -> None:
        self.itself, self.finalizer = self, finalizer

    def __del__(self) -> None:
        self.finalizer()


async def both(ctx: Any) -> list[str]:
    gc.collect()  # as it may come by itself, wherever something is made
    return list(await asyncio.gather(ctx.llm("one"), ctx.llm("two")))


def test_a_task_that_a_finalizer_starts_is_none_of_the_programs() -> None:
    """Clients of model providers close themselves like this: with a task on the loop that runs, if
    there is one.
    """
    found: list[str] = []

    async def close() -> None:
        found.append("closed by a program")

    def finalizer() -> None:
        closing = close()
        try:
            asyncio.get_running_loop().create_task(closing)
        except RuntimeError as error:
            closing.close()
            found.append(str(error))

    Garbage(finalizer)
    life = Life(both)
    life.go()
    assert found == ["no running event loop"]
    assert [query.key for query in life.open.values()] == ["0.1:0", "0.2:0"]
    assert life.finish() == ["ONE", "TWO"]


def test_what_a_finalizer_opens_is_not_the_programs(tmp_path: Path) -> None:
    opened: list[str] = []
    file = tmp_path / "notes"
    file.write_text("left")
    Garbage(lambda: opened.append(file.read_text()))
    before = determinism_guard.configure_guard(mode="refuse")
    try:
        assert Life(both).finish() == ["ONE", "TWO"]
    finally:
        determinism_guard.configure_guard(mode=before)
    assert opened == ["left"]


@pytest.mark.parametrize("failure", [RuntimeError, asyncio.CancelledError, SystemExit])
def test_a_finalizer_that_fails_changes_nothing(
    failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: heard.append(told.exc_type))

    def finalizer() -> None:
        raise failure

    Garbage(finalizer)
    assert Life(both).finish() == ["ONE", "TWO"]
    assert heard == [failure]


def test_after_the_collector_the_program_goes_on_where_it_was() -> None:
    async def program(ctx: Any) -> list[bool]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        gc.collect()
        return [asyncio.get_running_loop() is loop, asyncio.current_task() is task]

    assert result(Life(program).go()) == [True, True]


def test_outside_of_programs_the_collector_is_as_ever() -> None:
    async def main() -> bool:
        loop, seen = asyncio.get_running_loop(), []
        Garbage(lambda: seen.append(asyncio.get_running_loop()))
        gc.collect()
        return seen == [loop]

    assert asyncio.run(main())


def test_installing_it_again_changes_nothing() -> None:
    before = list(gc.callbacks)
    execution.install_gc_guard()
    assert gc.callbacks == before
