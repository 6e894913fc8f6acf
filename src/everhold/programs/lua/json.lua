-- Lua values as JSON text. A part of the sandbox: it gets the kit and returns encode, and decode, which is
-- `json_decode.lua`.
--
--   null               a light userdata: true in conditions, and equal only to itself
--   array              a table with the metatable `array`, so that an empty one stays an array
--   integer, float     stay what they are: 3.0 is written as 3.0
--   object             keys in the order of their bytes, wherever one is written
--
-- A value that JSON cannot represent raises an error with its path. No metamethod is called: missing fields are never
-- read from a table with its own metatable. A call of C costs more than some lines of Lua, so there is one for each
-- value.

local kit = ...

local type, next, error, tonumber = type, kit.raw_next, error, tonumber
local rawequal, rawget, rawlen = rawequal, rawget, rawlen
local match, sub, byte, format, gsub, rep = string.match, string.sub, string.byte, kit.format, kit.gsub, kit.rep
local find = string.find
local concat, sort, kind_of, utf8_len = kit.concat, kit.sort, math.type, utf8.len
local getmetatable, null, array, unwatched = kit.metatable_of, kit.null, kit.array, kit.unwatched

local DEEPEST = 128
local MOST = 1e14 -- below it Lua itself writes numbers without a fraction as JSON has them
local LARGE = 10000 -- bytes of a text of which no copy should be made
local EVERY = 2000 -- values between two looks at the time
local REFUSED, BROKEN = "%s is a %s, which JSON cannot hold", "%s is not valid UTF-8 (byte %d)"

-- The path of a value: `way` has the open tables and their keys by depth, and the path of the first.
local function path_of(way, depth)
  local path = way[0]
  for i = 1, depth do
    path = path .. (kind_of(way[i]) and "[" .. way[i] .. "]" or "." .. way[i])
  end
  return path
end

local function refuse(way, depth, key, template, detail)
  way[depth] = key
  error(format(template, path_of(way, depth), detail), 0)
end

-- Strings, numbers and other values that are not tables

local escaped = kit.setmetatable({ ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }, {
  __index = function(_, letter) return format("\\u%04x", byte(letter)) end,
})

-- A text in quotes; nil and a place if it is not UTF-8.
local function quoted(text)
  if match(text, "^[]-~ !#-[]*()") <= #text then -- something that is not plain ASCII
    local _, bad = utf8_len(text)
    if bad then
      return nil, bad
    end
    text = gsub(text, '[\0-\31"\\]', escaped)
  end
  return '"' .. text .. '"'
end

