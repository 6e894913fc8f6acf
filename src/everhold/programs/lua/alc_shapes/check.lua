-- Compares values with schemas. A mismatch is told with its path: `shape violation at $.votes[2]: …`.
-- `assert_dev` and instrumented functions check only if ALC_SHAPE_CHECK was 1 when the session began.

local reflect = require("alc_shapes.reflect")

local check = {}
local sorted_names = reflect._internal.sorted_names

-- Deeper than any schema that people write; a schema or a value that contains itself ends here.
local MAX_DEPTH = 256

local compare

local function violation(path, text, ...)
  return false, ("shape violation at %s: "):format(path) .. text:format(...)
end

local function with_article(kind)
  return kind == "nil" and kind or "a " .. kind
end

local function wrong_kind(path, value, wanted)
  return violation(path, "it is %s, not %s", with_article(type(value)), wanted)
end

local function under(path, name)
  return ("%s.%s"):format(path, name)
end

local function listed(values)
  local words = {}
  for i, value in ipairs(values) do
    words[i] = type(value) == "string" and ("%q"):format(value) or tostring(value)
  end
  return table.concat(words, ", ")
end

local kinds = {}

function kinds.any()
  return true
end

function kinds.prim(value, schema, path)
  if type(value) == schema.prim then
    return true
  end
  return wrong_kind(path, value, with_article(schema.prim))
end

function kinds.optional(value, schema, path, run)
  if value == nil then
    return true
  end
  return compare(value, schema.inner, path, run)
end

function kinds.described(value, schema, path, run)
  return compare(value, schema.inner, path, run)
end

function kinds.array_of(value, schema, path, run)
  if type(value) ~= "table" then
    return wrong_kind(path, value, "an array")
  end
  for i = 1, #value do
    local ok, reason = compare(value[i], schema.elem, ("%s[%d]"):format(path, i), run)
    if not ok then
      return false, reason
    end
  end
  return true
end

function kinds.map_of(value, schema, path, run)
  if type(value) ~= "table" then
    return wrong_kind(path, value, "a table of keys and values")
  end
  for key, item in pairs(value) do
    local ok, reason = compare(key, schema.key, ("%s[key=%s]"):format(path, tostring(key)), run)
    if ok then
      ok, reason = compare(item, schema.val, ("%s[%s]"):format(path, tostring(key)), run)
    end
    if not ok then
      return false, reason
    end
  end
  return true
end

function kinds.one_of(value, schema, path)
  for _, allowed in ipairs(schema.values) do
    if value == allowed then
      return true
    end
  end
  return violation(path, "%s is none of the allowed values: %s", listed({ value }), listed(schema.values))
end

-- In the order of the names, so that the same value is always refused for the same field.
function kinds.shape(value, schema, path, run)
  if type(value) ~= "table" then
    return wrong_kind(path, value, "a table")
  end
  for _, name in ipairs(sorted_names(schema.fields)) do
    local ok, reason = compare(value[name], schema.fields[name], under(path, name), run)
    if not ok then
      return false, reason
    end
  end
  if schema.open == false then
    local others = {}
    for name in pairs(value) do
      if type(name) == "string" and schema.fields[name] == nil then
        others[name] = true
      end
    end
    local first = sorted_names(others)[1]
    if first then
      return violation(under(path, first), "a field of this name is not allowed")
    end
  end
  return true
end

function kinds.discriminated(value, schema, path, run)
  if type(value) ~= "table" then
    return wrong_kind(path, value, "a table")
  end
  local tag = value[schema.tag]
  if tag == nil then
    return violation(path, "its field '%s', which names the variant, is missing", schema.tag)
  end
  local variant = schema.variants[tag]
  if variant == nil then
    local names = listed(sorted_names(schema.variants))
    return violation(path, "its field '%s' names no variant: %q; there are %s", schema.tag, tostring(tag), names)
  end
  return kinds.shape(value, variant, path, run)
end

function kinds.ref(value, schema, path, run)
  local named = rawget(run.registry, schema.name)
  if type(named) ~= "table" or rawget(named, "kind") == nil then
    return violation(path, "no schema has the name '%s' that the schema refers to", schema.name)
  end
  return compare(value, named, path, run)
end

function compare(value, schema, path, run)
  local handler = kinds[rawget(schema, "kind")]
  if not handler then
    error(("alc_shapes: %s is not the kind of a schema"):format(tostring(rawget(schema, "kind"))), 0)
  end
  run.depth = run.depth + 1
  if run.depth > MAX_DEPTH then
    error(("alc_shapes: more than %d levels at %s; the schema or the value contains itself"):format(MAX_DEPTH, path), 0)
  end
  local ok, reason = handler(value, schema, path, run)
  run.depth = run.depth - 1
  return ok, reason
end

local function registry_of(options, level)
  if options ~= nil and type(options) ~= "table" then
    error("alc_shapes: the options are a table, not a " .. type(options), level + 1)
  end
  local registry = options and options.registry
  if registry ~= nil and type(registry) ~= "table" then
    error("alc_shapes: a registry is a table of schemas by name, not a " .. type(registry), level + 1)
  end
  return registry or require("alc_shapes")
end

-- Whether the value fits, and if not, where and why. Without a schema every value fits.
function check.check(value, schema, options)
  if schema == nil then
    return true
  end
  return compare(value, schema, "$", { registry = registry_of(options, 2), depth = 0 })
end

-- Returns the value, or raises. The schema may be the name of a shape; "any" accepts every value.
function check.assert(value, schema, hint, options)
  local found = schema
  if schema == "any" then
    return value
  elseif type(schema) == "string" then
    found = rawget(registry_of(options, 2), schema)
    if type(found) ~= "table" or rawget(found, "kind") == nil then
      error(("alc_shapes: there is no shape '%s'"):format(schema), 2)
    end
  elseif type(schema) ~= "table" then
    error(("alc_shapes: assert takes a schema or the name of a shape, not a %s"):format(type(schema)), 2)
  end
  local ok, reason = check.check(value, found, options)
  if not ok then
    local of = (hint == nil or hint == "") and "" or (" (in %s)"):format(tostring(hint))
    error(reason .. of, 2)
  end
  return value
end

function check.is_dev_mode()
  return os.getenv("ALC_SHAPE_CHECK") == "1"
end

function check.assert_dev(value, schema, hint, options)
  if not check.is_dev_mode() then
    return value
  end
  return check.assert(value, schema, hint, options)
end

return check
