"""A session kept as a test: what differs is shown, and what is asked now can be accepted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import everhold as eh
from everhold.archive.recording import Recording
from everhold.errors import BadExport, Spinning
from everhold.ports.program import Program
from everhold.programs.python.execution import PythonHost
from everhold.testing import Kit


async def was(ctx: eh.Context) -> str:
    name = await ctx.llm("Your name?")
    return f"{name} {await ctx.approval('Sure?')}"


async def reworded(ctx: eh.Context) -> str:
    name = await ctx.llm("Your whole name?", system="Be short.")
    return f"{name} {await ctx.approval('Sure?')}"


async def longer(ctx: eh.Context) -> str:
    name = await ctx.llm("Your name?")
    await ctx.llm("Your age?")
    return f"{name} {await ctx.approval('Sure?')}"


async def shorter(ctx: eh.Context) -> str:
    return f"{await ctx.approval('Sure?')}"


async def otherwise(ctx: eh.Context) -> str:
    name = await ctx.llm("Your name?")
    return f"{name}: {await ctx.approval('Sure?')}"


def host(body) -> PythonHost:
    made: Program = Program(body, name="p", version=1, strict=False)
    return PythonHost(lambda ref, version: made)


@pytest.fixture
def tape() -> Iterator[Recording]:
    with Kit() as kit:
        kit.start(eh.program(was)(), answers=["Ann"])
        kit.approve()
        yield Recording.of(kit._wait(kit._runtime.store.load(kit.last.session_id)))


def test_the_same_program_differs_in_nothing(tape: Recording) -> None:
    assert tape.difference(host(was)) == ""


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (
            reworded,
            ["-    prompt: Your name?", "+    prompt: Your whole name?", "+    system: Be short."],
        ),
        (
            longer,
            [
                "step 1: it asked approval 'Sure?'",
                "-  q-1 approval at 0:1",
                "+    prompt: Your age?",
            ],
        ),
        (shorter, ["step 0: it asked llm 'Your name?'", "+  q-0 approval at 0:0"]),
        (otherwise, ["-  returns Ann True", "+  returns Ann: True"]),
    ],
)
def test_what_differs_is_shown_line_by_line(tape: Recording, body, lines: list[str]) -> None:
    found = tape.difference(host(body))
    assert [line for line in lines if line not in found] == []


@pytest.mark.parametrize("body", [reworded, longer, shorter, otherwise])
def test_what_was_accepted_differs_in_nothing(tape: Recording, body) -> None:
    assert tape.updated(host(body)).difference(host(body)) == ""


def test_accepting_keeps_the_answers_that_still_fit(tape: Recording) -> None:
    """The new question has no answer yet: there the session waits."""
    told = tape.updated(host(longer))
    assert [answer.value for step in told.deliveries for answer in step.answers] == ["Ann"]
    assert [query.prompt for query in told.deliveries[-1].asked] == ["Your age?"]
    assert [
        answer.value for step in tape.updated(host(shorter)).deliveries for answer in step.answers
    ] == [True]


async def restarting(ctx: eh.Context, left: int = 2) -> str:
    name = await ctx.llm(f"Your name? {left}")
    if left:
        await ctx.restart(left=left - 1)
    return name


async def sooner(ctx: eh.Context, left: int = 2) -> str:
    name = await ctx.llm(f"Your name? {left}")
    if left:
        await ctx.restart(left=0)
    return name


async def restless(ctx: eh.Context, left: int = 2) -> str:
    if left == 2:
        await ctx.llm(f"Your name? {left}")
    await ctx.restart(left=0)


@pytest.fixture
def restarted() -> Iterator[Recording]:
    with Kit() as kit:
        kit.start(eh.program(restarting)(), answers=["Ann", "Bob", "Cay"])
        yield Recording.of(kit._wait(kit._runtime.store.load(kit.last.session_id)))


def test_a_tape_goes_on_across_restarts(restarted: Recording, tmp_path: Path) -> None:
    """It is played as a whole, and other arguments of a restart are a difference that can be
    accepted.
    """
    assert restarted.difference(host(restarting)) == restarted.updated(host(restarting)).difference(
        host(restarting)
    )
    assert restarted.difference(host(restarting)) == ""
    lines = restarted.difference(host(sooner)).splitlines()
    assert '-  restarts with {"left":1}' in lines and '+  restarts with {"left":0}' in lines
    accepted = restarted.updated(host(sooner))
    assert accepted.difference(host(sooner)) == ""
    assert len(accepted.deliveries) == 4
    restarted.write(tmp_path / "tape.json")
    assert Recording.read(tmp_path / "tape.json").difference(host(restarting)) == ""


def test_a_tape_of_one_that_never_pauses_cannot_be_accepted(restarted: Recording) -> None:
    with pytest.raises(Spinning):
        restarted.updated(host(restless))


def test_a_tape_is_written_and_read(tape: Recording, tmp_path: Path) -> None:
    tape.write(tmp_path / "t.json")
    assert Recording.read(tmp_path / "t.json") == tape


@pytest.mark.parametrize("text", ["", "[]", '{"birth": 1}'])
def test_what_is_no_tape_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(BadExport, match=r"t\.json"):
        Recording.read(tmp_path / "t.json")
