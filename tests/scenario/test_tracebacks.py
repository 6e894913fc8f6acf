"""Where code failed is kept: with the session, with its answers and with its turns."""

import json

import msgspec
import pytest

import everhold
from everhold import exception_info
from everhold.agents import Agent, TurnFailed
from everhold.core.journal import decode_delivery
from everhold.engine import effects
from everhold.exception_info import MAX_BYTES
from everhold.hooks import Plugin
from everhold.plugins import Redaction
from everhold.programs.python import execution
from tests.scenario.harness import opened, rows

SECRET = "sk-abcdefghijklmnopqrstuvwx"


def parse(answer):
    return answer["choices"]


def charge(order):
    return parse(order)


async def charge_later(order):
    return parse(order)


def recurse():
    return recurse()


def places(info):
    """The functions and lines of code of an exception."""
    return [(frame.function, frame.code) for frame in info.frames]


PARSE = ("parse", 'return answer["choices"]')


@everhold.program
async def direct(ctx):
    await ctx.sleep(0)
    return charge({})


@everhold.program
async def called(ctx, later: bool = False):
    return await ctx.call(charge_later if later else charge, {})


@everhold.program
async def asked(ctx):
    return await ctx.llm("hello?")


@everhold.program
async def caught(ctx):
    """What a program sees of an error is recorded, so that a replay sees the same."""
    try:
        await ctx.call(charge, {})
    except everhold.AnswerFailed as error:
        seen = [type(error).__name__, error.kind, str(error), error.exception.place]
        return [*seen, error.__notes__[-1].splitlines()[-1]]


@everhold.program
async def parent(ctx):
    return await ctx.spawn(called())


async def test_a_program_that_fails_keeps_where():
    """Type, frames and lines; and in the same process the exception itself."""
    async with opened() as runtime:
        with pytest.raises(everhold.Failed) as failed:
            await runtime.run(direct(), key="k")
        error = failed.value
        assert str(error) == "session 'k' failed: KeyError: 'choices'"
        assert places(error.exception)[-1] == PARSE
        assert [name for name, _ in places(error.exception)] == ["direct", "charge", "parse"]
        assert error.traceback.startswith("Traceback (most recent call last):\n")
        assert error.traceback.endswith("KeyError: 'choices'")
        assert type(error.__cause__) is KeyError
        assert not hasattr(error, "__notes__")  # the cause shows it


async def test_another_process_sees_the_same(tmp_path, monkeypatch):
    """It has no exception to chain, so the traceback is a note of the error."""
    async with opened(tmp_path) as runtime:
        with pytest.raises(everhold.Failed) as here:
            await runtime.run(direct(), key="k")
    monkeypatch.setattr(exception_info, "_recent", {})  # a new process remembers nothing
    async with opened(tmp_path) as runtime:
        with pytest.raises(everhold.Failed) as there:
            await runtime.run(direct(), key="k")
        assert there.value.exception == here.value.exception
        assert there.value.traceback == here.value.traceback
        assert there.value.__cause__ is None
        assert there.value.__notes__ == [there.value.traceback]


@pytest.mark.parametrize("later", [False, True], ids=["thread", "async"])
async def test_a_call_that_fails_keeps_where(later):
    """Of the function, and of the program that awaited it."""
    async with opened() as runtime:
        with pytest.raises(everhold.Failed) as failed:
            await runtime.run(called(later=later), key="k")
        info = failed.value.exception
        assert str(failed.value) == "session 'k' failed: AnswerFailed: KeyError: 'choices'"
        assert [name for name, _ in places(info)] == ["called"]
        name = "charge_later" if later else "charge"
        assert [name for name, _ in places(info.cause)] == [name, "parse"]
        (answer,) = (await rows(runtime, (await runtime.sessions())[0].session_id))[-1].answers
        assert answer.error == {"code": "KeyError", "message": "'choices'"}
        assert answer.exception == info.cause


