"""The same program asks the same in every process: keys in order, dice from the seed, no address
anywhere.
"""

# ruff: noqa: E501

import json
import os
import subprocess
import sys
from pathlib import Path
from time import process_time

import pytest

from tests.unit.programs.lua.life import run

ORDERS = [
    ("{c = 1, a = 2, b = 3}", "a b c"),
    ("{3, 2, 1, z = 0, y = 0}", "1 2 3 y z"),
    ("{[3] = 1, [1] = 1, [2] = 1}", "1 2 3"),
    ("{[10] = 1, [9] = 1, [0] = 1, [-1] = 1}", "-1 0 9 10"),
    (
        "{[1] = 1, [3] = 1, [2.5] = 1, x = 1, [0] = 1, [true] = 1, [false] = 1}",
        "1 0 2.5 3 x false true",
    ),
    ("{B = 1, a = 1, ['ä'] = 1, ['1'] = 1}", "1 B a ä"),
    ("{}", ""),
    ('alc.json_decode(\'{"b": 1, "a": {"d": 1}}\')', "a b"),
]


@pytest.mark.parametrize(("table", "keys"), ORDERS)
def test_pairs_goes_through_keys_in_order(table: str, keys: str) -> None:
    code = (
        f"local s = {{}} for k in pairs({table}) do s[#s + 1] = tostring(k) end return"
        " table.concat(s, ' ')"
    )
    assert run(code) == keys


@pytest.mark.parametrize(("table", "keys"), ORDERS)
def test_so_does_next(table: str, keys: str) -> None:
    code = f"""local t, s = {table}, {{}}
      local k = next(t)
      while k ~= nil do s[#s + 1] = tostring(k) k = next(t, k) end
      return table.concat(s, ' ')"""
    assert run(code) == keys


@pytest.mark.parametrize(("table", "keys"), ORDERS)
def test_and_a_for_with_next_that_clears_what_it_has_seen(table: str, keys: str) -> None:
    code = f"""local t, s = {table}, {{}}
      for k in next, t do s[#s + 1] = tostring(k) t[k] = nil end
      return {{table.concat(s, ' '), next(t) == nil}}"""
    assert run(code) == [keys, True]


def test_a_key_that_goes_away_on_the_way_is_not_visited() -> None:
    code = (
        "local t, s = {a = 1, b = 2, c = 3}, '' for k in pairs(t) do s = s .. k t.b = nil end"
        " return s"
    )
    assert run(code) == "ac"


def test_no_table_is_weak() -> None:
    """When a weak table loses its entries depends on the memory in use, which differs on replay."""
    code = """
      local keys, values = setmetatable({}, {__mode = 'k'}), setmetatable({}, {__mode = 'v'})
      for i = 1, 50 do keys[{}] = i values[i] = {} end
      for i = 1, 2000 do local junk = {('x'):rep(i) .. i} end
      local n, m = 0, 0
      for _ in pairs(keys) do n = n + 1 end
      for _ in pairs(values) do m = m + 1 end
      return {n, m}"""
    assert run(code) == [50, 50]


def test_values_may_change_on_the_way() -> None:
    code = (
        "local t, s = {a = 1, b = 2}, 0 for k, v in pairs(t) do t[k] = v * 10 t.b = 5 s = s +"
        " v end return {s, t.a, t.b}"
    )
    assert run(code) == [6, 10, 5]


def test_two_may_go_through_a_table_at_once() -> None:
    code = """local t, s = {a = 1, b = 2}, ''
      local k = next(t)
      while k do local j = next(t) while j do s = s .. k .. j .. ' ' j = next(t, j) end k = next(t, k) end
      return s"""
    assert run(code) == "aa ab ba bb "


