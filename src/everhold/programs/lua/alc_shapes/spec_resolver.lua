-- Reads the `spec` of a package: the schemas of what its functions take and return.
--
--   spec.entries.<name> = { input = schema, result = schema }      a function of a ctx
--   spec.entries.<name> = { args = { schema, … }, result = schema } a function of several arguments
--
-- The name of a shape may stand for a schema.

local T = require("alc_shapes.t")
local check = require("alc_shapes.check")

local resolver = {}

local function schema_of(value, where)
  if value == nil or T._internal.is_schema(value) then
    return value
  elseif type(value) == "string" then
    return T.ref(value)
  end
  error(("alc_shapes: spec.entries.%s is neither a schema nor the name of a shape, but a %s"):format(where, type(value)), 3)
end

local function args_of(value, name)
  if value == nil then
    return nil
  elseif type(value) ~= "table" then
    error(("alc_shapes: spec.entries.%s.args is an array of schemas, not a %s"):format(name, type(value)), 3)
  end
  local found = {}
  for i = 1, #value do
    found[i] = schema_of(value[i], ("%s.args[%d]"):format(name, i))
  end
  return found
end

-- { kind = "typed" or "opaque", origin = "spec" or "none", entries = { … }, compose, exports }
function resolver.resolve(package)
  if type(package) ~= "table" then
    error("alc_shapes: resolve takes the table of a package", 2)
  end
  local spec = rawget(package, "spec")
  if type(spec) ~= "table" or type(spec.entries) ~= "table" then
    return { kind = "opaque", origin = "none", entries = {} }
  end
  local entries = {}
  for name, entry in pairs(spec.entries) do
    if type(entry) ~= "table" then
      error(("alc_shapes: spec.entries.%s is a table, not a %s"):format(tostring(name), type(entry)), 2)
    elseif entry.input ~= nil and entry.args ~= nil then
      error(("alc_shapes: spec.entries.%s has both input and args, which are mutually exclusive"):format(tostring(name)), 2)
    end
    entries[name] = {
      input = schema_of(entry.input, name .. ".input"),
      result = schema_of(entry.result, name .. ".result"),
      args = args_of(entry.args, name),
    }
  end
  return { kind = "typed", origin = "spec", entries = entries, compose = spec.compose, exports = spec.exports }
end

-- What a function returns is in `result` of its ctx, or it is the value itself.
local function result_of(returned)
  if type(returned) == "table" and returned.result ~= nil then
    return returned.result
  end
  return returned
end

-- Call a function of a package with a ctx; both sides are checked if ALC_SHAPE_CHECK is on.
function resolver.run(package, ctx, name)
  name = name or "run"
  local entry = resolver.resolve(package).entries[name] or {}
  local call = rawget(package, name)
  if type(call) ~= "function" then
    error(("alc_shapes: the package has no function '%s'"):format(name), 2)
  end
  local meta = rawget(package, "meta")
  local hint = ("%s.%s"):format(type(meta) == "table" and meta.name or "<anon>", name)
  if entry.input then
    check.assert_dev(ctx, entry.input, hint .. ":input")
  end
  local returned = call(ctx)
  if entry.result then
    check.assert_dev(result_of(returned), entry.result, hint .. ":result")
  end
  return returned
end

-- Whether a package says that it passes on results of this shape unchanged.
function resolver.is_passthrough(package, shape)
  local compose = resolver.resolve(package).compose
  local passed = compose and compose.passthrough
  for _, name in ipairs(type(passed) == "table" and passed or { passed }) do
    if name == shape then
      return true
    end
  end
  return false
end

resolver._internal = { result_of = result_of }

return resolver
