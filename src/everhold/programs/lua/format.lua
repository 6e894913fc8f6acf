-- format and rep, which most programs use: apart from the rest of strings, so that these need no more memory than they do.
-- A part of the sandbox: it gets the kit.

local kit = ...

local type, error, select, tointeger = type, error, select, math.tointeger
local find, format, pack, unpack = string.find, kit.format, table.pack, kit.unpack
local raw_pcall, passed, tostring = kit.raw_pcall, kit.passed, kit.tostring

local own = {}

-- Whether a template has %p in it; %%p is a percent sign and a letter.
local function names_address(template)
  return find(kit.gsub(template, "%%%%", ""), "%%[-+ #0]*%d*%.?%d*p")
end

function own.format(template, ...)
  local values
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    local kind = type(value)
    if kind ~= "string" and kind ~= "number" and kind ~= "boolean" and kind ~= "nil" then
      values = values or pack(...)
      values[i] = tostring(value)
    end
  end
  if type(template) == "string" and find(template, "%%[^%a%%]*p") and names_address(template) then
    error("invalid conversion '%p' to 'format': an address would differ in each process", 2)
  elseif values then
    return passed("format", raw_pcall(format, template, unpack(values, 1, values.n)))
  end
  return passed("format", raw_pcall(format, template, ...))
end

-- Nothing, repeated for ever, would take C that long.
function own.rep(s, n, between)
  if s == "" and (between == nil or between == "") and tointeger(n) then
    return ""
  end
  return passed("rep", raw_pcall(kit.rep, s, n, between))
end

return own
