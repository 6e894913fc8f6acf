"""What the sandbox puts in the place of Lua's own functions does what they do: each is compared
with plain Lua 5.4.
"""

# ruff: noqa: E501

import functools
import json
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everhold.errors import EverholdError
from everhold.programs.lua import vm
from everhold.programs.lua.vm import LuaVm, make_vm_opening
from tests.unit.programs.lua.life import run

_SHOW = """
local function show(v)
  if type(v) ~= 'table' then return type(v) .. ':' .. tostring(v) end
  local out = {}
  for i = 1, #v do out[i] = show(v[i]) end
  return '{' .. table.concat(out, ' ') .. '}'
end
local r = table.pack(pcall(function(...) %s
end, ...))
for i = 1, r.n do r[i] = show(r[i]) end
return table.concat(r, ' ')
"""


@functools.cache
def bare() -> Any:
    from lupa.lua54 import LuaRuntime

    return LuaRuntime(encoding="latin-1", register_eval=False)


def plain(code: str) -> str:
    """What plain Lua comes to: the values, or the error."""
    load = bare().eval("function(code) return load(code, '=code') end")
    return str(load(_SHOW % code)())


def ours(code: str) -> str:
    vm = LuaVm()
    begun = make_vm_opening(0.0, b"text", b"code", (_SHOW % code).encode("latin-1"), b"=code", None)
    came = vm.go(0.0, 5.0, *begun)
    assert came[1] == b"done", came
    return str(json.loads(came[2]))


