"""Options of questions: what does not exist is refused where it is written, before anything is
asked.
"""

import asyncio

import msgspec
import pytest

import everhold
from everhold.core.query import QueryAnswer
from everhold.engine.live_session import rebuild_session
from everhold.errors import BadArguments, BadSetting
from everhold.programs.python.execution import PythonHost
from tests.scenario.harness import opened

REFUSED = "BadArguments: invalid arguments for 'ctx.llm': "


@everhold.program
async def asks(ctx, options: dict):
    return await ctx.llm("What?", **options)


@everhold.program
async def asks_many(ctx, options: dict, item: dict):
    return await ctx.llm_batch(["What?", {"prompt": "Why?", **item}], **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"max_token": 5, "sytem": "Be brief."},
            "there is no option 'max_token' (did you mean 'max_tokens'?);"
            " there is no option 'sytem' (did you mean 'system'?)",
        ),
        ({"stop": ["."]}, "there is no option 'stop' (did you mean 'stop_sequences'?)"),
        ({"temperature": "hot"}, "temperature must be a number ≥ 0, got 'hot'"),
        ({"model": 7}, "model must be a string or a list, got 7"),
    ],
)
async def test_a_wrong_option_asks_nothing(options, words):
    """Also when prepared answers stand in for the model."""
    async with opened(llm=["hi", "ho"]) as runtime:
        one = await runtime.start(asks(options))
        shared = await runtime.start(asks_many(options, {}))
        of_item = await runtime.start(asks_many({}, options))
        assert one.error == shared.error == of_item.error == REFUSED + words
        usage = await runtime.usage()
        assert sum(row.llm_calls for row in usage) == 0


async def test_a_wrong_wish_for_an_unavailable_model():
    async with opened(llm=["hi"]) as runtime:
        failed = await runtime.start(asks({"on_unavailable": "maybe"}))
        assert failed.error.startswith("BadSetting: ")


async def test_a_program_may_catch_the_refusal():
    """It asks again under the same key; a replay refuses the same."""

    @everhold.program
    async def corrects(ctx):
        try:
            await ctx.llm("What?", temprature=1)
        except BadArguments as error:
            return await ctx.llm(error.reason, temperature=1)

    async with opened(llm=lambda query: query.prompt) as runtime:
        status = await runtime.start(corrects())
        assert status.result == "there is no option 'temprature' (did you mean 'temperature'?)"


async def test_what_the_answerer_gets():
    """Settings by their names, and `extra` as it was given; None is left out."""
    asked = []
    extra = {"anthropic_metadata": {"user_id": "u-1"}, "speed": 3}
    options = {"top_p": 0.5, "seed": None, "extra": extra, "on_unavailable": "fail"}

    async def model(query):
        asked.append(query.options)
        return "hi"

    async with opened(llm=model) as runtime:
        await runtime.run(asks({**options, "model": "openai:x"}))
        await runtime.run(asks_many(options, {"top_p": 0.9, "model": ["openai:x", "openai:y"]}))
    stored = {"top_p": 0.5, "extra": extra, "on_unavailable": "fail"}
    assert asked == [
        {**stored, "model": "openai:x"},
        stored,
        {**stored, "top_p": 0.9, "model": ["openai:x", "openai:y"]},
    ]


async def test_items_are_a_list():
    """One prompt in place of a list would be asked letter by letter."""

    @everhold.program
    async def asks_one(ctx):
        return await ctx.llm_batch("What?")

    async with opened(llm=["hi"]) as runtime:
        assert "items must be a list" in (await runtime.start(asks_one())).error


async def test_a_program_is_no_function_to_call():
    @everhold.program
    async def calls(ctx):
        return await ctx.call(asks, {})

    async with opened(llm=["hi"]) as runtime:
        assert "run it with ctx.run(asks(…))" in (await runtime.start(calls())).error


# ---- what earlier versions recorded


@everhold.program
async def as_before(ctx):
    """It passes options that earlier versions took."""
    first = await ctx.llm("One?", style="terse", openai_store=False)
    second = await ctx.llm_batch(["Two?", {"prompt": "Three?", "stop": ["."]}])
    waited = await asyncio.gather(ctx.llm("Four?", style="terse"), ctx.llm("Five?"))
    await ctx.input("Done?")
    return [first, *second, *waited, await ctx.llm("Six?", style="terse")]


OLD = {
    "One?": {"style": "terse", "openai_store": False},
    "Three?": {"stop": ["."]},
    "Four?": {"style": "terse"},
}


