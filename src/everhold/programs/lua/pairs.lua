-- The order in which `pairs` goes through a table. A part of the sandbox: it gets the kit.
--
-- Order of keys: 1, 2, 3, … as far as they go; then numbers, strings by their bytes, false, true; then the rest in the
-- order in which Lua has them. A key that is removed on the way is not visited; one that is added may be, or not, but the
-- same in every process.

local kit = ...

local type, rawget, rawequal, math_type, sort = type, rawget, rawequal, math.type, kit.sort
local raw_next, raw_pcall, metatable_of, expected = kit.raw_next, kit.raw_pcall, kit.metatable_of, kit.expected
local rawset, step, MARK, LEAST, ARRAY = kit.rawset, kit.step, kit.mark, kit.least, kit.array
local unwatched = kit.unwatched

-- Sorting costs more than everything else here, and many tables have the same keys, so the last orders are stored: for
-- the first key that Lua has, all keys as Lua has them, and sorted. A table with the same keys in another order of Lua is
-- sorted again.

local MOST, LONGEST = 20000, 100 -- keys that are stored, and the bytes of a key
local MANY = 32 -- keys for which it pays to leave the program's coroutine
local known, stored = {}, 0

-- The keys of a table after 1 … n, if their order is stored.
local function known_order(t, n)
  if n > 0 and rawget(t, n) == nil then
    return nil -- the program has removed it on the way
  end
  local entry, seen, count = known[raw_next(t, n > 0 and n or nil)], 0, 0
  if not entry then
    return nil
  end
  local same = entry.same
  for key in raw_next, t do
    if key == same[count + 1] then
      count = count + 1
    elseif key == seen + 1 then
      seen = key
    else
      return nil
    end
  end
  return seen == n and count == entry.count and entry.keys or nil
end

-- `stored` counts the keys of replaced orders, too: then they are forgotten earlier.
local function store_order(first, same, keys, count)
  if count > MOST // 4 then
    return
  end
  for i = 1, count do
    if type(keys[i]) == "string" and #keys[i] > LONGEST then
      return
    end
  end
  if stored + count > MOST then
    known, stored = {}, 0
  end
  known[first], stored = { same = same, keys = keys, count = count }, stored + count
end

