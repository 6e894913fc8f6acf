-- The environment of a program: Lua 5.4 without system access, the same in every process.
--
-- A chunk: `local version, namespace, wants_alc, one, other, shape_check = ...`; turns the globals of a fresh state into a sandbox
-- with random numbers from a seed of two numbers, and returns what the host calls: `go`, and `aside` for rare calls. Each
-- transition between host and state costs time, so there are few. Rarely used parts are loaded from the host on first
-- use, because each session has its own state; those chunks get the `kit`.
--
--   1. Only Lua calls a program's functions, never C: so a query can be made from everywhere.
--   2. A query is a yield marked with REQUEST. Resumers pass it on, so that it reaches the host from any coroutine.
--   3. Nothing depends on addresses or hash seeds: pairs and next visit keys in order, objects are numbered.
--   4. When the time is over, the first protected call that notices it ends the program. Finalizers never run.
--   5. Our own Lua uses copies of library functions; programs may replace the originals.
--   6. This file stays in memory as long as the session. Code that only some programs use is in a part.

local version, namespace, wants_alc, one, other, shape_check = ...

local type, error, rawget, rawset, rawequal, select = type, error, rawget, rawset, rawequal, select
local raw_next, raw_pcall, raw_tostring, raw_load, raw_setmetatable = next, pcall, tostring, load, setmetatable
local clock, concat, pack, unpack, utf8_len = os.clock, table.concat, table.pack, table.unpack, utf8.len
local format, gsub, find, rep = string.format, string.gsub, string.find, string.rep
local tointeger, math_type = math.tointeger, math.type
local resume, yield, collect = coroutine.resume, coroutine.yield, collectgarbage
local create, status, sethook = coroutine.create, coroutine.status, debug.sethook
local metatable_of, unprotected = debug.getmetatable, debug.setmetatable

local EVERY = 4000 -- instructions between two checks of the clock
local REQUEST, DONE = debug.getuservalue, debug.setuservalue -- programs cannot reach them, and comparing them calls no __eq
local OVERTIME, FULL = "the program did not pause in time", "not enough memory"
local ARRAY = { __metatable = false } -- the metatable of tables that are JSON arrays even when they are empty

local env, parts = _G, {}
debug.getregistry()[2] = {} -- the globals for C, which looks them up where errors cannot be caught nor stopped
local kit, base -- what parts of our own Lua get, and their globals; created when everything is loaded
local main -- the coroutine in which the program runs
local deadline, allowed, overtime = nil, 0.0, false

local function settled(ok, ...)
  if ok then
    return ...
  end
  error((...), 0)
end

local NULL = debug.upvalueid(settled, 1) -- a light userdata, which is true

-- Send a request to the host; returns its answer, or raises its error.
local function request(...)
  return settled(yield(REQUEST, ...))
end

local function keep(name, code)
  parts[name] = raw_load(code, nil, "b", base)(kit) or {}
end

-- A chunk of our own, loaded once.
local function part(name)
  if not parts[name] then
    keep(name, request("part", name))
  end
  return parts[name]
end

local function lazy(chunk, name)
  local found
  return function(...)
    found = found or part(chunk)[name]
    return found(...)
  end
end

-- Whether the time is over. It starts with the first check of the clock, which is a system call: most steps are too
-- short for one.
local function is_over()
  local now = clock()
  deadline = deadline or now + allowed
  return now > deadline
end

local function strike()
  if overtime or is_over() then
    overtime = true
    error(OVERTIME, 0)
  end
end

-- End the program. Raising an error instead would unwind every protected call, and there can be thousands.
local function leave()
  overtime = true
  yield(REQUEST, "overtime")
  error(OVERTIME, 0)
end

local function checked(...)
  if overtime then
    leave()
  end
  return ...
end

-- The result of a protected call. With little memory each failure takes long, so that the hook alone is too late.
local function caught(ok, ...)
  if overtime or not ok and is_over() then
    leave()
  end
  return ok, ...
end

-- Raise what a C function raised, as if the function that called us were that C function.
local function passed(name, ok, ...)
  if ok then
    return ...
  end
  local problem = ...
  checked()
  if type(problem) == "string" then
    problem = gsub(problem, "to '[^']*'", "to '" .. name .. "'", 1)
  end
  error(problem, 2)
end

