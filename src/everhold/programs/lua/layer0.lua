-- alc, Layer 0: functions that make queries, and JSON. A part of the sandbox: it gets the kit.

local kit = ...

local type, error, next, select, tonumber, tointeger = type, error, next, select, tonumber, math.tointeger
local format, find, utf8_len = kit.format, string.find, utf8.len
local alc, request, words, tostring = kit.alc, kit.request, kit.words, kit.tostring
local raw_next, raw_pcall, unpack, caught = kit.raw_next, kit.raw_pcall, kit.unpack, kit.caught
local null, array = kit.null, kit.array
local encode, decode = kit.part("json").encode, kit.part("json").decode

local function given(value)
  if value == null then
    return nil
  end
  return value
end

-- Questions

local OWN = { prompt = true, system = true, max_tokens = true, grounded = true, underspecified = true }
local MOST = 2 ^ 32 - 1
local MANY = 50000 -- queries at once: they and their answers pass through the stack

local function tokens(value)
  local number = tointeger(tonumber(given(value)))
  return number and number >= 0 and number <= MOST and number or nil
end

-- Options as JSON, without those that JSON cannot represent, such as a callback.
local function storable(kept, what)
  local ok, text = caught(raw_pcall(encode, kept, what))
  if ok then
    return text
  end
  for name, value in raw_next, kept do
    if not caught(raw_pcall(encode, { [name] = value }, what)) then
      kept[name] = nil
    end
  end
  return raw_next(kept) and encode(kept, what)
end

-- The other options, which are passed on to the model.
local function others(opts, what)
  local kept
  for name, value in raw_next, opts do
    if type(name) == "string" and not OWN[name] then
      kept = kept or {}
      kept[name] = value
    end
  end
  return kept and storable(kept, what)
end

-- system, max_tokens, grounded, underspecified and the rest. A value of a wrong type counts as missing.
local function options(opts, what)
  if type(opts) ~= "table" then
    error(format("%s: opts must be a table, got %s", what, type(opts)), 3)
  end
  local system = given(opts.system)
  if type(system) == "number" then
    system = tostring(system)
  elseif type(system) ~= "string" then
    system = nil
  elseif not utf8_len(system) then
    error(what .. ": system is not valid UTF-8", 3)
  end
  local grounded, underspecified = given(opts.grounded), given(opts.underspecified)
  return system, tokens(opts.max_tokens), not not grounded, not not underspecified, others(opts, what)
end

