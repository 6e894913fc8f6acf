"""What sessions cost, added up: `runtime.usage`."""

import pytest

import everhold
from everhold.errors import BadArguments
from tests.scenario.harness import opened


@everhold.program
async def asks(ctx, times: int = 1):
    for _ in range(times):
        await ctx.llm("How many tokens is this?")


@everhold.program
async def silent(ctx):
    return 1


async def model(query):
    usage = everhold.Usage(prompt_tokens=10, completion_tokens=4, model="m-1")
    return everhold.Answer("ten", usage=usage)


async def furnished(runtime):
    await runtime.run(asks(times=2), key="a", labels={"team": "x"})
    await runtime.run(asks(), key="b", labels={"team": "y"})
    await runtime.run(silent())


def counts(rows):
    return {
        row.name: (row.sessions, row.llm_calls, row.prompt_tokens, row.response_tokens)
        for row in rows
    }


async def test_usage_by_program():
    async with opened(llm=model, replay=False) as runtime:
        await furnished(runtime)
        assert counts(await runtime.usage()) == {
            asks.ref: (2, 3, 30, 12),
            silent.ref: (1, 0, 0, 0),
        }


async def test_usage_by_session_says_the_keys():
    async with opened(llm=model, replay=False) as runtime:
        await furnished(runtime)
        rows = await runtime.usage(by="session")
        assert {row.key: row.llm_calls for row in rows} == {"a": 2, "b": 1, None: 0}
        assert {row.name for row in rows} == {info.session_id for info in await runtime.sessions()}


async def test_usage_by_label():
    """Sessions without the label are under the empty name."""
    async with opened(llm=model, replay=False) as runtime:
        await furnished(runtime)
        assert counts(await runtime.usage(by="label:team")) == {
            "x": (1, 2, 20, 8),
            "y": (1, 1, 10, 4),
            "": (1, 0, 0, 0),
        }


async def test_usage_by_model():
    """Answers that name no model are under the empty name, with estimated tokens."""
    async with opened(llm=model, replay=False) as runtime:
        await furnished(runtime)
        status = await runtime.start("absent.py:program", unchecked=True, wait=0)
        assert counts(await runtime.usage(by="model")) == {"m-1": (2, 3, 30, 12)}
        assert (await runtime.status(status)).state == "running"
    async with opened(llm=["word"], replay=False) as runtime:
        await runtime.run(asks())
        assert counts(await runtime.usage(by="model")) == {"": (1, 1, 6, 1)}


async def test_an_answer_of_several_models_counts_for_each():
    async def several(query):
        parts = [
            everhold.Usage(prompt_tokens=1, completion_tokens=2, model="small"),
            everhold.Usage(prompt_tokens=3, completion_tokens=4, model="large"),
        ]
        return everhold.Answer("x", usage=everhold.Usage(parts=parts))

    async with opened(llm=several, replay=False) as runtime:
        await runtime.run(asks())
        assert counts(await runtime.usage(by="model")) == {
            "small": (1, 1, 1, 2),
            "large": (1, 1, 3, 4),
        }


async def test_usage_of_some_sessions():
    """Of one program, of those with a label, or of those that moved lately."""
    async with opened(llm=model, replay=False) as runtime:
        await furnished(runtime)
        assert [row.name for row in await runtime.usage(program=silent.ref)] == [silent.ref]
        assert counts(await runtime.usage(labels={"team": "y"})) == {asks.ref: (1, 1, 10, 4)}
        runtime.clock.advance(3600)
        assert await runtime.usage(newer_than=60) == []


@pytest.mark.parametrize("by", ["", "label:", "programs"])
async def test_usage_by_anything_else_is_refused(by):
    async with opened(replay=False) as runtime:
        with pytest.raises(BadArguments, match="label:NAME"):
            await runtime.usage(by)
