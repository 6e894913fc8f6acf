-- Functions for the text of a model: split, find, compare, parse.
--
-- A chunk of the Lua library: `local alc, host = ...` adds functions to `alc`. Plain Lua and `alc.json_decode` only;
-- nothing here makes queries. `host.array` is the metatable of arrays.

local alc, host = ...

local type, tostring, tonumber, error, pcall, ipairs = type, tostring, tonumber, error, pcall, ipairs
local setmetatable = setmetatable
local find, sub, byte, match, gmatch, gsub = string.find, string.sub, string.byte, string.match, string.gmatch, string.gsub
local format, concat, codes, char_len, char_at = string.format, table.concat, utf8.codes, utf8.len, utf8.offset
local tointeger, min, max = math.tointeger, math.min, math.max

-- An array that stays an array when it is empty: `{}` alone would become an object.
local function array()
  return setmetatable({}, host.array)
end

local function check_text(name, text)
  if type(text) == "number" then
    return tostring(text)
  elseif type(text) ~= "string" then
    error(format("%s: text must be a string, got %s", name, type(text)), 0)
  end
  return text
end

local function whole(name, what, value, default)
  if value == nil or value == host.null then
    return default
  end
  local number = type(value) == "number" and tointeger(value)
  if not number or number < 0 then
    error(format("%s: %s must be a whole number from 0", name, what), 0)
  end
  return number
end

-- chunk -------------------------------------------------------------------------------------------------------------

