-- The order in which `pairs` goes through a table. A part of the sandbox: it gets the kit.
--
-- Order of keys: 1, 2, 3, … as far as they go; then numbers, strings by their bytes, false, true; then the rest in the
-- order in which Lua has them. A key that is removed on the way is not visited. One that is added is not, either, unless
-- it is the next number of a table that has only 1, 2, 3, …

local kit = ...

local type, rawget, math_type, sort = type, rawget, math.type, kit.sort
local raw_next, raw_pcall, metatable_of, expected = kit.raw_next, kit.raw_pcall, kit.metatable_of, kit.expected
local rawset, unwatched, MARK, marked, steps = kit.rawset, kit.unwatched, kit.mark, kit.marked, kit.steps

local MOST <const>, LONGEST <const> = 20000, 100 -- keys of stored orders, and the bytes of a key
local MANY <const> = 32 -- keys for which it pays to leave the program's coroutine
local LEAST <const>, MARKS <const> = 3, 10000 -- numbers of a table that may get a mark, and marks that are remembered
local DUE <const> = 500 -- numbers that are counted until a table gets one
local FULL <const> = "not enough memory"
local ROOM <const> = 64 -- numbers that may move to a place with room for more
local KEPT <const> = 100 -- the longest lists for which a function is kept

-- Sorting costs more than everything else here, and many tables have the same keys, so the last orders are stored: for
-- the first key that Lua has, all keys as Lua has them, and sorted. A table with the same keys in another order of Lua is
-- sorted again. `stored` counts the keys of replaced orders, too: then they are forgotten earlier.

local known, stored = {}, 0

-- How many keys of a table are 1, 2, 3, … in this order of Lua, and the first other one.
local function count_list(t)
  local n = 0
  for key in raw_next, t do
    n = n + 1
    if key ~= n then
      return n - 1, key
    end
  end
  return n
end

-- Whether the keys of a table after 1 … n are these, in this order of Lua.
local function is_same(t, n, same, count)
  local i = 0
  for key in raw_next, t, n > 0 and n or nil do
    i = i + 1
    if key ~= same[i] then
      return false
    end
  end
  return i == count
end

local function append(keys, more)
  local count = #keys
  for i = 1, #more do
    keys[count + i] = more[i]
  end
  return keys
end

