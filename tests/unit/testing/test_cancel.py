"""cancel_everywhere: the callers of any program, cancelled at every await."""

import asyncio

import pytest

import everhold as eh
from everhold.engine.shielded import ShieldedCalls
from everhold.errors import BadSetting
from everhold.stores.memory import MemoryStore
from everhold.testing import NotSame, SlowStore, cancel_everywhere
from everhold.testing.cancel import cancel_caller_at

ANSWERS = {"reason": "it broke", "Refund": True, "child": "c", "*": "z"}


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
    return f"{who} {said} {await ctx.call(send, order, rerun='never')}"


@eh.program
async def careful(ctx: eh.Context) -> str:
    first = await ctx.call(send, "a", rerun="never")
    if await ctx.approval("Refund?"):
        first += await ctx.call(send, "b", rerun="ask")
    return first + await ctx.call(send, "c")


@pytest.mark.parametrize("store", ["memory://", "sqlite://"])
def test_no_caller_that_leaves_changes_anything(store: str) -> None:
    report = cancel_everywhere(
        refund(order="7"), answers=ANSWERS, signals={"paid": "bob"}, store=store
    )
    assert report.result == "bob c sent 7"
    assert [verb.partition(" ")[0] for verb in report.verbs] == [
        *("start", "answer", "answer_many", "answer", "signal", "answer"),
    ]
    for number in range(1, len(report.verbs) + 1):
        assert {point.when for point in report.points if point.call == number} == {"await", "turn"}
    assert report.repeated == []


def test_calls_run_once_wherever_the_caller_leaves() -> None:
    """Neither a call that is never repeated nor one that is asked about is in doubt: its process is
    alive.
    """
    report = cancel_everywhere(careful(), answers=ANSWERS)
    assert report.result == "sent asent bsent c"
    assert report.repeated == []
    assert str(report).endswith("cancelled callers of 2 calls, 0 changed something")


async def unshielded(self: ShieldedCalls, verb):
    return await verb


def test_a_verb_that_ends_with_its_caller_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shield, a commit lands whose work never begins. Each place is listed, and what is
    wrong there.
    """
    monkeypatch.setattr(ShieldedCalls, "run", unshielded)
    with pytest.raises(NotSame) as failed:
        cancel_everywhere(careful(), answers=ANSWERS)
    words = str(failed.value)
    assert "call 1, start, cancelled after " in words
    assert (
        "call 2, answer approval 'Refund?' at 0:1 returning boolean, cancelled at await 2:" in words
    )
    assert "is marked as running, but no task runs it" in words


def test_functions_are_replaced_while_callers_leave() -> None:
    calls: list[str] = []

    async def counted(order: str) -> str:
        calls.append(order)
        return "x"

    report = cancel_everywhere(careful(), answers=ANSWERS, calls={"send": counted})
    # the last run of each kind is undisturbed again
    runs = 1 + len(report.points) + 2 * len(report.verbs)
    assert (report.result, sorted(calls)) == ("xxx", sorted("abc" * runs))


def test_a_program_that_never_ends_is_told_what_it_waits_for() -> None:
    with pytest.raises(
        AssertionError, match=r"undisturbed: it does not reach its end: it waits for signal 'paid'"
    ):
        cancel_everywhere(refund(order="7"), answers=ANSWERS)


def test_a_store_of_ones_own() -> None:
    made: list[MemoryStore] = []

    def make() -> MemoryStore:
        made.append(MemoryStore())
        return made[-1]

    report = cancel_everywhere(child(), answers=["here"], store=make)
    assert report.result == "here"
    assert len(made) == len(report.points) + 1 + 2 * len(report.verbs)


def test_a_database_that_cannot_be_made_anew_is_refused() -> None:
    with pytest.raises(BadSetting, match="each run needs an empty store"):
        cancel_everywhere(child(), answers=["here"], store="postgresql://somewhere/app")


def test_an_answer_may_be_an_error() -> None:
    @eh.program
    async def asking(ctx: eh.Context) -> str:
        try:
            return await ctx.llm("Why?")
        except eh.AnswerFailed as error:
            return f"told: {error}"

    assert cancel_everywhere(asking(), answers=[OSError("no line")]).result == "told: no line"


async def test_it_works_in_an_async_test() -> None:
    assert cancel_everywhere(child(), answers={"child": "here"}).result == "here"


async def test_leaving_at_an_await_or_after_a_turn() -> None:
    steps: list[int] = []

    async def verb() -> None:
        for n in range(3):
            steps.append(n)
            await asyncio.sleep(0)

    assert [await cancel_caller_at(verb(), "await", at) for at in (1, 2, 3, 4)] == [
        "left",
        "left",
        "left",
        "returned",
    ]
    assert steps == [0, 0, 1, 0, 1, 2, 0, 1, 2]
    assert [await cancel_caller_at(verb(), "turn", at) for at in (0, 1, 9)] == [
        "left",
        "left",
        "returned",
    ]


async def test_a_verb_that_does_not_leave() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "still here"
        return "woken"

    assert await cancel_caller_at(stubborn(), "await", 1) == "stayed"


async def test_a_slow_store_waits_before_and_after() -> None:
    slow = SlowStore(MemoryStore())
    await slow.open()
    assert [await cancel_caller_at(slow.find("key"), "await", at) for at in (1, 2, 3)] == [
        "left",
        "left",
        "returned",
    ]
    slow.use_clock(lambda: 7.0)
    assert slow.store.time is not None and slow.where == slow.store.where
