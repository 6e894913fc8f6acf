-- Writes shapes as classes of LuaCATS, the type comments of Lua editors.

local reflect = require("alc_shapes.reflect")

local M = {}
local sorted_names = reflect._internal.sorted_names
local type_of

-- safe_panel -> SafePanel
local function pascal(name)
  local words = {}
  for word in name:gmatch("[^_-]+") do
    words[#words + 1] = word:sub(1, 1):upper() .. word:sub(2)
  end
  return table.concat(words)
end

local function inline(shape, prefix)
  local fields = reflect.fields(shape)
  if #fields == 0 then
    return "table"
  end
  local parts = {}
  for i, field in ipairs(fields) do
    parts[i] = ("%s%s: %s"):format(field.name, field.optional and "?" or "", type_of(field.type, prefix))
  end
  return ("{ %s }"):format(table.concat(parts, ", "))
end

-- Whether a type is a union at its top: A|B[] would be A|(B[]).
local function is_union(text)
  return text:gsub("%b{}", ""):gsub("%b()", ""):find("|", 1, true) ~= nil
end

local kinds = {}

function kinds.any()
  return "any"
end

function kinds.prim(schema)
  return schema.prim
end

function kinds.ref(schema, prefix)
  return prefix .. pascal(schema.name)
end

kinds.shape = inline

function kinds.array_of(schema, prefix)
  local element, optional = reflect._internal.unwrap(schema.elem)
  local text = type_of(element, prefix) .. (optional and "|nil" or "")
  return is_union(text) and ("(%s)[]"):format(text) or text .. "[]"
end

function kinds.map_of(schema, prefix)
  return ("table<%s, %s>"):format(type_of(schema.key, prefix), type_of(schema.val, prefix))
end

function kinds.one_of(schema)
  local parts = {}
  for i, value in ipairs(schema.values) do
    parts[i] = type(value) == "string" and ("%q"):format(value) or tostring(value)
  end
  return table.concat(parts, "|")
end

function kinds.discriminated(schema, prefix)
  local parts = {}
  for i, name in ipairs(sorted_names(schema.variants)) do
    parts[i] = inline(schema.variants[name], prefix)
  end
  return table.concat(parts, "|")
end

function type_of(schema, prefix)
  local inner = reflect._internal.unwrap(schema)
  local write = kinds[rawget(inner, "kind")]
  if not write then
    error(("alc_shapes: %s is not the kind of a schema"):format(tostring(rawget(inner, "kind"))), 0)
  end
  return write(inner, prefix or "AlcResult")
end

function M.class_for(class, shape, prefix)
  if type(class) ~= "string" or class == "" or type(shape) ~= "table" or rawget(shape, "kind") ~= "shape" then
    error("alc_shapes: class_for takes a name and a shape", 2)
  end
  local lines = { "---@class " .. class }
  for _, field in ipairs(reflect.fields(shape)) do
    lines[#lines + 1] = ("---@field %s%s %s%s"):format(
      field.name, field.optional and "?" or "", type_of(field.type, prefix), field.doc and " @" .. field.doc or ""
    )
  end
  return table.concat(lines, "\n") .. "\n"
end

-- A file of types with a class for each shape of a table; other values of the table are left out.
function M.gen(shapes, prefix)
  prefix = prefix or "AlcResult"
  local found = {}
  for name, schema in pairs(shapes or {}) do
    if type(schema) == "table" and rawget(schema, "kind") == "shape" then
      found[name] = schema
    end
  end
  local parts = { "---@meta\n" }
  for _, name in ipairs(sorted_names(found)) do
    parts[#parts + 1] = M.class_for(prefix .. pascal(name), found[name], prefix)
  end
  return table.concat(parts, "\n")
end

M._internal = { pascal_case = pascal, type_of = type_of, inline_shape_type = inline }

return M
