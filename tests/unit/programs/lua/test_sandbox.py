"""The sandbox in this process: what is not there, what cannot be reached, and what ends in spite of
everything.
"""

# ruff: noqa: E501

import gc
import weakref
from pathlib import Path

import pytest

from everhold.core.query import QueryAnswer
from everhold.core.status import Raised
from everhold.errors import Overtaken
from everhold.programs.lua import vm
from tests.unit.programs.lua.life import Life, failure, run

GONE = [
    "debug",
    "dofile",
    "loadfile",
    "python",
    "io.popen('x')",
    "io.open('/etc/passwd')",
    "os.execute",
    "os.exit",
]
GONE += [
    "os.remove",
    "os.rename",
    "os.tmpname",
    "os.setlocale",
    "os.getenv('HOME')",
    "string.dump",
    "io.read()",
]
GONE += [
    "package.loadlib",
    "package.searchers",
    "package.searchpath",
    "io.tmpfile",
    "io.input",
    "io.output",
]


@pytest.mark.parametrize("name", GONE)
def test_it_is_not_there(name: str) -> None:
    assert run(f"return ({name}) == nil") is True


def test_a_file_is_refused_with_words() -> None:
    assert run("return {select(2, io.open('x'))}") == ["there are no files here"]
    assert "there are no files here" in failure("for l in io.lines('x') do end")


def test_c_finds_no_globals() -> None:
    """C looks them up where an error ends the process and no hook counts: nothing of the program
    may be there.
    """
    assert list(vm.LuaVm()._runtime.globals()) == []


STRICT = """setmetatable(_G, {
  __index = function(_, name) error('no variable ' .. name, 2) end,
  __newindex = function(_, name) error('no variable ' .. name, 2) end,
})
"""


def test_a_package_may_be_strict_with_its_globals() -> None:
    """Everything of ours works without them, and the program's mistakes are its own."""
    code = """print(alc.llm('a', {model = 'm'}), tostring({})) alc.state.set('k', alc.chunk('a'))
      local ok, problem = pcall(function() return nonsense end)
      return {problem, (pcall(require, 'none')), alc.cache('b'), coroutine.wrap(alc.llm)('c'), alc.math.mean({1})}"""
    assert run(STRICT + code) == ["code:6: no variable nonsense", False, "<b>", "<c>", 1.0]


def test_a_strict_package_may_take_away_what_it_does_not_want() -> None:
    code = (
        "io, os, package = nil, nil, nil "
        + STRICT
        + "return (pcall(require, 'none')) or select(2, pcall(require, 'none'))"
    )
    assert run(code).startswith("module 'none' not found:")


def test_every_global_is_known() -> None:
    expected = [
        "_G",
        "_VERSION",
        "alc",
        "assert",
        "collectgarbage",
        "coroutine",
        "ctx",
        "error",
        "getmetatable",
        "io",
        "ipairs",
        "load",
        "math",
        "next",
        "os",
        "package",
        "pairs",
        "pcall",
        "print",
        "rawequal",
        "rawget",
        "rawlen",
        "rawset",
        "require",
        "select",
        "setmetatable",
        "string",
        "table",
        "tonumber",
        "tostring",
        "type",
        "utf8",
        "warn",
        "xpcall",
    ]
    assert run("local t = {} for k in pairs(_G) do t[#t + 1] = k end return t") == expected


def test_nothing_but_lua_values_is_reachable() -> None:
    code = """local seen, bad, n = {}, {}, 0
      local function look(v, path)
        if seen[v] then return end
        local kind = type(v)
        if kind == 'userdata' and v ~= alc.null then bad[#bad + 1] = path end
        if kind ~= 'table' then return end
        seen[v] = true n = n + 1
        for k, item in pairs(v) do look(k, path .. '.key') look(item, path .. '.' .. tostring(k)) end
        local mt = getmetatable(v)
        if type(mt) == 'table' then look(mt, path .. '.meta') end
      end
      local _ = alc.map, alc.state, alc.card, alc.math, alc.log, alc.chunk
      look(_G, '_G') look(getmetatable(''), 'string')
      return {#bad, n > 10}"""
    assert run(code) == [0, True]


def test_the_metatable_of_strings_is_closed() -> None:
    assert run("return getmetatable('')") is False
    assert "protected" in failure(
        "setmetatable(getmetatable(alc.json_decode('[]')) or alc.json_decode('[]'), {})"
    )


