-- The world of a program: Lua 5.4 without the machine around it, the same in every process.
--
-- A chunk: `local version, namespace, wants_alc = ...`; it turns the globals of a fresh state into a sandbox and returns
-- what the host calls: begin, go, take, seed, told. What is rarely needed is asked of the host with its first use,
-- because each session has a state of its own; those chunks get the `kit`.
--
--   1. Whatever calls a program's function is Lua, never C: so a question can be asked anywhere a program can stand.
--   2. A question is a yield marked with REQUEST. Resumers pass it on, so that it reaches the host from any coroutine.
--   3. Nothing depends on addresses or hash seeds: pairs and next go through keys in order, objects are numbered.
--   4. Once the time is over the first protected call that hears of it leaves for good. Finalizers never run.
--   5. Our own Lua uses its own library; programs get copies, which they may spoil.

local version, namespace, wants_alc = ...

local type, error, rawget, rawset, select = type, error, rawget, rawset, select
local raw_next, raw_pcall, raw_tostring, raw_load, raw_setmetatable = next, pcall, tostring, load, setmetatable
local math_type, clock, format, sort, concat = math.type, os.clock, string.format, table.sort, table.concat
local gsub, sub, utf8_len = string.gsub, string.sub, utf8.len
local create, resume, yield, running = coroutine.create, coroutine.resume, coroutine.yield, coroutine.running
local metatable_of, sethook, collect = debug.getmetatable, debug.sethook, collectgarbage

local EVERY = 1000 -- instructions between two looks at the clock
local REQUEST, DONE = {}, {}
local OVERTIME = "the program did not pause in time"
local ARRAY = { __metatable = false } -- of tables that are arrays in JSON even when they are empty
local NULL = debug.upvalueid(function() return ARRAY end, 1) -- a light userdata, which is true

local base, env, parts = _G, {}, {}
local kit = {
  array = ARRAY, null = NULL, env = env, base = base, version = version, namespace = namespace, now = 0.0, born = 0.0,
  raw_next = raw_next, raw_pcall = raw_pcall, raw_tostring = raw_tostring, raw_load = raw_load, gsub = gsub,
  format = format, rep = string.rep, sort = sort, concat = concat, unpack = table.unpack, insert = table.insert,
  remove = table.remove, close = coroutine.close, status = coroutine.status, create = create, resume = resume,
  sethook = sethook, traceback = debug.traceback, metatable_of = metatable_of, date = os.date,
  randomseed = math.randomseed, setmetatable = raw_setmetatable,
}
local main -- the coroutine in which the program runs
local deadline, overtime = 0.0, false

local function settled(ok, ...)
  if ok then
    return ...
  end
  error((...), 0)
end

-- Ask the host; returns what it says, or raises it.
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
  return function(...)
    return part(chunk)[name](...)
  end
end

local function strike()
  if overtime or clock() > deadline then
    overtime = true
    error(OVERTIME, 0)
  end
end

-- Leave for good. To raise instead would mean to fall through each protected call there is, and there can be thousands.
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

-- What came of a protected call. Where memory is short each failure takes long, so that the hook alone comes too late.
local function caught(ok, ...)
  if overtime or not ok and clock() > deadline then
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

local function expected(position, name, wanted, value)
  error(format("bad argument #%d to '%s' (%s expected, got %s)", position, name, wanted, type(value)), 3)
end

-- Whether a table answers for itself: what C would do with such a one, Lua has to do.
local function acts(t)
  local mt = metatable_of(t)
  return mt ~= nil and mt ~= ARRAY and type(t) == "table"
end

-- A function of C for plain tables, and one of Lua for those that answer for themselves.
local function either(name, native)
  return function(t, ...)
    if acts(t) then
      return part("tables")[name](t, ...)
    end
    return passed(name, raw_pcall(native, t, ...))
  end
end

-- Order of keys: 1, 2, 3, … as far as they go; then numbers, strings by their bytes, false, true; then the rest in the
-- order in which Lua has them.

