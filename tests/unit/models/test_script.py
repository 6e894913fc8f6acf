"""A script answers with what was written down beforehand."""

import asyncio
import json
import re

import pytest

from everhold.core.query import Kind, Query, Usage
from everhold.errors import AnswerFailed, BadSetting, NotAllowed
from everhold.models import ScriptModel
from everhold.ports.answerer import Answer


def ask(prompt="", q=0, **more):
    return Query(q, f"0:{q}", prompt, **more)


async def answers(script, *prompts):
    return [await script.answer(ask(prompt, q), "s-1") for q, prompt in enumerate(prompts)]


# In order


async def test_a_list_is_given_in_order():
    """The first question gets the first answer, of whatever type."""
    said = Answer("cheap", Usage(1, 2))

    assert await answers(ScriptModel(["one", 2, {"three": [3]}, said]), *"abcd") == [
        "one",
        2,
        {"three": [3]},
        said,
    ]


async def test_questions_asked_together_are_answered_in_the_order_asked():
    """A batch is not shuffled."""
    script = ScriptModel(["one", "two", "three"])

    assert await asyncio.gather(*(script.answer(ask(q=q), "s-1") for q in range(3))) == [
        "one",
        "two",
        "three",
    ]


EXHAUSTED = {
    "list": (
        ScriptModel([]),
        "the script has 0 answers, and all are used; asked: q-7 (llm) 'Which one?'",
    ),
    "pattern": (
        ScriptModel({"Which": []}),
        "the pattern 'Which' has 0 answers, and all are used; asked: q-7 (llm) 'Which one?'",
    ),
    "unmatched": (
        ScriptModel({"Who": "me"}),
        "no pattern of the script matches; asked: q-7 (llm) 'Which one?'",
    ),
}


@pytest.mark.parametrize(("script", "told"), EXHAUSTED.values(), ids=EXHAUSTED)
async def test_nothing_is_made_up(script, told):
    """A question without an answer fails with what was asked."""
    with pytest.raises(AnswerFailed) as caught:
        await script.answer(ask("Which one?", 7), "s-1")

    assert (str(caught.value), caught.value.kind) == (told, "script")


async def test_one_answer_too_few():
    """The answers that were there are counted."""
    script = ScriptModel(["only"])
    await script.answer(ask(), "s-1")

    with pytest.raises(AnswerFailed, match="the script has 1 answer, and all are used"):
        await script.answer(ask("x" * 300, 1), "s-1")


SHOWN = {
    "long": (ask("x" * 300), f"q-0 (llm) {'x' * 200!r}…"),
    "messages": (
        ask(messages=[{"role": "user", "content": "Hi"}]),
        "q-0 (llm) \"[{'role': 'user', 'content': 'Hi'}]\"",
    ),
}


@pytest.mark.parametrize(("query", "shown"), SHOWN.values(), ids=SHOWN)
async def test_a_question_is_shown_short(query, shown):
    """A long prompt is cut; without a prompt the messages are shown."""
    with pytest.raises(AnswerFailed) as caught:
        await ScriptModel([]).answer(query, "s-1")

    assert str(caught.value).endswith(shown)


# By pattern

MATCHES = {
    "substring": ("right?", "Is that right? Say why.", True),
    "substring is exact": ("Right", "Is that right?", False),
    "star": ("Is * right?", "Is that\nright?", False),
    "star over lines": ("Is *right?", "Is that\nright?", True),
    "star is whole": ("that*", "Is that right?", False),
    "star at both ends": ("*that*", "Is that right?", True),
    "others are plain": ("[a-z]*", "[a-z] is a range", True),
    "regular expression": (r"re:^is \w+ right", "is that right?", True),
    "regular expression over lines": ("re:Is.*right", "Is that\nright?", True),
    "regular expression elsewhere": ("re:^that", "Is that right?", False),
    "compiled": (re.compile("THAT", re.IGNORECASE), "Is that right?", True),
}


@pytest.mark.parametrize(("pattern", "prompt", "matches"), MATCHES.values(), ids=MATCHES)
async def test_how_patterns_match(pattern, prompt, matches):
    """Plain text anywhere, `*` over the whole prompt, `re:` as a regular expression."""
    script = ScriptModel({pattern: "this", "": "other"})

    assert await script.answer(ask(prompt), "s-1") == ("this" if matches else "other")


