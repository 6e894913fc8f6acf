-- tostring. A part of the sandbox: it gets the kit.

local kit = ...

local type, error, rawget, select, format = type, error, rawget, select, kit.format
local metatable_of, raw_tostring, null = kit.metatable_of, kit.raw_tostring, kit.null

local own = {}

-- Objects are numbered in the order in which they are first shown: an address would differ in each process.

local numbers, numbered = kit.setmetatable({}, { __mode = "k" }), 0

function own.tostring(...)
  local value = ...
  local kind = type(value)
  if kind == "string" then
    return value
  end
  local mt = metatable_of(value)
  if mt then
    local own = rawget(mt, "__tostring")
    if own ~= nil then
      local text = own(value)
      if type(text) ~= "string" and type(text) ~= "number" then
        error("'__tostring' must return a string", 2)
      end
      return raw_tostring(text)
    end
    local name = rawget(mt, "__name")
    kind = type(name) == "string" and name or kind
  elseif value == nil and select("#", ...) == 0 then
    error("bad argument #1 to 'tostring' (value expected)", 2)
  elseif value == null then
    return "null"
  end
  if kind == "nil" or kind == "number" or kind == "boolean" then
    return raw_tostring(value)
  end
  if not numbers[value] then
    numbered = numbered + 1
    numbers[value] = numbered
  end
  return format("%s: 0x%012x", kind, numbers[value] * 16)
end

return own
