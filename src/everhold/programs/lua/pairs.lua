-- The order in which `pairs` goes through a table. A part of the sandbox: it gets the kit.

local kit = ...

local type, rawget, math_type, sort = type, rawget, math.type, kit.sort
local raw_next, metatable_of, expected = kit.raw_next, kit.metatable_of, kit.expected

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

-- The keys after 1 … n, in order.
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

local function pairs(t)
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

return { ordered = ordered, pairs = pairs }