def test_what_is_cleared_on_the_way_hides_nothing() -> None:
    code = """local t, s = {1, 2, 3, 4, [-1] = 5, [2.5] = 6, z = 7}, {}
      for k in next, t do s[#s + 1] = tostring(k) if k == 2 or k == 3 then t[k] = nil end end
      return table.concat(s, ' ')"""
    assert run(code) == "1 2 3 4 -1 2.5 z"


def test_a_new_walk_sees_new_keys() -> None:
    code = "local t = {b = 1} local k = next(t) t.a = 1 return {k, next(t), next(t, 'a')}"
    assert run(code)[:2] == ["b", "a"]


def test_a_long_table_is_gone_through_in_linear_time() -> None:
    code = """local t = {} for i = 1, 20000 do t['k' .. i] = i end
      local n = 0 local k, v = next(t) while k do n = n + 1 k, v = next(t, k) end
      for _ in pairs(t) do n = n + 1 end
      for i = 1, 20000 do if next(t) == nil then return 0 end t[i] = i end
      return n"""
    assert run(code, cpu=20.0) == 40000


def test_whether_a_table_is_empty_is_known_without_the_order_of_its_keys() -> None:
    """`while next(t) do` is how sets are used up: a look takes less than half of what the order of
    the keys takes.
    """

    def seconds(look: str) -> float:
        before = process_time()
        code = (
            f"local t = {{}} for i = 1, 500 do t['k' .. i] = i end for i = 1, 500 do {look}"
            " end return t.k1"
        )
        assert run(code, cpu=20.0) == 1
        return process_time() - before

    other = "if i < 500 then t['k' .. 501 - i] = nil end"  # so that no stored order fits
    looked, ordered = (
        f"{other} if next(t) == nil then return end",
        f"{other} for _ in pairs(t) do break end",
    )
    # side by side: a machine has slow moments
    assert any(seconds(looked) < seconds(ordered) / 2 for _ in range(5))


def test_a_set_is_used_up_from_its_first_key_on() -> None:
    code = """local t, n = {}, 0 for i = 1, 300 do t['k' .. i] = i end
      while next(t) do t[next(t)] = nil n = n + 1 end
      return n"""
    assert run(code) == 300


def test_keys_without_an_order_are_all_visited_while_they_are_cleared() -> None:
    code = """local t, n = {}, 0 for i = 1, 10 do t[{}] = i end t[print] = 11
      for k in next, t do t[k] = nil n = n + 1 end
      return {n, next(t) == nil}"""
    assert run(code) == [11, True]


def test_an_abandoned_walk_does_not_hide_what_came_later() -> None:
    code = """local t = {b = 1, d = 2} next(t, next(t)) t.c = 3 t.a = 4
      local s = '' for k in next, t do s = s .. k end
      return s"""
    assert run(code) == "abcd"


@pytest.mark.parametrize(
    "table", ["{3, 1, 2}", "{b = 1, a = 2, c = 3}", "{7, 8, x = 9}", "{}", "{[0] = 1, [-1] = 2}"]
)
def test_what_pairs_returns_may_be_called_by_hand(table: str) -> None:
    """Twice, because the second walk through the same keys takes another way."""
    code = f"""local t, said = {table}, {{}}
      for round = 1, 2 do
        local s, f, state, k, v = '', pairs(t)
        repeat
          k, v = f(state, k)
          s = s .. tostring(k) .. tostring(v) .. ' '
        until k == nil
        local wanted = ''
        for key, value in pairs(t) do wanted = wanted .. tostring(key) .. tostring(value) .. ' ' end
        said[round] = s == wanted .. 'nilnil ' and state == t
      end
      return said"""
    assert run(code) == [True, True]


def test_two_loops_through_tables_with_the_same_names_do_not_mix() -> None:
    code = """local function new() return {b = 1, a = 2, c = 3} end
      for _ in pairs(new()) do end
      local s = ''
      for k in pairs(new()) do
        local t = new() t.b = nil
        s = s .. k for j in pairs(new()) do s = s .. j end for j in pairs(t) do s = s .. j end
      end
      return s"""
    assert run(code) == "aabcacbabcaccabcac"


