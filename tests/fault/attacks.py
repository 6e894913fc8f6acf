"""Programs that mean harm, each with what it does to a Lua that nobody protects.

FOLDER stands for a folder that holds `secret.txt` (it says `the secret`) and `evil.lua` (it returns
that). What a program must never get hold of is that text; what it must never do is change the
folder, print, or outlive its limits. The package `bomb` forks itself, twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Bite(StrEnum):
    """What an attack does to an unprotected Lua."""

    HANGS = "it never comes back"
    EATS = "it takes more memory than any program should"
    DIES = "the process ends"
    GETS = "it returns what it should not have"
    WRITES = "the folder is changed"
    PRINTS = "it writes to standard output"
    FLOODS = "the host has to take more than anybody wants to keep"
    CONFUSES = "the host stumbles over what it is given"


#: How an attack ends here: the state of its session and, of a failed one, the kind of error and
#: words in it.
SPINNING = ("failed", "spinning", "did not pause within")
MEMORY = ("failed", "LuaError", "not enough memory")
ERROR = ("failed", "LuaError", "")
LARGE = ("failed", "too_large", "bytes at once")
COMPLETED = ("completed", "", "")
PAUSED = ("paused", "", "")
#: The call itself is refused, and nothing of the session is kept.
REFUSED = ("refused", "spinning", "reads and writes of durable values")


@dataclass(frozen=True)
class Attack:
    name: str
    bite: Bite
    ends: tuple[tuple[str, str, str], ...]  # any of these
    code: str


#: The source of the package `bomb`.
PACKAGE = (
    "return {run = function(ctx) return alc.fork({'bomb', 'bomb'}, ctx, {on_error = 'abort'}) end}"
)

SPIN = "local function spin() while true do end end "
#: A pattern of ten lazy parts on a long text: the engine tries more ways than there is time for.
BOMB = 'local text, bomb = ("a"):rep(3000), (".-"):rep(10) .. "b" '

TABLE = (
    # ---- loops of each kind
    Attack("while", Bite.HANGS, (SPINNING,), "while true do end"),
    Attack("repeat", Bite.HANGS, (SPINNING,), "local x repeat x = 1 until x == 2"),
    Attack("goto", Bite.HANGS, (SPINNING,), "::top:: goto top"),
    Attack("for", Bite.HANGS, (SPINNING,), "for i = 1, math.huge do end"),
    Attack("iterator", Bite.HANGS, (SPINNING,), "for _ in function() return 1 end do end"),
    Attack("tail call", Bite.HANGS, (SPINNING,), "local function f() return f() end return f()"),
    Attack("pcall swallows", Bite.HANGS, (SPINNING,), SPIN + "while true do pcall(spin) end"),
    Attack(
        "xpcall swallows", Bite.HANGS, (SPINNING,), SPIN + "while true do xpcall(spin, spin) end"
    ),
    Attack(
        "pcall of pcall",
        Bite.HANGS,
        (SPINNING,),
        SPIN + "while true do pcall(pcall, pcall, spin) end",
    ),
    Attack("handler", Bite.HANGS, (SPINNING,), SPIN + "xpcall(error, spin)"),
    Attack("load", Bite.HANGS, (SPINNING,), 'load("while true do end")()'),
    Attack("reader of load", Bite.HANGS, (SPINNING, ERROR), SPIN + "load(spin)"),
    Attack("sort", Bite.HANGS, (SPINNING,), SPIN + "table.sort({3, 2, 1}, spin)"),
    Attack("gsub", Bite.HANGS, (SPINNING,), SPIN + '("x"):gsub("x", spin)'),
    Attack(
        "tostring",
        Bite.HANGS,
        (SPINNING,),
        SPIN + "tostring(setmetatable({}, {__tostring = spin}))",
    ),
    Attack("index", Bite.HANGS, (SPINNING,), SPIN + "return setmetatable({}, {__index = spin}).x"),
    Attack(
        "close",
        Bite.HANGS,
        (SPINNING,),
        SPIN + "do local x <close> = setmetatable({}, {__close = spin}) end",
    ),
    Attack(
        "concat of index",
        Bite.HANGS,
        (SPINNING, ERROR),
        SPIN + "table.concat(setmetatable({}, {__index = spin}), '', 1, 3)",
    ),
    Attack(
        "arithmetic", Bite.HANGS, (SPINNING,), SPIN + "return setmetatable({}, {__add = spin}) + 1"
    ),
    # ---- coroutines
    Attack(
        "wrap in wrap",
        Bite.HANGS,
        (SPINNING,),
        SPIN + "coroutine.wrap(function() coroutine.wrap(spin)() end)()",
    ),
    Attack(
        "wraps for ever",
        Bite.HANGS,
        (SPINNING,),
        "while true do coroutine.wrap(function() end)() end",
    ),
    Attack(
        "resume swallows",
        Bite.HANGS,
        (SPINNING,),
        SPIN + "while true do coroutine.resume(coroutine.create(spin)) end",
    ),
    Attack(
        "close of a coroutine",
        Bite.HANGS,
        (SPINNING,),
        SPIN
        + """local co = coroutine.create(function()
               local x <close> = setmetatable({}, {__close = spin})
               coroutine.yield()
             end)
             coroutine.resume(co)
             coroutine.close(co)""",
    ),
    Attack(
        "coroutine bomb",
        Bite.EATS,
        (MEMORY, SPINNING),
        """local kept = {}
           while true do
             kept[#kept + 1] = coroutine.create(function() coroutine.yield() end)
             coroutine.resume(kept[#kept])
           end""",
    ),
    # ---- recursion; Lua ends it with an error, which a loop swallows
    Attack(
        "recursion",
        Bite.HANGS,
        (SPINNING,),
        "local function f() return 1 + f() end while true do pcall(f) end",
    ),
    Attack(
        "recursion of pcall",
        Bite.HANGS,
        (SPINNING,),
        "local function f() pcall(f) pcall(f) end while true do f() end",
    ),
    Attack(
        "recursion of a metamethod",
        Bite.HANGS,
        (SPINNING,),
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k .."
        " 'x'] end "
        "while true do pcall(function() return t.x end) end",
    ),
    Attack(
        "recursion of gsub",
        Bite.HANGS,
        (SPINNING,),
        "local function f() return ('x'):gsub('x', f) end while true do pcall(f) end",
    ),
    Attack(
        "recursion of sort",
        Bite.HANGS,
        (SPINNING,),
        "local function f() table.sort({2, 1, 3}, f) return false end while true do pcall(f) end",
    ),
    Attack(
        "recursion of coroutines",
        Bite.HANGS,
        (SPINNING, ERROR),
        "local function f() return coroutine.wrap(f)() end while true do pcall(f) end",
    ),
    # ---- memory
    Attack("rep", Bite.EATS, (MEMORY,), 'local x = ("x"):rep(1 << 29) return #x'),
    Attack("doubling", Bite.EATS, (MEMORY,), 'local s = "x" while true do s = s .. s end'),
    Attack("table", Bite.EATS, (MEMORY, SPINNING), "local t = {} while true do t[#t + 1] = #t end"),
    Attack("tables", Bite.EATS, (MEMORY, SPINNING), "local t while true do t = {t} end"),
    Attack(
        "format",
        Bite.EATS,
        (MEMORY,),
        'local s = "x" while true do s = string.format("%s%s", s, s) end',
    ),
    Attack(
        "concat",
        Bite.EATS,
        (MEMORY,),
        'local s = ("x"):rep(1 << 20) return #table.concat({s, s, s}, s:rep(200))',
    ),
    Attack("source", Bite.EATS, (MEMORY, ERROR), 'return load(("x = 1 "):rep(1 << 26))'),
    Attack(
        "memory swallowed",
        Bite.EATS,
        (SPINNING, MEMORY),
        'while true do pcall(string.rep, "x", 1 << 29) end',
    ),
    Attack(
        "no collector",
        Bite.EATS,
        (ERROR, SPINNING),
        'collectgarbage("stop") while true do local t = {{}, {}, {}} end',
    ),
    # ---- patterns: a call into C that no hook can stop
    Attack("find", Bite.HANGS, (SPINNING,), BOMB + "return text:find(bomb)"),
    Attack("match", Bite.HANGS, (SPINNING,), BOMB + "return text:match(bomb)"),
    Attack("gmatch", Bite.HANGS, (SPINNING,), BOMB + "for _ in text:gmatch(bomb) do end"),
    Attack("gsub pattern", Bite.HANGS, (SPINNING,), BOMB + 'return text:gsub(bomb, "")'),
    Attack(
        "swallowed pattern",
        Bite.HANGS,
        (SPINNING,),
        BOMB + "while true do pcall(string.find, text, bomb) end",
    ),
    # ---- other calls into C that take as long as they are told to
    Attack(
        "plain find",
        Bite.HANGS,
        (SPINNING,),
        'return ("a"):rep(2e7):find(("a"):rep(1e7) .. "b", 1, true)',
    ),
    Attack("move", Bite.HANGS, (SPINNING,), "table.move({}, 1, math.maxinteger - 1, 2, {})"),
    Attack(
        "insert",
        Bite.HANGS,
        (SPINNING,),
        "table.insert(setmetatable({}, {__len = function() return 1 << 53 end}), 1, 1)",
    ),
    # ---- the world outside
    Attack("os.exit", Bite.DIES, (ERROR,), "os.exit(7)"),
    Attack("os.execute", Bite.WRITES, (ERROR,), 'os.execute("touch FOLDER/pwned")'),
    Attack("os.remove", Bite.WRITES, (ERROR,), 'return os.remove("FOLDER/secret.txt")'),
    Attack(
        "os.rename",
        Bite.WRITES,
        (ERROR,),
        'return os.rename("FOLDER/secret.txt", "FOLDER/gone.txt")',
    ),
    Attack("os.getenv", Bite.GETS, (COMPLETED,), 'return os.getenv("PATH") and "the secret"'),
    Attack("os.setlocale", Bite.GETS, (ERROR,), 'return os.setlocale("C") and "the secret"'),
    Attack("io.popen", Bite.GETS, (ERROR,), "return io.popen and io.tmpfile() and 'the secret'"),
    Attack(
        "io.open",
        Bite.GETS,
        (COMPLETED, ERROR),
        'local f = io.open("FOLDER/secret.txt") return f and f:read("a")',
    ),
    Attack(
        "io.open to write",
        Bite.WRITES,
        (COMPLETED, ERROR),
        'local f = io.open("FOLDER/pwned", "w") if f then f:write("x") f:close() end return'
        ' "tried"',
    ),
    Attack(
        "io.lines",
        Bite.GETS,
        (ERROR,),
        'for line in io.lines("FOLDER/secret.txt") do return line end',
    ),
    Attack(
        "io.output", Bite.WRITES, (ERROR,), 'io.output("FOLDER/pwned") io.write("x") io.close()'
    ),
    Attack("loadfile", Bite.GETS, (ERROR,), 'return loadfile("FOLDER/evil.lua")()'),
    Attack("dofile", Bite.GETS, (ERROR,), 'return dofile("FOLDER/evil.lua")'),
    Attack(
        "package.path", Bite.GETS, (ERROR,), 'package.path = "FOLDER/?.lua" return require("evil")'
    ),
    Attack(
        "package.searchpath",
        Bite.GETS,
        (ERROR,),
        'return package.searchpath("evil", "FOLDER/?.lua") and "the secret"',
    ),
    Attack(
        "require of a path",
        Bite.GETS,
        (ERROR,),
        'package.path = "/?.lua" return require("FOLDER/evil")',
    ),
    Attack(
        "package.loadlib",
        Bite.GETS,
        (ERROR,),
        'return package.loadlib("libc.so.6", "*") and "the secret"',
    ),
    Attack("print", Bite.PRINTS, (COMPLETED,), 'print("the secret") return 1'),
    Attack("io.write", Bite.PRINTS, (ERROR, COMPLETED), 'io.write("the secret") return 1'),
    Attack("io.stdout", Bite.PRINTS, (ERROR, COMPLETED), 'io.stdout:write("the secret") return 1'),
    # ---- the inside of the host
    Attack(
        "python.builtins",
        Bite.GETS,
        (ERROR,),
        'return python.builtins.open("FOLDER/secret.txt").read()',
    ),
    Attack(
        "python.eval",
        Bite.GETS,
        (ERROR,),
        "return python.eval(\"open('FOLDER/secret.txt').read()\")",
    ),
    Attack("globals", Bite.GETS, (COMPLETED, ERROR), "return alc.log.__globals__ and 'the secret'"),
    Attack(
        "attributes of everything",
        Bite.GETS,
        (COMPLETED,),
        """local seen, names = {}, {"__globals__", "__class__", "__self__", "__init__", "__code__", "__doc__"}
           local function walk(value)
             if type(value) == "userdata" or type(value) == "function" then
               for _, name in ipairs(names) do
                 local ok, found = pcall(function() return value[name] end)
                 if ok and found ~= nil then error("the secret") end
               end
               pcall(function() if getmetatable(value).__index then walk(getmetatable(value).__index) end end)
             end
             if type(value) ~= "table" or seen[value] then return end
             seen[value] = true
             for key, item in next, value do walk(key) walk(item) end
           end
           local ok, found = pcall(walk, _G)
           return tostring(found):match("the secret") or "nothing"
        """,  # noqa: E501
    ),
    Attack(
        "bytecode",
        Bite.GETS,
        (ERROR,),
        'return load(string.dump(function() return "the secret" end), "x", "b")()',
    ),
    Attack(
        "bytecode by hand",
        Bite.GETS,
        (ERROR, COMPLETED),
        'local f, why = load("\\27Lua") return why:find("truncated") and "the secret" or "refused"',
    ),
    Attack("debug hook", Bite.HANGS, (ERROR, SPINNING), "debug.sethook() while true do end"),
    Attack("debug registry", Bite.GETS, (ERROR,), "return debug.getregistry() and 'the secret'"),
    Attack(
        "debug upvalue",
        Bite.GETS,
        (ERROR,),
        "local x = 1 local function f() return x end return debug.getupvalue(f, 1) and 'the"
        " secret'",
    ),
    Attack(
        "metatable of strings",
        Bite.GETS,
        (ERROR, COMPLETED),
        """getmetatable("").__index = function() return "the secret" end
           return alc.json_encode(("x").anything)""",
    ),
    Attack(
        "functions replaced",
        Bite.GETS,
        (COMPLETED, ERROR),
        """local caught
           local function catch(...) caught = "the secret" error("caught") end
           for _, name in ipairs({"format", "gsub", "find", "rep", "byte", "sub"}) do string[name] = catch end
           for _, name in ipairs({"concat", "insert", "unpack", "sort"}) do table[name] = catch end
           for _, name in ipairs({"type", "pairs", "next", "tostring", "select", "error"}) do _G[name] = catch end
           local ok, text = pcall(alc.json_encode, {a = {1, 2, {b = "c"}}})
           return caught or text""",  # noqa: E501
    ),
    Attack(
        "globals that spin",
        Bite.HANGS,
        (SPINNING, ERROR),
        SPIN + "setmetatable(_G, {__index = spin, __newindex = spin}) return unknown",
    ),
    Attack(
        "globals that spin for C",
        Bite.HANGS,
        (COMPLETED,),
        SPIN + "debug = nil setmetatable(_G, {__index = spin}) return {}",
    ),
    Attack(
        "globals that fail for C",
        Bite.DIES,
        (COMPLETED,),
        "debug = nil setmetatable(_G, {__index = function(_, name) error('no ' .. name) end})"
        " return {}",
    ),
    Attack(
        "environment",
        Bite.GETS,
        (ERROR, COMPLETED),
        "local _ENV = setmetatable({}, {__index = _G}) "
        'return load("return python and \'the secret\'", "x", "t", _ENV)()',
    ),
    Attack(
        "forged request",
        Bite.GETS,
        (ERROR,),
        'return coroutine.yield("state", "get", "the secret")',
    ),
    # ---- what is handed to the host
    Attack("100 MB", Bite.FLOODS, (MEMORY, LARGE), 'return ("x"):rep(100000000)'),
    Attack(
        "20 MB",
        Bite.FLOODS,
        (LARGE, SPINNING),
        'local s = ("x"):rep(5000000) return {s, s .. "a", s .. "b", s .. "c"}',
    ),
    Attack(
        "deep value",
        Bite.CONFUSES,
        (ERROR,),
        "local t = {} for i = 1, 100000 do t = {t} end return t",
    ),
    Attack("value in itself", Bite.CONFUSES, (ERROR,), "local t = {} t.t = t return t"),
    Attack("function as value", Bite.CONFUSES, (ERROR,), "return {print}"),
    Attack(
        "value with pairs",
        Bite.HANGS,
        (COMPLETED, SPINNING, ERROR),
        SPIN
        + (
            "return setmetatable({x = 1}, {__pairs = spin, __index = spin, __len = spin,"
            " __tostring = spin})"
        ),
    ),
    Attack(
        "error with tostring",
        Bite.HANGS,
        (SPINNING, ERROR),
        SPIN + "error(setmetatable({}, {__tostring = spin}))",
    ),
    Attack(
        "prompt with tostring",
        Bite.HANGS,
        (SPINNING, ERROR),
        SPIN
        + "return alc.llm(setmetatable({}, {__tostring = spin, __index = spin, __name = 'x'}))",
    ),
    Attack(
        "collected",
        Bite.HANGS,
        (SPINNING, COMPLETED, ERROR),
        SPIN + "setmetatable({}, {__gc = spin}) collectgarbage()",
    ),
    Attack(
        "collected at the end",
        Bite.HANGS,
        (COMPLETED, SPINNING, ERROR),
        SPIN + "kept = setmetatable({}, {__gc = spin}) return 1",
    ),
    Attack("prompt of 10 MB", Bite.FLOODS, (LARGE, PAUSED), 'return alc.llm(("x"):rep(10000000))'),
    Attack("prompt that is no text", Bite.CONFUSES, (ERROR,), 'return alc.llm("\\xff\\xfe\\x00")'),
    Attack("value that is no text", Bite.CONFUSES, (ERROR, COMPLETED), 'return "\\xff\\xfe"'),
    Attack(
        "batch",
        Bite.FLOODS,
        (LARGE, MEMORY, SPINNING, ERROR),
        'local items = {} for i = 1, 300000 do items[i] = {prompt = "question " .. i} end return'
        " alc.llm_batch(items)",
    ),
    Attack(
        "logging",
        Bite.HANGS,
        (SPINNING, LARGE, MEMORY, ERROR),
        'while true do alc.log("info", ("x"):rep(1000)) end',
    ),
    Attack(
        "printing",
        Bite.HANGS,
        (SPINNING, LARGE, MEMORY, ERROR),
        'while true do print(("x"):rep(1000)) end',
    ),
    Attack(
        "recording",
        Bite.HANGS,
        (SPINNING, LARGE, MEMORY, ERROR),
        "local i = 0 while true do i = i + 1 alc.stats.record('k' .. i, i) end",
    ),
    Attack(
        "state",
        Bite.HANGS,
        (REFUSED, SPINNING),
        "local i = 0 while true do i = i + 1 alc.state.set('k' .. i, i) end",
    ),
    Attack(
        "much state",
        Bite.FLOODS,
        (LARGE, SPINNING, MEMORY),
        'local x = ("x"):rep(1000000) for i = 1, 200 do alc.state.set("k" .. i, x .. i) end'
        " return 1",
    ),
    Attack(
        "forks",
        Bite.CONFUSES,
        (ERROR, COMPLETED),
        "return alc.fork({'bomb', 'bomb'}, {}, {on_error = 'abort'})",
    ),
    Attack(
        "forks for ever",
        Bite.HANGS,
        (SPINNING,),
        "while true do pcall(alc.fork, {'nobody'}, {}) end",
    ),
    Attack("forks of no names", Bite.CONFUSES, (ERROR,), "return alc.fork({'bomb', nil, {}}, {})"),
    Attack("questions", Bite.HANGS, (PAUSED,), "while true do alc.llm('one more?') end"),
    Attack("numbers", Bite.CONFUSES, (COMPLETED,), "return {0/0, 1/0, -1/0}"),
)
