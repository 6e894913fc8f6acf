"""Models in sessions: what they say is journaled once, and what they cannot do leaves the session
whole.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everhold
from everhold.agents.agent import Agent
from everhold.core.turn import TurnAnswered
from everhold.errors import ProviderUnconfigured
from everhold.ports.tool import tool
from tests.providers.server import WAYS, Fail, Reply, Server, Stall

ways = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


@everhold.program
async def capital(ctx: everhold.Context, country: str) -> str:
    return await ctx.llm(f"The capital of {country}?")


@everhold.program
async def careful(ctx: everhold.Context) -> list[str]:
    try:
        return [await ctx.llm("Say something.", max_tokens=5)]
    except everhold.AnswerFailed as error:
        return [error.kind]


@everhold.program
async def race(ctx: everhold.Context) -> str:
    asked = [asyncio.ensure_future(ctx.llm("One?")), asyncio.ensure_future(ctx.llm("Two?"))]
    done, late = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    for one in late:
        one.cancel()
    return done.pop().result()


@tool(read_only=True)
def population(city: str) -> int:
    """How many people live there."""
    return {"Paris": 2_000_000}[city]


@ways
async def test_a_program_is_answered_and_not_asked_again(
    server: Server, way: str, tmp_path: Path
) -> None:
    """P1: another process finds the answer in the journal."""
    server.script(Reply("Paris."))
    database = tmp_path / "a.db"
    for _ in range(2):
        async with everhold.open(database, llm=server.name(way)) as runtime:
            assert await runtime.run(capital("France"), key="fr") == "Paris."

    assert len(server.requests) == 1


async def test_what_was_paid_for_an_answer_that_was_cut_is_counted(
    server: Server, tmp_path: Path
) -> None:
    server.script(Reply("Some", finish="length", prompt=70, completion=5))
    async with everhold.open(tmp_path / "a.db", llm=server.name("anthropic")) as runtime:
        status = await runtime.start(careful())
        ended = await runtime.wait(status.session_id)
        assert isinstance(ended, everhold.Finished)
        assert ended.result == ["output_limit"]
        assert ended.metrics["auto"]["total_tokens"]["tokens"] == 75


async def test_a_question_that_lost_a_race_closes_its_request(
    server: Server, tmp_path: Path
) -> None:
    """Its program does not wait for it any more, and neither does anybody else."""
    server.script(Stall(Reply("Slow."), after=2), Reply("Quick."))
    async with everhold.open(tmp_path / "a.db", llm=server.name("anthropic")) as runtime:
        assert await runtime.run(race()) == "Quick."
        assert await asyncio.to_thread(server.left.wait, 30)


async def test_a_key_that_is_missing_is_said_when_the_runtime_is_opened(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ProviderUnconfigured) as caught:
        async with everhold.open(tmp_path / "a.db", llm="anthropic:claude-sonnet-4-6"):
            pass

    assert caught.value.hint == "Set the variable ANTHROPIC_API_KEY."
    assert not (tmp_path / "a.db").exists()


async def test_a_refused_key_leaves_the_question_open(server: Server, tmp_path: Path) -> None:
    """Who comes with another key, or answers by hand, goes on."""
    server.script(Fail(401, "no such key"))
    async with everhold.open(tmp_path / "a.db", llm=server.name("openai-chat")) as runtime:
        with pytest.raises(everhold.Waiting) as waiting:
            await runtime.run(capital("France"), key="fr")
        assert len(waiting.value.queries) == 1
        await runtime.answer(waiting.value.session_id, "Paris, by hand")
        assert await runtime.run(capital("France"), key="fr") == "Paris, by hand"


async def test_the_settings_may_name_a_model(
    server: Server, tmp_path: Path, monkeypatch: Any
) -> None:
    """And one that cannot be asked here disturbs nobody who does not ask."""
    monkeypatch.chdir(tmp_path)
    server.script(Reply("Paris."))
    (tmp_path / "everhold.toml").write_text(f'database = "a.db"\nllm = "{server.name("google")}"\n')
    async with everhold.open() as runtime:
        assert await runtime.run(capital("France")) == "Paris."

    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    (tmp_path / "everhold.toml").write_text(
        'database = "a.db"\nllm = "anthropic:claude-sonnet-4-6"\n'
    )
    async with everhold.open() as runtime:
        assert len(await runtime.sessions()) == 1
        with pytest.raises(everhold.Waiting):
            await runtime.run(capital("Spain"))


@ways
async def test_an_agent_is_answered_by_the_model_it_names(
    server: Server, way: str, tmp_path: Path
) -> None:
    """Without `llm=`: its tools are called, the result goes back, and the usage is that of both
    questions.
    """
    agent = Agent(
        server.name(way), instructions="Be exact.", tools=[population], name=f"census_{way}"
    )
    server.script(
        Reply("Let me look.", thinking="Hm.", tools=[("call-1", "population", {"city": "Paris"})]),
        Reply("Two million."),
    )
    async with everhold.open(tmp_path / "a.db") as runtime:
        assert (
            await runtime.run(agent(task="How many people live in Paris?"), key="p")
            == "Two million."
        )
        assert (
            await runtime.run(agent(task="How many people live in Paris?"), key="p")
            == "Two million."
        )

    assert len(server.requests) == 2
    assert "2000000" in str(server.requests[1].body)


async def test_an_agent_asks_its_own_model_and_not_that_of_the_runtime(
    server: Server, tmp_path: Path
) -> None:
    agent = Agent(server.name("anthropic", "its-own"), name="own_model")
    server.script(Reply("Yes."))
    async with everhold.open(tmp_path / "a.db", llm=server.name("google")) as runtime:
        await runtime.run(agent(task="Well?"))

    assert [(request.way, request.body["model"]) for request in server.requests] == [
        ("anthropic", "its-own")
    ]


async def test_prepared_answers_go_before_the_model_of_an_agent(
    server: Server, tmp_path: Path
) -> None:
    """A test of an agent asks nobody."""
    agent = Agent(server.name("anthropic"), name="tested")
    async with everhold.open(tmp_path / "a.db", llm=["Prepared."]) as runtime:
        assert await runtime.run(agent(task="Well?")) == "Prepared."

    assert server.requests == []


async def test_an_agent_without_a_model_waits_for_whoever_answers(tmp_path: Path) -> None:
    agent = Agent(name="modelless")
    async with everhold.open(tmp_path / "a.db") as runtime:
        with pytest.raises(everhold.Waiting) as waiting:
            await runtime.run(agent(task="Well?"), key="w")
        await runtime.answer(waiting.value.session_id, "By hand.")
        assert await runtime.run(agent(task="Well?"), key="w") == "By hand."


class Census(msgspec.Struct):
    city: str
    people: int


@ways
async def test_an_agent_comes_to_a_value_and_what_does_not_fit_goes_back(
    server: Server, way: str, tmp_path: Path
) -> None:
    """`returns=`: the model is told the form beside its tools, and of words that do not fit what is
    wrong.
    """
    agent = Agent(server.name(way), tools=[population], returns=Census, name=f"returning_{way}")
    server.script(
        Reply("", tools=[("call-1", "population", {"city": "Paris"})]),
        Reply("Two million."),
        Reply('{"city": "Paris", "people": "many"}'),
        Reply('```json\n{"city": "Paris", "people": 2000000}\n```'),
    )
    async with everhold.open(tmp_path / "a.db") as runtime:
        turn = await (await runtime.session(agent, "talk")).send("How many people live in Paris?")
        assert (turn.outcome, turn.value) == (
            TurnAnswered({"city": "Paris", "people": 2000000}),
            turn.outcome.value,
        )

    told = [json.dumps(request.body) for request in server.requests]
    assert len(told) == 4 and all("JSON Schema" in one and "people" in one for one in told)
    assert ["does not fit" in one for one in told] == [False, False, True, True]
    assert "people should be" in told[3]


async def test_an_agent_that_never_comes_to_a_value_fails_its_turn(
    server: Server, tmp_path: Path
) -> None:
    """After two repairs; the conversation goes on."""
    agent = Agent(server.name("anthropic"), returns=Census, name="never_returning")
    server.script(*[Reply("Many.")] * 3, Reply('{"city": "Rome", "people": 3}'))
    async with everhold.open(tmp_path / "a.db") as runtime:
        session = await runtime.session(agent, "talk")
        assert (await session.send("Well?")).outcome.code == "answer_refused"
        assert (await session.send("And now?")).value == {"city": "Rome", "people": 3}


async def test_a_provider_that_fails_ends_the_turn_and_not_the_conversation(
    server: Server, tmp_path: Path
) -> None:
    """Row 24: unavailable is an outcome of the turn; the next input is answered."""
    agent = Agent(server.name("anthropic"), name="unlucky")
    server.script(Fail(529, "overloaded"), Reply("Here I am."))
    model = everhold.Model(retry=everhold.Retry(1))
    async with everhold.open(tmp_path / "a.db", llm=model) as runtime:
        session = await runtime.session(agent, "talk")
        first = await session.send("Hello?")
        second = await session.send("Hello?")
        assert (first.outcome.code, "overloaded" in first.outcome.error) == (
            "provider_unavailable",
            True,
        )
        assert isinstance(second.outcome, TurnAnswered)
        assert second.text == "Here I am."


async def test_usage_is_that_of_the_model_which_answered(server: Server, tmp_path: Path) -> None:
    agent = Agent(server.name("anthropic"), name="counted")
    server.script(Reply("Yes.", model="claude-really", cached=10, written=5))
    async with everhold.open(tmp_path / "a.db") as runtime:
        session = await runtime.session(agent, "talk")
        await session.send("Well?")
        rows = list(await session.usage())

    assert [(source, model, cost.context, cost.cache_read) for source, model, cost in rows] == [
        ("turn", "claude-really", 100, 10)
    ]