SAME = [
    # gsub with what C would call
    "return ('hello world'):gsub('o', function(c) return c:upper() end)",
    "return ('hello'):gsub('', function() return '-' end)",
    "return ('hello'):gsub('x*', function(m) return '<' .. m .. '>' end)",
    "return ('abc'):gsub('^a', function() return 'X' end)",
    "return ('aaa'):gsub('^a', function() return 'X' end)",
    "return ('hello'):gsub('l', function() end)",
    "return ('hello'):gsub('l', function() return false end)",
    "return ('hello'):gsub('l', function() return 1 end)",
    "return ('hello'):gsub('l', function() return 1.5 end, 1)",
    "return ('hello'):gsub('l', function() return 'L' end, 0)",
    "return ('hello'):gsub('l', function() return 'L' end, -1)",
    "return ('key=val'):gsub('(%w+)=(%w+)', function(k, v) return v .. '=' .. k end)",
    "return ('abc'):gsub('()b()', function(a, b) return a .. '-' .. b end)",
    "return ('abc def'):gsub('%f[%w]%w+', function(w) return '[' .. w .. ']' end)",
    "return ('THE (quick) fox'):gsub('%b()', function(w) return #w end)",
    "return ('abc'):gsub('%w', '%0%0')",
    "return ('abc'):gsub('(a)(b)', '%2%1')",
    "return ('abc'):gsub('b', {b = 'X'})",
    "return ('abc'):gsub('%w', setmetatable({}, {__index = function(_, k) return k .. '.' end}))",
    "return ('abc'):gsub('%w', setmetatable({a = 1}, {}))",
    "return ('a.b'):gsub('%.', '%%')",
    "return string.gsub(123, '2', function(c) return '<' .. c .. '>' end)",
    "return ('x'):gsub('x', function() return {} end)",
    "return ('x'):gsub('(', function() end)",
    "return ('x'):gsub('[', function() end)",
    "return ('x'):gsub('%', function() end)",
    "return ('x'):gsub('x', '%2')",
    "return string.gsub('x', 'x', nil)",
    "return string.gsub(nil, 'x', 'y')",
    "return string.gsub('x', 'x', function() error({}) end) == nil",
    "return ('abc'):gsub('b', function() error('inside', 0) end)",
    # sort
    "local t = {3, 1, 2} table.sort(t) return t",
    "local t = {'b', 'a', 'C'} table.sort(t) return t",
    "local t = {3, 1, 2} table.sort(t, function(a, b) return a > b end) return t",
    "local t = {1.5, 1, 0.5} table.sort(t) return t",
    "local t = {} for i = 1, 300 do t[i] = (i * 7919) % 1009 end table.sort(t, function(a, b)"
    " return a < b end) return t",
    "table.sort({1, 'x'})",
    "table.sort({1, 'x', 2}, nil)",
    "table.sort({{}, {}})",
    "table.sort({1, 2}, 3)",
    "table.sort(nil)",
    "local t = {2, 1} table.sort(t, function() error('no', 0) end)",
    "local t = {} table.sort(t) return t",
    # the rest of table
    "return table.concat({1, 2.5, 'x'}, ', ')",
    "return table.concat({1, 2, 3}, ',', 2)",
    "return table.concat({1, 2, 3}, ',', 2, 3)",
    "return table.concat({})",
    "return table.concat({1, {}, 3})",
    "return table.concat(nil)",
    "return table.concat(setmetatable({}, {__len = function() return 1 end, __index = function()"
    " return {} end}))",
    "local t = {1, 2} table.insert(t, 3) table.insert(t, 1, 0) return t",
    "table.insert({1}, 5, 2)",
    "table.insert({1}, 1, 2, 3)",
    "table.insert(nil, 1)",
    "table.insert({})",
    "local t = {1, 2, 3} return table.remove(t), table.remove(t, 1), t",
    "return table.remove({})",
    "return table.remove({1, 2}, 9)",
    "return table.unpack({1, 2, 3})",
    "return table.unpack({1, 2, 3}, 2)",
    "return table.unpack({1, nil, 3}, 1, 3)",
    "return table.unpack({}, 1, 1e8)",
    "return table.move({1, 2, 3}, 1, 3, 2)",
    "return table.move({1, 2, 3}, 2, 3, 1)",
    "return table.move({1, 2, 3}, 1, 3, 1, {9})",
    "return table.move({1}, 1, 0, 5)",
    "return table.move({1}, 'x', 0, 5)",
    "return table.pack(1, nil, 3).n, select('#', table.unpack({n = 3}, 1, 3))",
    "local t = setmetatable({1, 2, 3}, {}) table.insert(t, 4 / 2, 'x') table.insert(t, '1', 'y')"
    " return t",
    "local t = setmetatable({1, 2, 3}, {}) table.insert(t, 1.5, 'x')",
    "local t = setmetatable({1, 2, 3}, {}) table.insert(t, 'x', 'x')",
    "local t = setmetatable({1, 2, 3}, {}) table.insert(t, nil, 'x')",
    "local t = setmetatable({1, 2, 3}, {}) return table.remove(t, 2.0), table.remove(t, nil),"
    " table.remove(t, '1'), t",
    "local t = setmetatable({1, 2, 3}, {}) local x = table.remove(t, 2.5)",
    "local t = setmetatable({1, 2, 3}, {}) return table.concat(t, ',', 2.0, '3')",
    "local t = setmetatable({1, 2, 3}, {}) local x = table.concat(t, ',', 2.5)",
    "local t = setmetatable({1, 2, 3}, {}) return table.unpack(t, '2', 3.0)",
    "local t = setmetatable({1, 2, 3}, {}) local x = table.unpack(t, 'x')",
    "return table.move({1, 2, 3}, 1.0, '3', 2)",
    "local x = table.move({1, 2, 3}, 1, 3, 1.5)",
    "local x = table.move({1, 2, 3}, 1, 3, 1, 5)",
    "local x = table.move(nil, 1, 3, 1)",
    # tostring and format
    "return tostring(nil), tostring(true), tostring(1), tostring(1.0), tostring('x'),"
    " tostring(-0.0), tostring(1e100)",
    "return tostring(setmetatable({}, {__tostring = function() return 'me' end}))",
    "return tostring(setmetatable({}, {__tostring = function() return 5 end}))",
    "return tostring(setmetatable({}, {__tostring = function() return {} end}))",
    "return (tostring(setmetatable({}, {__name = 'Thing'})):gsub(': .*', ''))",
    "return (tostring({}):gsub('%x%x+', '')), (tostring(print):gsub('%x%x+', ''))",
    "return tostring()",
    "return ('%d %s %5.2f %q %x %5s|%-5s|'):format(1, 'a', 2.5, 'q\"', 255, 'r', 'l')",
    "return ('%s %s'):format(nil, true)",
    "return ('%d%%passed, %5.1f%% p'):format(5, 2.5)",
    "return ('%%%%%%p'):format()",
    "return string.format('%d', 'x')",
    "return string.format('%d', 1.5)",
    "return ('%y'):format(1)",
    "return string.format('%s')",
    "return string.format('%d', {})",
    "return string.format('%d', setmetatable({}, {__tostring = function() return '7' end}))",
    "return string.format('%s %d', setmetatable({}, {__tostring = function() return '7' end}), 8)",
    "return string.format('%q', print)",
    "return string.format({})",
    "return ('x'):rep(3), ('x'):rep(3, ','), ('x'):rep(0), ('x'):rep(-1), (''):rep(1e8),"
    " ('ab'):rep(1)",
    "return ('x'):rep(1e15)",
    "return string.rep('x', {})",
    # pairs, next, ipairs
    "local n = 0 for k, v in pairs({1, 2, 3, x = 4}) do n = n + v end return n",
    "local t = {a = 1, b = 2, c = 3} for k in pairs(t) do t[k] = nil end return next(t)",
    "local t = {1, 2, 3} for k in pairs(t) do t[k] = nil end return next(t)",
    "return next({}), next({5}), next({x = 1})",
    "local t, n = {1, 2, x = 3, [1.5] = 4, [true] = 5}, 0 local k, v = next(t) while k ~= nil do"
    " n = n + v k, v = next(t, k) end return n",
    "local t, n = {a = 1, b = 2, c = 3}, 0 local k, v = next(t) while k do n = n + v t[k] = nil"
    " k, v = next(t, k) end return n",
    "for k, v in pairs(nil) do end",
    "return next(nil)",
    "for i, c in ipairs('abc') do return i end",
    "local s = '' for k, v in pairs(setmetatable({}, {__pairs = function(t) return function(_,"
    " k) if not k then return 1, 2 end end, t, nil end})) do s = s .. k .. v end return s",
    "local s = 0 for _, v in ipairs({1, 2, nil, 4}) do s = s + v end return s",
    # pcall and xpcall
    "return pcall(error, 'x')",
    "return pcall(error)",
    "return pcall(error, nil)",
    "return pcall(error, 'x', 0)",
    "return pcall(1)",
    "return pcall(function(...) return ... end, 1, nil, 3)",
    "return xpcall(error, function(e) return 'h:' .. e end, 'x', 0)",
    "return xpcall(function(a, b) return a + b end, print, 1, 2)",
    "return xpcall(function() end, nil)",
    "return xpcall(error, function(...) return select('#', ...), ... end, 'z')",
    "return select('#', pcall(error))",
    "local ok, e = pcall(error, {code = 5}) return ok, e.code",
    # coroutines
    "return coroutine.resume(coroutine.create(function(...) return ... end), 1, 2)",
    "return coroutine.resume(coroutine.create(function() error('x', 0) end))",
    "return coroutine.resume(coroutine.create(function() error({}) end)) == false",
    "return coroutine.wrap(function() error('x', 0) end)()",
    "return select('#', coroutine.wrap(function() coroutine.yield() end)())",
    "local f = coroutine.wrap(function() return 1 end) f() return f()",
    "return coroutine.create(1)",
    "local f = coroutine.wrap(1)",
    "local co = coroutine.create(function() end) return coroutine.isyieldable(),"
    " coroutine.isyieldable(co)",
    "return coroutine.wrap(function() return coroutine.isyieldable() end)()",
    "return coroutine.resume(1)",
    "return coroutine.close(1)",
    "local co co = coroutine.create(function() return coroutine.status(co) end) return"
    " coroutine.resume(co)",
    "local co co = coroutine.create(function() return coroutine.resume(co) end) return"
    " coroutine.resume(co)",
    "local co = coroutine.create(function() coroutine.yield(1) end) coroutine.resume(co) return"
    " coroutine.close(co), coroutine.status(co)",
    "return coroutine.close(coroutine.create(function() end))",
    "local co = coroutine.create(function() local x <close> = setmetatable({}, {__close ="
    " function() error('c', 0) end}) coroutine.yield() end) coroutine.resume(co) return"
    " coroutine.close(co)",
    "return coroutine.wrap(function() return pcall(coroutine.yield, 1) end)()",
    # metatables
    "return getmetatable(setmetatable({}, {__metatable = 'm'}))",
    "setmetatable(setmetatable({}, {__metatable = 1}), {})",
    "setmetatable(1, {})",
    "return setmetatable({}, nil) ~= nil",
    "return setmetatable({}, {__index = {x = 1}}).x",
    # arithmetic on text
    "return '10' + 5, '3' * '4', 10 .. '', '0x10' + 0, -'2', '7' // 2, '7' % 4, '2' ^ 2",
    "return 'x' + 1",
    "return '1' + {}",
    "return -'x'",
    # load
    "return load('return 1 + 1')()",
    "return load('x =')",
    "return load('return ...', 'name')(7)",
    "return load('error(\"x\")', '=name')()",
    "return load('return x', 'n', 't', {x = 3})()",
    "return load(function() return nil end) ~= nil",
    "return load(function() return {} end)",
    "return load(function() error('inside', 0) end)",
    "local ok, e = load(function() error({code = 5}) end) return ok, e.code",
    "return load('return 1', 'n', 'b')",
    "local parts, i = {'return ', '42'}, 0 return load(function() i = i + 1 return parts[i] end)()",
    # os
    "return os.time({year = 2024, month = 2, day = 29, hour = 12, min = 30, sec = 15}) -"
    " os.time({year = 2024, month = 1, day = 1})",
    "return os.time({year = 2024, month = 14, day = -3}) - os.time({year = 2025, month = 2, day"
    " = 1})",
    "return os.time({year = 2024, month = 1})",
    "local t = {year = 2024, month = 14, day = 35, hour = 25, min = 61, sec = 61} os.time(t)"
    " return t.year, t.month, t.day, t.hour, t.min, t.sec, t.wday, t.yday",
    "return os.time({year = 2024, month = 1, day = 1.5})",
    "return os.date('!%Y-%m-%d %H:%M:%S', 1700000000), os.date('!*t', 0).year, os.date('!*t',"
    " 86400).yday",
    "return os.date('!%Ez', 0)",
    "return os.difftime(5, 3)",
]  # fmt: skip


