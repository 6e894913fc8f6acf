-- alc.math: the table, and what all its functions check.
--
-- A chunk of the Lua library: `local alc, host = ...` adds `alc.math`, and returns the checks. The functions are in
-- `math_*.lua`; each of these parts is loaded when a program reads the name of one of its functions.
-- As in algocline, text that is a number counts as one, and where a whole number is due, a fraction is cut off.
-- NaN is refused everywhere, and infinity where it has no meaning: a decision based on them would be random.

local alc, host = ...

local type, error, format, rawlen, tonumber = type, error, string.format, rawlen, tonumber
local tointeger, floor, huge = math.tointeger, math.floor, math.huge

alc.math = host.home("math", { "math_random", "math_samples", "math_statistics", "math_special", "math_tests" })

local function fail(name, ...)
  error("alc.math." .. name .. ": " .. format(...), 0)
end

-- A number as a float; it may be infinite.
local function real(name, what, value)
  local found = type(value) == "number" and value or type(value) == "string" and tonumber(value)
  if not found or found ~= found then
    fail(name, "%s must be a number", what)
  end
  return found + 0.0
end

local function number(name, what, value)
  local found = type(value) == "number" and value or type(value) == "string" and tonumber(value)
  if not found or found ~= found or found == huge or found == -huge then
    fail(name, "%s must be a finite number", what)
  end
  return found + 0.0
end

local function positive(name, what, value)
  local found = number(name, what, value)
  if found <= 0 then
    fail(name, "%s must be greater than 0", what)
  end
  return found
end

local function share(name, what, value)
  local found = number(name, what, value)
  if found < 0 or found > 1 then
    fail(name, "%s must be between 0 and 1", what)
  end
  return found
end

local function integer(name, what, value)
  local found = type(value) == "number" and value or type(value) == "string" and tonumber(value)
  local whole = found and (tointeger(found) or tointeger(found < 0 and -floor(-found) or floor(found)))
  if not whole then
    fail(name, "%s must be an integer", what)
  end
  return whole
end

local function count(name, what, value)
  local whole = integer(name, what, value)
  if whole < 0 then
    fail(name, "%s must not be negative", what)
  end
  return whole
end

-- A copy of the list as floats.
local function numbers(name, data, least)
  if type(data) ~= "table" then
    fail(name, "expected an array of numbers, got %s", type(data))
  end
  local out, size = {}, rawlen(data)
  if size == 0 then
    fail(name, "the array is empty")
  end
  for i = 1, size do
    local value = data[i]
    if type(value) ~= "number" or value - value ~= 0 then
      value = number(name, "value " .. i, value)
    end
    out[i] = value + 0.0
  end
  if size < (least or 1) then
    fail(name, "needs at least %d values", least)
  end
  return out
end

-- Copies of two lists of the same length.
local function pair(name, xs, ys, least)
  xs, ys = numbers(name, xs, least), numbers(name, ys, least)
  if #xs ~= #ys then
    fail(name, "the arrays have %d and %d values; they must have the same number", #xs, #ys)
  end
  return xs, ys
end

return {
  fail = fail, real = real, number = number, positive = positive, share = share, integer = integer, count = count,
  numbers = numbers, pair = pair,
}
