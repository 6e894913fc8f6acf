-- alc.card: immutable records of runs and their scores, in the database.
--
-- A chunk of the Lua library: `local alc, host = ...` adds functions to `alc`. Everything goes through
-- `host.state(op, namespace, key, value)`: recorded like any other query; the writes of one step are atomic.
-- The namespaces contain "/", so neither `alc.state` nor `ctx.state` can name them:
--
--   card/id       id -> package. Written only if it is missing, so two sessions cannot create the same id.
--   card/body     package/id -> the card
--   card/index    package/id -> its summary and its ancestor, so that a listing reads no cards
--   card/samples  id -> rows, written once
--   card/alias    name -> {name, card_id, pkg?, set_at, note?}

local alc, host = ...

local type, next, pairs, ipairs, error, tostring = type, next, pairs, ipairs, error, tostring
local format, find, sub, byte, gsub, gmatch = string.format, string.find, string.sub, string.byte, string.gsub, string.gmatch
local sort, concat, tointeger, floor = table.sort, table.concat, math.tointeger, math.floor
local encode, time, setmetatable, char_len = alc.json_encode, alc.time, setmetatable, utf8.len
local state, NULL = host.state, host.null

local card = {}

local function array()
  return setmetatable({}, host.array)
end

local function fail(name, ...)
  error("alc.card." .. name .. ": " .. format(...), 0)
end

local function is_name(text)
  if type(text) ~= "string" or text == "" or not char_len(text) then
    return false
  end
  return not find(text, "[/\\\0]") and not find(text, "..", 1, true)
end

local function check_name(name, what, text)
  if not is_name(text) then
    fail(name, "invalid %s '%s'", what, tostring(text))
  end
  return text
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

local function whole(name, what, value, default)
  if value == nil then
    return default
  end
  local number = type(value) == "number" and tointeger(value)
  if not number or number < 0 then
    fail(name, "%s must be a whole number from 0", what)
  end
  return number
end

-- Values -------------------------------------------------------------------------------------------------------------

-- Whether a table is a JSON array: it has a first item, or it is an empty array from JSON.
local function is_list(value)
  return #value > 0 or next(value) == nil and encode(value) == "[]"
end

