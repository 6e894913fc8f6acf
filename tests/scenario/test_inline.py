"""llm=: those who answer now."""

import asyncio
import json
import sys

import pytest

import everhold
from everhold.errors import BadSetting
from tests.scenario.harness import opened, rows


@everhold.program
async def poem(ctx):
    first = await ctx.llm("First line?")
    second = await ctx.llm(f"After {first}?")
    return [first, second]


@everhold.program
async def guarded(ctx):
    try:
        return await ctx.llm("First line?")
    except everhold.AnswerFailed as error:
        return f"{error.kind}: {error.message}"


async def test_an_async_function():
    """It is given the query, and its words are the answer."""

    async def shout(query):
        return query.prompt.upper()

    async with opened(llm=shout) as runtime:
        assert await runtime.run(poem()) == ["FIRST LINE?", "AFTER FIRST LINE??"]


async def test_a_plain_function():
    """A function that is not async runs in a thread."""
    async with opened(llm=lambda query: query.prompt[:5]) as runtime:
        assert await runtime.run(poem()) == ["First", "After"]


async def test_a_list_of_answers():
    """Answers in the order asked; when they are used up, the program sees an error."""
    async with opened(llm=["one", "two", "three"]) as runtime:
        assert await runtime.run(poem()) == ["one", "two"]
        with pytest.raises(everhold.Failed, match="all are used"):
            await runtime.run(poem())


async def test_a_dict_of_patterns():
    """Answers by what was asked."""
    async with opened(llm={"First*": "roses", "After roses": "violets"}) as runtime:
        assert await runtime.run(poem()) == ["roses", "violets"]


@pytest.mark.process
async def test_a_command():
    """The question on its standard input, the answer on its standard output."""
    code = "import sys; print(sys.stdin.read().upper())"
    async with opened(llm=everhold.CommandModel([sys.executable, "-c", code])) as runtime:
        assert (await runtime.run(poem()))[0] == "FIRST LINE?"


@pytest.mark.process
async def test_a_command_that_fails():
    """Its complaint is the error that the program sees."""
    code = "import sys; sys.exit('no money')"
    async with opened(llm=everhold.CommandModel([sys.executable, "-c", code])) as runtime:
        assert "no money" in await runtime.run(guarded())


async def test_a_function_that_raises():
    """Raising is an answer: the program sees AnswerFailed with the error's name and words."""

    async def broken(query):
        raise ConnectionError("no route")

    async with opened(llm=broken) as runtime:
        assert await runtime.run(guarded()) == "ConnectionError: no route"


async def test_a_function_that_returns_something_else():
    """What does not fit the question is an error too."""
    async with opened(llm=lambda query: 7) as runtime:
        assert (await runtime.run(guarded())).startswith("answer_refused")


async def test_usage_of_an_answerer():
    """Said(value, usage) counts tokens."""

    async def counted(query):
        return everhold.Answer("x", everhold.Usage(prompt_tokens=3, completion_tokens=1))

    async with opened(llm=counted) as runtime:
        status = await runtime.start(poem())
        assert status.metrics["auto"]["total_tokens"] == {"tokens": 8, "source": "provided"}


async def test_usage_of_an_answerer_in_other_clothes():
    """A provider's own dict counts as well; nobody waits for ever because of how tokens were
    counted.
    """
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    async with opened(llm=lambda query: everhold.Answer("x", usage)) as runtime:
        status = await runtime.start(poem(), wait=30)
        assert status.metrics["auto"]["total_tokens"] == {"tokens": 8, "source": "provided"}


@pytest.mark.parametrize(
    "usage", [7, {"prompt_tokens": "x"}, everhold.Usage(1.5, 2), everhold.Usage(True)], ids=repr
)
async def test_usage_of_an_answerer_that_is_none(usage, tmp_path):
    """It is an error of the answerer, which the program sees, and nothing is written that cannot be
    read again.
    """
    async with opened(tmp_path, llm=lambda query: everhold.Answer("x", usage)) as runtime:
        assert (await runtime.run(guarded(), wait=30)).startswith("bad_arguments")
    async with opened(tmp_path) as runtime:
        assert len(await runtime.sessions()) == 1