function alc.llm_batch(items)
  if type(items) ~= "table" then
    error("alc.llm_batch: items must be an array, got " .. type(items), 2)
  end
  local asked, count = {}, tointeger(#items) or 0 -- __len may return anything
  if count < 1 then
    error("alc.llm_batch: items is empty", 2)
  elseif count > MANY then
    error(format("alc.llm_batch: %d items, and no more than %d can be asked at once", count, MANY), 2)
  end
  for i = 1, count do
    local item, place, opts = items[i], (i - 1) * 6, nil
    if type(item) == "table" then
      item, opts = item.prompt, item
    end
    if type(item) ~= "string" or not utf8_len(item) then
      item = words(item, "alc.llm_batch: prompt of item " .. i)
    end
    asked[place + 1], asked[place + 4], asked[place + 5] = item, false, false
    if opts then
      asked[place + 2], asked[place + 3], asked[place + 4], asked[place + 5], asked[place + 6] =
        options(opts, "alc.llm_batch")
    end
  end
  return { request("batch", count, unpack(asked, 1, count * 6)) }
end

function alc.fork(strategies, ctx, opts)
  if type(strategies) ~= "table" or #strategies == 0 then
    error("alc.fork: name at least one package to run", 2)
  end
  local names = {} -- read once: __index may return something else the next time
  for i = 1, #strategies do
    local name = strategies[i]
    if type(name) ~= "string" or not find(name, "^[%w_][%w_.-]*$") or find(name, "..", 1, true) then
      error(format("alc.fork: invalid strategy name '%s'", tostring(name)), 2)
    end
    names[i] = name
  end
  opts, ctx = given(opts) or {}, given(ctx) or {}
  local aborts = opts.on_error == "abort" or opts.on_error == "fail"
  local copy = encode(ctx, "alc.fork: ctx")
  local results = request("fork", aborts, copy, unpack(names))
  return decode(results, 3) -- three levels around the results: the list, the table of a child, and its stats
end

function alc.budget_remaining()
  local left = request("budget")
  return left and decode(left)
end

-- JSON

function alc.json_encode(value)
  return encode(value, "alc.json_encode: the value")
end

function alc.json_decode(text)
  if type(text) ~= "string" then
    error("alc.json_decode: text must be a string, got " .. type(text), 2)
  end
  local ok, value = raw_pcall(decode, text)
  if not ok then
    kit.checked()
    error("alc.json_decode: " .. tostring(value), 2)
  end
  return value
end

alc.null = null
alc._dirs = { state = "", cards = "", scenarios = "" }

-- pairs(alc) and pairs(alc.state): a name is there once its part is loaded, so all parts that add names are loaded first.

local ADDING = { "output", "text", "alc_math", "layer1", "cards" }

local function all_pairs(t)
  for i = 1, #ADDING do
    kit.part(ADDING[i])
  end
  return next, t, nil
end

-- Durable values

local function state(verb, namespace, key, ...)
  local value = select("#", ...) > 0 and encode({ ... }, "state '" .. key .. "'") or nil
  return given(decode(request("state", verb, namespace, key, value)))
end

alc.state = kit.setmetatable({}, {
  __index = kit.found_in("state"),
  __pairs = all_pairs,
  __metatable = false,
})

local function kept(key, what)
  if type(key) ~= "string" and type(key) ~= "number" then
    error(format("alc.state.%s: key must be a string, got %s", what, type(key)), 3)
  end
  local namespace = kit.namespace
  if namespace == "" or find(namespace, "[/\\\0]") or find(namespace, "..", 1, true) then
    error(format("Invalid namespace: '%s'", namespace), 3)
  end
  return namespace, words(key, "alc.state." .. what .. ": key")
end

function alc.state.get(key, default)
  local found = state("get", kept(key, "get"))
  if found == nil then
    return default
  end
  return found[1]
end

function alc.state.has(key)
  return state("get", kept(key, "has")) ~= nil
end

function alc.state.set(key, value)
  local namespace, name = kept(key, "set")
  state("set", namespace, name, value == nil and null or value)
end

function alc.state.set_nx(key, value)
  local namespace, name = kept(key, "set_nx")
  return state("set_nx", namespace, name, value == nil and null or value)
end

function alc.state.delete(key)
  return state("delete", kept(key, "delete"))
end

function alc.state.keys()
  local namespace = kept("", "keys")
  return state("keys", namespace, "")
end

function alc.state.incr(key, delta, default)
  local namespace, name = kept(key, "incr")
  local step, start = tonumber(given(delta) or 1), tonumber(given(default) or 0)
  if not step or not start then
    error("alc.state.incr: delta and default must be numbers", 2)
  end
  return state("incr", namespace, name, step, start) + 0.0
end

-- For the library: a table whose functions are in these parts, loaded when a name is read. Values set by the program stay.
local function loaded(home, name)
  local set = {}
  for key, value in raw_next, home do
    set[key] = value
  end
  kit.part(name)
  for key, value in raw_next, set do
    home[key] = value
  end
end

local function home_of(title, names)
  return kit.setmetatable({}, {
    __index = function(t, name)
      local chunk = type(name) == "string" and request("where", title, name)
      if chunk then
        loaded(t, chunk)
      end
      return rawget(t, name)
    end,
    __pairs = function(t)
      for i = 1, #names do
        loaded(t, names[i])
      end
      return next, t, nil
    end,
    __metatable = false,
  })
end

-- For the library: any namespace. A missing value is nil; `scan` returns pairs of key and value.
local host = {
  null = null, array = array, version = kit.version, part = kit.part, home = home_of, unwatched = kit.unwatched,
}

function host.require(name)
  return kit.part("require").require(name)
end

function host.state(verb, namespace, key, value)
  local found
  if value == nil then
    found = state(verb, namespace, key)
  else
    found = state(verb, namespace, key, value)
  end
  if verb == "get" then
    return found and found[1]
  end
  return found
end

-- A verb of cards. A missing result is nil.
function host.card(verb, name, value)
  return state(verb, "card", name or "", value)
end

-- The table that a chunk of the library writes to: it reads through to `alc`, and sets only missing fields there.
local libraries = kit.setmetatable({}, {
  __index = alc,
  __newindex = function(_, name, value)
    if rawget(alc, name) == nil then
      alc[name] = value
    end
  end,
})

return { options = options, host = host, libraries = libraries, pairs = all_pairs }
