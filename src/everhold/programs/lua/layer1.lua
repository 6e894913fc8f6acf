-- Layer 1: helpers built on Layer 0. Nothing here calls the host.
--
-- A chunk of the Lua library: `local alc, host = ...` adds functions to `alc`; `host.require` loads a package. Layer 0
-- is looked up when it is called, so that a program which wraps `alc.llm` wraps it for everything here too.

local alc, host = ...

local type, pairs, ipairs, pcall, error, tostring = type, pairs, ipairs, pcall, error, tostring
local format, match, concat = string.format, string.match, table.concat

local function copy(from)
  local out = {}
  for key, value in pairs(from) do
    out[key] = value
  end
  return out
end

-- A copy of the options. A null from JSON counts as missing.
local function options(name, opts)
  if opts == nil or opts == host.null then
    return {}
  elseif type(opts) ~= "table" then
    error(format("alc.%s: opts must be a table, got %s", name, type(opts)), 3)
  end
  return copy(opts)
end

-- Lists ---------------------------------------------------------------------------------------------------------------

function alc.map(list, f)
  local out = {}
  for i, item in ipairs(list) do
    out[i] = f(item, i)
  end
  return out
end

function alc.filter(list, f)
  local out = {}
  for i, item in ipairs(list) do
    if f(item, i) then
      out[#out + 1] = item
    end
  end
  return out
end

-- Without a first value it starts from the first item; for an empty list without one it is nil.
function alc.reduce(list, f, init)
  local acc, from = init, 1
  if acc == nil then
    acc, from = list[1], 2
  end
  for i = from, #list do
    acc = f(acc, list[i], i)
  end
  return acc
end

function alc.vote(answers)
  local counts, order = {}, {}
  for _, answer in ipairs(answers) do
    local words = tostring(answer)
    local said = match(words, ".*%S", match(words, "^%s*()")) or ""
    if not counts[said] then
      counts[said], order[#order + 1] = 0, said
    end
    counts[said] = counts[said] + 1
  end
  local winner, count = nil, 0
  for _, said in ipairs(order) do
    if counts[said] > count then
      winner, count = said, counts[said]
    end
  end
  return { winner = winner, count = count, total = #answers }
end

-- Asking a model --------------------------------------------------------------------------------------------------------

function alc.ground(prompt, opts)
  opts = options("ground", opts)
  opts.grounded = true
  return alc.llm(prompt, opts)
end

function alc.specify(prompt, opts)
  opts = options("specify", opts)
  opts.underspecified = true
  return alc.llm(prompt, opts)
end

function alc.llm_safe(prompt, opts, default)
  local ok, answer = pcall(alc.llm, prompt, opts)
  if ok then
    return answer
  end
  alc.log("warn", "alc.llm_safe: " .. tostring(answer))
  return default
end

local REPAIR = "You repair JSON. Reply with one valid JSON value that says what the previous output meant to say. "
  .. "No prose, no code fence."

function alc.llm_json(prompt, opts)
  local raw = alc.llm(prompt, opts)
  local found = alc.json_extract(raw)
  if found then
    return found, raw
  end
  alc.log("warn", "alc.llm_json: the answer is not JSON; asking for a repair")
  opts = options("llm_json", opts)
  opts.system = REPAIR
  raw = alc.llm(
    concat({
      "The output below should have been JSON and could not be read as such.",
      "The request was:\n" .. tostring(prompt),
      "The output was:\n" .. raw,
      "Write it as valid JSON.",
    }, "\n\n"),
    opts
  )
  found = alc.json_extract(raw)
  if not found then
    alc.log("warn", "alc.llm_json: the repaired answer is not JSON either")
  end
  return found, raw
end

-- One batch for all items; the answers have the order of the items.
function alc.parallel(items, prompt_fn, opts)
  if type(items) ~= "table" or #items == 0 then
    error("alc.parallel: items is empty or no array", 2)
  elseif type(prompt_fn) ~= "function" then
    error("alc.parallel: prompt_fn is no function", 2)
  end
  local shared = options("parallel", opts)
  local post_fn = shared.post_fn
  shared.post_fn = nil
  local batch = {}
  for i = 1, #items do
    local made = prompt_fn(items[i], i)
    if type(made) == "string" then
      batch[i] = copy(shared)
      batch[i].prompt = made
    elseif type(made) == "table" then
      if type(made.prompt) ~= "string" then
        error(format("alc.parallel: the table that prompt_fn returned at index %d has no string .prompt", i), 2)
      end
      batch[i] = made
    else
      error(format("alc.parallel: prompt_fn returned a %s at index %d, not a string or a table", type(made), i), 2)
    end
  end
  local answers = alc.llm_batch(batch)
  if not post_fn then
    return answers
  end
  local out = {}
  for i = 1, #items do
    out[i] = post_fn(answers[i], items[i], i)
  end
  return out
end

-- The cache of this session's answers --------------------------------------------------------------------

local MOST = 256
local kept, order, first, last, hits, misses = {}, {}, 1, 0, 0, 0

-- Options as text, without those that JSON cannot represent: they are not sent.
local function as_text(opts)
  local ok, text = pcall(alc.json_encode, opts)
  if ok then
    return text
  end
  local kept = {}
  for name, value in pairs(opts) do
    if pcall(alc.json_encode, { [name] = value }) then
      kept[name] = value
    end
  end
  return alc.json_encode(kept)
end

-- The key contains everything that affects the answer, also options that are passed on to the model.
local function cache_key(prompt, opts)
  local text, rest = tostring(prompt), copy(opts)
  for _, name in ipairs({ "system", "max_tokens" }) do
    if rest[name] ~= nil then
      text = text .. "\0" .. tostring(rest[name])
      rest[name] = nil
    end
  end
  local key = alc.fingerprint(text)
  for _ in pairs(rest) do
    return key .. as_text(rest)
  end
  return key
end

function alc.cache(prompt, opts)
  opts = options("cache", opts)
  local key, skip = opts.cache_key, opts.cache_skip
  opts.cache_key, opts.cache_skip = nil, nil
  if skip then
    return alc.llm(prompt, opts)
  end
  key = key == nil and cache_key(prompt, opts) or tostring(key)
  if kept[key] ~= nil then
    hits = hits + 1
    return kept[key]
  end
  misses = misses + 1
  local answer = alc.llm(prompt, opts)
  -- Another coroutine may have sent the same prompt meanwhile.
  if kept[key] == nil then
    if last - first + 1 >= MOST then
      kept[order[first]], order[first], first = nil, nil, first + 1
    end
    last = last + 1
    order[last] = key
  end
  kept[key] = answer
  return answer
end

function alc.cache_info()
  return { entries = last - first + 1, hits = hits, misses = misses, max_entries = MOST }
end

function alc.cache_clear()
  kept, order, first, last, hits, misses = {}, {}, 1, 0, 0, 0
end

-- State, budget, settings ---------------------------------------------------------------------------------------------

-- If `f` makes no query it is atomic: the writes of other sessions are not lost.
function alc.state.update(key, f, default)
  local value = f(alc.state.get(key, default))
  alc.state.set(key, value)
  return value
end

local LIMITS = { "llm_calls", "elapsed_ms", "tokens" }

function alc.budget_check()
  local left = alc.budget_remaining()
  for _, limit in ipairs(left and LIMITS or {}) do
    -- A limit that is not set is null, not a number.
    if type(left[limit]) == "number" and left[limit] <= 0 then
      return false
    end
  end
  return true
end

local function merged(defaults, given)
  local out = {}
  for key, default in pairs(defaults) do
    local value = given[key]
    if key == "_schema" then
      value = nil
    elseif value == nil then
      value = default
    elseif type(default) == "table" and type(value) == "table" and default[1] == nil and value[1] == nil then
      value = merged(default, value)
    end
    out[key] = value
  end
  return out
end

function alc.tuning(defaults, ctx, opts)
  if type(defaults) ~= "table" then
    return defaults
  end
  local given, prefix = ctx, options("tuning", opts).prefix
  if prefix ~= nil and type(ctx) == "table" and ctx[prefix] ~= nil then
    given = ctx[prefix]
    if type(given) ~= "table" then
      alc.log("warn", format("alc.tuning: '%s' is a %s, not a table; defaults are used", tostring(prefix), type(given)))
    end
  end
  return merged(defaults, type(given) == "table" and given or {})
end

-- Pipelines of strategies --------------------------------------------------------------------------------------------

local ON_ERROR = { abort = true, skip = true, continue = true }

local function stage(entry, i)
  if type(entry) == "function" then
    return format("(inline-%d)", i), entry
  elseif type(entry) ~= "string" then
    error(format("alc.pipe: stage %d is neither a package name nor a function", i), 3)
  end
  local ok, package = pcall(host.require, entry)
  if not ok then
    error(format("alc.pipe: '%s' cannot be loaded: %s", entry, tostring(package)), 3)
  elseif type(package) ~= "table" or type(package.run) ~= "function" then
    error(format("alc.pipe: '%s' has no function run(ctx)", entry), 3)
  end
  return entry, package.run
end

local function run_stage(name, run, ctx)
  local out = run(ctx)
  if type(out) ~= "table" then
    error(format("alc.pipe: '%s' returned a %s instead of its ctx", name, type(out)), 0)
  end
  return out
end

function alc.pipe(strategies, ctx, opts)
  if type(strategies) ~= "table" or #strategies == 0 then
    error("alc.pipe: strategies is empty or no array", 2)
  elseif type(ctx) ~= "table" then
    error("alc.pipe: ctx is no table", 2)
  end
  opts = options("pipe", opts)
  local on_error = opts.on_error or "abort"
  if not ON_ERROR[on_error] then
    error(format("alc.pipe: on_error must be 'abort', 'skip' or 'continue', got '%s'", tostring(on_error)), 2)
  end
  local on_stage, history, last = opts.on_stage, {}, #strategies
  ctx = copy(ctx)
  ctx.pipe_history = history
  for i = 1, last do
    local name, run = stage(strategies[i], i)
    local ok, out = true, nil
    if on_error == "abort" then
      out = run_stage(name, run, ctx)
    else
      ok, out = pcall(run_stage, name, run, ctx)
    end
    if ok then
      ctx = out
      local result = ctx.result
      history[#history + 1] = { strategy = name, result = result }
      ctx.pipe_history = history
      if result ~= nil and i < last then
        ctx.task = type(result) == "table" and alc.json_encode(result) or tostring(result)
      end
      if on_stage then
        on_stage(i, name, ctx)
      end
    else
      alc.log("warn", format("alc.pipe: stage '%s' failed: %s", name, tostring(out)))
      history[#history + 1] = { strategy = name, error = tostring(out) }
    end
  end
  return ctx
end
