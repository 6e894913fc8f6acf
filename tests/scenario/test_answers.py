"""The door: which answers are taken, which change nothing, and which are refused."""

import asyncio
import math
import typing

import msgspec
import pytest

import everhold
from everhold.errors import (
    AnswerConflict,
    AnswerRefused,
    BadArguments,
    BadSetting,
    BadValue,
    ManyOpenQueries,
    NoOpenQuery,
    NotAllowed,
    QueryClosed,
    SessionEnded,
    UnknownQuery,
    UnknownSession,
)
from tests.scenario.harness import ids, opened, rows

ANY = str | int | float | bool | None | list[typing.Any] | dict[str, typing.Any]


@everhold.program
async def pair(ctx):
    both = await ctx.llm_batch(["a", "b"])
    return [*both, await ctx.llm("c")]


@everhold.program
async def anything(ctx):
    return await ctx.input("anything", returns=ANY)


async def test_a_batch_of_answers_is_all_or_nothing():
    """One that does not fit keeps the others out too."""
    async with opened() as runtime:
        status = await runtime.start(pair())
        with pytest.raises(AnswerRefused):
            await runtime.answer_many(status.session_id, {"q-0": "fits", "q-1": 7})
        with pytest.raises(UnknownQuery):
            await runtime.answer_many(status.session_id, {"q-0": "fits", "q-9": "x"})
        assert await runtime.status(status.session_id) == status
        assert len(await rows(runtime, status.session_id)) == 1


async def test_an_empty_batch_is_refused():
    """Answering nothing is a mistake of the caller."""
    async with opened() as runtime:
        status = await runtime.start(pair())
        with pytest.raises(BadArguments):
            await runtime.answer_many(status.session_id, {})


async def test_a_batch_may_repeat_what_is_known():
    """Answers that are there already count for nothing; the new ones are taken."""
    async with opened() as runtime:
        status = await runtime.start(pair())
        await runtime.answer(status.queries[0], "A")
        status = await runtime.answer_many(status.session_id, {"q-0": "A", "q-1": "B"})
        assert ids(status) == ["q-2"]


async def test_the_same_answer_again_is_a_no_op():
    """It returns the present status and writes nothing."""
    async with opened() as runtime:
        first = await runtime.start(pair())
        await runtime.answer(first.queries[0], "A")
        status = await runtime.answer(first.queries[1], "B")
        assert await runtime.answer(first.queries[0], "A") == status
        assert len(await rows(runtime, status.session_id)) == 3


async def test_another_answer_is_a_conflict():
    """The first one stands."""
    async with opened() as runtime:
        first = await runtime.start(pair())
        await runtime.answer(first.queries[0], "A")
        with pytest.raises(AnswerConflict):
            await runtime.answer(first.queries[0], "other")
        with pytest.raises(AnswerConflict):
            await runtime.answer(first.queries[0], error="other")


async def test_two_answers_to_one_query_in_one_call():
    """The door compares them too: a query has one answer."""
    from everhold.engine.answer_check import GivenAnswer

    async with opened() as runtime:
        status = await runtime.start(pair())
        with pytest.raises(AnswerConflict):
            await runtime.engine.answer(
                status.session_id, [GivenAnswer("q-0", "A"), GivenAnswer("q-0", "B")]
            )
        assert await runtime.status(status.session_id) == status


async def test_an_unknown_query():
    """What was never asked cannot be answered; words that are no query id neither."""
    async with opened() as runtime:
        status = await runtime.start(pair())
        for name in ("q-7", "q-01", "f-1-0", "", "q-", "0"):
            with pytest.raises(UnknownQuery) as refused:
                await runtime.answer(status.session_id, "x", query_id=name)
            assert refused.value.session_id == status.session_id


async def test_an_unknown_session():
    """The error names the session."""
    async with opened() as runtime:
        with pytest.raises(UnknownSession):
            await runtime.answer("s-nobody", "x")


async def test_the_sole_open_query_is_meant():
    """With one open question its id may be left out."""
    async with opened() as runtime:
        status = await runtime.start(anything())
        assert (await runtime.answer(status.session_id, "x")).result == "x"