-- Call a C function that makes a string, with one result or two. C allocates without running the collector,
-- so that memory may be exhausted though most of it is garbage.
local function made(name, native, ...)
  local ok, text, count = raw_pcall(native, ...)
  if not ok and text == FULL then
    collect()
    ok, text, count = raw_pcall(native, ...)
  end
  if count == nil then
    return passed(name, ok, text)
  end
  return passed(name, ok, text, count)
end

-- The same, wrapped as a function.
local function maker(name, native)
  return function(...)
    return made(name, native, ...)
  end
end

-- Call a function of our own that calls none of the program, without the hook, which takes a third of the time. It looks
-- at the time itself. It runs in a coroutine, so that the hook of the program's own stays what it is, whatever happens.

local helper

local function serve(f, ...)
  return serve(yield(f(...)))
end

local function unwatched(...)
  if not helper or status(helper) ~= "suspended" then
    helper = create(serve)
    sethook(helper)
  end
  return settled(resume(helper, ...))
end

local function expected(position, name, wanted, value)
  error(format("bad argument #%d to '%s' (%s expected, got %s)", position, name, wanted, type(value)), 3)
end

-- Whether a table has metamethods: C would call them, so Lua must do the work.
local function acts(t)
  local mt = metatable_of(t)
  return mt ~= nil and not rawequal(mt, ARRAY) and type(t) == "table"
end

-- A C function for plain tables, and a Lua function for tables with metamethods.
local function either(name, native)
  return function(t, ...)
    if acts(t) then
      return part("tables")[name](t, ...)
    end
    return passed(name, raw_pcall(native, t, ...))
  end
end

-- `pairs` and `next` go through keys in an order: see `pairs.lua`. A table that has only 1, 2, 3, … is the same in each
-- process, but proving that takes as long as going through it. So `pairs.lua` gives one that is gone through often a
-- mark: a key without a value, in the only place that the table has for other keys. Lua overwrites or drops it as soon as
-- another key needs a place, and `raw_next` does not find it then.

local MARK = debug.upvalueid(request, 1) -- like NULL, but no program has it
local marked, steps = raw_setmetatable({}, { __mode = "k" }), {} -- the tables that got one, and functions by length
local list_step, walk_plain -- of `pairs.lua`