TRAP = (
    "local got = {} local trap = setmetatable({}, {__eq = function(one, other) got[#got + 1]"
    " = other end}); "
)
COMPARED = {
    "what a coroutine yields": "coroutine.wrap(function() coroutine.yield(trap) end)()",
    "what a coroutine returns": "coroutine.resume(coroutine.create(function() return trap end))",
    "the metatable of what is encoded": "alc.json_encode(setmetatable({}, trap))",
    "the metatable of a list": "table.insert(setmetatable({}, trap), 1)",
    "what is replaced with": "('x'):gsub('x', setmetatable({}, trap))",
    "what is raised": "pcall(error, trap)",
    "an answer's prompt": "pcall(alc.llm, trap)",
}


@pytest.mark.parametrize("code", COMPARED.values(), ids=COMPARED)
def test_a_comparison_hands_nothing_of_ours_to_the_program(code: str) -> None:
    """Whoever had the mark of a request could ask the host for anything, such as the durable values
    of others.
    """
    assert run(f"{TRAP} {code} return #got") == 0


def test_only_our_own_files_are_parts_of_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "secret.lua").write_text("return 'secret'")
    with pytest.raises(LookupError):
        vm._code(str(tmp_path / "secret"))


def test_methods_of_strings_may_be_added() -> None:
    assert run("function string.shout(s) return s:upper() .. '!' end return ('x'):shout()") == "X!"


@pytest.mark.parametrize(
    "how",
    [
        "load(b)",
        "load(function() local x = b b = nil return x end)",
        "load(b, 'x', 'b')",
        "load(b, 'x', 'bt')",
    ],
)
def test_bytecode_is_not_loaded(how: str) -> None:
    assert run(f"local b = '\\27Lua' local f, e = {how} return {{f == nil, type(e)}}") == [
        True,
        "string",
    ]


def test_what_is_loaded_sees_the_programs_globals_only() -> None:
    assert run(
        "x = 1 return {load('return x')(), load('return debug') () == nil, load('return _G') ()"
        " == _G}"
    ) == [
        1,
        True,
        True,
    ]


LOOPS = {
    "a loop": "while true do end",
    "a loop around pcall": "while true do pcall(function() while true do end end) end",
    "a loop around xpcall": (
        "while true do xpcall(function() while true do end end, function()"
        " while true do end end) end"
    ),
    "a loop in a coroutine": "coroutine.wrap(function() while true do end end)()",
    "a loop around resume": (
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end"
    ),
    "coroutines in coroutines": (
        "local function f() return coroutine.wrap(function() while true"
        " do pcall(f()) end end) end f()()"
    ),
    "a loop in __close": (
        "do local x <close> = setmetatable({}, {__close = function() while true do end end}) end"
    ),
    "a __close that runs because time is over": (
        "local x <close> = setmetatable({}, {__close ="
        " function() while true do end end}) while true"
        " do end"
    ),
    "a loop in coroutine.close": """local co = coroutine.create(function()
        local x <close> = setmetatable({}, {__close = function() while true do end end}) coroutine.yield() end)
        coroutine.resume(co) while true do coroutine.close(co) end""",
    "a loop in __index": (
        "local t = setmetatable({}, {__index = function(t, k) return t[k + 1]"
        " end}) while true do pcall(function() return t[1] end) end"
    ),
    "a loop in a comparator": (
        "while true do pcall(table.sort, {3, 2, 1}, function() while true do end end) end"
    ),
    "a loop in gsub": (
        "while true do pcall(string.gsub, 'x', 'x', function() while true do end end) end"
    ),
    "a loop in __tostring": (
        "while true do pcall(tostring, setmetatable({}, {__tostring ="
        " function() while true do end end})) end"
    ),
    "goto": "::a:: goto a",
    # slowly: memory must last
    "an endless reader of load": "load(function() for _ = 1, 1000 do end return ' ' end)",
    "table.move without end": "table.move({}, 1, math.maxinteger - 1, 2, {})",
    "a long table that is not there": (
        "table.concat(setmetatable({}, {__len = function() return"
        " math.maxinteger end, __index = function() return ''"
        " end}))"
    ),
    "an unpacking loop": "while true do pcall(table.unpack, {}, 1, 1e7) end",
    "questions of no consequence": "while true do alc.budget_remaining() end",
    "an error object that never ends": (
        "error(setmetatable({}, {__tostring = function() while true do end end}))"
    ),
    "strings that grow": "local s = ('x'):rep(1e6) while true do local a = s .. 'y' end",
    "nested loads": "while true do pcall(load('while true do end')) end",
    "metamethods of error objects": (
        "while true do pcall(error, setmetatable({}, {__tostring = error})) end"
    ),
    "random numbers": (
        "local r = alc.math.rng_create(1) while true do pcall(alc.math.rng_float, r) end"
    ),
    "a series that hardly converges": "alc.math.regularized_incomplete_gamma(1e18, 1e18)",
    "a fraction that hardly converges": "alc.math.beta_cdf(0.5, 1e18, 1e18)",
}