local function lines_of(text)
  local lines, from = {}, 1
  while from <= #text do
    local stop = find(text, "\n", from, true) or #text + 1
    local last = byte(text, stop - 1) == 13 and stop <= #text and stop - 2 or stop - 1
    lines[#lines + 1] = sub(text, from, last)
    from = stop + 1
  end
  return lines
end

-- Calls `cut(first, last)` for each piece of `total` parts. The last piece is the first one that reaches the end.
local function pieces(total, size, overlap, cut)
  local step = overlap < size and size - overlap or 1
  for first = 1, total, step do
    local last = min(first + size - 1, total)
    cut(first, last)
    if last == total then
      return
    end
  end
end

function alc.chunk(text, opts)
  text = check_text("alc.chunk", text)
  opts = type(opts) == "table" and opts or {}
  local size = whole("alc.chunk", "size", opts.size, 50)
  local overlap = whole("alc.chunk", "overlap", opts.overlap, 0)
  local out = array()
  if size == 0 or text == "" then
    return out
  end
  if opts.mode ~= "chars" then
    local lines = lines_of(text)
    pieces(#lines, size, overlap, function(first, last)
      out[#out + 1] = concat(lines, "\n", first, last)
    end)
    return out
  end
  local total = char_len(text)
  if not total then
    error("alc.chunk: text is not valid UTF-8", 0)
  end
  -- Continues from the start of the last piece: counting from the beginning each time would take quadratic time.
  local at, at_byte = 1, 1
  pieces(total, size, overlap, function(first, last)
    at, at_byte = first, char_at(text, first - at + 1, at_byte)
    out[#out + 1] = sub(text, at_byte, char_at(text, last - first + 2, at_byte) - 1)
  end)
  return out
end

-- match_enum --------------------------------------------------------------------------------------------------------

-- Uppercase letters beyond ASCII: first and last of a range, the distance to lowercase, and the step.
local CAPITALS = {
  { 0xc0, 0xd6, 32, 1 }, { 0xd8, 0xde, 32, 1 },
  { 0x100, 0x12e, 1, 2 }, { 0x132, 0x136, 1, 2 }, { 0x139, 0x147, 1, 2 }, { 0x14a, 0x176, 1, 2 },
  { 0x178, 0x178, -121, 1 }, { 0x179, 0x17d, 1, 2 },
  { 0x391, 0x3a1, 32, 1 }, { 0x3a3, 0x3ab, 32, 1 },
  { 0x400, 0x40f, 80, 1 }, { 0x410, 0x42f, 32, 1 },
}
local small

-- The text in lowercase: ASCII, Latin, Greek and Cyrillic. Other scripts have no case, or stay unchanged.
local function lower(text)
  text = string.lower(text)
  if not find(text, "[\xc3-\xd0]") then
    return text
  end
  if not small then
    small = {}
    for _, run in ipairs(CAPITALS) do
      for code = run[1], run[2], run[4] do
        small[utf8.char(code)] = utf8.char(code + run[3])
      end
    end
  end
  return (gsub(text, "[\xc3-\xd0][\x80-\xbf]", small))
end

local function last_occurrence(text, word)
  local at, from = nil, 1
  while true do
    local found = find(text, word, from, true)
    if not found then
      return at
    end
    at, from = found, found + 1
  end
end

local function scalars(text)
  local out = {}
  if not char_len(text) then
    return { byte(text, 1, min(#text, 1000)) }
  end
  for _, code in codes(text) do
    out[#out + 1] = code
  end
  return out
end

-- The share of scalars that two words have in common, nearly in the same places and nearly in the same order.
local function jaro(one, two)
  local m, n = #one, #two
  if m == 0 or n == 0 then
    return m == n and 1.0 or 0.0
  end
  local reach = max(max(m, n) // 2 - 1, 0)
  local taken, common = {}, {}
  for i = 1, m do
    for j = max(1, i - reach), min(n, i + reach) do
      if not taken[j] and one[i] == two[j] then
        taken[j] = true
        common[#common + 1] = one[i]
        break
      end
    end
  end
  if #common == 0 then
    return 0.0
  end
  local at, moved = 0, 0
  for j = 1, n do
    if taken[j] then
      at = at + 1
      if common[at] ~= two[j] then
        moved = moved + 1
      end
    end
  end
  local c = #common
  return (c / m + c / n + (c - moved // 2) / c) / 3
end

local function jaro_winkler(one, two)
  local alike = jaro(one, two)
  if alike <= 0.7 then
    return alike
  end
  local prefix = 0
  while prefix < 4 and one[prefix + 1] and one[prefix + 1] == two[prefix + 1] do
    prefix = prefix + 1
  end
  return alike + prefix * 0.1 * (1 - alike)
end

-- The longest token that is compared: the comparison takes quadratic time.
local LONGEST = 200

local function alike(text, names, threshold)
  local best, best_alike
  local words, seen = {}, {}
  for i, name in ipairs(names) do
    words[i] = scalars(name)
  end
  for token in gmatch(text, "%S+") do
    -- Bytes from 128 on belong to letters of other scripts.
    local word = #token <= LONGEST and match(token, "^[^%w\128-\255]*(.-)[^%w\128-\255]*$") or ""
    if word ~= "" and not seen[word] then
      seen[word] = true
      local letters = scalars(word)
      for i, candidate in ipairs(words) do
        local score = jaro_winkler(letters, candidate)
        if score >= threshold and (not best or score > best_alike) then
          best, best_alike = i, score
        end
      end
    end
  end
  return best
end

function alc.match_enum(text, candidates, opts)
  text = lower(check_text("alc.match_enum", text))
  if type(candidates) ~= "table" then
    error("alc.match_enum: candidates must be an array of strings", 0)
  end
  local threshold = type(opts) == "table" and opts.threshold
  if not threshold or threshold == host.null then
    threshold = 0.7
  end
  if type(threshold) ~= "number" then
    error("alc.match_enum: threshold must be a number", 0)
  end
  local names, best, best_at = {}, nil, nil
  for i, candidate in ipairs(candidates) do
    if type(candidate) ~= "string" then
      error(format("alc.match_enum: candidate %d must be a string, got %s", i, type(candidate)), 0)
    end
    names[i] = lower(candidate)
    local at = candidate ~= "" and last_occurrence(text, names[i])
    if at and (not best or at > best_at) then
      best, best_at = i, at
    end
  end
  best = best or alike(text, names, threshold)
  return best and candidates[best] or nil
end

-- match_bool --------------------------------------------------------------------------------------------------------

local VERDICTS = {}
for word in gmatch("approved yes ok accept pass confirm agree true lgtm", "%a+") do
  VERDICTS[word] = true
end
for word in gmatch("rejected no deny block fail refuse disagree false", "%a+") do
  VERDICTS[word] = false
end

function alc.match_bool(text)
  local verdict
  for word in gmatch(check_text("alc.match_bool", text), "%w+") do
    local said = VERDICTS[string.lower(word)]
    if said ~= nil then
      verdict = said
    end
  end
  return verdict
end

-- numbers and fingerprints ------------------------------------------------------------------------------------------

function alc.parse_score(text, default)
  local digits = match(tostring(text), "%d+")
  if not digits then
    return default == nil and 5 or default
  end
  -- More digits than an integer holds mean more than ten.
  return tointeger(max(1, min(10, tonumber(digits))))
end

function alc.parse_number(text, pattern)
  if type(text) ~= "string" then
    return nil
  end
  local found = match(text, pattern or "-?%d+%.?%d*")
  return found and tonumber(found) or nil
end

-- DJB2 over the bytes: to distinguish texts, not for security.
function alc.fingerprint(text)
  local plain = gsub(gsub(string.lower(tostring(text)), "%s+", " "), "^ ", "")
  plain = gsub(plain, " $", "")
  local hash = 5381
  for i = 1, #plain do
    hash = (hash * 33 + byte(plain, i)) & 0xffffffff
  end
  return format("%08x", hash)
end

-- json_extract ------------------------------------------------------------------------------------------------------

-- The number of pieces that are tried as JSON: hostile text may have brackets without end.
local TRIES = 1000

local function after_string(text, from)
  while true do
    local at = find(text, '["\\]', from)
    if not at then
      return #text + 1
    elseif byte(text, at) == 34 then
      return at + 1
    end
    from = at + 2
  end
end

-- Stores in `ends` where the bracket at `from` and each one inside it closes; false if it does not.
-- Brackets in strings are skipped, and are tried later. Each bracket is visited at most twice.
local function balance(text, from, open, signs, ends)
  local stack, at = {}, from
  while true do
    at = find(text, signs, at)
    if not at then
      for _, start in ipairs(stack) do
        ends[start] = false
      end
      return
    end
    local sign = byte(text, at)
    if sign == 34 then
      at = after_string(text, at + 1)
    else
      if sign == open then
        stack[#stack + 1] = at
      else
        ends[stack[#stack]] = at
        stack[#stack] = nil
        if #stack == 0 then
          return
        end
      end
      at = at + 1
    end
  end
end

local function table_in(text)
  -- Read each time, because a program may replace `alc.json_decode`.
  local ok, value = pcall(alc.json_decode, text)
  return ok and type(value) == "table" and value or nil
end

local function first_balanced(text, open, signs)
  local ends, tries, at = {}, 0, 0
  while tries < TRIES do
    at = find(text, open, at + 1, true)
    if not at then
      return nil
    end
    if ends[at] == nil then
      balance(text, at, byte(open), signs, ends)
    end
    if ends[at] then
      tries = tries + 1
      local value = table_in(sub(text, at, ends[at]))
      if value then
        return value
      end
    end
  end
end

-- Fences are parsed by hand: a pattern would backtrack behind a fence that is never closed.
local function first_fenced(text)
  local at = find(text, "```", 1, true)
  while at do
    local language, from = match(text, "^(%w*)()", at + 3)
    local stop = find(text, "```", from, true)
    if not stop then
      return nil
    elseif language == "" or string.lower(language) == "json" then
      local value = table_in(sub(text, from, stop - 1))
      if value then
        return value
      end
    end
    at = find(text, "```", stop + 3, true)
  end
end

function alc.json_extract(raw)
  if type(raw) ~= "string" then
    return nil
  end
  return table_in(raw) or first_fenced(raw) or first_balanced(raw, "{", '[{}"]') or first_balanced(raw, "[", '[%[%]"]')
end
