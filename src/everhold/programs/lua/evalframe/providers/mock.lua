-- Providers that ask no model, for tests of scenarios.

local mock = {}

local function answer(text)
  return { text = tostring(text), model = "mock", latency_ms = 0 }
end

function mock.static(text)
  return function()
    return answer(text)
  end
end

function mock.fn(f)
  return function(input)
    return answer(f(input))
  end
end

-- The text for this input, else that of the longest key in the input, else an empty text.
function mock.map(texts)
  local keys = {}
  for key in pairs(texts) do
    keys[#keys + 1] = key
  end
  table.sort(keys, function(one, other)
    return #one > #other
  end)
  return function(input)
    if texts[input] ~= nil then
      return answer(texts[input])
    end
    for _, key in ipairs(keys) do
      if string.find(input, key, 1, true) then
        return answer(texts[key])
      end
    end
    return answer("")
  end
end

-- The texts in turn, again from the first after the last; also returns a table whose `calls` are the inputs.
function mock.recording(texts)
  if type(texts) ~= "table" or #texts == 0 then
    error("mock.recording: expected a list with at least one text", 2)
  end
  local log = { calls = {} }
  return function(input)
    log.calls[#log.calls + 1] = input
    return answer(texts[(#log.calls - 1) % #texts + 1])
  end,
    log
end

return mock
