-- JSON text to Lua values and back. A part of the sandbox: it gets the kit and returns encode and decode.
--
--   null               a light userdata: true in conditions, and equal only to itself
--   array              a table with the metatable `array`, so that an empty one stays an array
--   integer, float     stay what they are: 3.0 is written as 3.0
--   object             keys in the order of their bytes, wherever one is written
--
-- What JSON cannot hold is an error with the path of the value.

local kit = ...

local type, next, error, tonumber = type, kit.raw_next, error, tonumber
local rawequal, rawget, rawlen = rawequal, rawget, rawlen
local find, sub, byte, format, gsub = string.find, string.sub, string.byte, kit.format, kit.gsub
local concat, sort, kind_of, utf8_len, utf8_char = kit.concat, kit.sort, math.type, utf8.len, utf8.char
local getmetatable, setmetatable, null, array = kit.metatable_of, kit.setmetatable, kit.null, kit.array

local DEEPEST = 128

local ESCAPED = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function escape(letter)
  return ESCAPED[letter] or format("\\u%04x", byte(letter))
end

local function text(value, path)
  local _, bad = utf8_len(value)
  if bad then
    error(format("%s is not valid UTF-8 (byte %d)", path, bad), 0)
  end
  if find(value, '[%c"\\]') then
    value = gsub(value, '[\0-\31"\\]', escape)
  end
  return '"' .. value .. '"'
end

local function number(value)
  if kind_of(value) == "integer" then
    return format("%d", value)
  elseif value ~= value or value - value ~= 0 then
    return "null"
  end
  for digits = 15, 17 do
    local written = format("%." .. digits .. "g", value)
    if tonumber(written) == value then
      return find(written, "[.e]") and written or written .. ".0"
    end
  end
end

