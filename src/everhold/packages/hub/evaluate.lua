-- Loads one package and returns its meta and the schemas of spec.entries.run as plain data; or the types of alc_shapes.
--
-- A schema becomes { kind, … } without the wrappers `optional` and `described`: these are in the fields of a shape,
-- { name, type, optional, doc }, in the order of the names.

local S = require("alc_shapes")

if ctx.types then
  local shapes = {}
  for name, value in pairs(S) do
    shapes[name] = type(value) == "table" and rawget(value, "kind") == "shape" and value or nil
  end
  return S.LuaCats.gen(shapes, "AlcResult")
end

local plain

local function unwrap(schema)
  local optional, doc = false, nil
  while rawget(schema, "kind") == "optional" or rawget(schema, "kind") == "described" do
    optional = optional or rawget(schema, "kind") == "optional"
    doc = doc or rawget(schema, "doc")
    schema = rawget(schema, "inner")
  end
  return schema, optional, doc
end

local function sorted(t)
  local names = {}
  for name in pairs(t) do
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

local function fields_of(shape, depth)
  local found = {}
  for i, name in ipairs(sorted(rawget(shape, "fields"))) do
    local inner, optional, doc = unwrap(rawget(shape, "fields")[name])
    found[i] = { name = name, type = plain(inner, depth + 1), optional = optional, doc = doc or "" }
  end
  return found
end

function plain(schema, depth)
  if depth > 60 then
    error("its spec is nested too deeply", 0)
  end
  schema = unwrap(schema)
  local kind = rawget(schema, "kind")
  if kind == "prim" then
    return { kind = kind, prim = rawget(schema, "prim") }
  elseif kind == "any" then
    return { kind = kind }
  elseif kind == "array_of" then
    return { kind = kind, elem = plain(rawget(schema, "elem"), depth + 1) }
  elseif kind == "map_of" then
    return { kind = kind, key = plain(rawget(schema, "key"), depth + 1), val = plain(rawget(schema, "val"), depth + 1) }
  elseif kind == "one_of" then
    return { kind = kind, values = rawget(schema, "values") }
  elseif kind == "shape" then
    return { kind = kind, fields = fields_of(schema, depth), open = rawget(schema, "open") and true or false }
  elseif kind == "discriminated" then
    local variants = {}
    for i, name in ipairs(sorted(rawget(schema, "variants"))) do
      variants[i] = { name = name, shape = plain(rawget(schema, "variants")[name], depth + 1) }
    end
    return { kind = kind, tag = rawget(schema, "tag"), variants = variants }
  elseif kind == "ref" then
    return { kind = kind, name = rawget(schema, "name") }
  end
  error("its spec has a schema of the unknown kind " .. tostring(kind), 0)
end

local function schema_of(value, where)
  if value == nil then
    return nil
  elseif type(value) == "string" then
    return { kind = "ref", name = value }
  elseif type(value) == "table" and rawget(value, "kind") ~= nil then
    return plain(value, 0)
  end
  error(("spec.entries.run.%s must be the name of a shape or a schema, not a %s"):format(where, type(value)), 0)
end

local module = require(ctx.package)
if type(module) ~= "table" then
  error("it returns no table", 0)
elseif type(module.meta) ~= "table" then
  error("it has no table meta", 0)
end
local found = { meta = {} }
for _, name in ipairs({ "name", "version", "category", "description" }) do
  if type(module.meta[name]) == "string" then
    found.meta[name] = module.meta[name]
  end
end
local spec = module.spec
local run = type(spec) == "table" and type(spec.entries) == "table" and spec.entries.run
if type(run) == "table" then
  found.input, found.result = schema_of(run.input, "input"), schema_of(run.result, "result")
  local named = found.result and found.result.kind == "ref" and rawget(S, found.result.name)
  if type(named) == "table" and rawget(named, "kind") ~= nil then
    found.named = plain(named, 0)
  end
end
return found
