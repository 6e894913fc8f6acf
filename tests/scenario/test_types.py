"""returns=: the type of an answer, checked at the door and read back by the program."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypedDict

import msgspec
import pydantic
import pytest

import everhold
from everhold.errors import AnswerRefused, BadArguments
from tests.scenario.harness import opened, rows


@dataclass
class Plain:
    right: bool
    why: str = ""


class Struct(msgspec.Struct):
    right: bool
    why: str = ""


class Model(pydantic.BaseModel):
    right: bool
    why: str = ""


class Typed(TypedDict):
    right: bool
    why: str


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


FITTING = {
    "dataclass": (Plain, {"right": True, "why": "so"}, Plain(True, "so")),
    "msgspec": (Struct, {"right": True}, Struct(True)),
    "pydantic": (Model, {"right": True}, Model(right=True)),
    "TypedDict": (Typed, {"right": True, "why": "so"}, {"right": True, "why": "so"}),
    "Literal": (Literal["yes", "no"], "yes", "yes"),
    "Enum": (Colour, "red", Colour.RED),
    "int": (int, 7, 7),
    "list": (list[Plain], [{"right": False, "why": ""}], [Plain(False)]),
    "optional": (int | None, None, None),
    "schema": ({"type": "object", "required": ["a"]}, {"a": 1}, {"a": 1}),
    "bool": (bool, True, True),
    "dict": (dict[str, int], {"a": 1}, {"a": 1}),
}


@pytest.mark.parametrize(("type_", "answer", "value"), FITTING.values(), ids=FITTING)
async def test_an_answer_of_a_type(type_, answer, value):
    """The program gets a value of the type, live and after a rebuild."""
    seen = []

    @everhold.program
    async def asks(ctx):
        seen.append(await ctx.llm("Right?", returns=type_))
        await ctx.llm("and?")

    async with opened(cache=1) as runtime:
        status = await runtime.start(asks())
        await runtime.answer(status.queries[0], answer)
        await runtime.start(asks())
        await runtime.answer(status.session_id, "done")
    assert seen[:2] == [value, value]
    assert [type(each) for each in seen[:2]] == [type(value)] * 2


MISFITS = {
    "dataclass": (Plain, [{"why": "x"}, {"right": "yes"}, [], 1]),
    "msgspec": (Struct, [{"right": 1}, {"right": True, "why": 2}]),
    "pydantic": (Model, [{"right": "perhaps"}, {}]),
    "TypedDict": (Typed, [{"right": True}, {"right": True, "why": None}]),
    "Literal": (Literal["yes", "no"], ["maybe", 1, None]),
    "Enum": (Colour, ["green"]),
    "int": (int, [1.5, "many", True, None]),
    "list": (list[Plain], [[{}], {}, "x"]),
}


@pytest.mark.parametrize(("type_", "answers"), MISFITS.values(), ids=MISFITS)
async def test_a_misfit_is_refused_at_the_door(type_, answers):
    """With what was expected; and nothing changes."""

    @everhold.program
    async def asks(ctx):
        await ctx.llm("Right?", returns=type_)

    async with opened() as runtime:
        status = await runtime.start(asks())
        for answer in answers:
            with pytest.raises(AnswerRefused) as refused:
                await runtime.answer(status.queries[0], answer)
            assert refused.value.expected
        assert await runtime.status(status.session_id) == status
        assert len(await rows(runtime, status.session_id)) == 1


@pytest.mark.parametrize(
    "text", ['{"right": true}', '```json\n{"right": true}\n```', '  {"right": true, "why": ""}  ']
)
async def test_a_models_words_are_read_as_json(text):
    """Where only JSON can fit, text is read as JSON, also from a fenced block."""

    @everhold.program
    async def asks(ctx):
        return (await ctx.llm("Right?", returns=Plain)).right

    async with opened() as runtime:
        status = await runtime.start(asks())
        assert (await runtime.answer(status.queries[0], text)).result is True


@everhold.program
async def takes(ctx, verdict: Plain, colour: Colour = Colour.RED, times: int = 1) -> Plain:
    assert isinstance(verdict, Plain) and isinstance(colour, Colour)
    await ctx.llm("go on?")
    return Plain(not verdict.right, colour.value * times)


async def test_arguments_and_results_of_types(tmp_path):
    """Stored as JSON, handed over as the annotations say, also after a restart; run gives the type
    back.
    """
    async with opened(tmp_path) as runtime:
        status = await runtime.start(takes(Plain(True), times=2), key="k")
        assert (await runtime.store.load(status.session_id)).birth.args == {
            "verdict": {"right": True, "why": ""},
            "times": 2,
        }
    async with opened(tmp_path, llm=["yes"]) as runtime:
        await runtime.answer(status.session_id, "yes")
        assert await runtime.run(takes(Plain(True), times=2), key="k") == Plain(False, "redred")


@pytest.mark.parametrize(
    "given",
    [{}, {"verdict": 7}, {"verdict": Plain(True), "times": "x"}, {"verdict": Plain(True), "x": 1}],
)
def test_arguments_that_do_not_fit(given):
    """They are refused when the call is made."""
    with pytest.raises(BadArguments):
        takes(**given)


@everhold.program
async def gathers(ctx: everhold.Context, **more) -> str:
    return str(sorted(more))


@everhold.program
async def gathers_all(ctx: everhold.Context, /, **more) -> str:
    return str(sorted(more))


async def test_what_is_given_by_any_name_is_taken_for_nothing_else():
    """Not for `ctx`, which is ours, and not for what the program returns."""
    with pytest.raises(BadArguments, match="'ctx' is given by everhold"):
        gathers(ctx=1)
    async with opened() as runtime:
        assert await runtime.run(gathers(**{"self": 1, "return": 2})) == "['return', 'self']"
        assert await runtime.run(gathers_all(ctx=1)) == "['ctx']"


async def test_a_result_that_does_not_fit_its_annotation():
    """The session fails and names the value."""

    @everhold.program
    async def lies(ctx) -> Plain:
        return {"right": "perhaps"}

    async with opened() as runtime:
        status = await runtime.start(lies())
        assert status.state == "failed" and "the return value" in status.error


async def test_an_llm_answer_without_a_type_is_text():
    """A number is not words."""

    @everhold.program
    async def asks(ctx):
        return await ctx.llm("Words?")

    async with opened() as runtime:
        status = await runtime.start(asks())
        for value in (7, None, True, [], {"a": 1}):
            with pytest.raises(AnswerRefused):
                await runtime.answer(status.queries[0], value)


async def test_a_type_that_has_no_schema():
    """The program sees BadSchema where it asks."""

    @everhold.program
    async def asks(ctx):
        await ctx.llm("What?", returns=lambda: 1)

    async with opened() as runtime:
        assert "BadSchema" in (await runtime.start(asks())).error


async def test_options_are_passed_through():
    """What an answerer may want to know is in the query."""

    @everhold.program
    async def asks(ctx):
        await ctx.llm(
            "What?",
            system="Be brief.",
            max_tokens=5,
            grounded=True,
            model="m",
            temperature=0.5,
            messages=[{"role": "user", "content": "hi"}],
        )

    async with opened() as runtime:
        query = (await runtime.start(asks())).queries[0]
        assert (query.system, query.max_tokens, query.grounded) == ("Be brief.", 5, True)
        assert query.options == {"model": "m", "temperature": 0.5}
        assert query.messages == [{"role": "user", "content": "hi"}]