function env.pairs(t)
  if type(t) ~= "table" or metatable_of(t) ~= nil then
    return part("pairs").walk(t)
  elseif marked[t] then
    local n = #t
    if n > 0 and raw_pcall(raw_next, t, MARK) and raw_next(t, n) == nil then
      return steps[n] or list_step(n), t, 0
    end
    marked[t] = nil
  elseif not walk_plain then
    list_step, walk_plain = part("pairs").list_step, part("pairs").walk_plain
  end
  return walk_plain(t, #t)
end

function env.next(t, key)
  if key == nil and type(t) == "table" then
    local first = rawget(t, 1)
    if first ~= nil then
      return 1, first
    elseif raw_next(t) == nil then
      return nil
    end
  end
  return part("tables").next(t, key)
end

local function ipairs_step(t, i)
  i = i + 1
  local value = t[i]
  if value ~= nil then
    return i, value
  end
end

local native_step = ipairs({}) -- twice as fast, but C would call an __index

function env.ipairs(t)
  local mt = metatable_of(t)
  if mt == nil and type(t) == "table" then
    return native_step, t, 0
  elseif type(t) ~= "table" and not (mt and mt.__index) then
    expected(1, "for iterator", "table", t)
  end
  return ipairs_step, t, 0
end

function env.pcall(...)
  return caught(raw_pcall(...))
end

function env.setmetatable(t, mt)
  local old = metatable_of(t)
  if type(t) ~= "table" then
    expected(1, "setmetatable", "table", t)
  elseif mt ~= nil and type(mt) ~= "table" then
    expected(2, "setmetatable", "nil or table", mt)
  elseif old and rawget(old, "__metatable") ~= nil then
    error("cannot change a protected metatable", 2)
  end
  if mt and rawget(mt, "__mode") ~= nil then
    rawset(mt, "__mode", nil) -- when a weak table loses an entry depends on the memory in use
  end
  local finalizer = mt and rawget(mt, "__gc")
  if finalizer == nil then
    return raw_setmetatable(t, mt)
  end
  rawset(mt, "__gc", nil) -- Lua registers a finalizer only here, and would run it without limits
  raw_setmetatable(t, mt)
  rawset(mt, "__gc", finalizer)
  return t
end

function env.table.concat(t, ...)
  if acts(t) then
    return part("tables").concat(t, ...)
  end
  return made("concat", concat, t, ...)
end

function env.string.gsub(s, pattern, replacement, most)
  local kind = type(replacement)
  if kind == "function" or kind == "table" and acts(replacement) then
    return part("strings").gsub(s, pattern, replacement, most)
  end
  return made("gsub", gsub, s, pattern, replacement, most)
end

-- Numbers and strings are shown as they are; other values are numbered, see `tostring.lua`.
local function tostring(...)
  local value = ...
  local kind = type(value)
  if kind == "string" or kind == "number" then
    return raw_tostring(value)
  end
  return part("tostring").tostring(...)
end

function env.string.format(template, ...)
  if type(template) ~= "string" or not find(template, "%%[^%a%%]*[ps]") then -- only %p and %s show an object
    return made("format", format, template, ...)
  elseif find(gsub(template, "%%%%", ""), "%%[-+ #0]*%d*%.?%d*p") then -- %%p is a percent sign and a letter
    error("invalid conversion '%p' to 'format': an address would differ in each process", 2)
  end
  local values = pack(...)
  for i = 1, values.n do
    local kind = type(values[i])
    if kind ~= "string" and kind ~= "number" and kind ~= "boolean" and kind ~= "nil" then
      values[i] = tostring(values[i])
    end
  end
  return made("format", format, template, unpack(values, 1, values.n))
end

-- C would repeat an empty string without end.
function env.string.rep(s, n, between)
  if s == "" and (between == nil or between == "") and tointeger(n) then
    return ""
  end
  return made("rep", rep, s, n, between)
end

-- alc: `llm` and `time` are here, the rest is loaded on first use.

local alc = {}

-- A value as text for the journal: numbers count as text, and it must be UTF-8. Raises at the caller of the caller.
local function words(value, what)
  if type(value) == "number" then
    value = raw_tostring(value)
  elseif type(value) ~= "string" then
    error(format("%s must be a string, got %s", what, value == NULL and "null" or type(value)), 3)
  end
  local _, bad = utf8_len(value)
  if bad then
    error(format("%s is not valid UTF-8 (byte %d)", what, bad), 3)
  end
  return value
end

function alc.llm(prompt, opts)
  prompt = words(prompt, "alc.llm: prompt")
  if opts == nil or opts == NULL then
    local ok, answer = yield(REQUEST, "llm", prompt)
    if ok then
      return answer
    end
    error(answer, 0)
  end
  return (request("llm", prompt, part("layer0").options(opts, "alc.llm")))
end

function alc.time()
  return kit.now
end

-- The part of the library with a name is loaded when the name is read. Values set by the program stay.
local function found_in(home)
  return function(t, name)
    local chunk = type(name) == "string" and request("where", home, name)
    if chunk then
      part(chunk)
    end
    return rawget(t, name)
  end
end

raw_setmetatable(alc, { __index = found_in("alc"), __pairs = lazy("layer0", "pairs"), __metatable = false })

-- What the parts get; created before the program's tables are changed.
kit = {
  array = ARRAY, null = NULL, env = env, version = version, namespace = namespace, now = 0.0, born = 0.0, noisy = false,
  mark = MARK, marked = marked, steps = steps, rawset = rawset, move = table.move, raw_next = raw_next,
  raw_pcall = raw_pcall, raw_tostring = raw_tostring, raw_load = raw_load,
  gsub = maker("gsub", gsub), concat = maker("concat", concat), format = format, sort = table.sort, unpack = unpack,
  insert = table.insert, remove = table.remove, close = coroutine.close, status = status, rep = rep,
  create = create, resume = resume, running = coroutine.running, yield = yield, sethook = sethook,
  unwatched = unwatched,
  traceback = debug.traceback, metatable_of = metatable_of, setmetatable = raw_setmetatable, date = os.date,
  randomseed = math.randomseed, part = part, checked = checked, caught = caught, passed = passed, expected = expected,
  acts = acts, request = request, alc = alc, found_in = found_in, every = EVERY, strike = strike, words = words,
  tostring = tostring, REQUEST = REQUEST, DONE = DONE, unprotected = unprotected, shape_check = shape_check,
}

-- The remaining globals

local string, table, math, utf8, loaded, texts = string, table, math, utf8, package.loaded, metatable_of("")

for event, native in raw_next, texts do
  if event ~= "__index" then
    texts[event] = function(one, other)
      return part("strings").arithmetic(event, native, one, other)
    end
  end
end
texts.__metatable = false

env.debug, env.dofile, env.loadfile, env.python = nil, nil, nil, nil
loaded.coroutine, loaded.debug, loaded.io, loaded.os, loaded.package, loaded.python = nil, nil, nil, nil, nil, nil

string.lower, string.upper = maker("lower", string.lower), maker("upper", string.upper)
table.insert, table.remove = either("insert", kit.insert), either("remove", kit.remove)
table.unpack = either("unpack", unpack)
table.sort, table.move = lazy("tables", "sort"), lazy("tables", "move")
string.dump = nil
math.randomseed = lazy("system", "randomseed")
env.tostring, env.load, env.collectgarbage = tostring, lazy("system", "load"), lazy("system", "collectgarbage")
env.print, env.warn = lazy("output", "print"), lazy("output", "warn")
env.xpcall, env.require = lazy("coroutines", "xpcall"), lazy("require", "require")

-- Libraries that are loaded as a whole on first use. Values set by the program stay.

local names

local function fill(t)
  local name = names[t]
  local home = name == "coroutine" and "coroutines" or name == "package" and "require" or "system"
  for key, value in raw_next, part(home)[name] do
    if rawget(t, key) == nil then
      rawset(t, key, value)
    end
  end
  unprotected(t, nil)
  return t
end

local shelf = {
  __index = function(t, key) return fill(t)[key] end,
  __pairs = function(t) return base.pairs(fill(t)) end,
  __metatable = false,
}

env.coroutine, env.io = raw_setmetatable({}, shelf), raw_setmetatable({}, shelf)
env.os, env.package = raw_setmetatable({}, shelf), raw_setmetatable({}, shelf)
names = { [env.coroutine] = "coroutine", [env.io] = "io", [env.os] = "os", [env.package] = "package" }

if wants_alc then
  env.alc = alc
end

base = {
  error = error, ipairs = env.ipairs, next = env.next, pairs = env.pairs, pcall = env.pcall, rawequal = rawequal,
  rawget = rawget, rawlen = rawlen, select = select, setmetatable = raw_setmetatable, tonumber = tonumber,
  tostring = tostring, type = type,
  math = {
    abs = math.abs, exp = math.exp, floor = math.floor, huge = math.huge, log = math.log, max = math.max, min = math.min,
    pi = math.pi, sin = math.sin, sqrt = math.sqrt, tan = math.tan, tointeger = tointeger, type = math.type,
    ult = math.ult,
  },
  string = {
    byte = string.byte, find = find, format = string.format, gmatch = string.gmatch, gsub = string.gsub,
    lower = string.lower, match = string.match, sub = string.sub,
  },
  table = { concat = table.concat, pack = pack, sort = table.sort, unpack = table.unpack },
  utf8 = { char = utf8.char, codes = utf8.codes, len = utf8_len, offset = utf8.offset },
}

-- The host's side

local problem -- the error it ended with

-- Use this seed from now on, unless the program has set one.
local function seed(first, second)
  kit.seed_one, kit.seed_other, kit.reseeded = first, second, 0
  if not kit.chosen then
    kit.randomseed(first, second)
  end
end

seed(one, other)

local OWN, fresh = { part = true, where = true }, true

local function answered(ok, tag, kind, ...)
  if fresh and not OWN[kind] then
    fresh = false
    collect() -- frees what was needed only up to the first pause
  end
  if ok and tag == REQUEST then
    return kit.noisy, kind, ...
  elseif ok and tag == DONE then
    return kit.noisy, "done", kind
  end
  problem = tag
  return kit.noisy, overtime and "overtime" or "failed"
end

-- Start or resume the program until it makes a query or ends. Returns whether it has output, and the query.
local function go(now, seconds, ...)
  if now then
    kit.now, deadline, allowed = now, nil, seconds
  end
  if main then
    return answered(resume(main, ...))
  end
  main = raw_load((...), nil, "b", base)(kit, select(2, ...)) -- with the parts that are needed only for this
  return answered(resume(main))
end

-- Set the seed, take the output, or return message and traceback of the error;
-- the parts that are needed for that are loaded with it.
local function aside(what, ...)
  if what == "seed" then
    return seed(...)
  elseif what == "take" then
    return part("output").take()
  end
  for i = 1, select("#", ...), 2 do
    local name, code = select(i, ...)
    if not parts[name] then
      keep(name, code)
    end
  end
  return parts.failure.told(main, problem)
end

return go, aside
