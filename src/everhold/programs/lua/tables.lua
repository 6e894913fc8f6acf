-- Table functions in which C would call the program's functions: sorting, tables with metamethods, and `next`.
-- A part of the sandbox: it gets the kit.

local kit = ...

local type, error, select, rawget, tonumber, math_type = type, error, select, rawget, tonumber, math.type
local format, tointeger, metatable_of, acts = kit.format, math.tointeger, kit.metatable_of, kit.acts
local raw_next, expected, order = kit.raw_next, kit.expected, kit.part("pairs")

local own = {}

-- next: the keys of a table that is being traversed, and their positions, are stored until the end.

local RANK = { number = 1, string = 2, boolean = 3 }

-- Whether a key comes after another one; both have a defined order.
local function is_after(one, other)
  local kind, than = RANK[type(one)] or 4, RANK[type(other)] or 4
  if kind ~= than then
    return kind > than
  elseif kind == 3 then
    return one and not other
  end
  return kind < 3 and one > other
end

local walks = kit.setmetatable({}, { __mode = "k" })

-- Store the keys of a table that has 1 … n (one may have been cleared while it was visited).
local function survey(t, n)
  local ahead, other = order.count_list(t)
  local last, keys = ahead, {}
  if other ~= nil then
    last, keys = order.survey(t, ahead, other, n)
  end
  local noted = { n = last, keys = keys, places = {} }
  for i = 1, #noted.keys do
    noted.places[noted.keys[i]] = i
  end
  walks[t] = noted
  return noted
end

-- The first of these keys from i on that still exists.
local function from(t, keys, i)
  while keys[i] ~= nil do
    local value = rawget(t, keys[i])
    if value ~= nil then
      return keys[i], value
    end
    i = i + 1
  end
  walks[t] = nil
  return nil
end

-- The key after a removed key.
local function past(t, keys, key)
  for i = 1, #keys do
    if is_after(keys[i], key) then
      return from(t, keys, i)
    end
  end
  walks[t] = nil
  return nil
end

-- The first key of a table without 1. A test for emptiness does not wait for the order
-- of the rest; a first key without a defined order must be stored before it can be cleared.
local function first(t)
  local least = raw_next(t)
  for key in raw_next, t, least do
    if type(key) == "string" and type(least) == "string" then
      least = key < least and key or least
    elseif is_after(least, key) then
      least = key
    end
  end
  if not RANK[type(least)] then
    return from(t, survey(t, 0).keys, 1)
  end
  walks[t] = nil
  return least, rawget(t, least)
end

-- A table that has 1 gets here with the key 1.
function own.next(t, key)
  if type(t) ~= "table" then
    expected(1, "next", "table", t)
  elseif key == nil then
    return first(t)
  end
  key = type(key) == "number" and tointeger(key) or key
  local noted = walks[t]
  if key == 1 or not noted then
    noted = survey(t, key == 1 and 1 or 0)
  end
  if math_type(key) == "integer" and key >= 1 and key <= noted.n then
    for i = key + 1, noted.n do
      local value = rawget(t, i)
      if value ~= nil then
        return i, value
      end
    end
    return from(t, noted.keys, 1)
  end
  local place = noted.places[key]
  if place then
    return from(t, noted.keys, place + 1)
  end
  return past(t, noted.keys, key)
end

-- sort: stable, so that the order of equal items is deterministic.

local function less(one, other)
  local kind, than = type(one), type(other)
  if kind == than and (kind == "number" or kind == "string") then
    return one < other
  end
  local mine, theirs = metatable_of(one), metatable_of(other)
  if not (mine and rawget(mine, "__lt") ~= nil) and not (theirs and rawget(theirs, "__lt") ~= nil) then
    if kind == than then
      error(format("attempt to compare two %s values", kind), 0)
    end
    error(format("attempt to compare %s with %s", kind, than), 0)
  end
  return one < other
end

local function insertion(a, low, high, before)
  for i = low + 1, high do
    local item, j = a[i], i - 1
    while j >= low and before(item, a[j]) do
      a[j + 1] = a[j]
      j = j - 1
    end
    a[j + 1] = item
  end
end

