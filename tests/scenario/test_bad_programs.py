"""Programs that break the rules: each ends with a typed error, and harms nobody else."""

import asyncio
import math

import pytest

import everhold
from everhold.errors import NotAProgram
from everhold.programs.python import determinism_guard
from tests.scenario.harness import opened

MISFITS = {
    "to a number": lambda ctx: ctx.approval("p", to=7),
    "to a list": lambda ctx: ctx.llm("p", to=["ann"]),
    "max_tokens None": lambda ctx: ctx.llm("p", max_tokens=None),
    "max_tokens float": lambda ctx: ctx.llm("p", max_tokens=1e4),
    "max_tokens large": lambda ctx: ctx.llm("p", max_tokens=2**70),
    "grounded": lambda ctx: ctx.llm("p", grounded="yes"),
    "underspecified": lambda ctx: ctx.llm("p", underspecified=None),
    "timeout": lambda ctx: ctx.input("p", timeout="5"),
    "progress part": lambda ctx: ctx.progress(0.5, 1),
    "progress total": lambda ctx: ctx.progress(1, None),
    "record": lambda ctx: ctx.record(7, 1),
    "version": lambda ctx: ctx.version("new", "2"),
    "version name": lambda ctx: ctx.version(None, 2),
    "state": lambda ctx: ctx.state(["room"]),
    "title": lambda ctx: ctx.spawn(fine(), title=7),
    "rerun": lambda ctx: ctx.call(print, rerun="maybe"),
    "call retry": lambda ctx: ctx.call(print, retry=3),
    "llm retry": lambda ctx: ctx.llm("p", retry="always"),
    "llm total": lambda ctx: ctx.llm("p", total_timeout="5"),
    "call timeout": lambda ctx: ctx.call(print, timeout=math.nan),
}


@everhold.program
async def misfit(ctx, which: str):
    await ctx.llm("go")
    with pytest.raises(everhold.EverholdError, match="must be"):
        done = MISFITS[which](ctx)
        if asyncio.iscoroutine(done):
            await done
    return await ctx.approval("Well?", to="ann", timeout=math.inf)


@pytest.mark.parametrize("which", MISFITS)
async def test_what_could_not_be_read_again_is_refused(which, tmp_path):
    """It is the program's error where it was handed over; the session, and the inbox, can be read
    and go on.
    """
    async with opened(tmp_path) as runtime:
        first = await runtime.start(misfit(which=which))
        asked = await runtime.answer(first.queries[0], "x")
    async with opened(tmp_path) as runtime:
        assert [query.prompt for query in await runtime.inbox()] == ["Well?"]
        assert (await runtime.answer(asked.queries[0], True)).result is True


@everhold.program
async def fine(ctx):
    return await ctx.llm("Well?")


async def test_a_result_that_is_not_json():
    """The session fails, naming the path of the value."""

    @everhold.program
    async def returns(ctx):
        return {"list": [1, {"deep": {1, 2}}]}

    async with opened() as runtime:
        assert "the return value.list[1].deep" in (await runtime.start(returns())).error


@pytest.mark.parametrize(
    "error", [SystemExit("bye"), GeneratorExit(), BaseException("odd"), asyncio.CancelledError()]
)
async def test_a_program_that_raises_a_base_exception(error):
    """It has failed; the process goes on."""

    @everhold.program
    async def raises(ctx):
        await ctx.llm("go")
        raise error

    async with opened() as runtime:
        status = await runtime.start(raises())
        end = await runtime.answer(status.queries[0], "x")
        assert end.state == "failed"
        assert (
            await runtime.answer((await runtime.start(fine())).queries[0], "yes")
        ).result == "yes"


async def test_an_interrupt_goes_up():
    """KeyboardInterrupt is not the program's to have: nothing is committed, and the session is as
    it was.
    """
    again = []

    @everhold.program
    async def interrupted(ctx):
        answer = await ctx.llm("go")
        if not again:
            again.append(True)
            raise KeyboardInterrupt
        return answer

    async with opened() as runtime:
        status = await runtime.start(interrupted())
        with pytest.raises(KeyboardInterrupt):
            await runtime.answer(status.queries[0], "x")
        assert await runtime.status(status.session_id) == status
        assert (await runtime.answer(status.queries[0], "y")).result == "y"


@everhold.program
async def interrupts(ctx):
    await ctx.llm("go")
    raise KeyboardInterrupt


async def test_an_interrupt_that_can_only_be_the_programs_own_is_its_failure(signals_told):
    """A process that is told of its signals, as a server is, is not ended by a program."""
    async with opened() as runtime:
        status = await runtime.start(interrupts())
        end = await runtime.answer(status.queries[0], "x")
        assert (end.state, end.error) == ("failed", "KeyboardInterrupt")


async def test_a_program_that_recurses_for_ever():
    """It fails with RecursionError."""

    @everhold.program
    async def recurses(ctx):
        async def deeper(n):
            return await deeper(n + 1)

        await deeper(0)

    async with opened() as runtime:
        status = await runtime.start(recurses())
        assert status.outcome.kind == "RecursionError"


async def test_a_program_that_spins_in_python():
    """A watchdog stops it after the limit of one advance."""

    @everhold.program
    async def spins(ctx):
        while True:
            pass

    before = determinism_guard._settings.limit
    determinism_guard.configure_guard(limit=0.3)
    try:
        async with opened(replay=False) as runtime:
            assert (await runtime.start(spins())).outcome.kind == "spinning"
    finally:
        determinism_guard.configure_guard(limit=before)


