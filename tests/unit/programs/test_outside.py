"""Whatever loop runs outside, a program neither sees nor disturbs it."""

import asyncio
import contextvars
import decimal
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold.programs.python import asyncio_replacements, event_loop
from tests.unit.programs.driving import Life
from tests.unit.programs.table import ROWS

ROOT = Path(__file__).resolve().parents[3]


class Other(asyncio.SelectorEventLoop):
    """A loop that is not the usual one, as uvloop's is not: it has a task class of its own."""

    def create_task(self, coro: Any, **options: Any) -> Any:
        return _Own(
            coro,
            loop=self,
            **{name: value for name, value in options.items() if name in ("name", "context")},
        )


class _Own(asyncio.Task):  # type: ignore[type-arg]
    pass


@everhold.program
async def busy(ctx: everhold.Context) -> list[str]:
    async def one(name: str) -> str:
        await asyncio.sleep(0)
        return await asyncio.wait_for(ctx.llm(name), 60)

    return list(await asyncio.gather(*(one(name) for name in "abc")))


async def model(query: everhold.Query) -> str:
    await asyncio.sleep(0)
    return query.prompt.upper()


def test_a_program_runs_under_any_loop() -> None:
    async def main() -> list[str]:
        async with everhold.open("memory://", llm=model) as runtime:
            found = await runtime.run(busy())
            assert type(asyncio.current_task()) is _Own
            return found

    with asyncio.Runner(loop_factory=Other) as runner:
        assert runner.run(main()) == ["A", "B", "C"]


@pytest.mark.process
def test_every_row_of_the_table_works_under_a_loop_set_by_policy() -> None:
    """In a process of its own, because a policy is for all of it."""
    source = """
        import asyncio, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from tests.unit.programs.driving import Life
        from tests.unit.programs.table import ROWS
        from tests.unit.programs.test_outside import Other

        class Policy(asyncio.DefaultEventLoopPolicy):
            def new_event_loop(self):
                return Other()

        async def main():
            assert type(asyncio.get_running_loop()) is Other
            for row in ROWS:
                assert Life(row.body).finish(row.pick) == row.returns, row.name

        asyncio.set_event_loop_policy(Policy())
        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


if hasattr(asyncio.tasks, "_swap_current_task"):  # from 3.12 on there is something to swap

    async def test_the_task_outside_is_put_aside_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
        """What Python 3.14 needs, tried on those that can: it refuses to enter a task while another
        one runs.
        """
        monkeypatch.setattr(event_loop, "_swap", asyncio.tasks._swap_current_task)
        outer, seen = asyncio.get_running_loop(), []

        async def program(ctx: Any) -> None:
            seen.append(asyncio.current_task(outer))
            await ctx.llm("a")

        me = asyncio.current_task()
        Life(program).finish()
        assert seen == [None]
        assert asyncio.current_task() is me

    @pytest.mark.parametrize("row", ROWS, ids=[row.body.__name__ for row in ROWS])
    async def test_every_row_works_with_the_task_outside_put_aside(
        row: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(event_loop, "_swap", asyncio.tasks._swap_current_task)
        assert Life(row.body).finish(row.pick) == row.returns


def test_the_swap_is_used_where_it_is_needed() -> None:
    assert (event_loop._swap is not None) == (sys.version_info >= (3, 14))


async def test_nothing_of_the_caller_leaks_in() -> None:
    """Neither context variables nor what stands in them: decimal precision, the present request."""
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    request.set("GET /")
    decimal.setcontext(decimal.Context(prec=5))

    async def program(ctx: Any) -> list[Any]:
        before = [decimal.getcontext().prec, request.get("none")]
        await ctx.llm("a")
        return [*before, decimal.getcontext().prec, request.get("none")]

    assert Life(program).finish() == [28, "none", 28, "none"]


async def test_nothing_of_the_program_leaks_out() -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")

    async def program(ctx: Any) -> None:
        request.set("inside")
        decimal.setcontext(decimal.Context(prec=3))
        await ctx.llm("a")
        request.set("later")

    Life(program).finish()
    assert request.get("none") == "none"
    assert decimal.getcontext().prec == 28


async def test_async_generators_outside_are_left_alone() -> None:
    """One that began outside is finished outside, also if its last reference goes while a program
    runs.
    """
    finished = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            finished.append(asyncio.get_running_loop())

    box = [numbers()]
    await anext(box[0])

    async def program(ctx: Any) -> None:
        box.clear()
        await ctx.llm("a")

    Life(program).finish()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert finished == [asyncio.get_running_loop()]


def test_the_parts_of_asyncio_are_replaced_once() -> None:
    """Installing again changes nothing, and the names of both modules agree."""
    before = asyncio.wait_for, asyncio.as_completed, asyncio.all_tasks, asyncio.run
    asyncio_replacements.install_asyncio_replacements()
    assert (asyncio.wait_for, asyncio.as_completed, asyncio.all_tasks, asyncio.run) == before
    assert asyncio.tasks.wait_for is asyncio.wait_for


EARLY = """
from asyncio import wait_for
import asyncio
from tests.unit.programs.driving import Life

async def program(ctx):
    await {name}(ctx.llm("a"), 60)

life = Life(program)
life.finish()
print(*life.keys)
"""


@pytest.mark.process
@pytest.mark.parametrize("name", ["wait_for", "asyncio.wait_for"])
def test_a_name_taken_before_the_import_is_pythons_own(name: str) -> None:
    """It works, and asks as that Python does: under 0.1:0 on 3.11, under 0:0 later. ADR 0004 says
    what to do.
    """
    done = subprocess.run(
        [sys.executable, "-c", EARLY.format(name=name)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = "0.1:0" if name == "wait_for" and sys.version_info < (3, 12) else "0:0"
    assert done.stdout.strip() == expected


def test_a_forgotten_loop_of_ours_refuses_a_runtime_inside() -> None:
    """A runtime inside a program would run what no journal knows; ctx.run and ctx.spawn do it."""

    async def program(ctx: Any) -> str:
        try:
            async with everhold.open("memory://", recover=False) as runtime:
                await runtime.run(busy())
        except everhold.EverholdError as error:
            return str(error)
        return ""

    words = Life(program).finish()
    assert words.startswith(
        "everhold.Runtime.run (see ctx.run and ctx.spawn) cannot be used inside a program"
    )
