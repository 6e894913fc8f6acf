"""The package `alc_shapes` that everhold has itself, and ALC_SHAPE_CHECK, which programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold.programs.lua.program import LuaProgram
from everhold.stores.memory import MemoryStore

S = 'local S = require("alc_shapes") local T = S.T '


def run(code: str, **ctx: Any) -> Any:
    return everhold.run(LuaProgram.text(S + code, ctx), database="memory://")


pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("value", "schema", "reason"),
    [
        ('"x"', "T.string", None),
        ("nil", "T.string:is_optional():describe('d')", None),
        ("1", "T.any", None),
        ("3", "T.string", "$: it is a number, not a string"),
        ("{1, 2}", "T.array_of(T.number)", None),
        ("{1, 'x'}", "T.array_of(T.number)", "$[2]: it is a string, not a number"),
        ("3", "T.array_of(T.number)", "$: it is a number, not an array"),
        ("{a = 1}", "T.map_of(T.string, T.number)", None),
        ("{a = 'x'}", "T.map_of(T.string, T.number)", "$[a]: it is a string, not a number"),
        ("{1}", "T.map_of(T.string, T.number)", "$[key=1]: it is a number, not a string"),
        ("'b'", "T.one_of({'a', 2})", '$: "b" is none of the allowed values: "a", 2'),
        ("{}", "T.shape({b = T.any, a = T.number})", "$.a: it is nil, not a number"),
        ("{x = 1}", "T.shape({})", None),
        ("{x = 1}", "T.shape({}, {open = false})", "$.x: a field of this name is not allowed"),
        ("{s = {1}}", "T.shape({s = T.array_of(T.table)})", "$.s[1]: it is a number, not a table"),
        (
            "{}",
            "T.discriminated('k', {p = T.shape({k = T.any})})",
            "$: its field 'k', which names the variant, is missing",
        ),
        (
            "{k = 'q'}",
            "T.discriminated('k', {p = T.shape({k = T.any})})",
            '$: its field \'k\' names no variant: "q"; there are "p"',
        ),
        ("{answer = 1}", "T.ref('assessed')", "$.answer: it is a number, not a string"),
        ("1", "T.ref('nothing')", "$: no schema has the name 'nothing' that the schema refers to"),
        ("1", "nil", None),
    ],
)
def test_a_value_is_compared_with_a_schema(value: str, schema: str, reason: str | None) -> None:
    said = run(f"local ok, why = S.check({value}, {schema}) return {{ ok = ok, why = why }}")
    wanted = (
        {"ok": True} if reason is None else {"ok": False, "why": f"shape violation at {reason}"}
    )
    assert said == wanted


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("T.array_of(T.string:is_optional())", "the elements of array_of may not be optional"),
        ("T.shape({ a = 1 })", "'a' in a shape is not a schema"),
        ("T.one_of({})", "at least one value"),
        ("T.one_of({ 1, 1 })", "twice"),
        ("T.discriminated('k', { p = T.shape({}) })", "no field 'k'"),
        ("T.string:describe(1)", "describe takes a text"),
        ("S.assert(1, 'votd')", "there is no shape 'votd'"),
        ("S.assert(1, nil)", "not a nil"),
        ("S.assert(1, T.string, 'there')", "it is a number, not a string (in there)"),
        ("S.instrument({ meta = { name = 'x' } }, 'run')", "'run' is not a function"),
        ("S.instrument({ run = print }, 'run')", "needs meta.name"),
        (
            "local x = T.ref('x') S.check(1, x, { registry = { x = x } })",
            "contains itself",
        ),
        (
            "S.spec_resolver.resolve({ spec = { entries = { f = { input = 3 } } } })",
            "neither a schema",
        ),
        (
            "S.spec_resolver.resolve({ spec = { entries = { f = { input = 'a', args = {} } } } })",
            "mutually exclusive",
        ),
    ],
)
def test_what_is_wrong_is_told(code: str, words: str) -> None:
    assert words in run(f"return tostring(select(2, pcall(function() {code} end)))")


def test_a_schema_is_plain_data() -> None:
    """After a way through JSON it checks the same, and its fields are listed."""
    said = run(
        """
        local schema = T.shape({ b = T.number:describe("two"), a = T.string:is_optional() })
        local again = alc.json_decode(alc.json_encode(schema))
        local fields = {}
        for i, field in ipairs(S.fields(again)) do
          fields[i] = { field.name, field.type.prim, field.optional, field.doc or "" }
        end
        local kinds = {}
        S.walk(again, function(node) kinds[#kinds + 1] = node.kind end)
        return { S.check({ b = 1 }, again), S.check({}, again), fields, kinds }
        """
    )
    assert said[0] is True and said[1] is False
    assert said[-2] == [["a", "string", True, ""], ["b", "number", False, "two"]]
    assert said[-1] == ["shape", "optional", "prim", "described", "prim"]


def test_types_for_editors() -> None:
    said = run(
        """return S.LuaCats.gen({ safe_panel = T.shape({
          a = T.array_of(T.one_of({ "x", "y" })):describe("doc"), b = T.ref("voted"):is_optional(),
          c = T.map_of(T.string, T.shape({ d = T.any:is_optional() })), e = T.shape({}),
        }), other = 3 })"""
    )
    assert said == (
        '---@meta\n\n---@class AlcResultSafePanel\n---@field a ("x"|"y")[] @doc\n'
        "---@field b? AlcResultVoted\n---@field c table<string, { d?: any }>\n---@field e table\n"
    )


CHECKED = """
local M = { meta = { name = "m" }, spec = { entries = {
  run = { input = T.shape({ task = T.string }), result = T.number },
  add = { args = { T.number, T.number:is_optional() }, result = T.number },
} } }
function M.run(ctx) ctx.result = ctx.value return ctx end
function M.add(a, b) return a, "second" end
M.run, M.add = S.instrument(M, "run"), S.instrument(M, "add")
local function try(f, ...) return tostring(select(2, pcall(f, ...))) end
return { S.is_dev_mode(), try(M.run, { task = 1 }), try(M.run, { task = "x", value = "y" }),
  try(M.add, "x"), (select(2, M.add(1))), os.getenv("HOME") == nil }
"""


def test_functions_are_checked_only_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALC_SHAPE_CHECK", raising=False)
    said = run(CHECKED)
    assert (said[0], said[3], said[4:]) == (False, "x", ["second", True])
    monkeypatch.setenv("ALC_SHAPE_CHECK", "1")
    said = run(CHECKED)
    assert said[0] is True and said[4:] == ["second", True]
    assert [one.partition("shape violation at ")[2] for one in said[1:4]] == [
        "$.task: it is a number, not a string (in m.run:input)",
        "$: it is a string, not a number (in m.run)",
        "$: it is a string, not a number (in m.add:arg1)",
    ]


async def test_a_session_keeps_the_value_with_which_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process with another value resumes it as it was, and so does its fork."""
    store = MemoryStore()
    code = 'local get = os.getenv local a = get("ALC_SHAPE_CHECK") alc.llm("?")'
    code += ' return { a, get("ALC_SHAPE_CHECK") }'
    monkeypatch.setenv("ALC_SHAPE_CHECK", "1")
    async with everhold.Runtime(store, llm=None) as runtime:
        session = (await runtime.start(LuaProgram.text(code))).session_id
    monkeypatch.delenv("ALC_SHAPE_CHECK")
    async with everhold.Runtime(store, llm=None) as runtime:
        fork = (await runtime.fork(session)).session_id
        for one in (session, fork):
            status = await runtime.answer(one, "!")
            assert status.result == ["1", "1"]


def test_an_installed_package_takes_precedence_as_a_whole(tmp_path: Path) -> None:
    """Its missing parts are not taken from everhold's own."""
    (tmp_path / "alc_shapes").mkdir()
    (tmp_path / "alc_shapes" / "init.lua").write_text('return { VERSION = "mine" }')
    code = 'return { require("alc_shapes").VERSION, (pcall(require, "alc_shapes.t")) }'
    call = LuaProgram.text(code, roots=[tmp_path])
    assert everhold.run(call, database="memory://") == ["mine", False]