-- These keys in order, without those from low to high; and whether the order may be stored.
local function sort_keys(same, count, low, high)
  local strings, numbers, others = {}, {}, {}
  local texts, amount, is_plain, has_false, has_true = 0, 0, low > high, false, false
  for i = 1, count do
    local key = same[i]
    local kind = type(key)
    if kind == "string" then
      texts = texts + 1
      strings[texts] = key
      is_plain = is_plain and #key <= LONGEST
    elseif kind == "number" then
      if low > high or key < low or key > high or math_type(key) == "float" then
        amount = amount + 1
        numbers[amount] = key
      end
    else
      is_plain = false
      if kind ~= "boolean" then
        others[#others + 1] = key
      elseif key then
        has_true = true
      else
        has_false = true
      end
    end
  end
  if texts > 1 then
    sort(strings)
  end
  if amount > 1 then
    sort(numbers)
  end
  local keys = amount == 0 and strings or append(numbers, strings)
  if has_false then
    keys[#keys + 1] = false
  end
  if has_true then
    keys[#keys + 1] = true
  end
  return append(keys, others), is_plain
end

-- The keys of a table after 1 … n, in order. Lua has 1 … ahead before all others.
local function arrange(t, ahead, n)
  local same, count = {}, 0
  for key in raw_next, t, ahead > 0 and ahead or nil do
    count = count + 1
    same[count] = key
  end
  if count == 1 and n == ahead then
    return same
  end
  local keys, is_plain
  if count > MANY then
    keys, is_plain = unwatched(sort_keys, same, count, ahead + 1, n)
  else
    keys, is_plain = sort_keys(same, count, ahead + 1, n)
  end
  if is_plain and count <= MOST // 4 then
    if stored + count > MOST then
      known, stored = {}, 0
    end
    known[same[1]], stored = { same = same, keys = keys, count = count }, stored + count
  end
  return keys
end

-- The keys of a table in order, of which Lua has 1 … ahead first, and then this one: how far 1, 2, 3, … go, at least to a
-- number, the keys after these, and their stored order. The keys may be shared: nobody changes them.
local function survey(t, ahead, first, least)
  local n = least > ahead and least or ahead
  while rawget(t, n + 1) ~= nil do
    n = n + 1
  end
  local entry = n == ahead and known[first]
  if entry then
    local same, count, is_it = entry.same, entry.count, nil
    if count > MANY then
      is_it = unwatched(is_same, t, n, same, count)
    else
      is_it = is_same(t, n, same, count)
    end
    if is_it then
      return n, entry.keys, entry
    end
  end
  return n, arrange(t, ahead, n)
end

-- A function that steps through 1 … n of tables that have only those. Six instructions: each one more is a twelfth of the
-- time of a loop.
local function list_step(n)
  local function step(t, i)
    i = i + 1
    local value = t[i]
    if value ~= nil then
      return i, value
    end
    while i < n do -- the program has removed it on the way
      i = i + 1
      value = t[i]
      if value ~= nil then
        return i, value
      end
    end
  end
  if n <= KEPT then
    steps[n] = step
  end
  return step
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

-- A function that goes through 1 … n of a table, then through these keys.
local function through(n, keys)
  local i = 0
  return function(t)
    while true do
      local key = i + 1
      i = key
      if key > n then
        key = keys[key - n]
        if key == nil then
          return nil
        end
      end
      local value = t[key]
      if value ~= nil then
        return key, value
      end
    end
  end
end

-- A function that goes through a table with one key.
local function through_one(key)
  return function(t, before)
    local value = t[key]
    if before == nil and value ~= nil then
      return key, value
    end
  end
end

-- The same as `through` for a table whose metatable has __index.
local function through_object(n, keys)
  local i = 0
  return function(t)
    while true do
      local key = i + 1
      i = key
      if key > n then
        key = keys[key - n]
        if key == nil then
          return nil
        end
      end
      local value = rawget(t, key)
      if value ~= nil then
        return key, value
      end
    end
  end
end

local marks = 0

-- Mark a table that has only 1 … n: see `sandbox.lua`. A table whose part for other keys has more than one place stays as
-- it is, because there the mark would prove nothing, and so does a long one whose part for 1 … n would become larger.
local function mark(t, n)
  if n > ROOM and n & (n - 1) ~= 0 and not raw_pcall(raw_next, t, n + 1) then
    return
  end
  rawset(t, false, 1)
  rawset(t, false, nil)
  rawset(t, true, 1) -- takes the place of false only if there is no other
  local is_roomy, problem = raw_pcall(raw_next, t, false)
  rawset(t, true, nil)
  if not is_roomy and problem ~= FULL then
    rawset(t, MARK, 1)
    rawset(t, MARK, nil)
    if marks == MARKS then
      marks = 0
      for other in raw_next, marked do
        marked[other] = nil
      end
    end
    marked[t], marks = true, marks + 1
  end
end

local due = 0 -- numbers that were counted since the last mark

-- Through a table of which Lua has 1 … n first, and then this key.
local function walk_any(t, n, first)
  local keys, entry
  n, keys, entry = survey(t, n, first, 0)
  if entry and n == 0 then
    return entry.step or key_step(entry), t, false
  elseif keys[1] == nil then -- Lua has 1, 2, 3, … in another order
    return steps[n] or list_step(n), t, 0
  end
  return through(n, keys), t, nil
end

-- Through a table without metamethods.
local function walk_plain(t, size)
  local n, first = 0, nil
  if size > MANY then
    n, first = unwatched(count_list, t)
  else
    for key in raw_next, t do
      n = n + 1
      if key ~= n then
        n, first = n - 1, key
        break
      end
    end
  end
  if first == nil then
    if n >= LEAST then
      due = due + n
      if due > DUE then
        due = 0
        mark(t, n)
      end
    end
    return steps[n] or list_step(n), t, 0
  elseif n > 0 then
    return walk_any(t, n, first)
  end
  local entry = known[first]
  if entry and entry.count <= MANY then
    local same = entry.same
    for key in raw_next, t do
      n = n + 1
      if key ~= same[n] then
        return walk_any(t, 0, first)
      end
    end
    if n == entry.count then
      return entry.step or key_step(entry), t, false
    end
  elseif raw_next(t, first) == nil then
    return through_one(first), t, nil
  end
  return walk_any(t, 0, first)
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
  end
  local n, first = count_list(t)
  if rawget(mt, "__index") ~= nil then
    local keys
    if first ~= nil then
      n, keys = survey(t, n, first, 0)
    end
    return through_object(n, keys or {}), t, nil
  elseif first ~= nil then
    return walk_any(t, n, first)
  end
  return steps[n] or list_step(n), t, 0
end

return { count_list = count_list, survey = survey, list_step = list_step, walk = walk, walk_plain = walk_plain }
