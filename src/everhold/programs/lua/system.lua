-- The remaining os, io, load and collectgarbage, and random numbers, all from the journal. A part of the sandbox:
-- it gets the kit.

local kit = ...

local type, error, select, ipairs, tointeger = type, error, select, ipairs, math.tointeger
local sub, find, format, concat = string.sub, string.find, kit.format, kit.concat
local passed, raw_pcall, expected, part = kit.passed, kit.raw_pcall, kit.expected, kit.part

local own = { os = {}, io = {} }
local os, io = own.os, own.io

-- Time, in UTC

local FIELDS = { "year", "month", "day", "hour", "min", "sec", "yday", "wday", "isdst" }

-- Days since 1970, by the proleptic Gregorian calendar; a year begins in March, so that the leap day comes last.
local function days(year, month, day)
  year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
  if month <= 2 then
    year, month = year - 1, month + 12
  end
  local of_year = (153 * (month - 3) + 2) // 5 + day - 1
  return year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719468
end

local function field(t, name, default)
  local value = t[name]
  if value == nil then
    value = default
  end
  if value == nil then
    error(format("field '%s' missing in date table", name), 3)
  end
  return tointeger(value) or error(format("field '%s' is not an integer", name), 3)
end

-- The 35th of a month is a day of the next one; the table is normalized, as in Lua.
local function settle(t, time)
  local ok, made = raw_pcall(kit.date, "!*t", time)
  for _, name in ipairs(ok and FIELDS or {}) do
    t[name] = made[name]
  end
end

function os.time(t)
  if t == nil then
    return tointeger(kit.now // 1)
  elseif type(t) ~= "table" then
    expected(1, "time", "table", t)
  end
  local day = days(field(t, "year"), field(t, "month"), field(t, "day"))
  local time = day * 86400 + field(t, "hour", 12) * 3600 + field(t, "min", 0) * 60 + field(t, "sec", 0)
  settle(t, time)
  return time
end

function os.date(template, time)
  template = template == nil and "%c" or template
  if type(template) == "string" and sub(template, 1, 1) ~= "!" then
    template = "!" .. template
  end
  return passed("date", raw_pcall(kit.date, template, time == nil and os.time() or time))
end

function os.clock()
  return kit.now - kit.born
end

function os.difftime(later, earlier)
  return (later - (earlier or 0)) + 0.0
end

-- One variable, recorded when the session began; a program on another machine must see the same.
function os.getenv(name)
  return name == "ALC_SHAPE_CHECK" and kit.shape_check or nil
end

-- Random numbers

function own.randomseed(...)
  if select("#", ...) > 0 then
    kit.chosen = true
    return passed("randomseed", raw_pcall(kit.randomseed, ...))
  end
  kit.reseeded = (kit.reseeded or 0) + 1
  kit.randomseed(kit.seed_one ~ kit.reseeded, kit.seed_other)
end

-- Files: there are none; output is logged.

local function no_file()
  return nil, "there are no files here"
end

io.open, io.popen, io.read, io.close = no_file, no_file, no_file, no_file

function io.lines()
  error("there are no files here", 2)
end

local function at_once(self)
  return self
end

local function stream(level)
  local function write(self, ...)
    part("output").write(level, ...)
    return self
  end
  return { write = write, flush = at_once, setvbuf = at_once }
end

io.stdout, io.stderr = stream("info"), stream("warn")

function io.flush()
  return kit.env.io.stdout
end

function io.type(value)
  return (value == io.stdout or value == io.stderr) and "file" or nil
end

function io.write(...)
  part("output").write("info", ...)
  return kit.env.io.stdout
end

-- Code and memory

local function gathered(reader)
  local pieces = {}
  while true do
    local piece = reader()
    if piece == nil or piece == "" then
      return concat(pieces)
    elseif type(piece) ~= "string" then
      return nil
    end
    pieces[#pieces + 1] = piece
  end
end

function own.load(chunk, name, mode, ...)
  if type(chunk) == "function" then
    local ok, text = kit.caught(raw_pcall(gathered, chunk))
    if not ok then
      return nil, text
    end
    chunk, name = text, name or "=(load)"
    if chunk == nil then
      return nil, "reader function must return a string"
    end
  end
  if type(mode) == "string" and not find(mode, "t", 1, true) then
    return nil, format("attempt to load a text chunk (mode is '%s')", mode)
  end
  local env = kit.env
  if select("#", ...) > 0 then
    env = ...
  end
  return passed("load", raw_pcall(kit.raw_load, chunk, name, "t", env))
end

-- The results of collectgarbage, which does nothing: the memory in use would differ on replay.
local SAID = {
  collect = 0, count = 0.0, step = true, isrunning = true, stop = 0, restart = 0, setpause = 200, setstepmul = 100,
  incremental = "incremental", generational = "incremental",
}

function own.collectgarbage(what)
  what = what == nil and "collect" or what
  if SAID[what] == nil then
    error(format("bad argument #1 to 'collectgarbage' (invalid option '%s')", kit.tostring(what)), 2)
  end
  return SAID[what]
end

return own
