-- Variants of a configuration: every combination of some dimensions, or one entry of each at a time.

local variants = {}

local dimensions = setmetatable({}, { __mode = "k" })

local function merged(one, other)
  local out = {}
  for _, t in ipairs({ one, other }) do
    for key, value in pairs(t) do
      out[key] = value
    end
  end
  return out
end

-- vary "model" { {model = "a", name = "small"}, ... }
function variants.vary(name)
  if type(name) ~= "string" then
    error("vary: the name must be a string, got " .. type(name), 2)
  end
  return function(entries)
    if type(entries) ~= "table" or #entries == 0 then
      error("vary '" .. name .. "': expected a list with at least one entry", 2)
    end
    local dimension = {}
    for i, entry in ipairs(entries) do
      dimension[i] = merged({ name = name .. "_" .. i }, entry)
    end
    dimensions[dimension] = true
    return dimension
  end
end

-- Add an entry: its values win, and the names are joined.
local function extended(variant, entry)
  local out = merged(variant, entry)
  out.name = variant.name and variant.name .. "_" .. entry.name or entry.name
  return out
end

local function cross(base, given)
  local found = { base }
  for _, dimension in ipairs(given) do
    local more = {}
    for _, variant in ipairs(found) do
      for _, entry in ipairs(dimension) do
        more[#more + 1] = extended(variant, entry)
      end
    end
    found = more
  end
  return found
end

local function zip(base, given)
  local found, count = {}, math.huge
  for _, dimension in ipairs(given) do
    count = math.min(count, #dimension)
  end
  for i = 1, count do
    found[i] = base
    for _, dimension in ipairs(given) do
      found[i] = extended(found[i], dimension[i])
    end
  end
  return found
end

-- variants { base = {...}, vary "..." {...}, mode = "cross" or "zip" }
function variants.generate(given)
  if type(given) ~= "table" then
    error("variants: expected a table, got " .. type(given), 2)
  end
  local mode = given.mode or "cross"
  if mode ~= "cross" and mode ~= "zip" then
    error("variants: 'mode' must be 'cross' or 'zip', got '" .. tostring(mode) .. "'", 2)
  end
  local found = {}
  for i, dimension in ipairs(given) do
    if not dimensions[dimension] then
      error(string.format("variants: entry %d was not made with ef.vary", i), 2)
    end
    found[i] = dimension
  end
  if #found == 0 then
    error("variants: at least one ef.vary is needed", 2)
  end
  local base = merged(given.base or {}, {})
  base.name = nil
  return mode == "cross" and cross(base, found) or zip(base, found)
end

return variants