async def test_with_several_open_queries_one_must_say_which():
    """The error lists them."""
    async with opened() as runtime:
        status = await runtime.start(pair())
        with pytest.raises(ManyOpenQueries) as refused:
            await runtime.answer(status.session_id, "x")
        assert refused.value.query_ids == ["q-0", "q-1"]


@everhold.program
async def sleeper(ctx):
    await ctx.sleep(60)
    return "rested"


async def test_with_no_open_query_there_is_nothing_to_answer():
    """Neither while a session sleeps nor after its end."""
    async with opened() as runtime:
        status = await runtime.start(sleeper())
        with pytest.raises(NoOpenQuery) as refused:
            await runtime.answer(status.session_id, "x")
        assert refused.value.state == "paused"
        await runtime.cancel(status.session_id)
        with pytest.raises((NoOpenQuery, SessionEnded)):
            await runtime.answer(status.session_id, "x")


async def test_a_completed_session_has_no_open_query():
    """An answer without an id to a session that has ended is not taken silently."""
    async with opened() as runtime:
        status = await runtime.start(anything())
        await runtime.answer(status.session_id, "x")
        with pytest.raises(NoOpenQuery):
            await runtime.answer(status.session_id, "y")


async def test_a_late_answer_to_an_ended_session():
    """The same is a no-op that returns the end; another is a conflict; what was never asked is
    unknown.
    """
    async with opened() as runtime:
        query = (await runtime.start(anything())).queries[0]
        status = await runtime.answer(query, "x")
        assert await runtime.answer(query, "x") == status
        with pytest.raises(AnswerConflict):
            await runtime.answer(query, "y")
        with pytest.raises(UnknownQuery):
            await runtime.answer(status.session_id, "x", query_id="q-5")


@everhold.program
async def gives_up(ctx):
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.llm("a"))
        group.create_task(ctx.llm("b"))


async def test_a_late_answer_to_a_failed_session():
    """A query that was open when the program failed takes no answer."""
    async with opened() as runtime:
        asked = (await runtime.start(gives_up())).queries
        await runtime.answer(asked[0], error="no")
        with pytest.raises((SessionEnded, QueryClosed)):
            await runtime.answer(asked[1], "x")


async def test_an_answer_with_usage():
    """Tokens as the answerer counted them are in the metrics."""
    async with opened() as runtime:
        status = await runtime.start(pair())
        await runtime.answer(
            status.queries[0], "A", usage={"prompt_tokens": 10, "completion_tokens": 4}
        )
        status = await runtime.answer_many(
            status.session_id,
            {"q-1": everhold.Answer("B", everhold.Usage(prompt_tokens=5, completion_tokens=1))},
        )
        end = await runtime.answer(status.queries[0], "C", usage=everhold.Usage(1, 1))
        assert end.metrics["auto"]["total_tokens"] == {"tokens": 22, "source": "provided"}


@pytest.mark.parametrize("limit", [-1, "ten", 1.5])
async def test_a_limit_that_is_none(limit):
    """Whichever store it is: what is not a number from 0 is refused."""
    async with opened() as runtime:
        for listing in (runtime.inbox, runtime.sessions):
            with pytest.raises(BadSetting, match="limit: must be an integer ≥ 0"):
                await listing(limit=limit)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": "ten"},
        {"completion_tokens": -1},
        everhold.Usage(-1, 1),
        everhold.Usage("ten"),
        everhold.Usage(1.5),
        everhold.Usage(True),
        everhold.Usage(float("nan")),
        everhold.Usage(1, 1, model=None),
        7,
    ],
)
async def test_usage_that_is_none(usage):
    """What is not a number of tokens is refused, and nothing changes."""
    async with opened() as runtime:
        status = await runtime.start(pair())
        with pytest.raises(BadArguments):
            await runtime.answer(status.queries[0], "A", usage=usage)
        with pytest.raises(BadArguments):
            await runtime.answer_many(
                status.session_id, {status.queries[0].id: everhold.Answer("A", usage)}
            )
        assert await runtime.status(status.session_id) == status


