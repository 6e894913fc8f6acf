"""Walks through tables that change between walks, and on the way: the order is that of a model in
Python, whatever the table went through before.
"""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.programs.lua.life import run

Key = int | float | str | bool
Change = tuple[Key, bool]  # a key, and whether it is set; otherwise it is removed

#: Few names and small numbers, so that keys meet again; floats are never whole.
KEYS = (
    st.integers(-2, 40)
    | st.sampled_from(["a", "b", "aa", "B", "1", "z", "ä"])
    | st.sampled_from([0.5, 2.5, -1.5])
    | st.booleans()
)
LISTS = st.integers(0, 40).map(lambda n: [(i, True) for i in range(1, n + 1)])
CHANGES = st.lists(st.tuples(KEYS, st.booleans()), max_size=12)
#: For a walk: the keys that each visited key removes.
REMOVALS = st.lists(st.tuples(KEYS, KEYS), max_size=4)


def in_lua(key: Key) -> str:
    return json.dumps(key, ensure_ascii=False)


def tag(key: Key) -> tuple[str, Key]:
    """In Python, 1 and True are the same key."""
    return type(key).__name__, key


class Model:
    def __init__(self) -> None:
        self.keys: dict[tuple[str, Key], Key] = {}

    def change(self, changes: list[Change]) -> None:
        for key, is_set in changes:
            if is_set:
                self.keys[tag(key)] = key
            else:
                self.keys.pop(tag(key), None)

    def order(self) -> list[Key]:
        n = 0
        while tag(n + 1) in self.keys:
            n += 1
        first = list(range(1, n + 1))
        rest: list[Any] = [key for key in self.keys.values() if key not in first or key is True]
        numbers = sorted(key for key in rest if type(key) in (int, float))
        texts = sorted((key for key in rest if type(key) is str), key=str.encode)
        return [*first, *numbers, *texts, *(key for key in (False, True) if tag(key) in self.keys)]

    def walk(self, removals: list[tuple[Key, Key]]) -> list[Key]:
        seen = []
        for key in self.order():
            if tag(key) in self.keys:
                seen.append(key)
                self.change([(gone, False) for at, gone in removals if tag(at) == tag(key)])
        return seen


def show(key: Key) -> str:
    return f"{type(key).__name__[0]}:{json.dumps(key, ensure_ascii=False)}"


HEAD = """
local t, seen, gone = {}, {}, {}
local function show(k)
  local kind = math.type(k) or type(k)
  local first = ({integer = 'i', float = 'f', string = 's', boolean = 'b'})[kind]
  return first .. ':' .. (kind == 'string' and '"' .. k .. '"' or tostring(k))
end
"""
WALK = """
for k, v in %s do
  seen[#seen + 1] = show(k)
  if v ~= true then error('a wrong value') end
  for _, other in ipairs(gone[k] or {}) do t[other] = nil end
end
seen[#seen + 1] = 'end'
"""


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(LISTS | CHANGES, REMOVALS, st.booleans()), min_size=1, max_size=6),
    st.sampled_from(["pairs(t)", "next, t"]),
)
def test_walks_are_those_of_the_model(
    rounds: list[tuple[list[Change], list[tuple[Key, Key]], bool]], how: str
) -> None:
    """Sets, removals, lists that grow and shrink, twice through the same table, and keys that are
    removed on the way.
    """
    model, code, wanted = Model(), [HEAD], []
    for changes, removals, again in rounds:
        model.change(changes)
        for key, is_set in changes:
            code.append(f"t[{in_lua(key)}] = {'true' if is_set else 'nil'}")
        for _ in range(2 if again else 1):
            code.append("gone = {}")
            for at, key in removals:
                code.append(f"gone[{in_lua(at)}] = gone[{in_lua(at)}] or {{}}")
                code.append(f"table.insert(gone[{in_lua(at)}], {in_lua(key)})")
            code.append(WALK % how)
            wanted += [*map(show, model.walk(removals)), "end"]
    assert run("\n".join(code) + "\nreturn seen") == wanted