-- The digits of a number that Lua has written with an exponent: without one from 0.00001 to 1e16, else as 1e-6 and 1e+16.
local function unscaled(written)
  local sign, first, rest, power = match(written, "^(-?)(%d)%.?(%d*)e([+-]%d+)$")
  power = tonumber(power)
  if power == -5 then
    return sign .. "0.0000" .. first .. rest
  elseif power > 0 and power < 16 then
    return sign .. first .. rest .. rep("0", power - #rest) .. ".0"
  end
  return format(rest == "" and "%s%s%se%+d" or "%s%s.%se%+d", sign, first, rest, power)
end

-- A number with a fraction, or a very large one, with the fewest digits that give the same number.
local function float(value)
  local written = format("%.15g", value)
  if tonumber(written) ~= value then
    written = format("%.16g", value)
    if tonumber(written) ~= value then
      written = format("%.17g", value)
    end
  elseif value < 1e-300 and value > -1e-300 and value ~= 0 then -- these have fewer digits than others
    local digits = 1
    repeat
      written, digits = format("%." .. digits .. "g", value), digits + 1
    until tonumber(written) == value
  end
  if find(written, "e", 1, true) then
    return unscaled(written)
  end
  return find(written, ".", 1, true) and written or written .. ".0"
end

-- A boolean, null or a number; nil for other values.
local function plain(value, kind)
  if kind == "boolean" then
    return value and "true" or "false"
  elseif kind == "nil" or value == null then
    return "null"
  elseif kind ~= "number" then
    return nil
  elseif kind_of(value) == "integer" then
    return format("%d", value)
  end
  return value - value == 0 and float(value) or "null"
end

-- Tables

-- A copy of an object whose keys are all strings.
local function renamed(value, way, depth)
  local found = {}
  for key, item in next, value do
    local kind = type(key)
    if kind == "string" then
      found[key] = item
    elseif kind ~= "number" and kind ~= "boolean" then
      error(format("a key of " .. REFUSED, path_of(way, depth), kind), 0)
    elseif rawget(value, plain(key, kind)) == nil then
      found[plain(key, kind)] = item
    end
  end
  return found
end

-- The names of an object in order, how many they are, and the object.
local function entries(value, way, depth, known)
  local names, count = {}, 0
  for key in next, value do
    if not known[key] and type(key) ~= "string" then
      return entries(renamed(value, way, depth), way, depth, known)
    end
    count = count + 1
    names[count] = key
  end
  if count > 1 then
    sort(names)
  end
  return names, count, value
end

-- The JSON of a name, cached.
local function named(name, way, depth, known)
  local text, bad = quoted(name)
  if bad then
    error(format("a key of " .. BROKEN, path_of(way, depth), bad), 0)
  end
  known[name] = text .. ":"
  return known[name]
end

-- The contents of a table: nil for an array, or the names of an object; their number; and the table that has them.
local function opened(value, way, depth, known)
  local mt = getmetatable(value)
  local count, is_array = mt == nil and #value or rawlen(value), rawequal(mt, array)
  if count == 0 and not is_array then
    return entries(value, way, depth, known)
  elseif mt == nil or is_array then
    return nil, count, value
  end
  local copy = {}
  for i = 1, count do
    copy[i] = rawget(value, i)
  end
  return nil, count, copy
end

local left = EVERY -- values that may be written before the next look at the time

-- Write a table behind out[n], and return the new n.
local function write(given, out, n, way, depth, known)
  local names, count, from = opened(given, way, depth, known)
  left = left - count - 1
  if left < 0 then
    left = EVERY
    kit.strike()
  end
  way[given], depth = true, depth + 1
  local mark = names and "{" or "["
  for i = 1, count do
    local key = i
    n = n + 2
    out[n - 1] = mark
    if names then
      key = names[i]
      out[n] = known[key] or named(key, way, depth - 1, known)
      n = n + 1
    end
    local value = from[key]
    local kind = type(value)
    if kind == "string" then
      if #value > LARGE and match(value, "^[]-~ !#-[]*()") > #value then -- without a copy
        out[n], out[n + 1], out[n + 2] = '"', value, '"'
        n = n + 2
      else
        local text, bad = quoted(value)
        out[n] = text or refuse(way, depth, key, BROKEN, bad)
      end
    elseif kind == "number" and value // 1 == value and value < MOST and value > -MOST then
      out[n] = value
    elseif kind ~= "table" then
      out[n] = plain(value, kind) or refuse(way, depth, key, REFUSED, kind)
    elseif way[value] then
      refuse(way, depth, key, "%s is a recursive table, which JSON cannot hold")
    else
      way[depth] = key
      if depth >= DEEPEST then
        error(format("%s is nested deeper than %d levels", sub(path_of(way, depth), 1, 80), DEEPEST), 0)
      end
      n = write(value, out, n - 1, way, depth, known)
    end
    mark = ","
  end
  way[given] = nil
  out[n + 1] = count > 0 and (names and "}" or "]") or names and "{}" or "[]"
  return n + 1
end

local function encode(value, path)
  local kind, way = type(value), { [0] = path }
  if kind == "table" then
    local out = {}
    unwatched(write, value, out, 0, way, 0, {})
    return concat(out)
  elseif kind == "string" then
    local text, bad = quoted(value)
    return text or refuse(way, 0, path, BROKEN, bad)
  end
  return plain(value, kind) or refuse(way, 0, path, REFUSED, kind)
end

local function decode(source, around)
  return kit.part("json_decode").decode(source, around)
end

return { encode = encode, decode = decode }
