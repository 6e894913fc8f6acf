"""The limit of one input: refused before it is stored, on every way in."""

import json

import pytest

import everhold
from everhold.agents import Agent
from everhold.blocking import open_blocking
from everhold.errors import BadSetting, InputEnded, InputTooLarge, TurnWaiting
from everhold.plugins import Approval
from everhold.schedules import Feed
from everhold.wire import error_json

LARGE = "x" * 3_000_000


@everhold.tool
def refund(number: str) -> str:
    """Give the money back."""
    return f"refunded {number}"


agent = Agent(
    instructions="Be brief.", tools=[refund], plugins=[Approval("refund")], name="size-agent"
)
REFUND = {"tool_calls": [{"name": "refund", "input": {"number": "7"}}]}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["memory://", "app.db"])
def database(request):
    return request.param


async def test_an_input_above_the_limit_is_refused(database):
    """QW30: whatever way it comes, nothing of it is stored, and the model never sees it."""
    seen = []

    async def model(query):
        seen.append(query)
        return "Done."

    async with everhold.open(database, llm=model) as runtime:
        session = await runtime.session(agent, "s")
        for id in (None, "one"):
            with pytest.raises(InputTooLarge) as caught:
                await session.send(LARGE, id=id)
        assert (caught.value.size, caught.value.limit) == (3_000_000, 1_000_000)
        with pytest.raises(InputTooLarge):
            await session.send([{"type": "text", "text": LARGE}])
        with pytest.raises(InputTooLarge):
            await session.enqueue(LARGE, key="k")
        with pytest.raises(InputTooLarge):
            await session.steer(LARGE)
        with pytest.raises(InputTooLarge):
            [event async for event in session.stream(LARGE)]
        with pytest.raises(InputTooLarge):
            await runtime.signal(session.id, "input", {"id": "i", "content": LARGE})
        with pytest.raises(InputTooLarge):
            await runtime.run(agent(LARGE))
        assert await session.intake(all=True) == [] and await session.turns() == []
        assert seen == []
        assert (await session.send("Small.", id="one")).text == "Done."


async def test_an_input_during_a_turn_is_refused_too(database):
    """Steered, queued, or for a fork."""
    async with everhold.open(database, llm=[REFUND, "Done."]) as runtime:
        session = await runtime.session(agent, "s")
        turn = await session.send("Refund 7.")
        assert turn.waiting
        for busy in ("steer", "fork"):
            with pytest.raises(InputTooLarge):
                await session.send(LARGE, busy=busy)
        with pytest.raises((InputTooLarge, TurnWaiting)):
            await session.send(LARGE)
        await runtime.answer(turn.queries[0], False)
        assert (await session.turn(turn.input_id)).text == "Done."


async def test_a_trigger_does_not_get_around_the_limit(database):
    """What an event brings is an input too."""
    async with everhold.open(database, llm=["Done."]) as runtime:
        session = await runtime.session(agent, "s")
        await runtime.triggers.add("mail", Feed(session.id))
        (handed,) = (await runtime.triggers.emit("mail", {"text": LARGE})).handovers
        assert "the limit is 1,000,000" in handed.error
        assert await session.intake(all=True) == []


def test_the_blocking_runtime_refuses_the_same(database):
    """With the same error."""
    with open_blocking(database, llm=["Done."]) as runtime:
        session = runtime.session(agent, "s")
        with pytest.raises(InputTooLarge) as caught:
            session.send(LARGE)
        assert error_json(caught.value)["code"] == "input_too_large"
        assert "max_input" in caught.value.hint
        assert session.send("Small.").text == "Done."


async def test_the_limit_is_a_setting(folder, database):
    """`max_input` of everhold.toml; it counts bytes, and no data of images."""
    (folder / "everhold.toml").write_text('max_input = "1kB"\n')
    image = {"type": "image", "image": {"data": "QUJD" * 1000, "media_type": "image/png"}}
    async with everhold.open(database, llm=["One.", "Two."]) as runtime:
        session = await runtime.session(agent, "s")
        with pytest.raises(InputTooLarge):
            await session.send("ü" * 501)
        assert (await session.send("ü" * 500)).text == "One."
        assert (await session.send([image])).text == "Two."
    (folder / "everhold.toml").write_text("max_input = true\n")
    with pytest.raises(BadSetting, match="max_input"):
        everhold.open(database)


async def test_a_process_with_a_lower_limit_refuses_what_another_has_accepted(folder):
    """QW30: the worker that would start the turn fails the input; the next one is delivered."""
    (folder / "everhold.toml").write_text('max_input = "2kB"\n')
    async with everhold.open("app.db", recover=False) as runtime:
        session = await runtime.session(agent, "s")
        await session.send("Hello.", wait=0)
        await session.enqueue("x" * 1500, key="large")
        await session.enqueue("small", key="small")
    (folder / "everhold.toml").write_text('max_input = "1kB"\n')
    async with everhold.open("app.db", llm=["One.", "Two."]) as runtime:
        session = await runtime.session(agent, "s")
        with pytest.raises(InputEnded, match="1,500 bytes"):
            await session.turn("large")
        assert (await session.turn("small")).text == "Two."
        failed = await session.input("large")
        assert (failed.stage, failed.item.end["code"]) == ("failed", "input_too_large")


def test_the_error_is_json():
    """Fronts show it with its code and hint."""
    assert json.dumps(error_json(InputTooLarge(2, 1)))
