"""JSON in a Lua state: the same as Python's, quick whatever the text is, and always within the
limits.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everhold.core.status import Raised
from everhold.programs.lua import vm
from tests.unit.programs.lua.life import Life, failure, run

ECHO = b"""local s = alc.llm('?')
while true do
  local ok, value = pcall(alc.json_decode, s)
  s = alc.llm(ok and alc.json_encode(value) or 'error: ' .. value)
end"""

_vms: list[vm.LuaVm] = []


def echo(text: str) -> str:
    """What a text is when it was read and written; or the error."""
    if not _vms:
        _vms.append(vm.LuaVm())
        _vms[0].go(0.0, 5.0, *vm.make_vm_opening(0.0, b"text", b"code", ECHO, b"=code", None))
    said: bytes = _vms[0].go(0.0, 5.0, True, text.encode())[2]
    return said.decode()


def python(text: str) -> Any:
    """The same text read by Python; ValueError if it is none, or holds what JSON has no word
    for.
    """

    def refused(word: str) -> Any:
        raise ValueError(word)

    def finite(word: str) -> float:
        return refused(word) if abs(float(word)) == float("inf") else float(word)

    def whole(word: str) -> float:
        return int(word) if -(2**63) <= int(word) < 2**63 else finite(word)

    value = json.loads(text, parse_constant=refused, parse_float=finite, parse_int=whole)
    json.dumps(value, ensure_ascii=False).encode()  # fails with half a pair of surrogates
    return value


NAMES = st.text('abAB1ü日😀"\\\n \x7f', max_size=4)
LEAVES = (
    st.sampled_from(
        [
            None,
            True,
            False,
            0,
            -0.0,
            10,
            0.5,
            -7,
            1e14,
            -1e14,
            1e15,
            2.0**53,
            1e22,
            5e-324,
            1e308,
            2**63 - 1,
        ]
    )
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=10)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)
LAYOUTS = st.sampled_from(
    [(None, (",", ":")), (None, (" , ", " : ")), (1, None), ("\t", (",", ":\r\n"))]
)


@settings(deadline=None, max_examples=300)
@given(VALUES, LAYOUTS, st.booleans())
def test_a_value_comes_back_with_its_names_in_order_however_it_was_laid_out(
    value: Any, layout: tuple[Any, Any], is_ascii: bool
) -> None:
    indent, separators = layout
    back = echo(
        " " + json.dumps(value, indent=indent, separators=separators, ensure_ascii=is_ascii) + "\n"
    )
    assert written(json.loads(back)) == written(ordered(value))


def ordered(value: Any) -> Any:
    """The same with the names of each object in the order of their bytes."""
    if isinstance(value, dict):
        return {name: ordered(value[name]) for name in sorted(value, key=str.encode)}
    return [ordered(item) for item in value] if isinstance(value, list) else value


def written(value: Any) -> str:
    return json.dumps(value)


JUNK = st.sampled_from(
    [
        *'[]{},:"\\ \n\v\f\0truefalsn0123.eE+-x',
        "\\u",
        "\\ud83d",
        "01",
        "1.",
        "é",
        "1e999",
        "tru",
        "\x7f",
    ]
)
CUTS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2), JUNK), min_size=1, max_size=3)


@settings(deadline=None, max_examples=400)
@given(VALUES, LAYOUTS, CUTS)
def test_whatever_was_done_to_a_text_it_is_json_if_python_says_so(
    value: Any, layout: tuple[Any, Any], cuts: list[tuple[int, int, str]]
) -> None:
    text = json.dumps(value, indent=layout[0], separators=layout[1], ensure_ascii=False)
    for at, gone, more in cuts:
        text = text[: at % (len(text) + 1)] + more + text[at % (len(text) + 1) + gone :]
    try:
        expected = python(text)
    except (ValueError, RecursionError):
        assert echo(text).startswith("error: alc.json_decode: ")
    else:
        assert written(json.loads(echo(text))) == written(ordered(expected))


PLACES = [
    ("[1,]", 'expected a value at byte 4, got "]"'),
    ("[1 2]", "expected ',' or ']' at byte 4, got \"2\""),
    ("[1 \n }", "expected ',' or ']' at byte 6, got \"}\""),
    ('{"a":1 ]', "expected ',' or '}' at byte 8, got \"]\""),
    ('{"a" 1}', "expected ':' at byte 6, got \"1\""),
    ('{"a":1,}', 'expected a name in quotes at byte 8, got "}"'),
    ("[truex]", "expected ',' or ']' at byte 6, got \"x\""),
    ("[tru]", 'expected a value at byte 2, got "t"'),
    ("[-01]", 'expected a value at byte 2, got "-"'),
    ("[1.5.2, 3]", 'expected a value at byte 2, got "1"'),
    ("1, 2", 'expected the end at byte 2, got ","'),
    ('["a', "expected a closing quote at byte 4, got the end"),
    ('["a\tb"]', 'expected text without control characters at byte 4, got "\\9"'),
    ('["a\\qb"]', 'expected an escape at byte 5, got "q"'),
    ('{"a\\u12": 1}', 'expected four hexadecimal digits at byte 5, got "u"'),
    ("[\v1]", 'expected a value at byte 2, got "\\11"'),
    ("[" * 129, "nested deeper than 128 levels"),
    ("1e400", "the number at byte 1 is too large"),
    ('{"a": [0, -1e999]}', "the number at byte 11 is too large"),
    ("[1" + "0" * 400 + "]", "the number at byte 2 is too large"),
]


@pytest.mark.parametrize(("text", "words"), PLACES, ids=lambda text: text[:20])
def test_an_error_says_where_it_is(text: str, words: str) -> None:
    assert echo(text) == f"error: alc.json_decode: {words}"


HOSTILE = [
    "string.rep('[', 400000)",
    "'\"' .. string.rep('a', 400000)",
    "'[\"' .. string.rep('a', 400000) .. '\\n\"]'",
    "'{\"' .. string.rep('a', 400000) .. '\" 1}'",
    "'[' .. string.rep('1', 400000) .. 'x]'",
    "'[-' .. string.rep('1', 400000) .. '.' .. string.rep('1', 400000) .. 'e]'",
    "'[1' .. string.rep(' ', 400000) .. 'x]'",
    "'{\"a\"' .. string.rep(' ', 400000) .. 'x}'",
    "'[' .. string.rep('\"\\\\', 200000)",
    "'[' .. string.rep('{', 200000)",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_takes_longer_than_there_are_letters(text: str) -> None:
    assert run(f"return (pcall(alc.json_decode, {text}))", cpu=2.0) is False


ENDLESS = [
    "alc.json_decode('[' .. string.rep('[1,{\"a\":2}],', 200000) .. '1]')",
    "local t = {} for i = 1, 200000 do t[i] = {a = i} end alc.json_encode(t)",
]


@pytest.mark.parametrize("code", ENDLESS)
def test_the_time_is_up_inside_it_too_and_nobody_catches_that(code: str) -> None:
    life = Life(f"while true do pcall(function() {code} end) end", cpu=0.2)
    life.step()
    assert isinstance(life.outcome, Raised)
    assert life.outcome.error.startswith("Spinning: ")


def test_memory_that_runs_out_inside_it_can_be_caught() -> None:
    code = """local text = '[' .. string.rep('{"a":{}},', 200000) .. '1]'
    local ok, why = pcall(alc.json_decode, text)
    return {ok, why, #alc.json_decode('[1,2]')}"""
    assert run(code, memory=12 * 2**20, cpu=5.0) == [False, "alc.json_decode: not enough memory", 2]


ACTING = """local function never() error('called') end
local mt = {__index = never, __len = never, __pairs = never, __eq = never, __lt = never, __tostring = never,
  __concat = never, __idiv = never, __close = never, __name = 'x', __metatable = never}
local function acting(t) return setmetatable(t, mt) end
"""  # noqa: E501


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("acting({1, acting({}), [4] = 2})", "[1,{}]"),
        ("acting({b = 1, a = acting({2})})", '{"a":[2],"b":1}'),
        ("acting({[1.5] = false, [true] = acting({}), ['1.5'] = 3})", '{"1.5":3,"true":{}}'),
        ("{acting({x = false}), acting({x = false})}", '[{"x":false},{"x":false}]'),
    ],
)
def test_no_metamethod_is_called(value: str, text: str) -> None:
    assert run(f"{ACTING} return alc.json_encode({value})") == text


