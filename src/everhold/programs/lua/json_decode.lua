-- JSON text as Lua values: see `json.lua`. A part of the sandbox: it gets the kit and returns decode.
--
-- One pattern reads each common value with the character behind it: a string without escapes, a number, a
-- word. Everything else is parsed by hand, which also finds the error. Each pattern can match in one way
-- only, so that it takes linear time.

local kit = ...

local error, tonumber, find, match, sub = error, tonumber, string.find, string.match, string.sub
local format, concat, utf8_len, utf8_char = kit.format, kit.concat, utf8.len, utf8.char
local setmetatable, null, array, unwatched = kit.setmetatable, kit.null, kit.array, kit.unwatched
local byte, gsub, raw_pcall = string.byte, kit.gsub, kit.raw_pcall

local DEEPEST = 128

-- Most patterns end with what is behind a value: a comma or a bracket, then the place and the first letter of what
-- is next. They are written out because putting them together would cost each session that reads JSON. A text is
-- taken if there is neither a quote in it nor a backslash nor a control character.
local NEXT = "^[ \t\r\n]*()(.?)"
local NAME = '^"([]-\255 !#-[]*)"[ \t\r\n]*:[ \t\r\n]*()(.?)'
local TEXT = '^"([]-\255 !#-[]*)"[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)'
local NUMBER = "^(%-?%d+)([.%deE+-]*)[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)"
local FLOAT = "^(%-?%d+%.%d+)[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)"
local EVERY = 65536 -- bytes between two looks at the time
local WORDS = {
  t = "^true[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)",
  f = "^false[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)",
  n = "^null[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)",
}
local VALUES = { t = true, f = false, n = null }
local PLAIN = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }

local fill
local look = 0 -- the byte at which the time is looked at

local function fail(source, at, wanted)
  local _, last = find(source, "^.[\128-\191]*", at) -- a whole character, so that the message is valid UTF-8
  local got = last and format("%q", sub(source, at, last)) or "the end"
  error(format("expected %s at byte %d, got %s", wanted, at, got), 0)
end

-- The character of a \u escape, and the place after it.
local function unescape(source, at)
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

-- The letter behind a backslash, for `gsub`: it calls no function of a program.
local LETTERS = kit.setmetatable({}, { __index = function() error(nil) end })
for letter, meant in kit.raw_next, PLAIN do
  LETTERS[letter] = meant
end

-- A text whose escapes are those of one letter; nil for another.
local function read_plain(source, at)
  local stop = find(source, '"', at + 1, true)
  while stop do
    local back = stop - 1
    while byte(source, back) == 92 do
      back = back - 1
    end
    if (stop - back) % 2 == 1 then
      break
    end
    stop = find(source, '"', stop + 1, true)
  end
  if not stop then
    return nil
  end
  local text = sub(source, at + 1, stop - 1)
  if find(text, "\\u", 1, true) or find(text, "[\0-\31]") then
    return nil
  end
  local ok, written = raw_pcall(gsub, text, "\\(.)", LETTERS)
  if ok then
    return written, stop + 1
  end
end

local function read_text(source, at)
  local plain, after = read_plain(source, at)
  if plain then
    return plain, after
  end
  local parts, n = {}, 1
  at = at + 1
  while true do
    local sign, letter
    parts[n], at, sign, letter = match(source, "^([]-\255 !#-[]*)()(.?)(.?)", at)
    if sign == '"' then
      return n == 1 and parts[1] or concat(parts), at + 1
    elseif sign == "" then
      fail(source, at, "a closing quote")
    elseif sign ~= "\\" then
      fail(source, at, "text without control characters")
    elseif letter == "u" then
      parts[n + 1], at = unescape(source, at + 1)
    else
      parts[n + 1], at = PLAIN[letter] or fail(source, at + 1, "an escape"), at + 2
    end
    n = n + 2
  end
end

-- The number of these digits, and what follows; nil if it is not a number.
local function number(digits, rest)
  if not find(digits, "^%-?0%d") and (rest == "" or find(rest, "^%.%d") or find(rest, "^[eE]")) then
    return tonumber(digits .. rest)
  end
end

