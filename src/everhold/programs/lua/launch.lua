-- Starts a program. It is needed only before the program's first line, and is collected after it.
--
-- A chunk of the sandbox: it gets the kit; when the session was born; `how` ("text", "file" or "package"; a package
-- has no source, it is required); the name, the source, its title and its mode ("t" for text, "b" for what we
-- compiled); and the ctx as JSON, or as names and plain values. It returns the coroutine of the program.

local kit, born, how, name, source, title, mode, json = ...
local given = { select(9, ...) }

local function run(module, ctx)
  if type(module) ~= "table" or module.run == nil then
    error(kit.format("package '%s' has no function run(ctx)", name), 0)
  end
  return module.run(ctx)
end

local function made_ctx()
  local ctx = json and kit.part("json_decode").decode(json) or {}
  for i = 1, #given, 2 do
    ctx[given[i]] = given[i + 1]
  end
  kit.env.ctx = ctx
  return ctx
end

local launch

function launch()
  local ctx = made_ctx()
  launch, json, given = nil, nil, nil
  if how == "package" then
    return run(kit.part("require").require(name), ctx)
  end
  local chunk, problem = kit.raw_load(source, title, mode, kit.env)
  source = nil
  if not chunk then
    error(problem, 0)
  end
  local value = chunk(name)
  local entry = type(value) == "table" and rawget(value, "run")
  if how == "file" and entry or type(entry) == "function" then
    return run(value, ctx)
  end
  return value
end

-- The result as JSON. Simple values need no other part of our Lua.
local function written(value)
  local kind = math.type(value) or type(value)
  if kind == "integer" or kind == "boolean" then
    return kit.raw_tostring(value)
  elseif kind == "string" and utf8.len(value) and not string.find(value, '[%c"\\]') then
    return '"' .. value .. '"'
  end
  return kit.part("json").encode(value, "the result")
end

local main = kit.create(function()
  return kit.DONE, written(launch())
end)
kit.born, kit.main = born, main
kit.sethook(main, kit.strike, "", kit.every)
return main