-- A copy without nulls: a card omits unknown values.
local function without_nulls(value)
  if type(value) ~= "table" then
    return value
  end
  local out = is_list(value) and array() or {}
  if #value > 0 then
    for _, item in ipairs(value) do
      if item ~= NULL then
        out[#out + 1] = without_nulls(item)
      end
    end
    return out
  end
  for key, item in pairs(value) do
    if item ~= NULL then
      out[tostring(key)] = without_nulls(item)
    end
  end
  return out
end

local function sorted_keys(value)
  local keys = {}
  for key in pairs(value) do
    keys[#keys + 1] = tostring(key)
  end
  sort(keys)
  return keys
end

-- JSON with sorted keys and bare strings: only for hashing: the same content has the same fingerprint
-- in every process.
local function canonical(value)
  if type(value) == "string" then
    return '"' .. value .. '"'
  elseif type(value) ~= "table" then
    return encode(value)
  end
  local parts = {}
  if is_list(value) then
    for i, item in ipairs(value) do
      parts[i] = canonical(item)
    end
    return "[" .. concat(parts, ",") .. "]"
  end
  for i, key in ipairs(sorted_keys(value)) do
    parts[i] = '"' .. key .. '":' .. canonical(value[key])
  end
  return "{" .. concat(parts, ",") .. "}"
end

local function fingerprint(value)
  local text, hash = canonical(value), 5381
  for i = 1, #text do
    hash = hash * 33 + byte(text, i)
  end
  return format("%016x", hash)
end

-- The date of a moment in UTC, by the proleptic calendar whose years begin in March.
local function civil(seconds)
  local days, rest = floor(seconds) // 86400, floor(seconds) % 86400
  local z = days + 719468
  local era = z // 146097
  local day = z - era * 146097
  local year = (day - day // 1460 + day // 36524 - day // 146096) // 365
  local of_year = day - (365 * year + year // 4 - year // 100)
  local month = (5 * of_year + 2) // 153
  local date = of_year - (153 * month + 2) // 5 + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  return year, month, date, rest // 3600, rest % 3600 // 60, rest % 60
end

-- What is inside a card ------------------------------------------------------------------------------------------------

local function at(value, path)
  for part in gmatch(path, "[^.]+") do
    if type(value) ~= "table" then
      return nil
    end
    value = value[part]
  end
  return value
end

local function text_at(value, path)
  local found = at(value, path)
  return type(found) == "string" and found or nil
end

local function summary(of)
  local rate = at(of, "stats.pass_rate")
  return {
    card_id = of.card_id,
    pkg = at(of, "pkg.name"),
    created_at = text_at(of, "created_at"),
    model = text_at(of, "model.id"),
    scenario = text_at(of, "scenario.name"),
    pass_rate = type(rate) == "number" and rate or nil,
  }
end

local function index_entry(of)
  local entry = summary(of)
  entry.prior_card_id = text_at(of, "metadata.prior_card_id")
  entry.prior_relation = text_at(of, "metadata.prior_relation")
  return entry
end

local function shown(entry)
  entry.prior_card_id, entry.prior_relation = nil, nil
  return entry
end

-- The values of a namespace, in one query. The keys of a package begin with its name and "/".
local function scan(namespace, pkg)
  local out = {}
  for i, pair in ipairs(state("scan", namespace, pkg and pkg .. "/" or "")) do
    out[i] = pair[2]
  end
  return out
end

local function place(id)
  local pkg = is_name(id) and state("get", "card/id", id)
  return pkg and pkg .. "/" .. id or nil
end

local function body(id)
  local key = place(id)
  return key and state("get", "card/body", key) or nil
end

local function newest_first(one, two)
  local a, b = one.created_at or "", two.created_at or ""
  if a ~= b then
    return a > b
  end
  return one.card_id > two.card_id
end

-- Create, read, add ------------------------------------------------------------------------------------------------------

local function default_id(of, pkg, stamp)
  local model = text_at(of, "model.id") or ""
  local short = gsub(gsub(gsub(model, "^claude%-", ""), "^gpt%-", ""), "%W", "")
  return format("%s_%s_%s_%s", pkg, short ~= "" and short or "model", stamp, sub(fingerprint(of), -6))
end

function card.create(given)
  if type(given) ~= "table" then
    fail("create", "expected a table, got %s", type(given))
  end
  local of = without_nulls(given)
  local pkg = at(of, "pkg.name")
  if type(pkg) ~= "string" or pkg == "" then
    fail("create", "pkg.name is required")
  end
  check_name("create", "pkg.name", pkg)
  local year, month, day, hour, minute, second = civil(time())
  of.schema_version = of.schema_version or "card/v0"
  of.created_at = of.created_at
    or format("%04d-%02d-%02dT%02d:%02d:%02dZ", year, month, day, hour, minute, second)
  of.created_by = of.created_by or "alc@everhold" .. (host.version and "-" .. host.version or "")
  if of.param_fingerprint == nil and type(of.params) == "table" and not is_list(of.params) then
    of.param_fingerprint = fingerprint(of.params)
  end
  if of.card_id == nil then
    local stamp = format("%04d%02d%02dT%02d%02d%02d", year, month, day, hour, minute, second)
    of.card_id = default_id(of, pkg, stamp)
  end
  local id = check_name("create", "card_id", of.card_id)
  if not state("set_nx", "card/id", id, pkg) then
    fail("create", "card '%s' already exists (immutable)", id)
  end
  state("set", "card/body", pkg .. "/" .. id, of)
  state("set", "card/index", pkg .. "/" .. id, index_entry(of))
  return { card_id = id, path = "alc://cards/" .. id }
end

function card.get(id)
  return body(id)
end

function card.append(id, fields)
  if type(fields) ~= "table" or #fields > 0 then
    fail("append", "fields must be a table")
  end
  local key = place(id)
  if not key then
    fail("append", "card '%s' not found", tostring(id))
  end
  local of = state("get", "card/body", key)
  for _, name in ipairs(sorted_keys(fields)) do
    if of[name] ~= nil then
      fail("append", "key '%s' already set on card '%s' (immutable)", name, id)
    end
  end
  for name, value in pairs(without_nulls(fields)) do
    of[name] = value
  end
  state("set", "card/body", key, of)
  state("set", "card/index", key, index_entry(of))
  return of
end

function card.list(opts)
  opts = options("list", opts)
  local entries = scan("card/index", opts.pkg and check_name("list", "pkg", opts.pkg))
  sort(entries, newest_first)
  local out = array()
  for i, entry in ipairs(entries) do
    out[i] = shown(entry)
  end
  return out
end

-- Aliases ----------------------------------------------------------------------------------------------------------------

function card.alias_set(name, id, opts)
  check_name("alias_set", "alias", name)
  opts = options("alias_set", opts)
  if not place(id) then
    fail("alias_set", "card '%s' not found", tostring(id))
  end
  local alias = { name = name, card_id = id, pkg = opts.pkg, note = opts.note }
  alias.set_at = format("%04d-%02d-%02dT%02d:%02d:%02dZ", civil(time()))
  alias = without_nulls(alias)
  state("set", "card/alias", name, alias)
  return alias
end

function card.alias_list(opts)
  local pkg = options("alias_list", opts).pkg
  local out = array()
  for _, alias in ipairs(scan("card/alias")) do
    if pkg == nil or alias.pkg == pkg then
      out[#out + 1] = alias
    end
  end
  return out
end

function card.get_by_alias(name)
  local alias = is_name(name) and state("get", "card/alias", name)
  if not alias then
    return nil
  end
  return body(alias.card_id) or fail("get_by_alias", "alias '%s' points to missing card '%s'", name, alias.card_id)
end

-- The language of `where` --------------------------------------------------------------------------------------------------

local function same(one, two)
  if type(one) ~= "table" or type(two) ~= "table" then
    return one == two
  end
  for key, value in pairs(one) do
    if not same(value, two[key]) then
      return false
    end
  end
  for key in pairs(two) do
    if one[key] == nil then
      return false
    end
  end
  return true
end

local function among(value, list)
  for _, item in ipairs(list) do
    if same(value, item) then
      return true
    end
  end
  return false
end

-- -1, 0 or 1, or nil without an order: only values of the same type are ordered; false comes before true.
local function compare(one, two)
  local kind = type(one)
  if kind ~= type(two) or kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
    return nil
  elseif kind == "boolean" then
    one, two = one and 1 or 0, two and 1 or 0
  end
  return one < two and -1 or one == two and 0 or one > two and 1 or nil
end

local function ordered(accepts)
  return function(value, wanted)
    local order = compare(value, wanted)
    return order ~= nil and accepts(order)
  end
end

-- Each gets the value found, or nil.
local OPERATORS = {
  eq = function(value, wanted)
    return value ~= nil and same(value, wanted)
  end,
  ne = function(value, wanted)
    return value == nil or not same(value, wanted)
  end,
  lt = ordered(function(order) return order < 0 end),
  lte = ordered(function(order) return order <= 0 end),
  gt = ordered(function(order) return order > 0 end),
  gte = ordered(function(order) return order >= 0 end),
  ["in"] = function(value, wanted)
    return value ~= nil and among(value, wanted)
  end,
  nin = function(value, wanted)
    return value == nil or not among(value, wanted)
  end,
  exists = function(value, wanted)
    return (value ~= nil) == wanted
  end,
  contains = function(value, wanted)
    if type(value) == "string" then
      return type(wanted) == "string" and find(value, wanted, 1, true) ~= nil
    end
    return type(value) == "table" and among(wanted, value)
  end,
  starts_with = function(value, wanted)
    return type(value) == "string" and type(wanted) == "string" and sub(value, 1, #wanted) == wanted
  end,
}

local function is_leaf(where)
  for key in pairs(where) do
    if not OPERATORS[key] then
      return false
    end
  end
  return true
end

local function check_where(name, where, path)
  if type(where) ~= "table" then
    fail(name, "%s must be a table", path)
  end
  local leaf = is_leaf(where)
  for key, wanted in pairs(where) do
    local here = path .. "." .. tostring(key)
    if type(key) ~= "string" then
      fail(name, "%s must be an object, not an array", path)
    elseif leaf then
      if (key == "in" or key == "nin") and type(wanted) ~= "table" then
        fail(name, "%s must be an array", here)
      elseif key == "exists" and type(wanted) ~= "boolean" then
        fail(name, "%s must be true or false", here)
      end
    elseif key == "_and" or key == "_or" then
      if type(wanted) ~= "table" or next(wanted) ~= nil and not is_list(wanted) then
        fail(name, "%s must be an array", here)
      end
      for i, part in ipairs(wanted) do
        check_where(name, part, here .. "." .. i)
      end
    elseif key == "_not" or type(wanted) == "table" and not is_list(wanted) then
      check_where(name, wanted, here)
    end
  end
end

local matches

local function any(value, list)
  for _, where in ipairs(list) do
    if matches(value, where) then
      return true
    end
  end
  return false
end

local function all(value, list)
  for _, where in ipairs(list) do
    if not matches(value, where) then
      return false
    end
  end
  return true
end

function matches(value, where)
  local leaf = is_leaf(where)
  for key, wanted in pairs(where) do
    local ok
    if leaf then
      ok = OPERATORS[key](value, wanted)
    elseif key == "_and" then
      ok = all(value, wanted)
    elseif key == "_or" then
      ok = any(value, wanted)
    elseif key == "_not" then
      ok = not matches(value, wanted)
    else
      local found
      if type(value) == "table" and value[key] ~= NULL then
        found = value[key]
      end
      if type(wanted) == "table" and not is_list(wanted) then
        ok = matches(found, wanted)
      else
        ok = OPERATORS.eq(found, wanted)
      end
    end
    if not ok then
      return false
    end
  end
  return true
end

-- Find ---------------------------------------------------------------------------------------------------------------------

local function order_of(name, given)
  if given == nil then
    return {}
  elseif type(given) == "string" then
    given = { given }
  elseif type(given) ~= "table" then
    fail(name, "order_by must be a string or an array of strings")
  end
  local out = {}
  for i, path in ipairs(given) do
    if type(path) ~= "string" or path == "" or path == "-" then
      fail(name, "order_by must be a string or an array of strings")
    end
    local descending = sub(path, 1, 1) == "-"
    out[i] = { path = descending and sub(path, 2) or path, descending = descending }
  end
  return out
end

local RANKS = { boolean = 1, number = 2, string = 3 }

-- Cards without the field come last in either direction; among equals the newest comes first.
local function sort_by(cards, order)
  sort(cards, function(one, two)
    for _, by in ipairs(order) do
      local a, b = at(one, by.path), at(two, by.path)
      local ra, rb = RANKS[type(a)], RANKS[type(b)]
      if not ra or not rb then
        if ra ~= rb then
          return ra ~= nil
        end
      else
        local before = ra ~= rb and (ra < rb and -1 or 1) or compare(a, b)
        if before ~= 0 then
          return (before < 0) ~= by.descending
        end
      end
    end
    return newest_first(one, two)
  end)
end

local function page(list, offset, limit)
  local out = array()
  for i = offset + 1, limit and math.min(#list, offset + limit) or #list do
    out[#out + 1] = list[i]
  end
  return out
end

function card.find(opts)
  opts = options("find", opts)
  local where, order = opts.where, order_of("find", opts.order_by)
  local offset, limit = whole("find", "offset", opts.offset, 0), whole("find", "limit", opts.limit)
  if where ~= nil then
    check_where("find", where, "where")
  end
  if not where and #order == 0 then
    return page(card.list({ pkg = opts.pkg }), offset, limit)
  end
  local found = {}
  for _, of in ipairs(scan("card/body", opts.pkg and check_name("find", "pkg", opts.pkg))) do
    if not where or matches(of, where) then
      found[#found + 1] = of
    end
  end
  sort_by(found, order)
  found = page(found, offset, limit)
  for i, of in ipairs(found) do
    found[i] = summary(of)
  end
  return found
end

-- Samples --------------------------------------------------------------------------------------------------------------------

function card.write_samples(id, rows)
  if type(rows) ~= "table" or next(rows) ~= nil and not is_list(rows) then
    fail("write_samples", "samples must be an array")
  elseif not place(id) then
    fail("write_samples", "card '%s' not found", tostring(id))
  end
  local kept = array()
  for i, row in ipairs(rows) do
    kept[i] = row
  end
  if not state("set_nx", "card/samples", id, kept) then
    fail("write_samples", "samples already exist for card '%s' (write-once)", id)
  end
  return { path = "alc://cards/" .. id .. "/samples", count = #kept }
end

function card.read_samples(id, opts)
  opts = options("read_samples", opts)
  local offset = whole("read_samples", "offset", opts.offset, 0)
  local limit = whole("read_samples", "limit", opts.limit)
  local where = opts.where
  if where ~= nil then
    check_where("read_samples", where, "where")
  end
  if not place(id) then
    fail("read_samples", "card '%s' not found", tostring(id))
  end
  local found = {}
  for _, row in ipairs(state("get", "card/samples", id) or {}) do
    if where == nil or matches(row, where) then
      found[#found + 1] = row
    end
  end
  return page(found, offset, limit)
end

-- Lineage ----------------------------------------------------------------------------------------------------------------------

local DIRECTIONS = { up = true, down = true, both = true }

local function node(entry, depth, stats)
  return {
    card_id = entry.card_id,
    pkg = entry.pkg,
    depth = depth,
    prior_card_id = entry.prior_card_id,
    prior_relation = entry.prior_relation,
    stats = stats,
  }
end

-- Walks the tree of cards and collects the visited ones.
local function walk_of(opts)
  local allowed = opts.relation_filter
  if type(allowed) == "string" then
    allowed = { allowed }
  elseif allowed ~= nil and type(allowed) ~= "table" then
    fail("lineage", "relation_filter must be an array of strings")
  end
  local walk = { seen = {}, nodes = array(), edges = array(), truncated = false }
  walk.depth = whole("lineage", "depth", opts.depth, 10)
  walk.stats = opts.include_stats ~= false

  function walk.follows(entry)
    return entry.prior_card_id ~= nil and (allowed == nil or among(entry.prior_relation, allowed))
  end

  function walk.visit(entry, depth, of)
    walk.seen[entry.card_id] = true
    local stats
    if walk.stats then
      of = of or state("get", "card/body", entry.pkg .. "/" .. entry.card_id)
      stats = of and of.stats
    end
    walk.nodes[#walk.nodes + 1] = node(entry, depth, stats)
  end

  function walk.join(entry)
    walk.edges[#walk.edges + 1] = { from = entry.card_id, to = entry.prior_card_id, relation = entry.prior_relation }
  end

  return walk
end

local function climb(walk, entry)
  local depth = 0
  while walk.follows(entry) and not walk.seen[entry.prior_card_id] do
    local of = body(entry.prior_card_id)
    if not of then
      return
    elseif depth == walk.depth then
      walk.truncated = true
      return
    end
    depth = depth + 1
    walk.join(entry)
    entry = index_entry(of)
    walk.visit(entry, -depth, of)
  end
end

local function descend(walk, root)
  local children = {}
  local entries = scan("card/index")
  sort(entries, newest_first)
  for i = #entries, 1, -1 do
    local entry = entries[i]
    if walk.follows(entry) then
      local siblings = children[entry.prior_card_id] or {}
      children[entry.prior_card_id] = siblings
      siblings[#siblings + 1] = entry
    end
  end
  local level, depth = { root }, 0
  while #level > 0 do
    local next_level = {}
    for _, parent in ipairs(level) do
      for _, child in ipairs(children[parent.card_id] or {}) do
        if not walk.seen[child.card_id] then
          if depth == walk.depth then
            walk.truncated = true
            return
          end
          walk.join(child)
          walk.visit(child, depth + 1)
          next_level[#next_level + 1] = child
        end
      end
    end
    level, depth = next_level, depth + 1
  end
end

function card.lineage(opts)
  opts = options("lineage", opts)
  local direction = opts.direction == nil and "up" or opts.direction
  if not DIRECTIONS[direction] then
    fail("lineage", "direction must be 'up', 'down' or 'both', got '%s'", tostring(direction))
  elseif type(opts.card_id) ~= "string" then
    fail("lineage", "card_id is required")
  end
  local walk, of = walk_of(opts), body(opts.card_id)
  if not of then
    return nil
  end
  local root = index_entry(of)
  walk.visit(root, 0, of)
  if direction ~= "down" then
    climb(walk, root)
  end
  if direction ~= "up" then
    descend(walk, root)
  end
  return { root = root.card_id, nodes = walk.nodes, edges = walk.edges, truncated = walk.truncated }
end

function card.sink_backfill(opts)
  error("unknown sink: " .. tostring(options("sink_backfill", opts).sink), 0)
end

alc.card = card
