"""A question can be asked from anywhere Lua code can stand."""

# ruff: noqa: E501

import pytest

from everhold.core.query import QueryAnswer
from tests.unit.programs.lua.life import Life, failure, package, run

PLACES = {
    "the top": ("return alc.llm('a')", "<a>"),
    "pcall": ("return {pcall(alc.llm, 'a')}", [True, "<a>"]),
    "pcall of a function that fails afterwards": (
        "local ok, e = pcall(function() local x = alc.llm('a') error(x, 0) end) return {ok, e}",
        [False, "<a>"],
    ),
    "xpcall": ("return {xpcall(function() return alc.llm('a') end, tostring)}", [True, "<a>"]),
    "the handler of xpcall": (
        "return {xpcall(error, function(e) return e .. alc.llm('a') end, 'x')}",
        [False, "x<a>"],
    ),
    "__index": ("return setmetatable({}, {__index = function(_, k) return alc.llm(k)"
                " end}).a", "<a>"),
    "__newindex": (
        "local got; setmetatable({}, {__newindex = function(_, k, v) got = alc.llm(v) end}).a ="
        " 'b' return got",
        "<b>",
    ),
    "__call": ("return setmetatable({}, {__call = function(_, x) return alc.llm(x)"
               " end})('a')", "<a>"),
    "__add": ("return setmetatable({}, {__add = function() return alc.llm('a') end}) + 1", "<a>"),
    "__add of the right operand": ("return 1 + setmetatable({}, {__add = function() return"
                                   " alc.llm('a') end})", "<a>"),
    "__add beside text": ("return '1' + setmetatable({}, {__add = function() return alc.llm('a')"
                          " end})", "<a>"),
    "__sub __mul __div": (
        """local m = {__sub = function() return alc.llm('s') end, __mul = function() return alc.llm('m') end,
           __div = function() return alc.llm('d') end}
           local o = setmetatable({}, m) return {o - 1, o * 1, o / 1}""",
        ["<s>", "<m>", "<d>"],
    ),
    "__unm __len __bnot": (
        """local m = {__unm = function() return alc.llm('u') end, __len = function() return alc.llm('l') end,
           __bnot = function() return alc.llm('b') end}
           local o = setmetatable({}, m) return {-o, #o, ~o}""",
        ["<u>", "<l>", "<b>"],
    ),
    "__concat": ("return 'x' .. setmetatable({}, {__concat = function(a) return a .."
                 " alc.llm('a') end})", "x<a>"),
    "__eq": (
        """local m = {__eq = function() return alc.llm('a') == '<a>' end}
           return setmetatable({}, m) == setmetatable({}, m)""",
        True,
    ),
    "__lt and __le": (
        """local m = {__lt = function() return alc.llm('a') == '<a>' end, __le = function() return alc.llm('b') == 'no' end}
           local a, b = setmetatable({}, m), setmetatable({}, m) return {a < b, a <= b}""",
        [True, False],
    ),
    "__close": (
        """local got
           do local x <close> = setmetatable({}, {__close = function() got = alc.llm('a') end}) end
           return got""",
        "<a>",
    ),
    "__close after an error": (
        """local got
           pcall(function()
             local x <close> = setmetatable({}, {__close = function() got = alc.llm('a') end})
             error('x')
           end)
           return got""",
        "<a>",
    ),
    "__tostring": ("return tostring(setmetatable({}, {__tostring = function() return"
                   " alc.llm('a') end}))", "<a>"),
    "__tostring in string.format": (
        "return ('%s!'):format(setmetatable({}, {__tostring = function() return alc.llm('a')"
        " end}))",
        "<a>!",
    ),
    "__tostring in print": (
        "print(setmetatable({}, {__tostring = function() return alc.llm('a') end})) return 1",
        1,
    ),
    "__pairs": (
        """local t = setmetatable({}, {__pairs = function(t) return alc.llm and next, {x = alc.llm('a')}, nil end})
           for k, v in pairs(t) do return k .. v end""",
        "x<a>",
    ),
    "__index in ipairs": (
        """local t = setmetatable({}, {__index = function(_, i) if i < 3 then return alc.llm(tostring(i)) end end})
           local out = {} for _, v in ipairs(t) do out[#out + 1] = v end return out""",
        ["<1>", "<2>"],
    ),
    "__index in table.concat": (
        """local t = setmetatable({}, {__len = function() return 2 end, __index = function(_, i) return alc.llm('q' .. i) end})
           return table.concat(t, ',')""",
        "<q1>,<q2>",
    ),
    "__index in table.unpack": (
        """local t = setmetatable({}, {__len = function() return 2 end, __index = function(_, i) return alc.llm('q' .. i) end})
           return {table.unpack(t)}""",
        ["<q1>", "<q2>"],
    ),
    "__newindex in table.insert and __index in table.remove": (
        """local kept = {}
           local t = setmetatable({}, {__len = function() return #kept end, __index = function(_, i) return kept[i] end,
             __newindex = function(_, i, v) kept[i] = v and alc.llm(v) end})
           table.insert(t, 'a') table.insert(t, 1, 'b')
           return {table.remove(t, 1), kept[1], kept[2] == nil}""",
        ["<b>", "<<<a>>>", True],
    ),
    "table.move": (
        """local t = table.move({'a', 'b'}, 1, 2, 1, setmetatable({}, {__newindex = function(t, i, v)
             rawset(t, i, alc.llm(v)) end}))
           return {t[1], t[2]}""",
        ["<a>", "<b>"],
    ),
    "a comparator of table.sort": (
        """local t = {'b', 'c', 'a'}
           table.sort(t, function(x, y) return alc.llm(x) < alc.llm(y) end) return t""",
        ["a", "b", "c"],
    ),
    "__lt in table.sort": (
        """local m = {__lt = function(x, y) return alc.llm(x.v) < alc.llm(y.v) end}
           local t = {}
           for i, v in ipairs({'b', 'a'}) do t[i] = setmetatable({v = v}, m) end
           table.sort(t) return {t[1].v, t[2].v}""",
        ["a", "b"],
    ),
    "a function of string.gsub": ("return (string.gsub('x-y', '%a', function(c) return"
                                  " alc.llm(c) end))", "<x>-<y>"),
    "a function of s:gsub": ("return (('x-y'):gsub('(%a)%-(%a)', function(a, b) return alc.llm(b"
                             " .. a) end))", "<yx>"),
    "__index of a table of gsub": (
        "return (('x'):gsub('%a', setmetatable({}, {__index = function(_, k) return alc.llm(k)"
        " end})))",
        "<x>",
    ),
    "a generic for": ("for x in function(_, last) if not last then return alc.llm('a') end end"
                      " do return x end", "<a>"),
    "a loop of gmatch": ("local s = '' for w in ('a b'):gmatch('%a') do s = s .. alc.llm(w) end"
                         " return s", "<a><b>"),
    "a loaded chunk": ("return load('return alc.llm(...)')('a')", "<a>"),
    "the reader of load": (
        """local done
           return load(function() if not done then done = true return 'return "' .. alc.llm('a') .. '"' end end)()""",
        "<a>",
    ),
    "a coroutine that is resumed": (
        "return {coroutine.resume(coroutine.create(function() return alc.llm('a') end))}",
        [True, "<a>"],
    ),
    "a coroutine that yields too": (
        """local co = coroutine.wrap(function() local x = alc.llm('a') coroutine.yield(x) coroutine.yield(alc.llm('b')) end)
           return {co(), co()}""",
        ["<a>", "<b>"],
    ),
    "coroutines in coroutines": (
        """local inner = function() coroutine.yield(alc.llm('a')) return alc.llm('b') end
           local outer = coroutine.wrap(function()
             local co = coroutine.wrap(inner)
             coroutine.yield(co() .. alc.llm('c')) coroutine.yield(co())
           end)
           return {outer(), outer()}""",
        ["<a><c>", "<b>"],
    ),
    "an iterator in a coroutine": (
        """local function each(t) return coroutine.wrap(function() for _, v in ipairs(t) do coroutine.yield(alc.llm(v)) end end) end
           local s = '' for v in each({'a', 'b'}) do s = s .. v end return s""",
        "<a><b>",
    ),
    "a sort in a gsub in a coroutine": (
        """return coroutine.wrap(function()
             return (('x'):gsub('x', function()
               local t = {2, 1} table.sort(t, function(a, b) return alc.llm('q') and a < b end) return t[1]
             end))
           end)()""",
        "1",
    ),
    "a tail call": ("return (function() return alc.llm('a') end)()", "<a>"),
    "goto and repeat": ("local n, s = 0, '' repeat n = n + 1 s = s .. alc.llm(tostring(n)) until"
                        " n == 2 return s", "<1><2>"),
    "a library function's callback": ("return alc.map({'a', 'b'}, function(x) return alc.llm(x)"
                                      " end)", ["<a>", "<b>"]),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_question_is_asked_and_answered(place: str) -> None:
    code, expected = PLACES[place]
    assert run(code) == expected


@pytest.mark.parametrize("place", PLACES)
def test_it_comes_back_by_replay_with_the_same_questions(place: str) -> None:
    code, _ = PLACES[place]
    life = Life(code)
    life.finish()
    again = Life(code)
    again.execution.replaying = True
    replies = [again.execution.advance(*given) for given in life.given]
    assert [reply.asked for reply in replies] == [reply.asked for reply in life.replies]
    assert replies[-1].outcome == life.outcome


def test_the_top_level_of_a_required_module_may_ask(tmp_path) -> None:
    package(tmp_path, "asks", "local M = {} M.said = alc.llm('at load') return M")
    assert run("return require('asks').said", roots=[tmp_path]) == "<at load>"


def test_an_error_of_the_answer_is_raised_where_it_was_asked() -> None:
    life = Life("local ok, e = pcall(alc.llm, 'a') return {ok, e}")
    life.step()
    life.step(QueryAnswer(0, error={"code": "x", "message": "the model is gone"}))
    assert life.outcome.value == [False, "the model is gone"]


def test_a_program_yields_to_itself_only() -> None:
    code = """local co = coroutine.create(function(a) local b = coroutine.yield(a + 1) return b * 2 end)
      local _, x = coroutine.resume(co, 1) local _, y = coroutine.resume(co, 10)
      return {x, y, coroutine.status(co), coroutine.resume(co)}"""
    assert run(code) == [2, 20, "dead", False, "cannot resume dead coroutine"]


def test_a_yield_outside_a_coroutine_is_an_error() -> None:
    assert failure("coroutine.yield(1)") == "attempt to yield from outside a coroutine"


def test_the_program_itself_looks_like_the_main_thread() -> None:
    code = (
        "local _, main = coroutine.running() return {main, coroutine.isyieldable(),"
        " coroutine.wrap(coroutine.isyieldable)()}"
    )
    assert run(code) == [True, False, True]


def test_a_wrapped_coroutine_passes_its_error_on_with_the_place_of_the_call() -> None:
    code = "local f = coroutine.wrap(function() error('x', 0) end)\nf()"
    assert failure(code) == "code:2: x"


def test_closing_a_coroutine_closes_what_is_open_in_it() -> None:
    code = """local log = {}
      local co = coroutine.create(function()
        local x <close> = setmetatable({}, {__close = function() log[#log + 1] = 'closed' end})
        coroutine.yield()
      end)
      coroutine.resume(co) local ok = coroutine.close(co) return {ok, log[1], coroutine.status(co)}"""
    assert run(code) == [True, "closed", "dead"]


@pytest.mark.parametrize(
    "act",
    [
        "print('x')",
        "for k in pairs({a = 1}) do end",
        "table.sort({2, 1})",
        "assert(tostring({}))",
        "alc.log('info', 'x')",
        "assert(alc.json_encode({1}) == '[1]')",
        "io.write('a')",
        "assert(('a'):gsub('a', function() return 'b' end) == 'b')",
        "assert('1' + 1 == 2)",
        "assert(load('return 1')() == 1)",
        "alc.stats.record('a', 1)",
    ],
)
@pytest.mark.parametrize("end", ["coroutine.yield() end", "error('x', 0) end"])
def test_what_a_coroutine_closes_has_the_whole_language(act: str, end: str) -> None:
    """Also what is loaded with its first use, though nobody can be asked from there."""
    code = f"""local done = false
      local f = function()
        local x <close> = setmetatable({{}}, {{__close = function() {act} done = true end}}) {end}
      local co = coroutine.create(f)
      coroutine.resume(co) coroutine.close(co)
      local closed, wrapped = done, coroutine.wrap(f)
      done = false pcall(wrapped) return {{closed, done}}"""
    assert run(code) == [True, "error" in end]