@pytest.mark.parametrize("code", SAME)
def test_it_is_the_same_in_plain_lua(code: str) -> None:
    assert _unplaced(ours(code)) == _unplaced(plain(code))


def _unplaced(shown: str) -> str:
    """Without the line: a function of Lua that is called last has no caller, a function of C
    has.
    """
    return re.sub(r"code:\d+: ", "", shown)


_PIECES = st.lists(
    st.sampled_from(
        [
            "a",
            "b",
            ".",
            "%a",
            "%d",
            "[ab]",
            "[^a]",
            "(a)",
            "()",
            "%f[a]",
            "a*",
            "b-",
            "a?",
            ".-",
            "%%",
        ]
    ),
    max_size=4,
).map("".join)


@settings(deadline=None, max_examples=300)
@given(
    text=st.text("ab1 ", max_size=8),
    pattern=st.tuples(st.sampled_from(["", "^"]), _PIECES, st.sampled_from(["", "$"])).map("".join),
    most=st.sampled_from(["nil", "0", "1", "2"]),
)
def test_gsub_with_a_function_finds_what_gsub_finds(text: str, pattern: str, most: str) -> None:
    code = (
        f"return ({text!r}):gsub({pattern!r}, function(...) return '<' .."
        f" table.concat({{...}}, ',') .. '>' end, {most})"
    )
    assert _both_ours(code) == plain(code)