-- Sort a[low … high], with b as a buffer.
local function merge(a, b, low, high, before)
  if high - low < 8 then
    return insertion(a, low, high, before)
  end
  local middle = (low + high) // 2
  merge(a, b, low, middle, before)
  merge(a, b, middle + 1, high, before)
  if not before(a[middle + 1], a[middle]) then
    return
  end
  for i = low, middle do
    b[i] = a[i]
  end
  local i, j, k = low, middle + 1, low
  while i <= middle do
    if j <= high and before(a[j], b[i]) then
      a[k] = a[j]
      j = j + 1
    else
      a[k] = b[i]
      i = i + 1
    end
    k = k + 1
  end
end

-- Whether every item is a string, or all are numbers of one type: then C may sort them.
local function is_uniform(t, n)
  local kind = math_type(t[1]) or type(t[1])
  if kind ~= "string" and kind ~= "integer" and kind ~= "float" then
    return false
  end
  for i = 1, n do
    local item = t[i]
    if (math_type(item) or type(item)) ~= kind or item ~= item then
      return false
    end
  end
  return true
end

function own.sort(t, before)
  if type(t) ~= "table" then
    expected(1, "sort", "table", t)
  elseif before ~= nil and type(before) ~= "function" then
    expected(2, "sort", "function", before)
  end
  local n = #t
  if n < 2 then
    return
  elseif n >= 2 ^ 31 then
    error("bad argument #1 to 'sort' (array too big)", 2)
  elseif before == nil and not acts(t) and is_uniform(t, n) then
    kit.sort(t)
    return
  end
  local a = {}
  for i = 1, n do
    a[i] = t[i]
  end
  merge(a, {}, 1, n, before or less)
  for i = 1, n do
    t[i] = a[i]
  end
end

-- The rest of the library, for tables with metamethods.

-- An integer, as C accepts it: also as a float or a string. Raises at the caller of the caller.
local function whole(position, name, value)
  local number = tointeger(tonumber(value))
  if number then
    return number
  elseif tonumber(value) then
    error(format("bad argument #%d to '%s' (number has no integer representation)", position, name), 3)
  end
  return expected(position, name, "number", value)
end

function own.concat(t, between, first, last)
  local parts = {}
  first = first == nil and 1 or whole(3, "concat", first)
  last = last == nil and #t or whole(4, "concat", last)
  for i = first, last do
    local item = t[i]
    if type(item) ~= "string" and type(item) ~= "number" then
      error(format("invalid value (%s) at index %d in table for 'concat'", type(item), i), 2)
    end
    parts[#parts + 1] = item
  end
  return kit.concat(parts, between)
end

function own.unpack(t, first, last)
  first = first == nil and 1 or whole(2, "unpack", first)
  last = last == nil and #t or whole(3, "unpack", last)
  if last - first >= 1000000 then
    error("too many results to unpack", 2)
  end
  local items = {}
  for i = first, last do
    items[i] = t[i]
  end
  return kit.unpack(items, first, last)
end

function own.insert(t, ...)
  local n, given = #t + 1, select("#", ...)
  if given == 1 then
    t[n] = (...)
    return
  elseif given ~= 2 then
    error("wrong number of arguments to 'insert'", 2)
  end
  local place, value = ...
  place = whole(2, "insert", place)
  if place < 1 or place > n then
    error("bad argument #2 to 'insert' (position out of bounds)", 2)
  end
  for i = n, place + 1, -1 do
    t[i] = t[i - 1]
  end
  t[place] = value
end

function own.remove(t, ...)
  local n = #t
  local place = n
  if (...) ~= nil then
    place = whole(2, "remove", (...))
    if place ~= n + 1 and not (n == 0 and place == 0) and (place < 1 or place > n + 1) then
      error("bad argument #2 to 'remove' (position out of bounds)", 2)
    end
  end
  local value = t[place]
  for i = place, n - 1 do
    t[i] = t[i + 1]
  end
  t[place > n and place or n] = nil
  return value
end

-- For every table: C would continue up to the given end.
function own.move(source, first, last, place, target)
  target = target == nil and source or target
  if type(source) ~= "table" then
    expected(1, "move", "table", source)
  elseif type(target) ~= "table" then
    expected(5, "move", "table", target)
  end
  first, last, place = whole(2, "move", first), whole(3, "move", last), whole(4, "move", place)
  if place > last or place <= first or target ~= source then
    for i = 0, last - first do
      target[place + i] = source[first + i]
    end
  else
    for i = last - first, 0, -1 do
      target[place + i] = source[first + i]
    end
  end
  return target
end

return own
