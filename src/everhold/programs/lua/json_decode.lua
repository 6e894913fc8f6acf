-- JSON text as Lua values: see `json.lua`. A part of the sandbox: it gets the kit and returns decode.
--
-- One pattern reads each common value with what is behind it: in an array the comma or the bracket, in an object the next
-- name. Everything else is parsed by hand, which also finds the error. Each pattern can match in one way only, so that it
-- takes linear time.

local kit = ...

local error, tonumber, find, match, sub = error, tonumber, string.find, string.match, string.sub
local format, concat, utf8_len, utf8_char = kit.format, kit.concat, utf8.len, utf8.char
local setmetatable, null, array, unwatched = kit.setmetatable, kit.null, kit.array, kit.unwatched
local byte = string.byte

local DEEPEST = 128

-- Patterns of values end with a comma or a bracket, then the place and the first letter of what is next; or, in an object,
-- with the next name, and the place and the first letter of its value. They are written out because putting them together
-- would cost each session that reads JSON. A text is taken if there is neither a quote in it nor a backslash nor a
-- control character.
local NEXT = "^[ \t\r\n]*()(.?)"
local FIRST = '^{[ \t\r\n]*"([]-\255 !#-[]*)"[ \t\r\n]*:[ \t\r\n]*()(.?)'
local NAME = '^"([]-\255 !#-[]*)"[ \t\r\n]*:[ \t\r\n]*()(.?)'
local BEHIND = '^[ \t\r\n]*,[ \t\r\n]*"([]-\255 !#-[]*)"[ \t\r\n]*:[ \t\r\n]*()(.?)'
local STOP = "^[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)"
local TEXT = '^"([]-\255 !#-[]*)"[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)'
local TEXT_NAME = '^"([]-\255 !#-[]*)"[ \t\r\n]*,[ \t\r\n]*"([]-\255 !#-[]*)"[ \t\r\n]*:[ \t\r\n]*()(.?)'
local WHOLE = "^(%-?%d+)[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)"
local WHOLE_NAME = '^(%-?%d+)[ \t\r\n]*,[ \t\r\n]*"([]-\255 !#-[]*)"[ \t\r\n]*:[ \t\r\n]*()(.?)'
local FLOAT = "^(%-?%d+%.%d+)[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)"
local FLOAT_NAME = '^(%-?%d+%.%d+)[ \t\r\n]*,[ \t\r\n]*"([]-\255 !#-[]*)"[ \t\r\n]*:[ \t\r\n]*()(.?)'
local EVERY = 65536 -- bytes between two looks at the time
local NOTED = 500 -- notes about names, which are then forgotten
local WORDS = {
  t = "^true[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)",
  f = "^false[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)",
  n = "^null[ \t\r\n]*([,%]}]?)[ \t\r\n]*()(.?)",
}
local WORDS_NAME = {
  t = '^true[ \t\r\n]*,[ \t\r\n]*"([]-\255 !#-[]*)"[ \t\r\n]*:[ \t\r\n]*()(.?)',
  f = '^false[ \t\r\n]*,[ \t\r\n]*"([]-\255 !#-[]*)"[ \t\r\n]*:[ \t\r\n]*()(.?)',
  n = '^null[ \t\r\n]*,[ \t\r\n]*"([]-\255 !#-[]*)"[ \t\r\n]*:[ \t\r\n]*()(.?)',
}
local VALUES = { t = true, f = false, n = null }
local LONG = 40 -- bytes of a text from which on it is read by hand, which costs more at first and less for each byte
local LETTERS = { [34] = '"', [47] = "/", [92] = "\\", [98] = "\b", [102] = "\f", [110] = "\n", [114] = "\r", [116] = "\t" }

local fill_array, fill_object
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

-- Long texts, and those with escapes, are searched for single characters, which takes no time for each byte.

local present -- the control characters that the whole source has: mostly none, or line feeds
local backslash = 0 -- the place of one in the source, which is the next if it is not behind us