local function read_number(source, at)
  local digits, rest, after = match(source, "^(%-?%d+)([.%deE+-]*)()", at)
  local value = digits and number(digits, rest) or fail(source, at, "a value")
  if value - value ~= 0 then
    error(format("the number at byte %d is too large", at), 0)
  end
  return value, after
end

local function read_table(source, at, sign, depth)
  if depth >= DEEPEST then
    error(format("nested deeper than %d levels", DEEPEST), 0)
  end
  local ends = sign == "{" and "}" or "]"
  local found, first, after = sign == "{" and {} or setmetatable({}, array), match(source, NEXT, at + 1)
  if after == ends then
    return found, first + 1
  end
  return found, fill(source, first, after, depth + 1, found, ends)
end

-- A value by hand, and the place after it.
local function read(source, at, sign, depth)
  if sign == '"' then
    return read_text(source, at)
  elseif sign == "{" or sign == "[" then
    return read_table(source, at, sign, depth)
  end
  if WORDS[sign] and find(source, WORDS[sign], at) then
    return VALUES[sign], at + (sign == "f" and 5 or 4)
  end
  return read_number(source, at)
end

-- A name by hand, up to the value.
local function read_name(source, at)
  if sub(source, at, at) ~= '"' then
    fail(source, at, "a name in quotes")
  end
  local name, after = read_text(source, at)
  local colon, sign = match(source, NEXT, after)
  if sign ~= ":" then
    fail(source, colon, "':'")
  end
  return name, match(source, NEXT, colon + 1)
end

-- Put the values from here to the end of their table into it, and return the place after that.
function fill(source, at, sign, depth, found, ends)
  local key, floats = 0, false
  while true do
    if at > look then
      look = at + EVERY
      kit.strike()
    end
    if ends == "]" then
      key = key + 1
    else
      local name, place, letter = match(source, NAME, at)
      if name then
        key, at, sign = name, place, letter
      else
        key, at, sign = read_name(source, at)
      end
    end
    if sign == '"' then
      local value, stop, place, letter = match(source, TEXT, at)
      if stop == "," then
        found[key], at, sign = value, place, letter
        goto continue
      elseif stop == ends then
        found[key] = value
        return place
      end
    elseif WORDS[sign] then
      local stop, place, letter = match(source, WORDS[sign], at)
      if stop == "," or stop == ends then
        found[key], at, sign = VALUES[sign], place, letter
        if stop == ends then
          return at
        end
        goto continue
      end
    elseif sign ~= "{" and sign ~= "[" then
      if floats then -- where one was, there are more
        local written, stop, place, letter = match(source, FLOAT, at)
        if (stop == "," or stop == ends) and not find(written, "^%-?0%d") then
          local value = tonumber(written)
          if value - value == 0 then
            found[key], at, sign = value, place, letter
            if stop == ends then
              return at
            end
            goto continue
          end
        end
      end
      local digits, rest, stop, place, letter = match(source, NUMBER, at)
      if stop == "," or stop == ends then
        local is_whole = rest == "" and sign ~= "0" and sign ~= "-"
        local value = is_whole and tonumber(digits) or number(digits, rest)
        if value and value - value == 0 then
          floats = not is_whole
          found[key], at, sign = value, place, letter
          if stop == ends then
            return at
          end
          goto continue
        end
      end
    end
    found[key], at = read(source, at, sign, depth)
    at, sign = match(source, NEXT, at)
    if sign == ends then
      return at + 1
    elseif sign ~= "," then
      fail(source, at, "',' or '" .. ends .. "'")
    end
    at, sign = match(source, NEXT, at + 1)
    ::continue::
  end
end

-- The value of a text. `around` outer levels do not count towards the limit of depth.
local function decode(source, around)
  local _, bad = utf8_len(source)
  if bad then
    error(format("not valid UTF-8 (byte %d)", bad), 0)
  end
  local at, sign = match(source, NEXT)
  look = at + EVERY
  local value, after = unwatched(read, source, at, sign, -(around or 0))
  local rest = match(source, NEXT, after)
  if rest <= #source then
    fail(source, rest, "the end")
  end
  return value
end

return { decode = decode }
