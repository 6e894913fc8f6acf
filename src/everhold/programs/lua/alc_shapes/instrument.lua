-- Wraps a function of a package, so that it checks what it takes and returns if ALC_SHAPE_CHECK is on.

local check = require("alc_shapes.check")
local resolver = require("alc_shapes.spec_resolver")

local M = {}

local function checking_args(call, args, result, hint)
  return function(...)
    if not check.is_dev_mode() then
      return call(...)
    end
    for i = 1, #args do
      check.assert((select(i, ...)), args[i], ("%s:arg%d"):format(hint, i))
    end
    local returned = table.pack(call(...))
    if result then
      check.assert(returned[1], result, hint)
    end
    return table.unpack(returned, 1, returned.n)
  end
end

local function checking_ctx(call, input, result, hint)
  return function(ctx, ...)
    if not check.is_dev_mode() then
      return call(ctx, ...)
    end
    if input then
      check.assert(ctx, input, hint .. ":input")
    end
    local returned = table.pack(call(ctx, ...))
    if result then
      check.assert(resolver._internal.result_of(returned[1]), result, hint)
    end
    return table.unpack(returned, 1, returned.n)
  end
end

-- A function for `module[name]`. Its schemas are those of `spec`, if given, else of `module.spec.entries[name]`.
function M.instrument(module, name, spec)
  if type(module) ~= "table" or type(name) ~= "string" then
    error("alc_shapes: instrument takes the table of a package and the name of a function", 2)
  elseif spec ~= nil and type(spec) ~= "table" then
    error("alc_shapes: the spec is a table, not a " .. type(spec), 2)
  end
  local call, meta = module[name], module.meta
  if type(call) ~= "function" then
    error(("alc_shapes: '%s' is not a function; instrument it after its definition"):format(name), 2)
  elseif type(meta) ~= "table" or type(meta.name) ~= "string" or meta.name == "" then
    error("alc_shapes: instrument needs meta.name, which is in its messages", 2)
  end
  local entry = resolver.resolve(module).entries[name] or {}
  spec = spec or {}
  local input, result, args = spec.input or entry.input, spec.result or entry.result, spec.args or entry.args
  if input and args then
    error(("alc_shapes: '%s' has both input and args, which are mutually exclusive"):format(name), 2)
  end
  local hint = ("%s.%s"):format(meta.name, name)
  if args then
    return checking_args(call, args, result, hint)
  end
  return checking_ctx(call, input, result, hint)
end

return M
