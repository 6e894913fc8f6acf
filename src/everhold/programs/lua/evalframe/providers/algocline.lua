-- Providers that run strategies, and one that asks the model itself.

local provider = {}

local TEXTS = { "answer", "summary", "output", "text" }

-- The text in the result of a strategy.
local function text_of(value)
  if type(value) == "table" and value.result ~= nil then
    value = value.result
    for _, name in ipairs(type(value) == "table" and TEXTS or {}) do
      if type(value[name]) == "string" then
        return value[name]
      end
    end
  end
  if type(value) == "table" then
    return alc.json_encode(value)
  end
  return tostring(value)
end

provider.text_of = text_of

-- Asks the model directly.
function provider.llm(opts)
  return function(input)
    local begun = alc.time()
    local text = alc.llm(input, opts)
    return { text = text, model = "alc_llm", latency_ms = (alc.time() - begun) * 1000 }
  end
end

local function context_for(input, opts)
  local ctx = { task = input }
  for key, value in pairs(opts) do
    ctx[key] = value
  end
  return ctx
end

-- algocline { strategy = "reflect", opts = {...} }: each input becomes the task of the strategy.
return setmetatable(provider, {
  __call = function(_, given)
    local name = type(given) == "table" and given.strategy
    if type(name) ~= "string" then
      error("providers.algocline: 'strategy' must be the name of a package", 2)
    end
    local opts = given.opts
    if opts == nil or opts == alc.null then
      opts = {}
    elseif type(opts) ~= "table" then
      error("providers.algocline: 'opts' must be a table, got " .. type(opts), 2)
    end
    return function(input)
      local begun = alc.time()
      local ok, result = pcall(require, name)
      if ok and (type(result) ~= "table" or type(result.run) ~= "function") then
        ok, result = false, "package '" .. name .. "' has no function run(ctx)"
      elseif ok then
        ok, result = pcall(result.run, context_for(input, opts))
      end
      return {
        text = ok and text_of(result) or "",
        error = not ok and tostring(result) or nil,
        raw = ok and result or nil,
        model = "algocline:" .. name,
        latency_ms = (alc.time() - begun) * 1000,
      }
    end
  end,
})
