"""Questions that were left open are answered once somebody is here who answers."""

from pathlib import Path

import pytest

import everhold


@everhold.program
async def pair(ctx: everhold.Context) -> list[str]:
    return await ctx.llm_batch(["one?", "two?"])


@everhold.program
async def person(ctx: everhold.Context) -> list[object]:
    return [await ctx.llm("model?"), await ctx.approval("sure?")]


async def test_a_model_that_comes_later_answers_what_waited(tmp_path: Path) -> None:
    async with everhold.open(tmp_path / "a.db") as runtime:
        with pytest.raises(everhold.Waiting):
            await runtime.run(pair(), key="k")
    async with everhold.open(tmp_path / "a.db", llm={"one?": "1", "two?": "2"}) as runtime:
        assert await runtime.run(pair(), key="k") == ["1", "2"]
        assert await runtime.verify() == []


async def test_what_a_person_answered_meanwhile_is_not_asked(tmp_path: Path) -> None:
    async with everhold.open(tmp_path / "a.db") as runtime:
        status = await runtime.start(pair(), key="k")
        await runtime.answer(status.session_id, "by hand", query_id="q-0")
    script = everhold.Script(["by a model"])
    async with everhold.open(tmp_path / "a.db", llm=script) as runtime:
        assert await runtime.run(pair(), key="k") == ["by hand", "by a model"]
    assert [query.prompt for query in script.asked] == ["two?"]


async def test_a_question_for_a_person_stays_open(tmp_path: Path) -> None:
    async with everhold.open(tmp_path / "a.db") as runtime:
        await runtime.start(person(), key="k")
    async with everhold.open(tmp_path / "a.db", llm=["hello"]) as runtime:
        with pytest.raises(everhold.Waiting) as waiting:
            await runtime.run(person(), key="k")
    assert [query.prompt for query in waiting.value.queries] == ["sure?"]