local function list_controls(source)
  present = {}
  for code = 0, 31 do
    local control = utf8_char(code)
    if find(source, control, 1, true) then
      present[#present + 1] = control
    end
  end
end

local function has_control(text)
  for i = 1, #present do
    if find(text, present[i], 1, true) then
      return true
    end
  end
end

-- A text without errors; nil for another.
local function read_good_text(source, at)
  if not present then
    list_controls(source)
  end
  local from, parts, n = at + 1, nil, 0
  local quote = find(source, '"', from, true)
  while quote do
    if backslash < from then
      backslash = find(source, "\\", from, true) or #source + 1
    end
    if backslash > quote then
      local last = sub(source, from, quote - 1)
      if present[1] and has_control(last) then
        return nil
      elseif n == 0 then
        return last, quote + 1
      end
      parts[n + 1] = last
      return concat(parts), quote + 1
    end
    parts = parts or {}
    local before, letter = sub(source, from, backslash - 1), byte(source, backslash + 1)
    if present[1] and has_control(before) then
      return nil
    end
    n = n + 2
    parts[n - 1] = before
    if letter == 117 then
      parts[n], from = unescape(source, backslash + 1)
    else
      parts[n], from = LETTERS[letter], backslash + 2
      if not parts[n] then
        return nil
      end
    end
    if quote < from then
      quote = find(source, '"', from, true)
    end
  end
end

local function read_text(source, at)
  local text, after = read_good_text(source, at)
  if text then
    return text, after
  end
  -- find the error
  while true do
    local sign, letter
    at, sign, letter = match(source, "^[]-\255 !#-[]*()(.?)(.?)", at + 1)
    if sign == "" then
      fail(source, at, "a closing quote")
    elseif sign ~= "\\" then
      fail(source, at, "text without control characters")
    elseif letter == "u" then
      local _, following = unescape(source, at + 1)
      at = following - 1
    else
      at = LETTERS[byte(letter)] and at + 1 or fail(source, at + 1, "an escape")
    end
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

local function deeper(depth)
  if depth >= DEEPEST then
    error(format("nested deeper than %d levels", DEEPEST), 0)
  end
  return depth + 1
end

-- A value by hand, and the place after it.
local function read(source, at, sign, depth)
  if sign == '"' then
    return read_text(source, at)
  elseif sign == "{" then
    return fill_object(source, at, deeper(depth), {})
  elseif sign == "[" then
    return fill_array(source, at, deeper(depth), setmetatable({}, array))
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

-- The number of these digits, which begin with this letter; nil if JSON does not have it, or it is too large.
local function checked(digits, sign)
  if sign == "0" and byte(digits, 2) ~= 46 and #digits > 1 or sign == "-" and find(digits, "^%-0%d") then
    return nil
  end
  local value = tonumber(digits)
  return value - value == 0 and value or nil
end

local function see_time(at)
  look = at + EVERY
  kit.strike()
end

-- Put the values of the array that begins here into a table, and return it and the place after the array.
function fill_array(source, at, depth, found)
  local sign
  at, sign = match(source, NEXT, at + 1)
  if sign == "]" then
    return found, at + 1
  end
  local key, has_floats, has_long = 0, false, false -- where a float was, or a long text, there are more
  while true do
    if at > look then
      see_time(at)
    end
    local value, stop, place, letter
    if sign == '"' then
      if has_long then
        value, place = read_text(source, at)
        has_long = place - at > LONG or place - at ~= #value + 2
        stop, place, letter = match(source, STOP, place)
      else
        value, stop, place, letter = match(source, TEXT, at)
        has_long = not value or #value > LONG
      end
    elseif WORDS[sign] then
      stop, place, letter = match(source, WORDS[sign], at)
      value = VALUES[sign]
    elseif sign ~= "{" and sign ~= "[" then
      value, stop, place, letter = match(source, has_floats and FLOAT or WHOLE, at)
      if stop ~= "," and stop ~= "]" then
        has_floats = not has_floats
        value, stop, place, letter = match(source, has_floats and FLOAT or WHOLE, at)
      end
      value = value and checked(value, sign)
      stop = value and stop
    end
    key = key + 1
    if stop == "," then
      found[key], at, sign = value, place, letter
    elseif stop == "]" then
      found[key] = value
      return found, place
    else
      found[key], at = read(source, at, sign, depth)
      at, sign = match(source, NEXT, at)
      if sign == "]" then
        return found, at + 1
      elseif sign ~= "," then
        fail(source, at, "',' or ']'")
      end
      at, sign = match(source, NEXT, at + 1)
    end
  end
end

-- The objects of a text mostly look alike. So it is noted for a name whether its value was the last of an object (`lasts`),
-- and whether it was a float or a text with escapes (`others`): then another pattern comes first.

local lasts, others, noted = {}, {}, 0

local function note(list, name, value)
  noted = noted + 1
  if noted > NOTED then
    lasts, others, noted = {}, {}, 0
  else
    list[name] = value
  end
end

-- A value by hand. Texts with escapes are noted.
local function read_value(source, at, sign, depth, name)
  local value, after = read(source, at, sign, depth)
  if sign == '"' then
    local is_other = after - at ~= #value + 2 or #value > LONG
    if is_other ~= (others[name] or false) then
      note(others, name, is_other or nil)
    end
  end
  return value, after
end

-- The same as `fill_array` for an object.
function fill_object(source, at, depth, found)
  local name, place, sign = match(source, FIRST, at)
  if not name then
    at, sign = match(source, NEXT, at + 1)
    if sign == "}" then
      return found, at + 1
    end
    name, place, sign = read_name(source, at)
  end
  while true do
    at = place
    if at > look then
      see_time(at)
    end
    local is_last, is_other = lasts[name], others[name]
    local value, following, stop, letter
    if sign == '"' then
      if not is_other then
        if not is_last then
          value, following, place, letter = match(source, TEXT_NAME, at)
        end
        if not following then
          value, stop, place, letter = match(source, TEXT, at)
        end
        if value and #value > LONG then
          note(others, name, true)
        end
      end
    elseif WORDS[sign] then
      if not is_last then
        following, place, letter = match(source, WORDS_NAME[sign], at)
      end
      if not following then
        stop, place, letter = match(source, WORDS[sign], at)
      end
      value = VALUES[sign]
    elseif sign ~= "{" and sign ~= "[" then
      if not is_last then
        value, following, place, letter = match(source, is_other and FLOAT_NAME or WHOLE_NAME, at)
      end
      if not following then
        value, stop, place, letter = match(source, is_other and FLOAT or WHOLE, at)
        if stop ~= "," and stop ~= "}" then
          note(others, name, not is_other or nil)
          value, stop, place, letter = match(source, is_other and WHOLE or FLOAT, at)
        end
      end
      value = value and checked(value, sign)
      if value == nil then
        following, stop = nil, nil
      end
    end
    if following then
      found[name], name, sign = value, following, letter
    elseif stop == "}" then
      found[name] = value
      if not is_last then
        note(lasts, name, true)
      end
      return found, place
    elseif stop == "," then
      found[name] = value
      lasts[name] = nil
      name, at, sign = match(source, NAME, place)
      if name then
        place = at
      else
        name, place, sign = read_name(source, place)
      end
    else
      found[name], at = read_value(source, at, sign, depth, name)
      name, place, sign = match(source, BEHIND, at)
      if not name then
        at, sign = match(source, NEXT, at)
        if sign == "}" then
          return found, at + 1
        elseif sign ~= "," then
          fail(source, at, "',' or '}'")
        end
        name, place, sign = read_name(source, (match(source, NEXT, at + 1)))
      end
    end
  end
end

-- The value of a text. `around` outer levels do not count towards the limit of depth.
local function decode(source, around)
  local _, bad = utf8_len(source)
  if bad then
    error(format("not valid UTF-8 (byte %d)", bad), 0)
  end
  local at, sign = match(source, NEXT)
  look, present, backslash = at + EVERY, nil, 0
  local value, after = unwatched(read, source, at, sign, -(around or 0))
  local rest = match(source, NEXT, after)
  if rest <= #source then
    fail(source, rest, "the end")
  end
  return value
end

return { decode = decode }