async def test_a_function_for_the_model_that_fails_keeps_where():
    async with opened(llm=parse_question) as runtime:
        with pytest.raises(everhold.Failed) as failed:
            await runtime.run(asked(), key="k")
        assert [name for name, _ in places(failed.value.exception.cause)] == [
            "parse_question",
            "parse",
        ]


def parse_question(query):
    return parse({})


async def test_a_program_that_catches_it_sees_it_too():
    """Live and on replay, which has only the record."""
    async with opened() as runtime:
        seen = await runtime.run(caught(), key="k")
        place = f"test_tracebacks.py, line {parse.__code__.co_firstlineno + 1}, in parse"
        assert seen == ["AnswerFailed", "KeyError", "'choices'", place, "KeyError: 'choices'"]


async def test_a_child_that_fails_keeps_where():
    """The parent's exception has that of the child, which has that of the call."""
    async with opened() as runtime:
        with pytest.raises(everhold.Failed) as failed:
            await runtime.run(parent(), key="k")
        child = failed.value.exception.cause
        assert (child.type, places(child)[-1][0]) == ("AnswerFailed", "called")
        assert places(child.cause)[-1] == PARSE


async def test_a_retry_fails_as_before_and_a_fork_asks_again():
    """The recorded error is delivered again by a retry; a fork before it calls again."""
    async with opened() as runtime:
        with pytest.raises(everhold.Failed):
            await runtime.run(called(), key="k")
        again = await runtime.retry("k")
        assert again.outcome.kind == "answer_failed"
        assert places(again.outcome.exception.cause)[-1] == PARSE
        fork = await runtime.fork("k", at=0)
        assert places(fork.outcome.exception.cause)[-1] == PARSE


@everhold.tool
def weather(city: str) -> str:
    """The weather in a city."""
    raise RuntimeError(f"no station in {city}, with {SECRET}")


class Broken(Plugin):
    name = "broken"

    def before_model_call(self, moment):
        return parse({})


CALLS_WEATHER = json.dumps(
    {"text": "", "tool_calls": [{"name": "weather", "input": {"city": "R"}}]}
)
forecaster = Agent(name="forecaster", tools=[weather], plugins=[Redaction()])
broken = Agent(name="broken", plugins=[Broken()])


async def test_a_tool_that_fails_keeps_where_without_secrets():
    """In the answer of the call and in the events; the model sees one line. What redaction takes
    out of a result is taken out of messages and lines of code, too.
    """
    async with opened(llm=[CALLS_WEATHER, "no idea"]) as runtime:
        session = await runtime.session(forecaster, "f")
        events = [one async for one in session.stream("hello")]
        (info,) = [one.exception for one in events if one.kind == "tool_finished"]
        assert info.message == "no station in R, with [redacted]"
        assert places(info)[-1][0] == "weather"
        journal = msgspec.json.encode(await rows(runtime, session.session_id))
        assert SECRET.encode() not in journal
        (result,) = [
            block for message in await session.messages() for block in message.get("content", [])
            if isinstance(block, dict) and block.get("type") == "tool_result"
        ]  # fmt: skip
        assert "Traceback" not in json.dumps(result)


async def test_a_plugin_that_fails_keeps_where():
    """With the turn that it failed, and in what explains the conversation."""
    async with opened(llm=["unused"]) as runtime:
        session = await runtime.session(broken, "b")
        turn = await session.send("hello")
        assert isinstance(turn.outcome, TurnFailed)
        assert turn.outcome.code == "plugin_failed"
        assert [name for name, _ in places(turn.outcome.exception)] == [
            "before_model_call",
            "parse",
        ]
        found = await runtime.explain("b")
        assert "Its last turn (1) failed: plugin 'broken' failed" in " ".join(found.because)
        assert found.exception == turn.outcome.exception


