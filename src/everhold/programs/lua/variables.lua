do
  local env, llm, null, decode = _G, alc.llm, alc.null, alc.json_decode
  local type, next, pcall, error, load, select = type, next, pcall, error, load, select
  local getmetatable, format, gsub, byte = getmetatable, string.format, string.gsub, string.byte
  local concat, valid = table.concat, utf8.len
  local code, kept, finish = ctx.code, ctx.variables, finish
  local known = {}
  ctx.code, ctx.variables = nil, nil
  for name in next, env do
    known[name] = true
  end

  local function escaped(one)
    return format("\\%03d", byte(one))
  end

  local function quoted(value)
    local text = format("%q", value)
    if type(value) == "string" then
      text = gsub(text, "\\\n", "\\n")
      if not valid(text) then
        text = gsub(text, "[\128-\255]", escaped)
      end
    end
    return text
  end

  local function saved()
    local found, tables, arrays, lines = {}, {}, {}, {}

    local function written(value)
      local kind = type(value)
      if kind == "string" or kind == "number" or kind == "boolean" then
        return quoted(value)
      elseif kind == "table" then
        if not found[value] then
          tables[#tables + 1] = value
          found[value] = #tables
        end
        return "t[" .. found[value] .. "]"
      elseif value == null then
        return "null"
      end
    end

    for name, value in next, env do
      local text = not known[name] and type(name) == "string" and written(value)
      if text then
        lines[#lines + 1] = "g[" .. quoted(name) .. "]=" .. text
      end
    end
    local at = 1
    while tables[at] do
      local one = tables[at]
      if getmetatable(one) == false then
        arrays[#arrays + 1] = "t[" .. at .. "]=array()"
      end
      for key, value in next, one do
        local place, text = written(key), written(value)
        if place and text then
          lines[#lines + 1] = "t[" .. at .. "][" .. place .. "]=" .. text
        end
      end
      at = at + 1
    end
    if #lines == 0 then
      return ""
    end
    return "local g,t,null,array=... for i=1," .. #tables .. " do t[i]={} end " .. concat(arrays, " ") .. " " .. concat(lines, " ")
  end

  local function keep()
    llm("", { wish = "keep", input = { variables = saved() } })
  end

  local restore = kept and load(kept, "=variables", "t", {})
  if restore then
    pcall(restore, env, {}, null, function() return decode("[]") end)
  end

  if finish then
    env.finish = function(value)
      keep()
      return finish(value)
    end
    known.finish = true
  end

  local chunk, problem = load(code, "=code", "t", env)
  if not chunk then
    error(problem, 0)
  end
  local function ended(ok, ...)
    keep()
    if not ok then
      error((...), 0)
    end
    return ...
  end
  return ended(pcall(chunk))
end
