"""What `llm=` takes becomes an answerer."""

import pytest

from everhold.core.query import Query
from everhold.errors import BadSetting
from everhold.models import Answerer, CommandModel, FunctionModel, Model, ScriptModel
from everhold.models.registry import make_answerer


class Own(Answerer):
    async def answer(self, query, session_id):
        return session_id


async def ask(query):
    return query.prompt


def test_nobody_parks():
    """None is nobody: queries stay open."""
    assert make_answerer(None) is None


@pytest.mark.parametrize("own", [Own(), CommandModel("cat"), ScriptModel([])])
def test_an_answerer_is_taken_as_it_is(own):
    """An `Answerer` answers."""
    assert make_answerer(own) is own


def test_a_function_becomes_one():
    """A function of a query is wrapped."""
    assert isinstance(make_answerer(ask), FunctionModel)


@pytest.mark.parametrize("given", [["yes"], ("yes",), {"": "yes"}])
async def test_prepared_answers_become_a_script(given):
    """A list, tuple or dict of answers is a script."""
    made = make_answerer(given)

    assert isinstance(made, ScriptModel)
    assert await made.answer(Query(0, "0:0", "Well?"), "s-1") == "yes"


def test_a_model_is_named_by_its_provider():
    """`provider:name` is a model; whether it can be asked here is said when the runtime is
    opened.
    """
    made = make_answerer("anthropic:claude-sonnet-4-6 | openai:gpt-5-mini")

    assert isinstance(made, Model)
    assert [str(name) for name in made.names] == [
        "anthropic:claude-sonnet-4-6",
        "openai:gpt-5-mini",
    ]


WRONG = {
    "command": (
        "claude -p",
        "'claude -p' is not a model name (provider:name); for a command, use"
        " everhold.CommandModel('claude"
        " -p')",
    ),
    "class": (
        CommandModel,
        "CommandModel is a class; accepted are provider:name, an async function",
    ),
    "number": (7, "or None; got int"),
}


@pytest.mark.parametrize(("given", "told"), WRONG.values(), ids=WRONG)
def test_anything_else_is_refused(given, told):
    """With what it takes instead."""
    with pytest.raises(BadSetting) as caught:
        make_answerer(given)

    assert told in str(caught.value)
