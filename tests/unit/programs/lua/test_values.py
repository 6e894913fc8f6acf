"""Values between Lua and JSON."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everhold.programs.lua.vm import LuaVm, make_vm_opening
from tests.unit.programs.lua.life import failure, run

RETURNED = [
    ("return 1", 1),
    ("return 3.0", 3.0),
    ("return -0.5", -0.5),
    ("return 1e300", 1e300),
    ("return 0.1", 0.1),
    ("return math.maxinteger", 2**63 - 1),
    ("return math.mininteger", -(2**63)),
    ("return 0/0", None),
    ("return 1/0", None),
    ("return -1/0", None),
    ("return true", True),
    ("return nil", None),
    ("return", None),
    ("", None),
    ("return 'x', 'y'", "x"),
    ("return {}", {}),
    ("return {1, 2}", [1, 2]),
    ("return {1, 2, x = 3}", [1, 2]),
    ("return {x = {y = {}}}", {"x": {"y": {}}}),
    ("return {[10] = 'a', [-1.5] = 'b', [true] = 'c'}", {"10": "a", "-1.5": "b", "true": "c"}),
    ("return alc.null", None),
    ("return {alc.null, 1}", [None, 1]),
    ("return alc.json_decode('[]')", []),
    ("return alc.json_decode('{\"a\": []}')", {"a": []}),
    ("return 'äöü 😀 \\n\\t\\\\ \"'", 'äöü 😀 \n\t\\ "'),
    ("return 'a\\0b'", "a\0b"),
]


@pytest.mark.parametrize(("code", "value"), RETURNED)
def test_a_result_is_json(code: str, value: Any) -> None:
    found = run(code)
    assert found == value
    assert type(found) is type(value)


REFUSED = [
    ("return print", "the result is a function, which JSON cannot hold"),
    ("return {x = {print}}", "the result.x[1] is a function, which JSON cannot hold"),
    ("return coroutine.create(print)", "the result is a thread, which JSON cannot hold"),
    ("local t = {} t.t = t return t", "the result.t is a recursive table, which JSON cannot hold"),
    ("return {[{}] = 1}", "a key of the result is a table, which JSON cannot hold"),
    ("return '\\xff'", "the result is not valid UTF-8 (byte 1)"),
    ("return {a = {'ok', 'x\\xff'}}", "the result.a[2] is not valid UTF-8 (byte 2)"),
    ("return {['\\xff'] = 1}", "a key of the result is not valid UTF-8 (byte 1)"),
    ("return '\\u{D800}'", "the result is not valid UTF-8 (byte 1)"),
    ("local t = {} for i = 1, 200 do t = {t} end return t", "nested deeper than 128 levels"),
]


@pytest.mark.parametrize(("code", "words"), REFUSED)
def test_what_json_cannot_hold_is_refused_with_its_path(code: str, words: str) -> None:
    assert words in failure(code)


def test_the_same_table_twice_is_no_recursion() -> None:
    assert run("local t = {1} return {t, t}") == [[1], [1]]


ENCODED = [
    ("{b = 1, a = 2, A = 3, ['ä'] = 4}", '{"A":3,"a":2,"b":1,"ä":4}'),
    ("{1, 2.0, '3'}", '[1,2.0,"3"]'),
    ("{}", "{}"),
    ("1e15", "1000000000000000.0"),
    ("123456.0", "123456.0"),
    ("'\\1\\127'", '"\\u0001\x7f"'),
    ("{x = alc.null}", '{"x":null}'),
]


@pytest.mark.parametrize(("value", "text"), ENCODED)
def test_json_is_written_with_its_keys_in_order(value: str, text: str) -> None:
    assert run(f"return alc.json_encode({value})") == text


DECODED = [
    ("null", "type(v) == 'userdata' and v == alc.null and not not v"),
    ("[]", "type(v) == 'table' and #v == 0"),
    ("3", "math.type(v) == 'integer'"),
    ("3.0", "math.type(v) == 'float' and v == 3"),
    ("1e2", "math.type(v) == 'float' and v == 100"),
    ("9223372036854775808", "math.type(v) == 'float'"),
    ("-5", "v == -5"),
    (' {"a" : [ 1 , {"b" : null} ] } ', "v.a[2].b == alc.null and v.a[1] == 1"),
    ('"\\u00e4\\ud83d\\ude00\\n\\/"', "v == 'ä😀\\n/'"),
    ("true", "v == true"),
    ("false", "v == false"),
]


@pytest.mark.parametrize(("text", "claim"), DECODED)
def test_json_is_read(text: str, claim: str) -> None:
    assert run(f"local v = alc.json_decode(ctx.text) return {claim}", {"text": text}) is True


BROKEN = [
    "",
    "[",
    "[1",
    "[1,]",
    "{",
    '{"a"}',
    '{"a":}',
    "{a:1}",
    "tru",
    "1.",
    ".5",
    "01",
    "+1",
    "1e",
    "0x10",
    "--1",
]
BROKEN += [
    '"',
    '"a',
    '"\\x"',
    '"\\ud800"',
    '"\\udc00"',
    '"\\u12"',
    '"\n"',
    "[1 2]",
    "1 2",
    "nul",
    "NaN",
    "[" * 200,
]


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_not_json_is_an_error_that_can_be_caught(text: str) -> None:
    ok, words = run("return {pcall(alc.json_decode, ctx.text)}", {"text": text})
    assert not ok
    assert words.startswith("alc.json_decode: ")


def test_only_text_is_decoded() -> None:
    assert "alc.json_decode: text must be a string, got table" in failure("alc.json_decode({})")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)  # noqa: E501
    | st.text(st.characters(codec="utf-8"), max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcü\"\\", max_size=4), inner, max_size=4),  # noqa: E501
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(_JSON)
def test_every_json_value_comes_back_as_it_was(value: Any) -> None:
    vm = _echo()
    came = vm.go(0.0, 5.0, True, json.dumps(value).encode())
    back = json.loads(came[2])
    assert back == value
    assert json.dumps(back, sort_keys=True) == json.dumps(value, sort_keys=True) or _zero(value)


def _zero(value: Any) -> bool:
    """Whether it holds a negative zero, which compares equal."""
    return "-0.0" in json.dumps(value)


_vms: list[LuaVm] = []


def _echo() -> LuaVm:
    if not _vms:
        code = (
            b"local s = alc.llm('?') while true do s ="
            b" alc.llm(alc.json_encode(alc.json_decode(s))) end"
        )
        vm = LuaVm()
        vm.go(0.0, 5.0, *make_vm_opening(0.0, b"text", b"code", code, b"=code", None))
        _vms.append(vm)
    return _vms[0]


CTX = [{}, {"a": 1, "b": 2.5, "c": True, "d": "ü"}, {"n": None}, {"deep": {"l": [[], {}]}}]
CTX += [{str(i): i for i in range(100)}, {"big": 2**63 - 1, "small": -(2**63)}]


@pytest.mark.parametrize("ctx", CTX, ids=str)
def test_a_ctx_arrives_whole(ctx: dict[str, Any]) -> None:
    assert run("return ctx", ctx) == ctx


def test_numbers_in_a_ctx_stay_what_they_are() -> None:
    code = "return {math.type(ctx.a), math.type(ctx.b)}"
    assert run(code, {"a": 1, "b": 1.0}) == ["integer", "float"]
    assert run(code, {"a": 1, "b": 1.0, "x": []}) == ["integer", "float"]


def test_a_float_is_written_as_short_as_it_can_be_read() -> None:
    assert run("return alc.json_encode({0.1, 1/3, 1e-7})") == "[0.1,0.3333333333333333,1e-7]"
    assert math.isclose(run("return 1/3"), 1 / 3, rel_tol=0)


@pytest.mark.parametrize(
    "text", ["“a”", "{“a”: 1}", "[1, é]", '{"a": 1}…', "\ufeff1", '"\\é"', "日本"]
)
def test_the_error_of_what_is_no_json_is_text(text: str) -> None:
    """It can be logged, asked about and returned: letters of a model's words are not cut in it."""
    code = (
        "local ok, why = pcall(alc.json_decode, ctx.text) alc.log('warn', why) return {ok,"
        " alc.llm(why)}"
    )
    ok, why = run(code, {"text": text})
    assert not ok
    assert any(letter in why for letter in text if not letter.isascii())