def test_a_list_that_becomes_something_else_is_gone_through_whole() -> None:
    """A long list is gone through in a fast way; names, gaps and other numbers end that."""
    code = """
      local t, said = {}, {}
      local function walk()
        local s, n = {}, 0
        for k in pairs(t) do n = n + 1 if type(k) ~= 'number' or k < 1 or k > 20 then s[#s + 1] = tostring(k) end end
        said[#said + 1] = n .. ':' .. table.concat(s, ' ')
      end
      for i = 1, 20 do t[i] = i end
      walk() walk()
      t.b = 1 walk() t.a = 1 walk() t.b, t.a = nil, nil walk()
      t[0] = 1 walk() t[0] = nil t[30] = 1 walk() t[7] = nil walk()
      t[30], t[7] = nil, 7 walk() walk()
      for i = 5, 20 do t[i] = nil end for i = 1, 9 do t['k' .. i] = 1 end walk()
      for i = 5, 20 do t[i] = i end walk()
      return said"""  # noqa: E501
    names = " ".join(f"k{i}" for i in range(1, 10))
    assert run(code) == [
        *["20:", "20:", "21:b", "22:a b", "20:", "21:0", "21:30", "20:30", "20:", "20:"],
        f"13:{names}",
        f"29:{names}",
    ]


def test_a_list_that_grows_on_the_way_is_the_same_in_every_process() -> None:
    """New numbers behind the end are visited, new names are not."""
    code = """
      local t, s = {}, {}
      for i = 1, 10 do t[i] = i end
      for _ in pairs(t) do end
      for k in pairs(t) do s[#s + 1] = k if k < 15 then t[#t + 1] = 0 t['n' .. k] = 1 end end
      return {#s, s[#s], math.type(s[#s])}"""
    assert run(code) == [24, 24, "integer"]


def test_what_a_list_was_before_does_not_show_when_it_grows_on_the_way() -> None:
    """How much room Lua has in a table depends on hashes, which differ in each state: names that
    come and go leave other room each time.
    """
    code = """
      local said = {}
      for round = 1, 12 do
        local t, s = {}, {}
        for i = 1, round * 3 do t['n' .. i * round] = 1 if i % 4 == 0 then t['n' .. (i - 1) * round] = nil end end
        for name in pairs(t) do t[name] = nil end
        for i = 1, 4 + round do t[i] = i end
        if round % 2 == 0 then for _ in pairs(t) do end end
        for k in pairs(t) do s[#s + 1] = k if k < 20 then t[#t + 1] = 0 t['new' .. k] = 1 end end
        said[round] = table.concat(s, ' ')
      end
      return said"""  # noqa: E501
    wanted = [" ".join(str(k) for k in range(1, 4 + round + 19 + 1)) for round in range(1, 13)]
    for _ in range(5):
        assert run(code) == wanted


def test_two_walks_in_each_other_see_what_the_inner_one_removes() -> None:
    code = """
      local t, s = {}, {}
      for i = 1, 12 do t[i] = i end
      for _ in pairs(t) do end
      for k in pairs(t) do
        s[#s + 1] = k
        for j in pairs(t) do if j > k and j % 2 == 0 then t[j] = nil end end
      end
      return s"""
    assert run(code) == [1, 3, 5, 7, 9, 11]


def test_the_stored_orders_are_bounded() -> None:
    """A hundred thousand keys of other tables change no order, and do not fill the memory."""
    code = """
      local function keys(t) local s = {} for k in pairs(t) do s[#s + 1] = k end return table.concat(s, ' ') end
      local first = keys({c = 1, a = 2, b = 3})
      for r = 1, 100 do
        local t = {} for i = 1, 1000 do t['r' .. r .. ' ' .. i] = 1 end
        keys(t)
      end
      return {first, keys({c = 1, a = 2, b = 3})}"""  # noqa: E501
    assert run(code, memory=2**23) == ["a b c", "a b c"]
