"""crash_everywhere: anybody's program, crashed before and after every commit."""

import asyncio

import pytest

import everhold as eh
from everhold.testing import NotSame, crash_everywhere

ANSWERS = {"reason": "it broke", "Refund": True, "child": "c", "*": "z"}
SEEN: list[str] = []


def send(order: str) -> str:
    return f"sent {order}"


@eh.program
async def child(ctx: eh.Context) -> str:
    return await ctx.llm("child?")


@eh.program
async def refund(ctx: eh.Context, order: str) -> str:
    """A bit of everything that a session can do."""
    await ctx.llm(f"{order}: the likely reason?")
    await asyncio.gather(ctx.llm("one"), ctx.llm("two"))
    if not await ctx.approval(f"Refund {order}?"):
        return "declined"
    await ctx.sleep(86400)
    who = await ctx.receive("paid")
    said = await ctx.spawn(child())
    return f"{who} {said} {await ctx.call(send, order)}"


@eh.program
async def careful(ctx: eh.Context) -> str:
    first = await ctx.call(send, "a", rerun="never")
    return first + await ctx.call(send, "b", rerun="ask")


@eh.program
async def forgetful(ctx: eh.Context) -> str:
    """What it asks depends on what this process has seen before."""
    SEEN.append(await ctx.llm("first?"))
    return await ctx.llm(f"number {len(SEEN)}?")


def test_a_sound_program_ends_the_same_wherever_it_is_crashed() -> None:
    report = crash_everywhere(refund(order="7"), answers=ANSWERS, signals={"paid": "bob"})
    assert report.result == "bob c sent 7"
    assert len(report.points) == 2 * report.commits >= 20


@eh.program
async def again(ctx: eh.Context, round: int = 0, said: list[str] | None = None) -> list[str]:
    """Each round asks, counts, calls and begins again; one hears a signal, and the last one has a
    child.
    """
    said = [*(said or []), await ctx.llm(f"round {round}?")]
    await ctx.state.incr("rounds")
    said.append(await ctx.call(send, f"{round}"))
    if round == 1:
        said.append(await ctx.receive("paid"))
    if round == 3:
        return [*said, await ctx.spawn(child())]
    await ctx.restart(round=round + 1, said=said)


def test_a_program_that_begins_again_ends_the_same_wherever_it_is_crashed() -> None:
    """Before the commit of a restart the old life stands, with its last answer; after it the new
    one.
    """
    report = crash_everywhere(again(), answers=ANSWERS, signals={"paid": "bob"})
    assert report.result == ["z", "sent 0", "z", "sent 1", "bob", "z", "sent 2", "z", "sent 3", "c"]
    assert len(report.points) == 2 * report.commits >= 20


def test_the_report_names_the_calls_that_may_run_twice() -> None:
    report = crash_everywhere(refund(order="7"), answers=ANSWERS, signals={"paid": "bob"})
    assert report.repeated == ["send"]
    assert "send may run twice: before commit" in str(report)


def test_the_report_names_the_calls_whose_outcome_may_stay_unknown() -> None:
    """Only the call that is never repeated; the other one is asked about, and run again."""
    report = crash_everywhere(careful())
    assert report.unknown == ["send"]
    assert {str(point) for point in report.points if point.unknown} == {
        "after commit 1",
        "before commit 2",
    }


def test_a_program_with_a_memory_of_its_own_is_told_where_it_differs() -> None:
    with pytest.raises(
        NotSame, match=r"crashed before commit 1:\n +asked at 0:1: .*number 1"
    ) as failed:
        crash_everywhere(forgetful(), answers=["a", "b"])
    assert "3 commits, 6 changed something" in str(failed.value)


def test_a_function_is_replaced_while_a_program_is_crashed() -> None:
    report = crash_everywhere(careful(), calls={"send": lambda order: f"pretended {order}, "})
    assert report.result == "pretended a, pretended b, "


def test_what_a_program_waits_for_in_vain_is_named() -> None:
    with pytest.raises(AssertionError, match=r"does not reach its end.*it waits for signal 'paid'"):
        crash_everywhere(refund(order="7"), answers=ANSWERS)


def test_questions_to_somebody_by_name_are_answered_too() -> None:
    @eh.program
    async def asking(ctx: eh.Context) -> str:
        allowed = await ctx.approval("May it?", to="bob")
        return f"{allowed} {await ctx.llm('How?', to='claude')}"

    assert crash_everywhere(asking(), answers={"May it?": True, "How?": "so"}).result == "True so"


async def test_it_works_in_an_async_test() -> None:
    assert crash_everywhere(child(), answers={"child": "here"}).result == "here"
