do
  local llm, batch, decode = alc.llm, alc.llm_batch, alc.json_decode

  local function item(name, input)
    if type(name) ~= "string" then
      error("tool: the name must be a string, got " .. type(name), 3)
    elseif input ~= nil and type(input) ~= "table" then
      error("tool: the input must be a table, got " .. type(input), 3)
    end
    return { prompt = name, wish = "tool", input = input or {} }
  end

  function tool(name, input)
    local asked = item(name, input)
    return decode(llm(name, asked))
  end

  function tools(list)
    local asked = {}
    for i, one in ipairs(list) do
      asked[i] = item(one.name or one[1], one.input or one[2])
    end
    if #asked == 0 then
      return {}
    end
    local found = batch(asked)
    for i = 1, #found do
      found[i] = decode(found[i])
    end
    return found
  end

  function finish(value)
    llm("", { wish = "finish", input = { value = value } })
  end
end
