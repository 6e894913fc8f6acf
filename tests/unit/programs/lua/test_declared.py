"""What a Lua program declares to take is read from its text, and never run."""

from pathlib import Path
from typing import Any

import pytest

from everhold.errors import BadArguments
from everhold.programs.lua.declared import MAX_DEPTH, read_declared_arguments
from everhold.programs.lua.program import LuaProgram

PACKAGE = """
local S = require("alc_shapes")
local T = S.T
local M = {}
-- M.spec = { entries = { run = { input = T.shape({ commented = T.string }) } } }
M.meta = { name = "debate", description = "spec = { entries = { run = {} } }" }
M.spec = {
  entries = {
    other = { input = T.shape({ wrong = T.string }) },
    run = {
      input = T.shape({
        task = T.string:describe("What to answer, " .. [[in
          one sentence]]),
        rounds = T.number:is_optional():describe('How often; "3" is usual'),
        ["loud"] = T.boolean,
        voices = T.array_of(T.shape({ inner = T.string })):is_optional();
        extra = T.any,
        ["not a name"] = T.string,
        ["for"] = T.string,
      }, { open = false }),
      result = T.shape({ answer = T.string }),
    },
  },
}
function M.run(ctx) return ctx.task end
return M
"""


def rows(text: str) -> list[tuple[str, Any, bool, str]]:
    return [
        (one.name, one.type, one.required, one.description) for one in read_declared_arguments(text)
    ]


def test_the_fields_of_the_input_are_the_arguments() -> None:
    """With type, description, and whether they are required, in the order of the text."""
    assert rows(PACKAGE) == [
        ("task", str, True, "What to answer, in one sentence"),
        ("rounds", int | float, False, 'How often; "3" is usual'),
        ("loud", bool, True, ""),
        ("voices", Any, False, ""),
        ("extra", Any, False, ""),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "return { run = function(ctx) return ctx.task end }",
        "M.spec = make_spec()",
        "M.spec = { entries = { run = { input = shapes.task } } }",
        "M.spec = { entries = { run = { input = T.shape(fields) } } }",
        "M.spec = { entries = { run = { input = T.shape({ a = T.string }",
        "spec = { entries = { run = { input = T.shape({ ['",
        "M.spec = " + "{" * 100_000,
        "M.spec = { entries = " + "(" * (MAX_DEPTH + 5) + ")" * (MAX_DEPTH + 5) + "}",
    ],
    ids=lambda text: text[:40] or "empty",
)
def test_what_cannot_be_read_as_text_is_not_declared(text: str) -> None:
    assert rows(text) == []


def package(folder: Path) -> LuaProgram:
    (folder / "debate").mkdir()
    (folder / "debate" / "init.lua").write_text(PACKAGE)
    return LuaProgram.package(folder / "debate")


def test_a_call_without_a_required_argument_names_it(tmp_path: Path) -> None:
    """Other keys are allowed; stored arguments and calls of algocline are not checked."""
    debate = package(tmp_path)
    with pytest.raises(BadArguments, match=r"missing 'task' \(What to answer, in one.*'loud'"):
        debate(rounds=3)
    assert debate(task="bees", loud=True, mood="kind").args == {
        "task": "bees",
        "loud": True,
        "mood": "kind",
    }
    assert debate.arguments({}) == {}
    assert debate.call_unchecked({"mood": "kind"}).args == {"mood": "kind"}


def test_its_signature_has_what_it_declares(tmp_path: Path) -> None:
    shown = str(package(tmp_path).signature)
    assert shown.startswith("(*, task: str, rounds: int | float = None, loud: bool, ")
    assert shown.endswith("**ctx)")