local function border(t)
  local n = 0
  while rawget(t, n + 1) ~= nil do
    n = n + 1
  end
  return n
end

local function append(keys, more)
  for i = 1, #more do
    keys[#keys + 1] = more[i]
  end
end

-- The keys behind 1 … n, in order.
local function ordered(t, n)
  local numbers, strings, others = {}, {}, {}
  for key in raw_next, t do
    local kind = type(key)
    if kind == "string" then
      strings[#strings + 1] = key
    elseif kind == "number" then
      if not (math_type(key) == "integer" and key >= 1 and key <= n) then
        numbers[#numbers + 1] = key
      end
    elseif kind ~= "boolean" then
      others[#others + 1] = key
    end
  end
  sort(numbers)
  sort(strings)
  append(numbers, strings)
  for _, truth in raw_next, { false, true } do
    if rawget(t, truth) ~= nil then
      numbers[#numbers + 1] = truth
    end
  end
  append(numbers, others)
  return numbers
end

function base.pairs(t)
  local mt = metatable_of(t)
  local own = mt and rawget(mt, "__pairs")
  if own ~= nil then
    local step, state, start = own(t)
    return step, state, start
  elseif type(t) ~= "table" then
    expected(1, "for iterator", "table", t)
  end
  local n, i, keys = border(t), 0, nil
  return function()
    while i < n do
      i = i + 1
      local value = rawget(t, i)
      if value ~= nil then
        return i, value
      end
    end
    keys = keys or ordered(t, n)
    while true do
      local key = keys[i - n + 1]
      if key == nil then
        return nil
      end
      i = i + 1
      local value = rawget(t, key)
      if value ~= nil then
        return key, value
      end
    end
  end, t, nil
end

function base.next(t, key)
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

function base.ipairs(t)
  local mt = metatable_of(t)
  if type(t) ~= "table" and not (mt and mt.__index) then
    expected(1, "for iterator", "table", t)
  end
  return ipairs_step, t, 0
end

-- Objects are numbered in the order in which their names are asked for: an address would differ in each process.

local numbers, numbered = raw_setmetatable({}, { __mode = "k" }), 0

local function tostring(...)
  local value = ...
  local kind = type(value)
  if kind == "string" then
    return value
  end
  local mt = metatable_of(value)
  if mt then
    local own = rawget(mt, "__tostring")
    if own ~= nil then
      local text = own(value)
      if type(text) ~= "string" and type(text) ~= "number" then
        error("'__tostring' must return a string", 2)
      end
      return raw_tostring(text)
    end
    local name = rawget(mt, "__name")
    kind = type(name) == "string" and name or kind
  elseif value == nil and select("#", ...) == 0 then
    error("bad argument #1 to 'tostring' (value expected)", 2)
  elseif value == NULL then
    return "null"
  end
  if kind == "nil" or kind == "number" or kind == "boolean" then
    return raw_tostring(value)
  end
  if not numbers[value] then
    numbered = numbered + 1
    numbers[value] = numbered
  end
  return format("%s: 0x%012x", kind, numbers[value] * 16)
end

-- Protected calls. A handler runs after the fall, so that it may ask too.

function base.pcall(...)
  return caught(raw_pcall(...))
end

local function false_and(_, ...)
  return false, ...
end

local function handled(handler, ok, ...)
  if ok then
    return true, ...
  end
  return checked(false_and(raw_pcall(handler, ...)))
end

function base.xpcall(f, handler, ...)
  if type(handler) ~= "function" then
    expected(2, "xpcall", "function", handler)
  end
  return handled(handler, caught(raw_pcall(f, ...)))
end

-- Coroutines

local function co_create(f)
  if type(f) ~= "function" then
    expected(1, "create", "function", f)
  end
  local co = create(f)
  sethook(co, strike, "", EVERY)
  return co
end

local function relay(co, ok, ...)
  if ok and (...) == REQUEST then
    return relay(co, resume(co, yield(...)))
  end
  return caught(ok, ...)
end

local function unwrapped(co, ok, ...)
  if ok then
    return ...
  end
  local problem = ...
  if kit.status(co) == "dead" then
    kit.close(co)
  end
  error(problem, type(problem) == "string" and 2 or 0)
end

base.coroutine.create = co_create

function base.coroutine.resume(co, ...)
  if type(co) ~= "thread" then
    expected(1, "resume", "thread", co)
  end
  return relay(co, resume(co, ...))
end

function base.coroutine.wrap(f)
  local co = co_create(f)
  return function(...)
    return unwrapped(co, relay(co, resume(co, ...)))
  end
end

function base.coroutine.yield(...)
  if running() == main then
    error("attempt to yield from outside a coroutine", 0)
  end
  return yield(...)
end

function base.coroutine.close(co)
  return checked(passed("close", raw_pcall(kit.close, co)))
end

function base.coroutine.running()
  local co = running()
  return co, co == main
end

function base.coroutine.isyieldable()
  return running() ~= main
end

-- What the program says on the side, until the host takes it.

local function say(level, source, words)
  part("saying").add(level, source, words)
  kit.noisy = true
end

function base.setmetatable(t, mt)
  local old = metatable_of(t)
  if type(t) ~= "table" then
    expected(1, "setmetatable", "table", t)
  elseif mt ~= nil and type(mt) ~= "table" then
    expected(2, "setmetatable", "nil or table", mt)
  elseif old and rawget(old, "__metatable") ~= nil then
    error("cannot change a protected metatable", 2)
  end
  local finalizer = mt and rawget(mt, "__gc")
  if finalizer == nil then
    return raw_setmetatable(t, mt)
  end
  rawset(mt, "__gc", nil) -- Lua notes a finalizer only here, and runs it where no limit reaches
  raw_setmetatable(t, mt)
  rawset(mt, "__gc", finalizer)
  return t
end

function base.string.gsub(s, pattern, replacement, most)
  local kind = type(replacement)
  if kind == "function" or kind == "table" and acts(replacement) then
    return part("strings").gsub(s, pattern, replacement, most)
  end
  return passed("gsub", raw_pcall(gsub, s, pattern, replacement, most))
end

-- alc: `llm` and `time` are here, the rest comes with its first use.

local alc = {}

-- A value as text of the journal: numbers count as text, and it has to be UTF-8. Raises at the caller of the caller.
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
    return (request("llm", prompt))
  end
  return (request("llm", prompt, part("bridge").options(opts, "alc.llm")))
end

function alc.time()
  return kit.now
end

-- The part of the library that has a name is loaded when somebody looks for it. What a program has put there stays.
local function found_in(home)
  return function(t, name)
    local chunk = type(name) == "string" and request("where", home, name)
    if chunk then
      part(chunk)
    end
    return rawget(t, name)
  end
end

-- A table for a library chunk to write into: it reads through to `alc`, and fills only what is empty there.
local function filled(t, name, value)
  if rawget(t, name) == nil then
    rawset(t, name, value)
  end
end

local libraries = raw_setmetatable({}, {
  __index = alc,
  __newindex = function(_, name, value) filled(alc, name, value) end,
})

raw_setmetatable(alc, { __index = found_in("alc"), __metatable = false })

-- What is left of the globals

for event, native in raw_next, metatable_of("") do
  if event ~= "__index" then
    metatable_of("")[event] = function(one, other)
      return part("strings").arithmetic(event, native, one, other)
    end
  end
end

for _, name in raw_next, { "debug", "dofile", "io", "loadfile", "os", "package", "python", "require" } do
  if name == "package" then
    for loaded in raw_next, base.package.loaded do
      base.package.loaded[loaded] = nil
    end
  end
  base[name] = nil
end

for name, native in raw_next, { concat = concat, insert = kit.insert, remove = kit.remove, unpack = kit.unpack } do
  base.table[name] = either(name, native)
end
base.table.sort, base.table.move = lazy("tables", "sort"), lazy("tables", "move")
base.string.format, base.string.rep, base.string.dump = lazy("format", "format"), lazy("format", "rep"), nil
base.math.randomseed = lazy("system", "randomseed")
base.tostring, base.load, base.collectgarbage = tostring, lazy("system", "load"), lazy("system", "collectgarbage")
base.print, base.warn = lazy("saying", "print"), lazy("saying", "warn")
base.os, base.io = {}, {}
for _, name in raw_next, { "clock", "date", "difftime", "getenv", "time" } do
  base.os[name] = lazy("system", name)
end
for _, name in raw_next, { "close", "lines", "open", "popen", "read", "write" } do
  base.io[name] = lazy("system", name)
end
base.io.stdout = { write = lazy("system", "write_out") }
base.io.stderr = { write = lazy("system", "write_error") }

for name, value in raw_next, base do
  if type(value) == "table" and value ~= base then
    local copy = {}
    for key, item in raw_next, value do
      copy[key] = item
    end
    value = copy
  end
  env[name] = value
end
env._G = env
if wants_alc then
  env.alc = alc
end
metatable_of("").__index, metatable_of("").__metatable = env.string, false

kit.part, kit.checked, kit.passed, kit.expected, kit.acts = part, checked, passed, expected, acts
kit.ordered, kit.strike, kit.words, kit.tostring = ordered, strike, words, tostring
kit.request, kit.say, kit.alc, kit.libraries, kit.found_in, kit.every = request, say, alc, libraries, found_in, EVERY

env.require = lazy("modules", "require")
env.package = raw_setmetatable({}, { __index = function(_, name) return part("modules").package[name] end })

-- The host's side

local problem -- with which it ended

local function answered(ok, tag, ...)
  if ok and tag == REQUEST then
    return kit.noisy, ...
  elseif ok and tag == DONE then
    return kit.noisy, "done", ...
  end
  problem = tag
  return kit.noisy, overtime and "overtime" or "failed"
end

-- The words of the error with which it ended, and the lines; for that some more of our Lua is needed.
local function told(json, ending)
  if not parts.json then
    keep("json", json)
  end
  keep("ending", ending)
  return parts.ending.told(main, problem)
end

local function take()
  return part("saying").take()
end

local function run(module, name, ctx)
  if type(module) ~= "table" or module.run == nil then
    error(format("package '%s' has no function run(ctx)", name), 0)
  end
  return module.run(ctx)
end

-- `how` is "text", "file" or "package"; of a package there is no source, it is required.
local function value_of(how, name, source, title, ctx)
  if how == "package" then
    return run(part("modules").require(name), name, ctx)
  end
  local chunk, problem = raw_load(source, title, "t", env)
  if not chunk then
    error(problem, 0)
  end
  local value = chunk(name)
  local entry = type(value) == "table" and rawget(value, "run")
  if how == "file" and entry or type(entry) == "function" then
    return run(value, name, ctx)
  end
  return value
end

-- Begin a life. Its ctx is JSON, or names and plain values.
local function begin(born, how, name, source, title, json, ...)
  local given = { ... }
  kit.born = born
  main = create(function()
    local ctx = json and part("json").decode(json) or {}
    for i = 1, #given, 2 do
      ctx[given[i]] = given[i + 1]
    end
    env.ctx, given = ctx, nil
    local value = value_of(how, name, source, title, ctx)
    return DONE, part("json").encode(value, "the result")
  end)
  sethook(main, strike, "", EVERY)
  collect() -- what was needed only to get here
end

-- From now on the dice fall from this seed, unless the program has chosen one itself.
local function seed(one, other)
  kit.seed_one, kit.seed_other, kit.reseeded = one, other, 0
  if not kit.chosen then
    kit.randomseed(one, other)
  end
end

-- Go on, until the program asks something or ends: whether it said anything, and what it asks.
local function go(now, allowed, ...)
  if now then
    kit.now, deadline = now, clock() + allowed
  end
  return answered(resume(main, ...))
end

return begin, go, seed, take, told