def test_ipairs_reads_from_an_index_that_the_table_gets_on_the_way() -> None:
    code = """local t, s = {1, 2}, 0
      local more = {__index = function(_, i) if i < 6 then return i end end}
      for i, v in ipairs(t) do s = s + v setmetatable(t, more) end
      return s"""
    assert run(code) == 15


def test_a_query_there_is_refused() -> None:
    """C goes through the plain table that it was at first, and no query can pass C."""
    code = """local t = {1}
      local more = {__index = function() return alc.llm('?') end}
      return {pcall(function() for _ in ipairs(t) do setmetatable(t, more) end end)}"""
    assert run(code) == [False, "attempt to yield across a C-call boundary"]


def test_objects_are_numbered_in_the_order_of_asking() -> None:
    code = (
        "local a, b = {}, function() end return {tostring(b), tostring(a), tostring(b),"
        " tostring(alc.null)}"
    )
    assert run(code) == [
        "function: 0x000000000010",
        "table: 0x000000000020",
        "function: 0x000000000010",
        "null",
    ]


@pytest.mark.parametrize("template", ["%p", "%-20p", "%%%p", "%5.3p"])
def test_an_address_cannot_be_asked_for(template: str) -> None:
    ok, said = run(f"return {{pcall(string.format, '{template}', {{}})}}")
    assert not ok and "an address would differ" in said


PROGRAM = """
local seen = {}
for k, v in pairs({delta = 1, alpha = 2, charlie = 3, bravo = 4, [7] = 5, [2.5] = 6, [true] = 7}) do
  seen[#seen + 1] = tostring(k) .. v
end
alc.llm(table.concat(seen, ','))
alc.llm(alc.json_encode({z = 1, y = {x = 2, w = 3}}))
alc.llm(tostring(math.random(1e9)) .. ' ' .. os.time() .. ' ' .. os.date() .. ' ' .. os.clock() .. ' ' .. tostring({}))
local words = {}
for w in ('the quick brown fox jumps over the lazy dog'):gmatch('%a+') do words[w] = (words[w] or 0) + 1 end
for w, n in pairs(words) do alc.llm(w .. n) end
local t = {}
for i = 1, 500 do t[i] = {i % 7, i} end
table.sort(t, function(a, b) return a[1] < b[1] end)
alc.llm(t[1][2] .. ' ' .. t[250][2] .. ' ' .. t[500][2])
for k in next, {q = 1, p = 2, o = 3} do alc.llm(k) end
alc.llm(string.format('%s', print) .. collectgarbage('count'))
return alc.fork({'child', 'child'}, {})
"""

DRIVER = """
import json, sys
from tests.unit.programs.lua.life import Life
life = Life(sys.stdin.read(), roots=[sys.argv[1]])
value = life.finish()
print(json.dumps([[(query.key, query.prompt) for query in life.asked], value]))
"""


@pytest.mark.process
def test_processes_with_other_hash_seeds_ask_the_same(tmp_path: Path) -> None:
    (tmp_path / "child.lua").write_text(
        "return {run = function() local s = '' for k in pairs({x = 1, y = 2, z = 3}) do s = s .."
        " k end"
        " return alc.llm(s .. math.random(1e9)) end}"
    )
    told = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(tmp_path)],
            input=PROGRAM,
            env=dict(os.environ, PYTHONHASHSEED=seed, TZ=f"UTC{seed[0]}"),
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[4],
        )
        told.add(done.stdout)
    assert len(told) == 1
    asked, value = json.loads(told.pop())
    assert asked[0] == ["0:0", "2.56,75,alpha2,bravo4,charlie3,delta1,true7"]
    assert [key for key, _ in asked[-2:]] == ["0.0:0", "0.1:0"]
    assert value[0]["result"] != value[1]["result"], "each child has dice of its own"