@everhold.program
async def stands_for_it(ctx):
    """The same questions, in options that exist."""
    first = await ctx.llm("One?", temperature=0)
    second = await ctx.llm_batch(["Two?", {"prompt": "Three?", "temperature": 0}])
    waited = await asyncio.gather(ctx.llm("Four?", temperature=0), ctx.llm("Five?"))
    await ctx.input("Done?")
    return [first, *second, *waited]


async def record_as_before():
    async with opened(llm=lambda query: query.prompt.lower()) as runtime:
        status = await runtime.start(stands_for_it())
        record = await runtime.store.load(status.session_id)
    for delivery in record.deliveries:
        delivery.asked[:] = [
            msgspec.structs.replace(query, options=OLD.get(query.prompt))
            for query in delivery.asked
        ]
    return record


async def test_a_journal_with_other_options_replays():
    """Strictly: the questions are the recorded ones, with their options."""
    record = await record_as_before()
    live = await rebuild_session(record, PythonHost(lambda ref, version: as_before), strict=True)

    (still_open,) = live.opened.values()
    assert still_open.query.prompt == "Done?"
    assert live.reworded == []
    # what is asked after the recorded questions may have no such option
    answer = QueryAnswer(still_open.query.q, "yes")
    with live.execution.entered():
        reply = live.execution.advance(still_open.n + 1, still_open.at, [answer], False, None)
    assert "there is no option 'style'" in repr(reply.outcome)
    live.drop()


async def test_another_option_than_the_recorded_one_is_refused():
    """A replay takes the recorded option, and no other value of it."""

    @everhold.program
    async def changed(ctx):
        return await ctx.llm("One?", style="loud")

    record = await record_as_before()
    with pytest.raises(everhold.Diverged):
        await rebuild_session(record, PythonHost(lambda ref, version: changed), strict=False)


# ---- agents and conversations

agent = everhold.Agent()
tuned = everhold.Agent(temperature=0.5, extra={"speed": 3})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"instrcutions": "Be brief."}, "'instrcutions' (did you mean 'instructions'?)"),
        ({"temprature": 3}, "'temprature' (did you mean 'temperature'?)"),
        ({"maxturns": 3}, "'maxturns' (did you mean 'max_turns'?)"),
        ({"anthropic_metadata": {}}, "(options of a single provider go into extra={…})"),
        ({"temperature": -1}, "temperature must be a number ≥ 0, got -1"),
    ],
)
def test_a_wrong_option_makes_no_agent(wrong, words):
    with pytest.raises(BadArguments) as caught:
        everhold.Agent(name="never", **wrong)
    assert words in caught.value.reason


async def test_an_agents_settings_reach_the_model():
    """Those of the agent, and over them those of the conversation and of the turn."""
    asked = []

    async def model(query):
        asked.append(query.options)
        return "hi"

    async with opened(llm=model) as runtime:
        session = await runtime.session(tuned, "c-1", options={"top_p": 0.5})
        await session.send("One?")
        await session.configure({"extra": {"speed": 4}})
        await session.send("Two?", options={"temperature": 0.9})
    assert asked == [
        {"temperature": 0.5, "top_p": 0.5, "extra": {"speed": 3}},
        {"temperature": 0.9, "top_p": 0.5, "extra": {"speed": 4}},
    ]


async def test_a_wrong_option_of_a_conversation():
    """It is refused when it begins, is configured or gets an input, and nothing is stored."""
    words = "there is no option 'max_turn' .did you mean 'max_turns'"
    async with opened(llm=["hi"]) as runtime:
        with pytest.raises(BadArguments, match=words):
            await runtime.session(agent, "c-1", options={"max_turn": 3})
        session = await runtime.session(agent, "c-1")
        for act in (
            session.configure({"max_turn": 3}),
            session.send("Hello?", options={"max_turn": 3}),
            session.enqueue("Hello?", options={"max_turn": 3}),
        ):
            with pytest.raises(BadArguments, match=words):
                await act
        assert await session.history() == []
        assert await session.options() == {}


async def test_an_option_that_does_not_exist_any_more_can_be_removed():
    async with opened(llm=["hi"]) as runtime:
        session = await runtime.session(agent, "c-1")
        assert await session.configure({"style": None}) == {}


async def test_a_model_of_a_wrong_form():
    with pytest.raises(BadSetting):
        everhold.Agent("nonsense")
