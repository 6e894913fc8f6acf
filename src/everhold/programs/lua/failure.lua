-- The error of a failed program: its message and its traceback. A part of the sandbox: it gets the kit.

local kit = ...

local type, rawget, find, gmatch = type, rawget, string.find, string.gmatch
local format, gsub, concat = kit.format, kit.gsub, kit.concat

local own = {}

-- The program's lines on the stack of a coroutine.
local function lines_of(co)
  local kept = {}
  for line in gmatch(kit.traceback(co), "[^\n]+") do
    if not find(line, "^%s*%?:") and not find(line, "^%s*%[C%]") and not find(line, "^%s*%(") and find(line, "^%s") then
      kept[#kept + 1] = gsub(line, "^%s+", "")
    end
  end
  return concat(kept, "\n")
end

-- Any error as text, also by its own __tostring, which may neither make queries nor take long.
local function words_of(problem)
  local kind = type(problem)
  if kind == "string" then
    return (gsub(problem, "^%?:%-1: ", "")) -- our own Lua has no line numbers
  end
  local co = kit.create(function()
    local mt = kit.metatable_of(problem)
    if kind ~= "table" or mt and rawget(mt, "__tostring") ~= nil then
      return kit.tostring(problem)
    end
    return "error object: " .. kit.part("json").encode(problem, "it")
  end)
  kit.sethook(co, kit.strike, "", kit.every)
  local ok, text = kit.resume(co)
  if ok and kit.status(co) == "dead" and type(text) == "string" then
    return text
  end
  return format("(error object is a %s value)", kind)
end

function own.told(co, problem)
  return words_of(problem), lines_of(co)
end

return own
