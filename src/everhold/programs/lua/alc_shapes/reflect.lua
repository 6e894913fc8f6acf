-- Reads schemas: the fields of a shape, and all schemas inside one.

local reflect = {}

local function sorted_names(t)
  local names = {}
  for name in pairs(t) do
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

-- The schema under `optional` and `described`, whether it is optional, and its description.
local function unwrap(schema)
  local optional, doc = false, nil
  while true do
    local kind = rawget(schema, "kind")
    if kind == "optional" then
      optional = true
    elseif kind == "described" then
      doc = doc or rawget(schema, "doc")
    else
      return schema, optional, doc
    end
    schema = rawget(schema, "inner")
  end
end

-- The fields of a shape by name: a list of { name, type, optional, doc }.
function reflect.fields(schema)
  if type(schema) ~= "table" or rawget(schema, "kind") ~= "shape" then
    error("alc_shapes: fields takes a schema with kind='shape'", 2)
  end
  local found = {}
  for i, name in ipairs(sorted_names(rawget(schema, "fields"))) do
    local inner, optional, doc = unwrap(rawget(schema, "fields")[name])
    found[i] = { name = name, type = inner, optional = optional, doc = doc }
  end
  return found
end

local function each(t, visit)
  for _, name in ipairs(sorted_names(t)) do
    visit(t[name])
  end
end

-- Call `visitor` with a schema, then with each schema inside it.
function reflect.walk(schema, visitor)
  if type(schema) ~= "table" or type(visitor) ~= "function" then
    error("alc_shapes: walk takes a schema and a function", 2)
  end
  local function visit(node)
    visitor(node)
    local kind = rawget(node, "kind")
    if kind == "shape" then
      each(rawget(node, "fields"), visit)
    elseif kind == "discriminated" then
      each(rawget(node, "variants"), visit)
    elseif kind == "array_of" then
      visit(rawget(node, "elem"))
    elseif kind == "map_of" then
      visit(rawget(node, "key"))
      visit(rawget(node, "val"))
    elseif kind == "optional" or kind == "described" then
      visit(rawget(node, "inner"))
    end
  end
  visit(schema)
end

reflect._internal = { unwrap = unwrap, sorted_names = sorted_names }

return reflect