async def test_an_answer_that_was_paid_is_not_asked_again(tmp_path):
    """P1: a second runtime goes on after the recorded answers."""
    asked = []

    async def once(query):
        asked.append(query.prompt)
        if len(asked) == 2:
            await asyncio.Event().wait()
        return f"answer {len(asked)}"

    async with opened(tmp_path, llm=once, replay=False) as runtime:
        await runtime.start(poem(), key="poem", wait=0)
        while len(asked) < 2:
            await asyncio.sleep(0)
        await runtime.close(grace=0)
    async with opened(tmp_path, llm=once) as runtime:
        assert await runtime.run(poem(), key="poem") == ["answer 1", "answer 3"]
    assert asked == ["First line?", "After answer 1?", "After answer 1?"]


@everhold.program
async def addressed(ctx):
    return [await ctx.llm("For Eve?", to="eve"), await ctx.approval("Go?")]


async def test_what_is_addressed_to_somebody_stays_open():
    """An inline answerer takes neither what has an addressee nor what is for people."""
    async with opened(llm=lambda query: "model") as runtime:
        status = await runtime.start(addressed())
        assert [query.to for query in await runtime.inbox(to="eve")] == ["eve"]
        status = await runtime.answer(status.queries[0], "hello")
        assert status.queries[0].kind == "approval"
        assert (await runtime.answer(status.queries[0], True)).result == ["hello", True]


@everhold.program
async def wide(ctx, size: int):
    return await ctx.llm_batch([str(number) for number in range(size)])


async def test_a_batch_is_answered_side_by_side():
    """All of its questions are with the answerer at the same time."""
    at_once, most = 0, 0

    async def busy(query):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return query.prompt

    async with opened(llm=busy) as runtime:
        assert await runtime.run(wide(size=20)) == [str(number) for number in range(20)]
    assert most == 20


async def test_somebody_else_may_answer_while_the_answerer_works():
    """The first answer wins; the work is stopped."""
    begun = asyncio.Event()

    async def slow(query):
        begun.set()
        await asyncio.Event().wait()

    async with opened(llm=slow) as runtime:
        status = await runtime.start(guarded(), wait=0)
        await begun.wait()
        assert (
            await runtime.answer(status.session_id, "I was quicker", query_id="q-0")
        ).result == "I was quicker"


async def test_a_dead_answerers_question_is_open_where_nobody_answers(tmp_path):
    """A process without llm= that takes up the session leaves the question open."""
    from everhold.testing.clock import ManualClock
    from tests.scenario.harness import die, dying

    async def forever(query):
        await asyncio.Event().wait()

    clock = ManualClock()
    first = await dying(tmp_path, clock, llm=forever)
    session_id = (await first.start(guarded(), wait=0)).session_id
    await asyncio.sleep(0)
    await die(first, clock)
    async with opened(tmp_path, clock=clock) as runtime:
        status = await runtime.wait(session_id, 60)
        assert (await runtime.answer(status.queries[0], "by hand")).result == "by hand"


def test_what_llm_does_not_take():
    """A word that is no model, a class, a number: refused when the runtime is made."""
    for wrong in ("claude", int, 7):
        with pytest.raises(BadSetting):
            everhold.open("memory://", llm=wrong)


async def test_the_answer_is_stored_as_it_was_given():
    """An inline answer is in the journal like any other."""
    async with opened(llm=["one", "two"]) as runtime:
        status = await runtime.start(poem())
        given = [
            json.loads(json.dumps(row.answers[0].value))
            for row in (await rows(runtime, status.session_id))[1:]
        ]
        assert given == ["one", "two"]