async def test_an_agent_as_a_program_keeps_where():
    async with opened(llm=["unused"]) as runtime:
        status = await runtime.start(broken(task="hello"), key="b")
        assert status.outcome.kind == "turn_stopped"
        assert places(status.outcome.exception)[-1] == PARSE


@everhold.program
async def large(ctx):
    return await ctx.call(recurse)


async def test_what_is_recorded_is_bounded():
    """A recursion of a thousand frames, in the answer and in the outcome."""
    async with opened() as runtime:
        status = await runtime.start(large(), key="k")
        recorded = (await rows(runtime, status.session_id))[-1]
        for info in (recorded.answers[0].exception, recorded.notes.outcome.exception):
            assert len(msgspec.json.encode(info)) <= MAX_BYTES
        assert recorded.answers[0].exception.left_out > 900


def never(*args):
    raise AssertionError("an exception was read, and nothing has failed")


@everhold.program
async def well(ctx):
    first = await ctx.llm("one")
    second = await ctx.call(str.upper, first)
    await ctx.sleep(0)
    return second


async def test_nothing_is_read_if_nothing_fails(monkeypatch):
    """A session that completes pays nothing for what failures keep."""
    monkeypatch.setattr(execution, "describe_exception", never)
    monkeypatch.setattr(execution, "strip_own_frames", never)
    monkeypatch.setattr(effects, "describe_exception", never)
    async with opened(llm=["a"]) as runtime:
        assert await runtime.run(well(), key="k") == "A"


def test_records_without_frames_are_read():
    """As older versions wrote them: an answer with an error, and an outcome with a text."""
    answers = '[{"q":0,"error":{"code":"KeyError","message":"\'a\'"}}]'
    notes = (
        '{"outcome":{"type":"raised","error":"KeyError: \'a\'","kind":"KeyError",'
        '"traceback":"  File \\"x.py\\", line 1, in f\\n","step":1}}'
    )
    delivery = decode_delivery(1, 0.0, answers, "[]", notes)
    assert delivery.answers[0].exception is None
    outcome = delivery.notes.outcome
    assert (outcome.exception, outcome.traceback) == (None, '  File "x.py", line 1, in f\n')
    with pytest.raises(everhold.Failed) as failed:
        _ = everhold.Finished("s-1", outcome, {}).result
    assert failed.value.traceback == outcome.traceback


async def test_a_redacted_export_has_no_texts_of_exceptions(tmp_path):
    """Messages and lines of code go, files and functions stay."""
    async with opened(tmp_path) as runtime:
        with pytest.raises(everhold.Failed):
            await runtime.run(called(), key="k")
        await runtime.archive.export(tmp_path / "out.jsonl", redact=True)
    text = (tmp_path / "out.jsonl").read_text()
    assert "choices" not in text
    assert '"function":"parse"' in text


class BrokenWithSecret(Plugin):
    name = "broken_with_secret"

    def before_model_call(self, moment):
        error = ValueError(f"no {SECRET}")
        error.add_note(f"nor {SECRET}")
        raise error


raises_first = Agent(name="raises_first", plugins=[BrokenWithSecret(), Redaction()])
raises_last = Agent(name="raises_last", plugins=[Redaction(), BrokenWithSecret()])


@pytest.mark.parametrize("agent", [raises_first, raises_last], ids=["first", "last"])
async def test_what_a_plugin_raises_is_redacted_too(agent):
    """Its message, its notes and its lines, whatever the order of the plugins; decisions of plugins
    are stored as they are.
    """
    async with opened(llm=["unused"]) as runtime:
        session = await runtime.session(agent, "s")
        turn = await session.send("hello")
        assert turn.outcome.exception.message == "no [redacted]"
        assert turn.outcome.exception.notes == ["nor [redacted]"]
        assert "ValueError: no [redacted]" in turn.outcome.error
        stored = msgspec.json.encode(await rows(runtime, session.session_id))
        assert SECRET.encode() not in stored
