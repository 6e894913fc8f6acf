-- String functions in which C would call the program's functions, or would not end. A part of the sandbox: it gets the kit.

local kit = ...

local type, error, select, rawget, tointeger = type, error, select, rawget, math.tointeger
local find, sub, byte, format = string.find, string.sub, string.byte, kit.format
local raw_pcall, raw_tostring, passed = kit.raw_pcall, kit.raw_tostring, kit.passed
local metatable_of = kit.metatable_of

local own = {}

local function replaced(replacement, whole, ...)
  local value
  if type(replacement) == "function" then
    value = replacement(...)
  else
    value = replacement[(...)]
  end
  if not value then
    return whole
  elseif type(value) ~= "string" and type(value) ~= "number" then
    error(format("invalid replacement value (a %s)", type(value)), 0)
  end
  return value
end

local function captured(s, replacement, first, last, ...)
  local whole = sub(s, first, last)
  if select("#", ...) == 0 then
    return replaced(replacement, whole, whole)
  end
  return replaced(replacement, whole, ...)
end

-- A match: where it begins and ends, and its replacement; an empty match right after the last one is skipped.
local function substituted(s, replacement, behind, first, last, ...)
  if first and last + 1 ~= behind then
    return first, last, captured(s, replacement, first, last, ...)
  end
  return first
end

-- gsub with a function, or a table with metamethods.
function own.gsub(s, pattern, replacement, most)
  passed("gsub", raw_pcall(kit.gsub, s, pattern, "", 0)) -- checks the arguments
  s, pattern = raw_tostring(s), raw_tostring(pattern)
  most = most == nil and #s + 1 or tointeger(most) or kit.expected(4, "gsub", "number", most)
  local anchored = byte(pattern) == 94
  local out, from, behind, count = {}, 1, nil, 0
  while count < most do
    local first, last, value = substituted(s, replacement, behind, passed("gsub", raw_pcall(find, s, pattern, from)))
    if last then
      out[#out + 1] = sub(s, from, first - 1)
      out[#out + 1] = value
      count, from, behind = count + 1, last + 1, last + 1
    elseif first and from <= #s then
      out[#out + 1] = sub(s, from, from)
      from, behind = from + 1, nil
    else
      break
    end
    if anchored then
      break
    end
  end
  out[#out + 1] = sub(s, from)
  return kit.concat(out), count
end

-- A string as a number. Metamethods of the other operand are called from here.
function own.arithmetic(event, native, one, other)
  local mt = type(other) ~= "string" and type(other) ~= "number" and metatable_of(other)
  local answer = mt and rawget(mt, event)
  if answer then
    return (answer(one, other))
  end
  return passed(event, raw_pcall(native, one, other))
end

return own