-- The entries of an object by name, and the names in order.
local function entries(value, path)
  local names, found = {}, {}
  for key, item in next, value do
    local kind = type(key)
    if kind == "number" or kind == "boolean" then
      key = kind == "number" and number(key) or key and "true" or "false"
      if rawget(value, key) ~= nil then
        goto continue
      end
    elseif kind ~= "string" then
      error(format("a key of %s is a %s, which JSON cannot hold", path, kind), 0)
    end
    names[#names + 1] = key
    found[key] = item
    ::continue::
  end
  sort(names)
  return names, found
end

local write

local function write_array(value, out, path, above, depth)
  for index = 1, rawlen(value) do
    out[#out + 1] = index == 1 and "[" or ","
    write(rawget(value, index), out, path .. "[" .. index .. "]", above, depth)
  end
  out[#out + 1] = rawlen(value) == 0 and "[]" or "]"
end

local function write_object(value, out, path, above, depth)
  local names, found = entries(value, path)
  for index = 1, #names do
    local name = names[index]
    out[#out + 1] = index == 1 and "{" or ","
    out[#out + 1] = text(name, "a key of " .. path)
    out[#out + 1] = ":"
    write(found[name], out, path .. "." .. name, above, depth)
  end
  out[#out + 1] = #names == 0 and "{}" or "}"
end

function write(value, out, path, above, depth)
  local kind = type(value)
  if kind == "string" then
    out[#out + 1] = text(value, path)
  elseif kind == "number" then
    out[#out + 1] = number(value)
  elseif kind == "boolean" then
    out[#out + 1] = value and "true" or "false"
  elseif kind == "nil" or value == null then
    out[#out + 1] = "null"
  elseif kind ~= "table" then
    error(format("%s is a %s, which JSON cannot hold", path, kind), 0)
  elseif above[value] then
    error(format("%s is a recursive table, which JSON cannot hold", path), 0)
  elseif depth >= DEEPEST then
    error(format("%s is nested deeper than %d levels", sub(path, 1, 80), DEEPEST), 0)
  else
    above[value] = true
    local is_array = rawlen(value) > 0 or rawequal(getmetatable(value), array)
    local write_table = is_array and write_array or write_object
    write_table(value, out, path, above, depth + 1)
    above[value] = nil
  end
end

local function encode(value, path)
  if type(value) == "string" then
    return text(value, path)
  end
  local out = {}
  write(value, out, path, {}, 0)
  return concat(out)
end

local read

local function fail(source, at, wanted)
  local _, last = find(source, "^.[\128-\191]*", at) -- a whole letter, so that the words of the error are text
  local got = last and format("%q", sub(source, at, last)) or "the end"
  error(format("expected %s at byte %d, got %s", wanted, at, got), 0)
end

local function skip(source, at)
  return find(source, "[^ \t\r\n]", at) or #source + 1
end

local PLAIN = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }

-- The letter behind a backslash at `at`, and the place after it.
local function unescape(source, at)
  local letter = sub(source, at, at)
  if letter ~= "u" then
    return PLAIN[letter] or fail(source, at, "an escape"), at + 1
  end
  local _, last, digits = find(source, "^(%x%x%x%x)", at + 1)
  local code = last and tonumber(digits, 16) or fail(source, at, "four hexadecimal digits")
  if code >= 0xD800 and code <= 0xDBFF then
    local _, low_last, low = find(source, "^\\u([dD][c-fC-F]%x%x)", last + 1)
    if not low_last then
      fail(source, at, "a pair of surrogates")
    end
    return utf8_char(0x10000 + ((code - 0xD800) << 10) + (tonumber(low, 16) - 0xDC00)), low_last + 1
  elseif code >= 0xDC00 and code <= 0xDFFF then
    fail(source, at, "a pair of surrogates")
  end
  return utf8_char(code), last + 1
end

local function read_text(source, at)
  local stop = find(source, '["\\%c]', at + 1)
  if stop and byte(source, stop) == 34 then
    return sub(source, at + 1, stop - 1), stop + 1
  end
  local parts, from = {}, at + 1
  while true do
    stop = find(source, '["\\\0-\31]', from) or fail(source, #source + 1, "a closing quote")
    parts[#parts + 1] = sub(source, from, stop - 1)
    local code = byte(source, stop)
    if code == 34 then
      return concat(parts), stop + 1
    elseif code ~= 92 then
      fail(source, stop, "text without control characters")
    end
    parts[#parts + 1], from = unescape(source, stop + 1)
  end
end

local function read_number(source, at)
  local _, last, whole, rest = find(source, "^(%-?%d+)([.%deE+-]*)", at)
  local value = last and not find(whole, "^%-?0%d") and tonumber(whole .. rest)
  if not value or find(rest, "^%.%D") or find(rest, "%.$") then
    fail(source, at, "a value")
  end
  return value, last + 1
end

local function read_array(source, at, depth)
  local found, count = setmetatable({}, array), 0
  at = skip(source, at + 1)
  if byte(source, at) == 93 then
    return found, at + 1
  end
  while true do
    count = count + 1
    found[count], at = read(source, at, depth)
    at = skip(source, at)
    local code = byte(source, at)
    if code == 93 then
      return found, at + 1
    elseif code ~= 44 then
      fail(source, at, "',' or ']'")
    end
    at = skip(source, at + 1)
  end
end

local function read_object(source, at, depth)
  local found = {}
  at = skip(source, at + 1)
  if byte(source, at) == 125 then
    return found, at + 1
  end
  while true do
    if byte(source, at) ~= 34 then
      fail(source, at, "a name in quotes")
    end
    local name
    name, at = read_text(source, at)
    at = skip(source, at)
    if byte(source, at) ~= 58 then
      fail(source, at, "':'")
    end
    found[name], at = read(source, skip(source, at + 1), depth)
    at = skip(source, at)
    local code = byte(source, at)
    if code == 125 then
      return found, at + 1
    elseif code ~= 44 then
      fail(source, at, "',' or '}'")
    end
    at = skip(source, at + 1)
  end
end

function read(source, at, depth)
  local code = byte(source, at)
  if code == 34 then
    return read_text(source, at)
  elseif code == 123 or code == 91 then
    if depth >= DEEPEST then
      error(format("nested deeper than %d levels", DEEPEST), 0)
    end
    return (code == 123 and read_object or read_array)(source, at, depth + 1)
  elseif find(source, "^true", at) then
    return true, at + 4
  elseif find(source, "^false", at) then
    return false, at + 5
  elseif find(source, "^null", at) then
    return null, at + 4
  end
  return read_number(source, at)
end

-- The value of a text, around which there are so many levels that do not count.
local function decode(source, around)
  local _, bad = utf8_len(source)
  if bad then
    error(format("not valid UTF-8 (byte %d)", bad), 0)
  end
  local value, at = read(source, skip(source, 1), -(around or 0))
  at = skip(source, at)
  if at <= #source then
    fail(source, at, "the end")
  end
  return value
end

return { encode = encode, decode = decode }