@pytest.mark.parametrize(
    "number", ["1e14", "-1e14", "1e15", "2^53", "2^63", "1e16 + 2", "18390366878156348.0", "-0.0"]
)
def test_a_float_is_written_as_one(number: str) -> None:
    code = (
        f"local v = alc.json_decode(alc.json_encode({{{number}}}))[1] return math.type(v) =="
        f" 'float' and v == {number}"
    )
    assert run(code) is True


def test_a_key_that_is_false_has_its_value() -> None:
    assert run("return {[true] = false, [false] = true}") == {"true": False, "false": True}


def test_a_path_is_the_same_however_deep() -> None:
    code = "return {list = {1, {['a b'] = {[10] = {x = {'ok', '\\xff'}}}}}}"
    assert failure(code) == "the result.list[2].a b.10.x[2] is not valid UTF-8 (byte 1)"


def test_what_a_coroutine_closes_can_read_json() -> None:
    code = """local co = coroutine.create(function()
      local held <close> = setmetatable({}, {__close = function() found = alc.json_decode('[7]')[1] end})
      coroutine.yield()
    end)
    coroutine.resume(co)
    return {coroutine.close(co), found}"""  # noqa: E501
    assert run(code) == [True, 7]


def test_an_error_that_reads_json_to_name_itself_has_its_words() -> None:
    code = (
        "alc.json_encode({}) error(setmetatable({}, {__tostring = function() return"
        " alc.json_decode('\"why\"') end}))"
    )
    assert failure(code) == "why"


def test_who_only_returns_a_table_does_not_load_what_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    code = vm._code
    monkeypatch.setattr(vm, "_code", lambda name: loaded.append(name) or code(name))
    assert run("return {a = alc.llm('?')}") == {"a": "<?>"}
    assert "json" in loaded
    assert "json_decode" not in loaded