@pytest.mark.parametrize("name", LOOPS)
def test_it_ends_when_its_time_is_over(name: str) -> None:
    life = Life(LOOPS[name], cpu=0.15, memory=32 * 2**20)
    life.step()
    assert isinstance(life.outcome, Raised)
    if name not in ("an error object that never ends", "a long table that is not there"):
        assert life.outcome.kind == "spinning"


MEMORY = {
    "a string": "local s = 'x' while true do s = s .. s end",
    "rep": "return ('x'):rep(1e9)",
    "a table": "local t = {} while true do t[#t + 1] = {} end",
    "coroutines": "local t = {} while true do t[#t + 1] = coroutine.create(function() end) end",
    "recursion": "local function f() return 1 + f() end f()",
    "nested pcall": "local function f() pcall(f) f() end f()",
    "a result of 100 MB": "local t = {} for i = 1, 100 do t[i] = ('x'):rep(1e6) end return t",
    "a log of 100 MB": "local s = ('x'):rep(1e6) for i = 1, 1e4 do print(s) end error('end')",
    "nested coroutines": "local function f() return coroutine.wrap(f)() end f()",
    "format": "return ('%99d'):rep(1e6):format(1)",
    "concat": "local t = {} for i = 1, 1e3 do t[i] = ('x'):rep(1e5) end return table.concat(t)",
    "deep JSON": "return alc.json_decode(('['):rep(1e6))",
    "samples": "alc.math.sample_with_replacement(alc.math.rng_create(1), {1}, 1e12)",
    "bins": "alc.math.histogram({1, 2}, 1e12)",
    "generators": (
        "local t = {} while true do local r = alc.math.rng_create(#t) t[#t + 1] = r"
        " pcall(alc.math.rng_float, r) end"
    ),
    "swallowed": (
        "local t = {} while true do pcall(function() for i = 1, 1e6 do t[#t + 1] ="
        " ('x'):rep(1000) .. i end end) end"
    ),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_bounded(name: str) -> None:
    life = Life(MEMORY[name], cpu=1.0, memory=16 * 2**20)
    life.step()
    assert isinstance(life.outcome, Raised), life.outcome


MAKING = [
    "string.rep('y', 100000 + i)",
    "table.concat({long, i})",
    "long:gsub('^x', i)",
    "string.format('%s%d', long, i)",
    "(long .. i):upper()",
    "alc.json_encode({long, i})",
]


@pytest.mark.parametrize("making", MAKING)
def test_rubbish_takes_no_room_from_text(making: str) -> None:
    """A program that holds most of its memory may go on making text for as long as it drops it."""
    hold = (
        "local long, kept = string.rep('x', 100000), {} for i = 1, 1150 do kept[i] ="
        " string.rep('x', 5000) .. i end"
    )
    drop = (
        "for i = 1, 300 do for j = 1, 20 do local other = kept[j] .. i end local text ="
        f" {making} end"
    )
    assert run(f"{hold} {drop} return #kept", memory=8 * 2**20, cpu=60.0) == 1150


def test_a_long_error_is_cut_before_it_is_told() -> None:
    """Each byte of it that is no text would be four letters."""
    life = Life("error(('\\xff'):rep(5000000), 0)")
    life.step()
    assert life.outcome.error == "\\xff" * 5000


def test_a_full_state_still_takes_its_answer() -> None:
    """Only the program runs against the limit; what is handed over finds room."""
    fill = "local t = {} pcall(function() while true do t[#t + 1] = ('x'):rep(1000) .. #t end end)"
    life = Life(f"{fill} local a = alc.llm('full') t = nil return #a", memory=8 * 2**20, cpu=60.0)
    assert [query.prompt for query in life.step().asked] == ["full"]
    life.step(QueryAnswer(0, "y" * 3_000_000))
    assert life.outcome.value == 3_000_000


@pytest.mark.parametrize(
    "step",
    ["alc.budget_remaining()", "print('x')", "pcall(require, 'm' .. #t)", "alc.llm('go on')"],
)
def test_the_room_above_the_limit_is_not_for_keeping(step: str) -> None:
    """A program that fills up whatever is given for its questions fails; it does not grow."""
    code = (
        f"local t = {{}} while true do pcall(function() while true do t[#t + 1] ="
        f" ('x'):rep(5000) .. #t end end) {step} end"
    )
    life = Life(code, memory=4 * 2**20, cpu=2.0)
    life.step()
    most = life.execution.memory
    for q in range(200):
        if life.outcome is not None:
            break
        life.step(QueryAnswer(q, "y" * 50_000))
        most = max(most, life.execution.memory)
    assert isinstance(life.outcome, Raised)
    assert most < 6 * 2**20


def test_finalizers_never_run() -> None:
    code = """local ran = false
      for i = 1, 1000 do setmetatable({}, {__gc = function() ran = true end}) end
      local t = {} for i = 1, 1e5 do t[i % 10] = {i} end
      collectgarbage() return {ran, getmetatable(setmetatable({}, {__gc = 1})).__gc}"""
    assert run(code) == [False, 1]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("'stop'", 0),
        ("'restart'", 0),
        ("'isrunning'", True),
        ("'step', 100", True),
        ("'setpause', 1000", 200),
        ("'generational'", "incremental"),
        ("'incremental', 1, 2, 3", "incremental"),
        ("'count'", 0.0),
        ("", 0),
    ],
)
def test_the_collector_is_not_the_programs(how: str, said: object) -> None:
    """A program that has a wish hears what Lua says, and nothing happens."""
    assert run(f"return collectgarbage({how})") == said


