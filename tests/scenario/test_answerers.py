"""Answerers that cannot answer, and those that answer for people."""

from __future__ import annotations

import pytest

import everhold
from everhold.core.query import QueryAnswer
from everhold.errors import BadSetting, MissingExtra
from everhold.models import Answerer


@everhold.program
async def ask(ctx: everhold.Context) -> str:
    return await ctx.llm("Why?")


@everhold.program
async def decide(ctx: everhold.Context) -> str:
    return f"{await ctx.llm('Why?')} {await ctx.approval('Go?')}"


class Missing(Answerer):
    async def answer(self, query, session_id):
        raise MissingExtra("models", "this model")


async def test_a_question_that_cannot_be_answered_here_stays_open():
    """An answerer that is not installed answers nothing: the question waits for whoever can."""
    async with everhold.open("memory://", llm=Missing()) as runtime:
        paused = await runtime.start(ask())

        assert [query.prompt for query in paused.queries] == ["Why?"]
        assert [query.id for query in await runtime.inbox()] == ["q-0"]
        assert (await runtime.answer(paused.queries[0], "because")).result == "because"


async def test_a_missing_command_is_told_before_anything_is_asked():
    """A command that is not there is refused when the runtime opens."""
    with pytest.raises(BadSetting, match="no-such-command-anywhere"):
        async with everhold.open(
            "memory://", llm=everhold.CommandModel("no-such-command-anywhere")
        ):
            pass


async def test_a_script_may_stand_in_for_people():
    """With `people=True` a script answers approvals too."""
    script = everhold.ScriptModel(["because", True], people=True)

    async with everhold.open("memory://", llm=script) as runtime:
        assert await runtime.run(decide()) == "because True"


async def test_an_answerer_may_answer_with_an_error():
    """An `Answer` with an error instead of a value reaches the program as an error."""

    async def model(query):
        return QueryAnswer(query.q, error={"code": "overloaded", "message": "too busy"})

    async with everhold.open("memory://", llm=model) as runtime:
        with pytest.raises(everhold.Failed, match="too busy"):
            await runtime.run(ask())


async def test_settings_that_name_a_missing_model_do_not_keep_anybody_out(tmp_path, monkeypatch):
    """Sessions can be listed where the configured model is not installed."""
    (tmp_path / "everhold.toml").write_text('database = "a.db"\nllm = "anthropic:some-model"\n')
    monkeypatch.chdir(tmp_path)

    async with everhold.open() as runtime:
        assert await runtime.sessions() == []