async def test_a_program_that_spins_on_its_loop(monkeypatch):
    """sleep(0) for ever is stopped by the number of turns."""
    monkeypatch.setattr("everhold.programs.python.event_loop.HANDLES", 1000)

    @everhold.program
    async def polls(ctx):
        while True:
            await asyncio.sleep(0)

    async with opened(replay=False) as runtime:
        assert (await runtime.start(polls())).outcome.kind == "spinning"


async def test_a_program_that_waits_for_nothing():
    """Nothing ready and nothing open: it is stuck, and the error lists what it waits for."""

    @everhold.program
    async def stuck(ctx):
        await asyncio.Event().wait()

    async with opened() as runtime:
        status = await runtime.start(stuck())
        assert status.outcome.kind == "stuck" and "stuck" in status.error


async def test_a_prompt_that_is_no_text():
    """The program sees BadValue where it asks."""

    @everhold.program
    async def asks(ctx):
        for prompt in (7, None, "\ud800"):
            with pytest.raises(everhold.EverholdError):
                await ctx.llm(prompt)
        with pytest.raises(everhold.EverholdError):
            await ctx.approval("x", timeout=math.nan)
        with pytest.raises(everhold.EverholdError):
            await ctx.llm_batch([])
        return "refused"

    async with opened() as runtime:
        assert await runtime.run(asks()) == "refused"


async def test_ctx_outside_its_program():
    """A context that escaped is of no use."""
    escaped = []

    @everhold.program
    async def leaks(ctx):
        escaped.append(ctx)
        await ctx.llm("go")

    async with opened() as runtime:
        await runtime.start(leaks())
        with pytest.raises(everhold.EverholdError) as refused:
            await escaped[0].llm("from outside")
        assert refused.value.code == "foreign_call"


@pytest.mark.parametrize("wrong", [7, b"fine", fine, None])
async def test_what_is_no_call(wrong):
    """run and start take a call of a program, or its name (see test_start_by_name)."""
    async with opened() as runtime:
        with pytest.raises(NotAProgram):
            await runtime.start(wrong)


@pytest.mark.parametrize("version", ["2", 2.0, None, True, -1, 2**64])
def test_a_version_that_is_no_number(version):
    """It would be written with its sessions, and none of the listings that hold one could be read
    again.
    """
    with pytest.raises(NotAProgram, match="version"):
        everhold.program(version=version)(fine.body)


def test_a_call_is_not_awaited():
    """Awaiting it says what to do instead."""
    with pytest.raises(NotAProgram, match=r"runtime\.run"):
        fine().__await__()


async def test_a_program_that_leaves_tasks_behind():
    """They end with it: what they asked never reached anybody."""

    @everhold.program
    async def careless(ctx):
        asyncio.get_running_loop().create_task(ctx.llm("who?"))
        await asyncio.sleep(0)
        return "done"

    async with opened() as runtime:
        status = await runtime.start(careless())
        assert status.result == "done"
        assert await runtime.inbox() == []


class Mute(Exception):
    def __str__(self):
        raise KeyError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("\ud800 and \0"), "ValueError: \\ud800 and \0"),
        (Mute(), "Mute: its message cannot be read (KeyError)"),
        (
            ExceptionGroup("a TaskGroup", [OSError("lost")]),
            "ExceptionGroup: a TaskGroup (1 sub-exception): OSError: lost",
        ),
    ],
    ids=["no text", "mute", "group"],
)
async def test_an_exception_with_odd_words(error, said):
    """Whatever is in its message can be stored, and a group says what is in it."""

    @everhold.program
    async def raises(ctx):
        raise error

    async with opened() as runtime:
        status = await runtime.start(raises())
        assert (status.state, status.error) == ("failed", said)
        assert (await runtime.status(status.session_id)).error == said


async def no_ctx(topic: str) -> str: ...
async def no_parameters() -> str: ...
async def no_types(topic, tone="dry"): ...
async def a_list(topics: list[str]) -> str: ...
async def typed_ctx(ctx: "str") -> str: ...
async def method(self, ctx, topic: str) -> str: ...
async def keyword(*, ctx) -> str: ...


@pytest.mark.parametrize(
    ("body", "because"),
    [
        (no_ctx, "its first parameter is 'topic', of type str, not ctx"),
        (no_parameters, "it has no parameter for ctx"),
        (no_types, "its first parameter is 'topic', not ctx"),
        (a_list, "its first parameter is 'topics', of type list[str], not ctx"),
        (typed_ctx, "its first parameter is 'ctx', of type str, not ctx"),
        (method, "its first parameter is 'self', not ctx"),
        (keyword, "it has no parameter for ctx"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_function_without_ctx_is_refused_when_it_is_decorated(body, because):
    """It would get the context in place of its argument."""
    with pytest.raises(NotAProgram) as refused:
        everhold.program(body)
    assert str(refused.value) == f"'{body.__name__}' is not a program: {because}"


async def short(_): ...
async def long(context): ...
async def of_any_name(wf: everhold.Context): ...
async def postponed(wf: "everhold.Context", n: int = 1): ...
async def wrapped(*args): ...


@pytest.mark.parametrize("body", [short, long, of_any_name, postponed, wrapped])
def test_ctx_may_have_another_name(body):
    """If its type says what it is, or nothing else can be meant."""
    assert everhold.program(body).name == body.__name__
