-- require: the host finds packages in the program's search path. A part of the sandbox: it gets the kit.

local kit = ...

local error, ipairs, rawget, format, env, words = error, ipairs, rawget, kit.format, kit.env, kit.words

local loaded, preload, loading = { _G = env }, {}, {}

for _, name in ipairs({ "coroutine", "io", "math", "os", "string", "table", "utf8" }) do
  loaded[name] = rawget(env, name)
end

local function searched(name)
  local source, where, title, mode = kit.request("require", name)
  if not source then
    error(format("module '%s' not found:\n\tno field package.preload['%s']%s", name, name, where), 3)
  end
  local loader, problem = kit.raw_load(source, title, mode, env)
  if not loader then
    error(format("error loading module '%s' from file '%s':\n\t%s", name, where, problem), 3)
  end
  return loader, where
end

-- A package evalframe of the user's own expects that its host has set this global.
local function provide_std()
  local alc = kit.alc
  local function no_files(path)
    error(format("'%s' cannot be read: programs have no files", kit.tostring(path)), 2)
  end
  env.std = {
    json = { encode = alc.json_encode, decode = alc.json_decode },
    fs = { read = no_files, is_file = function() return false end },
    time = { now = alc.time },
  }
end

local function done(guard)
  loading[guard.name] = nil
end

local function require(name)
  name = words(name, "require: name")
  if loaded[name] ~= nil then
    return loaded[name]
  elseif loading[name] then
    error(format("loop or previous error loading module '%s'", name), 2)
  end
  local loader, where = preload[name], ":preload:"
  if loader == nil then
    loader, where = searched(name)
  end
  loading[name] = true
  if name == "evalframe" and rawget(env, "std") == nil then
    provide_std()
  end
  local guard <close> = kit.setmetatable({ name = name }, { __close = done })
  local value = loader(name, where)
  if value ~= nil then
    loaded[name] = value
  elseif loaded[name] == nil then
    loaded[name] = true
  end
  return loaded[name], where
end

local package = { loaded = loaded, preload = preload, path = "", cpath = "", config = "/\n;\n?\n!\n-\n" }
loaded.package = rawget(env, "package")

return { require = require, package = package }