@everhold.program
async def careful(ctx):
    try:
        return await ctx.llm("a")
    except everhold.AnswerFailed as error:
        return f"failed: {error.message}"


async def test_an_answer_with_an_error():
    """The program sees AnswerFailed and may catch it; the same error again is a no-op."""
    async with opened() as runtime:
        query = (await runtime.start(careful())).queries[0]
        status = await runtime.answer(query, error="overloaded")
        assert status.result == "failed: overloaded"
        assert await runtime.answer(query, error="overloaded") == status


async def test_an_error_in_a_batch_of_answers():
    """An exception among the values answers with an error."""
    async with opened() as runtime:
        status = await runtime.start(careful())
        end = await runtime.answer_many(status.session_id, {"q-0": ValueError("no model")})
        assert end.result == "failed: no model"


async def test_a_value_or_an_error():
    """One of the two; neither and both are refused."""
    async with opened() as runtime:
        query = (await runtime.start(careful())).queries[0]
        with pytest.raises(BadArguments):
            await runtime.answer(query)
        with pytest.raises(BadArguments):
            await runtime.answer(query, "x", error="y")
        with pytest.raises(BadArguments):
            await runtime.answer(7, "x")


async def test_none_is_a_value():
    """None can be an answer; it is not the same as no answer."""
    async with opened() as runtime:
        query = (await runtime.start(anything())).queries[0]
        assert (await runtime.answer(query, None)).result is None


BAD = {
    "tuple": ((1, 2), ""),
    "set": ({1}, ""),
    "NaN": (math.nan, ""),
    "infinity": ([1, math.inf], "[1]"),
    "key": ({"a": {1: "x"}}, ".a"),
    "surrogate": ({"a": ["\ud800"]}, ".a[0]"),
    "object": ({"a": object()}, ".a"),
    "big": ({"n": 2**64}, ".n"),
    "bytes": ([b"x"], "[0]"),
}


@pytest.mark.parametrize(("value", "path"), BAD.values(), ids=BAD)
async def test_what_json_would_change_is_refused(value, path):
    """In answers, signals, state, call results and return values, with the path of the value;
    nothing changes.
    """
    async with opened() as runtime:
        status = await runtime.start(anything())
        with pytest.raises(BadValue) as refused:
            await runtime.answer(status.queries[0], value)
        assert refused.value.path == f"the answer{path}"
        with pytest.raises(BadValue) as refused:
            await runtime.signal(status.session_id, "anything", value)
        assert refused.value.path == f"the signal{path}"
        assert await runtime.status(status.session_id) == status


@pytest.mark.parametrize(("value", "path"), BAD.values(), ids=BAD)
async def test_what_a_program_may_not_keep_or_return(value, path):
    """The program sees BadValue with the path; as a return value it fails the session with those
    words.
    """

    async def returns():
        return value

    @everhold.program
    async def keeps(ctx):
        said = []
        for attempt in (
            ctx.state.set("k", value),
            ctx.call(returns),
            ctx.state.update("k", lambda old: value),
        ):
            try:
                await attempt
            except everhold.EverholdError as error:
                said.append(str(error))
        try:
            ctx.record("r", value)
        except BadValue as error:
            said.append(error.path)
        await ctx.state.set("said", said)
        return value

    @everhold.program
    async def look(ctx):
        return await ctx.state.get("said")

    async with opened() as runtime:
        with pytest.raises(everhold.Failed) as failed:
            await runtime.run(keeps())
        assert f"the return value{path} cannot be stored" in str(failed.value)
        said = await runtime.run(look())
        assert len(said) == 4
        assert f"{path} cannot be stored" in said[1]


@pytest.mark.parametrize(("value", "path"), BAD.values(), ids=BAD)
async def test_arguments_that_json_would_change(value, path):
    """Refused when the call is made: nothing is started."""

    @everhold.program
    async def takes(ctx, it):
        return it

    with pytest.raises(BadArguments) as refused:
        takes(it=value)
    assert f"it{path} cannot be stored" in str(refused.value)