def test_what_is_no_wish_is_refused_as_lua_does() -> None:
    assert "bad argument #1 to 'collectgarbage' (invalid option 'x')" in failure(
        "collectgarbage('x')"
    )


def test_what_is_written_needs_no_flushing() -> None:
    code = """io.stderr:write('a', 1):flush() io.stdout:setvbuf('no') io.stdout:flush() io.flush()
      return {io.type(io.stdout), io.type(io.stderr), io.type({}) == nil}"""
    assert run(code) == ["file", "file", True]


ERRORS = [
    ("error('x')", "code:1: x"),
    ("error('x', 0)", "x"),
    ("error()", "nil"),
    ("error(5)", "5"),
    ("error({code = 1, why = 'y'})", 'error object: {"code":1,"why":"y"}'),
    ("error({print})", "(error object is a table value)"),
    ("error(setmetatable({}, {__tostring = function() return 'own words' end}))", "own words"),
    ("error(setmetatable({}, {__tostring = error}))", "(error object is a table value)"),
    (
        "error(setmetatable({}, {__tostring = function() return alc.llm('no') end}))",
        "(error object is a table value)",
    ),
    ("error(print)", "function: 0x000000000010"),
    ("error('\\xff', 0)", "\\xff"),
    ("local function f() error('deep') end f()", "code:1: deep"),
    ("assert(false, 'no')", "code:1: no"),
    ("assert(nil)", "code:1: assertion failed!"),
]


@pytest.mark.parametrize(("code", "words"), ERRORS)
def test_an_error_is_told_in_words(code: str, words: str) -> None:
    assert failure(code) == words


def test_the_traceback_has_the_lines_of_the_program() -> None:
    life = Life(
        "local function inner()\n  error('x')\nend\nlocal function outer()\n  inner()\nend\nouter()"
    )
    life.step()
    frames = life.outcome.exception.frames
    assert [(one.file, one.line) for one in frames] == [("code", 7), ("code", 5), ("code", 2)]
    assert life.outcome.traceback.splitlines() == [
        "Traceback (most recent call last):",
        *(f'  File "code", line {one.line}, in {one.function}' for one in frames),
        "LuaError: code:2: x",
    ]


def test_a_dropped_life_leaves_nothing_behind() -> None:
    life = Life(
        "local x <close> = setmetatable({}, {__close = function() print('closed') end})"
        " alc.llm('a')"
    )
    life.step()
    state = weakref.ref(life.execution._strands[0].vm._runtime) if _has_weakrefs(life) else None
    life.execution.drop()
    gc.collect()
    assert life.log == []
    assert state is None or state() is None
    with pytest.raises(Overtaken):
        life.step()


def _has_weakrefs(life: Life) -> bool:
    return hasattr(type(life.execution._strands[0].vm._runtime), "__weakref__")


def test_what_is_not_asked_for_is_no_answer() -> None:
    life = Life("return alc.llm('a')")
    life.step()
    life.step(QueryAnswer(7, "x"))
    assert life.outcome is None


def test_a_cancel_before_the_start_runs_nothing() -> None:
    life = Life("print('x')")
    life.step(cancel="no")
    assert life.log == []
    assert life.outcome.reason == "no"
