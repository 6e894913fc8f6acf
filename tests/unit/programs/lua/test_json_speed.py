"""JSON in Lua: what the fast ways write and read is what Python's `json` does."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.programs.lua.life import Life, run

VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
    | st.text('\\"/bnu\n\t\x01é', max_size=12),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=20,
)


def type_tree(value: Any) -> Any:
    """The value with the type of each number, which `==` does not compare."""
    if isinstance(value, dict):
        return {key: type_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [type_tree(item) for item in value]
    return type(value).__name__, repr(value)


@settings(max_examples=150, deadline=None)
@given(VALUES, st.booleans())
def test_what_is_read_and_written_again_is_the_same(value: Any, is_ascii: bool) -> None:
    text = json.dumps([value], ensure_ascii=is_ascii)
    again = run("return alc.json_encode(alc.json_decode(ctx.text))", {"text": text})
    assert type_tree(json.loads(again)) == type_tree([value])


def test_numbers_are_written_as_the_server_of_algocline_writes_them() -> None:
    """Without an exponent from 0.00001 up to 1e16, with the fewest digits."""
    wanted = {
        "1e14": "100000000000000.0",
        "1e15": "1000000000000000.0",
        "-1e15": "-1000000000000000.0",
        "1.5e15": "1500000000000000.0",
        "1e15 + 0.5": "1000000000000000.5",
        "2^53": "9007199254740992.0",
        "1e16": "1e+16",
        "1.5e300": "1.5e+300",
        "1e100": "1e+100",
        "1e-4": "0.0001",
        "1e-5": "0.00001",
        "0.00001234": "0.00001234",
        "1e-6": "1e-6",
        "1.25e-7": "1.25e-7",
        "5e-324": "5e-324",
        "0.1": "0.1",
        "1/3": "0.3333333333333333",
        "-0.0": "-0.0",
        "3.0": "3.0",
        "3": "3",
        "1/0": "null",
    }
    code = f"return {{{', '.join(f'alc.json_encode({{{number}}})' for number in wanted)}}}"
    assert run(code) == [f"[{text}]" for text in wanted.values()]


def test_what_is_wrong_is_still_found_where_it_is() -> None:
    """Escapes, control characters, numbers: the fast ways leave them to the slow one."""
    code = """
      local said = {}
      for _, text in ipairs({'["a\\\\x"]', '["a\\n\\\\n"]', '["a\\\\"]', '[1.5, 01.5]', '[1.5, 1.]', '[1.5, -]', '["\\\\u12"]'}) do
        said[#said + 1] = (pcall(alc.json_decode, text))
      end
      return said"""  # noqa: E501
    assert run(code) == [False] * 7


def test_a_failure_leaves_the_time_limit_as_it_is() -> None:
    """Encoding runs aside; after an error in it the program is still stopped when it spins."""
    code = """
      for i = 1, 3 do
        pcall(alc.json_encode, {print})
        pcall(alc.json_decode, '[1,')
        pcall(alc.json_decode, '["\\\\q"]')
      end
      while true do end"""
    outcome = run_outcome(code)
    assert outcome.kind == "spinning"


def test_long_work_is_stopped_on_the_way() -> None:
    """A value that holds itself again and again, and a text that fills no memory."""
    write = "local t = {} for i = 1, 100 do t = {t, t} end alc.json_encode(t)"
    read = """alc.json_decode('{' .. ('"a":0,'):rep(1000000) .. '"a":1}')"""
    for code in (write, read):
        life = Life(f"pcall(function() {code} end)", cpu=0.05, memory=2**31)
        life.step()
        assert life.outcome.kind == "spinning", code


def run_outcome(code: str) -> Any:
    life = Life(code, cpu=0.3)
    life.step()
    return life.outcome