ODD = {"NUL": "a\0b", "emoji": "🦉", "empty": "", "newlines": "\r\n\u2028", "long": "x" * 100_000}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
async def test_odd_text_is_kept(text, tmp_path):
    """NUL, emoji and line separators come back as they went in, also from the file."""
    async with opened(tmp_path) as runtime:
        status = await runtime.start(pair())
        await runtime.answer_many(status.session_id, {"q-0": text, "q-1": text})
    async with opened(tmp_path) as runtime:
        assert (await runtime.answer(status.session_id, text)).result == [text] * 3


@everhold.program
async def typed(ctx):
    seen = []
    for _ in range(2):
        value = await ctx.input("anything", returns=ANY)
        seen.append(f"{type(value).__name__}:{value!r}")
    return seen


@pytest.mark.parametrize(
    "value", [1, 1.0, True, None, [], {}, "1", {"b": [1, 2.5], "a": None}, -0.0]
)
async def test_live_and_replay_see_the_same(value):
    """The program receives what was encoded, decoded: the same types and the same order of keys."""
    async with opened(cache=1) as runtime:
        status = await runtime.start(typed())
        await runtime.answer(status.queries[0], value)
        await runtime.start(typed())
        live, replayed = (await runtime.answer(status.session_id, value)).result
        assert live == replayed == f"{type(value).__name__}:{value!r}"


async def test_the_program_gets_its_own_copy():
    """What the caller does with a value afterwards is not seen inside."""
    async with opened() as runtime:
        status = await runtime.start(anything())
        value = {"list": [1]}
        end = await runtime.answer(status.queries[0], value)
        value["list"].append(2)
        assert end.result == {"list": [1]}


@pytest.mark.parametrize("by", [{"user": {1}}, {"user": "\ud800"}, {1: 2}])
async def test_who_answered_must_be_json_too(by):
    """`by` is stored with the answer; what does not fit is refused and nothing changes."""
    async with opened() as runtime:
        status = await runtime.start(anything())
        with pytest.raises(BadValue):
            await runtime.answer(status.queries[0], "x", by=by)
        assert await runtime.status(status.session_id) == status


async def test_who_answered_is_kept():
    """Front and user are in the journal with the answer."""
    async with opened() as runtime:
        status = await runtime.start(anything())
        await runtime.answer(status.queries[0], "x", by={"front": "python", "user": "eve"})
        assert (await rows(runtime, status.session_id))[1].answers[0].by == {
            "front": "python",
            "user": "eve",
        }


async def test_an_error_must_be_text():
    """Words that cannot be stored are refused, not half kept."""
    async with opened() as runtime:
        status = await runtime.start(anything())
        with pytest.raises(BadValue):
            await runtime.answer(status.queries[0], error="\ud800")
        assert await runtime.status(status.session_id) == status


@pytest.mark.parametrize(
    "given", [{"title": "\ud800"}, {"labels": {"a": "\ud800"}}, {"metadata": {"\ud800": "a"}}]
)
async def test_titles_and_labels_must_be_text(given):
    """They are refused before anything is started."""
    async with opened() as runtime:
        with pytest.raises((BadArguments, BadValue)):
            await runtime.start(anything(), **given)
        assert await runtime.sessions() == []


async def test_nobody_outside_answers_what_moves_by_itself():
    """A call that runs, a timer or a child is refused with NotAllowed."""
    going = asyncio.Event()

    async def wait():
        await going.wait()

    @everhold.program
    async def calls(ctx):
        return await ctx.call(wait)

    async with opened() as runtime:
        status = await runtime.start(calls(), wait=0)
        with pytest.raises(NotAllowed):
            await runtime.answer(status.session_id, "x", query_id="q-0")
        going.set()
        assert (await runtime.wait(status.session_id)).state == "completed"


async def test_an_answer_does_not_touch_what_was_decoded():
    """msgspec's raw values are no JSON values: refused like any object."""
    async with opened() as runtime:
        status = await runtime.start(anything())
        with pytest.raises(BadValue):
            await runtime.answer(status.queries[0], msgspec.Raw(b"1"))
