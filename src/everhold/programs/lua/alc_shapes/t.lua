-- Constructors of schemas. A schema is a plain table with a `kind`; its metatable only adds the methods
-- `:is_optional()` and `:describe(text)`, so a schema that was stored as JSON checks the same values.

local T, methods = {}, {}
local meta = { __index = methods }

local function fail(text, ...)
  error("alc_shapes: " .. text:format(...), 3)
end

local function is_schema(value)
  return type(value) == "table" and rawget(value, "kind") ~= nil
end

local function make(schema)
  return setmetatable(schema, meta)
end

function methods:is_optional()
  return make({ kind = "optional", inner = self })
end

function methods:describe(doc)
  if type(doc) ~= "string" then
    fail("describe takes a text, not a %s", type(doc))
  end
  return make({ kind = "described", inner = self, doc = doc })
end

for _, name in ipairs({ "string", "number", "boolean", "table" }) do
  T[name] = make({ kind = "prim", prim = name })
end
T.any = make({ kind = "any" })

-- Copies the fields, so that a caller who changes his table later does not change the schema.
local function copied(fields, what)
  local copy = {}
  for name, schema in pairs(fields) do
    if type(name) ~= "string" then
      fail("the names in a %s are texts, not a %s", what, type(name))
    elseif not is_schema(schema) then
      fail("'%s' in a %s is not a schema", name, what)
    end
    copy[name] = schema
  end
  return copy
end

-- Other fields than these are allowed, unless `options.open` is false.
function T.shape(fields, options)
  if type(fields) ~= "table" then
    fail("shape takes a table of fields, not a %s", type(fields))
  elseif options ~= nil and type(options) ~= "table" then
    fail("the options of a shape are a table, not a %s", type(options))
  end
  local open = not options or options.open == nil or options.open
  return make({ kind = "shape", fields = copied(fields, "shape"), open = open and true or false })
end

function T.array_of(element)
  if not is_schema(element) then
    fail("array_of takes a schema")
  end
  local inner = element
  while rawget(inner, "kind") == "described" do
    inner = rawget(inner, "inner")
  end
  if rawget(inner, "kind") == "optional" then
    fail("the elements of array_of may not be optional, because an array with holes has no length; make the field optional")
  end
  return make({ kind = "array_of", elem = element })
end

function T.map_of(key, value)
  if not is_schema(key) or not is_schema(value) then
    fail("map_of takes two schemas, of keys and of values")
  end
  return make({ kind = "map_of", key = key, val = value })
end

local PLAIN = { string = true, number = true, boolean = true }

function T.one_of(values)
  local count = 0
  for _ in pairs(type(values) == "table" and values or {}) do
    count = count + 1
  end
  if count == 0 then
    fail("one_of takes an array of at least one value")
  end
  local copy, seen = {}, {}
  for i = 1, count do
    local value = values[i]
    if not PLAIN[type(value)] then
      fail("the values of one_of are texts, numbers or booleans; number %d is a %s", i, type(value))
    elseif seen[value] then
      fail("one_of has the value %s twice", tostring(value))
    end
    seen[value], copy[i] = true, value
  end
  return make({ kind = "one_of", values = copy })
end

function T.discriminated(tag, variants)
  if type(tag) ~= "string" or tag == "" then
    fail("discriminated takes the name of a field first")
  elseif type(variants) ~= "table" or next(variants) == nil then
    fail("discriminated takes a table of at least one variant")
  end
  local copy = copied(variants, "discriminated")
  for name, variant in pairs(copy) do
    if rawget(variant, "kind") ~= "shape" then
      fail("the variant '%s' is not a shape", name)
    elseif rawget(variant, "fields")[tag] == nil then
      fail("the variant '%s' has no field '%s', which names the variant", name, tag)
    end
  end
  return make({ kind = "discriminated", tag = tag, variants = copy })
end

function T.ref(name)
  if type(name) ~= "string" or name == "" then
    fail("ref takes the name of a shape")
  end
  return make({ kind = "ref", name = name })
end

T._internal = { is_schema = is_schema, schema_mt = meta, combinators = methods }

return T
