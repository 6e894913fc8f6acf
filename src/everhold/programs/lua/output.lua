-- Output of a program, buffered until the host takes it: print, alc.log, alc.stats, alc.progress.
-- A part of the sandbox: it gets the kit.

local kit = ...

local type, error, ipairs, tonumber, tointeger = type, error, ipairs, tonumber, math.tointeger
local sub, pack, concat, gsub, unpack = string.sub, table.pack, kit.concat, kit.gsub, kit.unpack
local format, tostring, words, null, alc = kit.format, kit.tostring, kit.words, kit.null, kit.alc

local KEPT = 1000 -- lines, the newest
local LONGEST = 20000 -- bytes of a line
local AT_ONCE = 250 -- records that the host takes at once: a full state has little free memory

local own = {}
local said, spoken = {}, 0

local function say(level, source, line)
  local place = spoken % KEPT * 3
  said[place + 1], said[place + 2], said[place + 3] = level, source, sub(line, 1, LONGEST)
  spoken = spoken + 1
  kit.noisy = true
end

local function joined(between, ...)
  local parts = pack(...)
  for i = 1, parts.n do
    parts[i] = tostring(parts[i])
  end
  return (gsub(concat(parts, between), "\n+$", ""))
end

function own.print(...)
  say("info", "alc.lua.print", joined("\t", ...))
end

function own.warn(...)
  say("warn", "warn", joined("", ...))
end

function own.write(level, ...)
  say(level, "io.write", joined("", ...))
end

-- Text for people: numbers count as text, and incomplete UTF-8 is not an error.
local function remark(value, what)
  if type(value) ~= "string" and type(value) ~= "number" then
    error(format("%s must be a string, got %s", what, value == null and "null" or type(value)), 3)
  end
  return tostring(value)
end

-- alc.log is a function, which packages may ask for, and alc.log.warn(message) and so on work too: all functions share one
-- metatable, which knows the levels of this one.

local levels = {}

for _, level in ipairs({ "trace", "debug", "info", "warn", "error" }) do
  levels[level] = function(message)
    say(level, "alc.log", remark(message, "alc.log." .. level .. ": message"))
  end
end

local function log(level, message)
  say(words(level, "alc.log: level"), "alc.log", remark(message, "alc.log: message"))
end

kit.unprotected(log, {
  __metatable = false,
  __index = function(f, name)
    if f ~= log then
      error("attempt to index a function value", 2)
    end
    return levels[name]
  end,
})

alc.log = log

-- alc.stats: each value as JSON, the last one wins

local recorded, records, fresh, taken = {}, {}, {}, 0

alc.stats = {}

function alc.stats.record(key, value)
  local name = words(key, "alc.stats.record: key")
  recorded[name] = kit.part("json").encode(value, "alc.stats.record: '" .. name .. "'")
  if not fresh[name] then
    fresh[name], records[#records + 1] = true, name
  end
  kit.noisy = true
end

function alc.stats.get(key)
  local found = recorded[type(key) == "number" and tostring(key) or key]
  return found and kit.part("json").decode(found)
end

local progress

function alc.progress(step, total, message)
  step, total = tointeger(tonumber(step)), tointeger(tonumber(total))
  if not step or not total or step < 0 or total < 0 then
    error("alc.progress: step and total must be whole numbers from 0", 2)
  elseif message ~= nil and message ~= null then
    message = remark(message, "alc.progress: message")
  else
    message = nil
  end
  progress = { step, total, message }
  kit.noisy = true
end

-- The lines since the last call, oldest first: level, source and text of each.
local function lines(out, count)
  local first = spoken > KEPT and spoken % KEPT or 0
  local number = spoken > KEPT and KEPT or spoken
  for i = 0, number - 1 do
    local place = (first + i) % KEPT * 3
    out[count + 1], out[count + 2], out[count + 3] = said[place + 1], said[place + 2], said[place + 3]
    count = count + 3
  end
  said, spoken = {}, 0
  return count
end

-- The output since the last call: whether there is more, progress (step, total, message), the number of records, name
-- and JSON of each, and the lines. Progress and lines come when there are no more records.
function own.take()
  local made, out, count = {}, {}, 0
  while taken < #records and count < AT_ONCE * 2 do
    taken = taken + 1
    out[count + 1], out[count + 2] = records[taken], recorded[records[taken]]
    count = count + 2
  end
  local number, more = count // 2, taken < #records
  if not more then
    made, progress, records, fresh, taken, kit.noisy = progress or made, nil, {}, {}, 0, false
    count = lines(out, count)
  end
  return more, made[1], made[2], made[3], number, unpack(out, 1, count)
end

return own