@functools.cache
def _kept() -> LuaVm:
    """One state for many examples: a program that runs what it is told."""
    vm = LuaVm()
    vm.go(
        0.0,
        5.0,
        *make_vm_opening(
            0.0,
            b"text",
            b"code",
            b"while true do load(alc.llm('next'), '=code')() end",
            b"=code",
            None,
        ),
    )
    return vm


def _both_ours(code: str) -> str:
    wrapped = (_SHOW % code).replace("return table.concat(r, ' ')", "alc.llm(table.concat(r, ' '))")
    came = _kept().go(0.0, 5.0, True, wrapped.encode("latin-1"))
    _kept().go(0.0, 5.0, True, b"")
    return bytes(came[2]).decode("latin-1")


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-20, 20), max_size=60))
def test_sort_sorts(numbers: list[int]) -> None:
    listed = "{" + ",".join(map(str, numbers)) + "}"
    code = (
        f"local t = {listed} table.sort(t, function(a, b) return a > b end) return"
        " table.concat(t, ' ')"
    )
    assert _both_ours(code) == "boolean:true string:" + " ".join(
        map(str, sorted(numbers, reverse=True))
    )


def test_sort_keeps_the_order_of_what_is_equal() -> None:
    code = """local t = {} for i = 1, 100 do t[i] = {i % 3, i} end
      table.sort(t, function(a, b) return a[1] < b[1] end)
      for i = 2, 100 do if t[i][1] == t[i-1][1] and t[i][2] < t[i-1][2] then return i end end return 0"""
    assert run(code) == 0


def test_an_order_that_is_none_does_no_harm() -> None:
    assert run("local t = {3, 1, 2} table.sort(t, function() return true end) return #t") == 3


def test_an_argument_is_blamed_on_the_line_of_the_program() -> None:
    with pytest.raises(AssertionError, match=r"code:2: bad argument #1 to 'insert'"):
        run("local x\ntable.insert(x, 1)")


def test_without_lua_there_is_one_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lupa.lua54", None)
    monkeypatch.setattr(vm, "_lua", vm._lua.__wrapped__)  # which is looked up once
    with pytest.raises(EverholdError) as refused:
        LuaVm()
    assert refused.value.hint == "pip install 'everhold[lua]'"
