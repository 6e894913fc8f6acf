-- alc.card: immutable records of runs and their scores.
--
-- A chunk of the Lua library: `local alc, host = ...` adds functions to `alc`. Each function is one query, which
-- everhold.cards answers: `host.card(verb, name, value)`. Its result is recorded like any other answer, and the writes
-- of one step are atomic.

local alc, host = ...

local type, pairs, error, tostring = type, pairs, error, tostring
local NULL, call, char_len = host.null, host.card, utf8.len

local card = {}

local function fail(name, words)
  error("alc.card." .. name .. ": " .. words, 0)
end

-- A copy of the options. A null from JSON counts as missing.
local function options(name, given)
  if given == nil or given == NULL then
    return {}
  elseif type(given) ~= "table" then
    fail(name, "options must be a table")
  end
  local out = {}
  for key, value in pairs(given) do
    if value ~= NULL then
      out[key] = value
    end
  end
  return out
end

-- An id or a name; nil if nothing can have it.
local function text(value)
  return type(value) == "string" and value ~= "" and char_len(value) and value or nil
end

local function known(name, id)
  return text(id) or fail(name, "card '" .. tostring(id) .. "' not found")
end

function card.create(given)
  if type(given) ~= "table" then
    fail("create", "expected a table, got " .. type(given))
  end
  return call("create", "", given)
end

function card.get(id)
  return text(id) and call("get", id) or nil
end

function card.append(id, fields)
  if type(fields) ~= "table" or #fields > 0 then
    fail("append", "the keys to add are not a table of names and values")
  end
  return call("append", known("append", id), fields)
end

function card.list(opts)
  return call("list", "", options("list", opts))
end

function card.find(opts)
  return call("find", "", options("find", opts))
end

function card.alias_set(name, id, opts)
  opts = options("alias_set", opts)
  if not text(name) then
    fail("alias_set", "invalid alias '" .. tostring(name) .. "'")
  end
  opts.card_id = known("alias_set", id)
  return call("alias_set", name, opts)
end

function card.alias_list(opts)
  return call("alias_list", "", options("alias_list", opts))
end

function card.get_by_alias(name)
  return text(name) and call("get_by_alias", name) or nil
end

function card.write_samples(id, rows)
  if type(rows) ~= "table" then
    fail("write_samples", "the samples are not an array")
  end
  return call("write_samples", known("write_samples", id), rows)
end

function card.read_samples(id, opts)
  opts = options("read_samples", opts)
  return call("read_samples", known("read_samples", id), opts)
end

function card.lineage(opts)
  opts = options("lineage", opts)
  if type(opts.card_id) ~= "string" then
    fail("lineage", "card_id is required")
  end
  return call("lineage", opts.card_id, opts)
end

function card.sink_backfill(opts)
  return call("sink_backfill", "", options("sink_backfill", opts))
end

alc.card = card