local function append(keys, more)
  for i = 1, #more do
    keys[#keys + 1] = more[i]
  end
end

-- false and true, if the table has them, and keys without an order.
local function append_others(t, keys, others)
  for _, truth in raw_next, { false, true } do
    if rawget(t, truth) ~= nil then
      keys[#keys + 1] = truth
    end
  end
  for i = 1, #others do
    if type(others[i]) ~= "boolean" then
      keys[#keys + 1] = others[i]
    end
  end
end

-- The keys but 1 … n as Lua has them; nil if those are not in order.
local function as_lua_has(t, n)
  local keys, count, seen = {}, 0, 0
  for key in raw_next, t do
    if seen < n and key == seen + 1 then
      seen = key
    else
      count = count + 1
      keys[count] = key
    end
  end
  return seen == n and keys or nil
end

-- The keys after 1 … n, in order. The list may be shared: nobody changes it.
local function ordered(t, n)
  local keys = known_order(t, n)
  if keys then
    return keys
  end
  local strings, numbers, count, amount = {}, {}, 0, 0
  local others
  for key in raw_next, t do
    local kind = type(key)
    if kind == "string" then
      count = count + 1
      strings[count] = key
    elseif kind ~= "number" then
      others = others or {}
      others[#others + 1] = key
    elseif not (math_type(key) == "integer" and key >= 1 and key <= n) then
      amount = amount + 1
      numbers[amount] = key
    end
  end
  local same = not others and count + amount > 1 and (n == 0 or rawget(t, n) ~= nil) and as_lua_has(t, n)
  if count > 1 then
    sort(strings)
  end
  if amount > 1 then
    sort(numbers)
  end
  keys = amount == 0 and strings or numbers
  if amount > 0 then
    append(keys, strings)
  end
  if others then
    append_others(t, keys, others)
  elseif same then
    store_order(raw_next(t, n > 0 and n or nil), same, keys, count + amount)
  end
  return keys
end

-- How many keys a table has if they are 1, 2, 3, …, in this order also for Lua; else nil.
local function count_list(t)
  local count = 0
  for key in raw_next, t do
    count = count + 1
    if key ~= count then
      return nil
    end
  end
  return count
end

-- Mark a table that has only 1 … n: see `step`. A table whose part for other keys has more than one place stays as it
-- is, because there the mark would prove nothing, and so does one whose part for 1 … n would become larger.
local function mark(t, n)
  if n & (n - 1) ~= 0 and not raw_pcall(raw_next, t, n + 1) then
    return
  end
  rawset(t, false, 1)
  rawset(t, false, nil)
  rawset(t, true, 1) -- takes the place of false only if there is no other
  local is_roomy = raw_pcall(raw_next, t, false)
  rawset(t, true, nil)
  if not is_roomy then
    rawset(t, MARK, 1)
    rawset(t, MARK, nil)
    return true
  end
end

-- A function that steps through 1 … n of tables that have only those.
local function list_step(n)
  return function(t, i)
    if i < n then
      i = i + 1
      local value = t[i]
      while value == nil do -- the program has removed it on the way
        if i == n then
          return nil
        end
        i = i + 1
        value = t[i]
      end
      return i, value
    end
  end
end

local list_steps = {}

for n = 1, LEAST - 1 do
  list_steps[n] = list_step(n)
end

-- A function that steps through tables with the keys of a stored order. It starts at false.
local function key_step(entry)
  local keys, after, last = entry.keys, {}, false
  for i = 1, #keys do
    after[last] = keys[i]
    last = keys[i]
  end
  entry.step = function(t, key)
    local following = after[key]
    local value = t[following]
    while value == nil do
      if following == nil then
        return nil
      end
      following = after[following]
      value = t[following]
    end
    return following, value
  end
  return entry.step
end

-- Through the keys of a table, each time in the order of its list.
local function through_keys(t, keys)
  local i = 0
  return function()
    local at = i + 1
    i = at
    local key = keys[at]
    local value = t[key]
    while value == nil do
      if key == nil then
        return nil
      end
      i = i + 1
      key = keys[i]
      value = t[key]
    end
    return key, value
  end, t, nil
end

-- How many keys a table has if they are these, in this order of Lua.
local function count_same(t, same)
  local i = 0
  for key in raw_next, t do
    i = i + 1
    if key ~= same[i] then
      return nil
    end
  end
  return i
end

-- Through 1 … n, then through the other keys that the table has at that time.
local function through_all(t, n)
  local i, keys = 0, nil
  return function()
    while i < n do
      i = i + 1
      local value = t[i]
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
      local value = t[key]
      if value ~= nil then
        return key, value
      end
    end
  end, t, nil
end

-- The same for a table with metamethods.
local function through_object(t, n)
  local i, keys = 0, nil
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

-- Through a table without metamethods.
local function walk_plain(t, may_mark)
  if t[1] == nil then
    local entry = known[raw_next(t)]
    if entry then
      local count, same, i = entry.count, entry.same, 0
      if count > MANY then
        i = unwatched(count_same, t, same)
      else
        for key in raw_next, t do
          i = i + 1
          if key ~= same[i] then
            i = nil
            break
          end
        end
      end
      if i == count then
        return entry.step or key_step(entry), t, false
      end
    end
    return through_keys(t, ordered(t, 0))
  end
  local n = count_list(t)
  if not n then
    n = 1
    while t[n + 1] ~= nil do
      n = n + 1
    end
    return through_all(t, n)
  elseif n < LEAST then
    return list_steps[n], t, 0
  elseif may_mark and mark(t, n) then
    return step, t, 0
  end
  return list_step(n), t, 0
end

-- Through any other value.
local function walk(t)
  local mt = metatable_of(t)
  local own = mt and rawget(mt, "__pairs")
  if own ~= nil then
    local first, state, start = own(t)
    return first, state, start
  elseif type(t) ~= "table" then
    expected(1, "for iterator", "table", t)
  elseif rawequal(mt, ARRAY) then
    return walk_plain(t, false)
  end
  local n = 0
  while rawget(t, n + 1) ~= nil do
    n = n + 1
  end
  return through_object(t, n)
end

return { ordered = ordered, walk = walk, walk_plain = walk_plain }
