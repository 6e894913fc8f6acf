"""A function of a query answers it."""

import asyncio
import functools
import threading

import pytest

from everhold.core.query import FOR_PEOPLE, Kind, Query, Usage
from everhold.errors import BadSetting, NotAllowed
from everhold.models import FunctionModel, subscribe
from everhold.ports.answerer import Answer

ASK = Query(0, "0:0", "What is up?")


async def shout(query):
    return query.prompt.upper()


async def test_an_async_function():
    """What it returns is the answer."""
    assert await FunctionModel(shout).answer(ASK, "s-1") == "WHAT IS UP?"


async def test_a_plain_function_runs_in_a_thread():
    """The loop goes on while a plain function works."""
    begun, goes_on = threading.Event(), threading.Event()

    def wait(query):
        begun.set()
        return goes_on.wait(30) and threading.current_thread() is not threading.main_thread()

    answer = asyncio.create_task(FunctionModel(wait).answer(ASK, "s-1"))
    while not begun.is_set():
        await asyncio.sleep(0)
    goes_on.set()

    assert await answer is True


class Shouter:
    async def __call__(self, query):
        return query.prompt.upper()

    async def method(self, query):
        return query.prompt.upper()


ASYNC = {
    "partial": functools.partial(shout),
    "object": Shouter(),
    "method": Shouter().method,
    "lambda": lambda query: shout(query),
}


@pytest.mark.parametrize("function", ASYNC.values(), ids=ASYNC)
async def test_whatever_gives_something_to_await(function):
    """Partials, methods, callable objects and lambdas around async functions are awaited."""
    assert await FunctionModel(function).answer(ASK, "s-1") == "WHAT IS UP?"


async def hum(query):
    for word in ("What ", "is ", "up?"):
        yield word


STREAMS = {"generator": hum, "partial": functools.partial(hum), "lambda": lambda query: hum(query)}


@pytest.mark.parametrize("function", STREAMS.values(), ids=STREAMS)
async def test_the_text_that_a_generator_yields_is_streamed_and_is_the_answer(function):
    """Each piece is heard, then the end; together they are the answer."""
    with subscribe("s-1") as heard:
        assert await FunctionModel(function).answer(ASK, "s-1") == "What is up?"
    assert [(query, delta.kind, delta.text) async for query, delta in heard] == [
        ("q-0", "text", "What "),
        ("q-0", "text", "is "),
        ("q-0", "text", "up?"),
        ("q-0", "end", ""),
    ]


async def test_what_a_generator_yields_besides_text_is_the_answer():
    """It ends there, and is closed."""
    closed = []
    calls = {"text": "Look: ", "tool_calls": [{"name": "look", "input": {}}]}

    async def ask(query):
        try:
            yield "Look: "
            yield calls
            yield "never"
        finally:
            closed.append(True)

    assert await FunctionModel(ask).answer(ASK, "s-1") is calls
    assert closed == [True]


async def test_usage_goes_with_the_value():
    """A function may say what the answer cost."""
    said = Answer("much", Usage(3, 4))

    async def costly(query):
        return said

    assert await FunctionModel(costly).answer(ASK, "s-1") is said


async def test_what_it_raises_goes_up():
    """An error of the function is not dressed up."""

    def fail(query):
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await FunctionModel(fail).answer(ASK, "s-1")


async def test_cancelling_reaches_the_function():
    """A cancelled answer cancels the async function."""
    ended = []

    async def long(query):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(query.id)

    answer = asyncio.create_task(FunctionModel(long).answer(ASK, "s-1"))
    await asyncio.sleep(0)
    answer.cancel()

    with pytest.raises(asyncio.CancelledError):
        await answer
    assert ended == ["q-0"]


@pytest.mark.parametrize("kind", sorted(FOR_PEOPLE))
async def test_people_are_not_answered_for(kind):
    """A question for a person never reaches the function."""
    with pytest.raises(NotAllowed, match=f"of kind {kind}"):
        await FunctionModel(shout).answer(Query(0, "0:0", "Sure?", kind=kind), "s-1")


def test_a_function_of_something_else_is_refused():
    """A function that cannot take one query is refused before anything is asked."""
    with pytest.raises(
        BadSetting, match="must take one query: missing a required argument: 'system'"
    ):
        FunctionModel(lambda prompt, system: "")


async def test_a_builtin_is_taken_at_its_word():
    """A callable without a signature is accepted."""
    assert await FunctionModel(type).answer(ASK, "s-1") is Query


def test_it_says_what_it_is():
    """Its repr names the function."""
    assert repr(FunctionModel(shout)) == "FunctionModel(shout)"
    assert FunctionModel.kinds == {Kind.LLM}