async def test_the_first_pattern_that_matches():
    """Patterns are tried in the order written."""
    assert await answers(ScriptModel({"a": 1, "ab": 2, "b": 3}), "ab", "b") == [1, 3]


async def test_one_answer_serves_for_ever_and_a_list_is_used_up():
    """A list under a pattern is given in order."""
    script = ScriptModel({"ever": "same", "list": ["first", "second"]})

    assert await answers(script, "ever", "list", "ever", "list") == [
        "same",
        "first",
        "same",
        "second",
    ]
    with pytest.raises(AnswerFailed, match="the pattern 'list' has 2 answers"):
        await script.answer(ask("list"), "s-1")


# By a function


async def test_a_function_answers():
    """Plain or async, it is called with the query."""

    async def later(query):
        return query.q

    assert await answers(ScriptModel(lambda query: query.prompt * 2), "a") == ["aa"]
    assert await answers(ScriptModel(later), "a", "b") == [0, 1]


async def test_an_exception_among_the_answers_is_raised():
    """So that a test can make a model fail."""
    script = ScriptModel([AnswerFailed("overloaded"), "better"])

    with pytest.raises(AnswerFailed, match="overloaded"):
        await script.answer(ask(), "s-1")
    assert await script.answer(ask(), "s-1") == "better"


async def test_it_remembers_what_was_asked():
    """Also what it had no answer for."""
    script = ScriptModel(["x"])
    await answers(script, "one")
    with pytest.raises(AnswerFailed):
        await script.answer(ask("two", 1), "s-1")

    assert [query.prompt for query in script.asked] == ["one", "two"]


# People


async def test_people_are_answered_for_only_if_it_says_so():
    """An approval is refused by a script, and given by one that was written for people too."""
    approval = ask("Sure?", kind=Kind.APPROVAL)

    with pytest.raises(NotAllowed):
        await ScriptModel([True]).answer(approval, "s-1")
    assert await ScriptModel([True], people=True).answer(approval, "s-1") is True


async def test_a_refused_question_uses_nothing_up():
    """The answer is still there for the question it was meant for."""
    script = ScriptModel(["for the model"])

    with pytest.raises(NotAllowed):
        await script.answer(ask("Sure?", kind=Kind.INPUT), "s-1")

    assert await script.answer(ask(), "s-1") == "for the model"


# From a file


@pytest.mark.parametrize("content", [["one"], {"Wh*": "one"}])
async def test_a_script_from_a_file(content, tmp_path):
    """A JSON list or object is a script."""
    file = tmp_path / "answers.json"
    file.write_text(json.dumps(content))

    assert await answers(ScriptModel.read(file), "Why?") == ["one"]


async def test_a_pattern_matches_the_messages_of_a_conversation():
    """The first one that does, as with prompts."""
    script = ScriptModel({"receipt": "It is on its way.", "lamp": "Let me look."})
    asked = [{"role": "user", "content": "My lamp is broken."}]
    later = [*asked, {"role": "tool", "content": "receipt 7"}]
    for messages, answer in ((asked, "Let me look."), (later, "It is on its way.")):
        assert await script.answer(Query(0, "0:0", messages=messages), "s-1") == answer


BAD_FILES = {
    "absent": (None, "cannot be read: No such file"),
    "not JSON": ("[1,", "not JSON"),
    "a string": ('"one"', "must contain a list, or an object of patterns and answers"),
    "a bad pattern": ('{"re:(": 1}', "'re:(' is not a regular expression"),
}


@pytest.mark.parametrize(("text", "told"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_no_script(text, told, tmp_path):
    """A file that cannot be used is refused before anything runs."""
    file = tmp_path / "answers.json"
    if text is not None:
        file.write_text(text)

    with pytest.raises(BadSetting) as caught:
        ScriptModel.read(file)

    assert told in str(caught.value)


@pytest.mark.parametrize("given", ["one", 7])
def test_what_is_no_script(given):
    """A string or a number is not a script."""
    with pytest.raises(BadSetting, match="a script must be a list, a dict or a function, not"):
        ScriptModel(given)
