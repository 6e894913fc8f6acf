-- Cases: an input, what is expected, and facts about it. A case never changes after it was made.

local Case = {}

local made = setmetatable({}, { __mode = "k" }) -- the cases, so that no other table passes for one
local EMPTY = alc.json_decode("[]")

local function wrong(field, wanted, value, where)
  error(string.format("case%s: '%s' must be %s, got %s", where, field, wanted, type(value)), 0)
end

-- A copy of a list that is an array in JSON even when it is empty.
local function list(values)
  local out = alc.json_decode("[]")
  for i, value in ipairs(values) do
    out[i] = value
  end
  return out
end

local function expected_of(value, where)
  if value == nil or value == alc.null then
    return nil
  elseif type(value) == "number" then
    return list({ tostring(value) }) -- `expected = 4` means the text 4
  elseif type(value) == "string" then
    return list({ value })
  elseif type(value) ~= "table" then
    wrong("expected", "a string or a list of strings", value, where)
  end
  for i, item in ipairs(value) do
    if type(item) ~= "string" then
      wrong("expected[" .. i .. "]", "a string", item, where)
    end
  end
  return list(value)
end

local function frozen(fields)
  local proxy = setmetatable({}, {
    __index = fields,
    __newindex = function(_, name)
      error(string.format("a case is immutable: '%s' cannot be set", tostring(name)), 2)
    end,
    __pairs = function()
      return pairs(fields)
    end,
    __metatable = false,
  })
  made[proxy] = true
  return proxy
end

function Case.new(given)
  if type(given) ~= "table" then
    error("case: expected a table, got " .. type(given), 0)
  end
  local label = given.name or given.input
  local where = type(label) == "string" and " '" .. label:sub(1, 60) .. "'" or ""
  if given.input == nil then
    error("case" .. where .. ": 'input' is required", 0)
  elseif type(given.input) ~= "string" then
    wrong("input", "a string", given.input, where)
  elseif given.name ~= nil and type(given.name) ~= "string" then
    wrong("name", "a string", given.name, where)
  elseif given.context ~= nil and type(given.context) ~= "table" then
    wrong("context", "a table", given.context, where)
  elseif given.tags ~= nil and type(given.tags) ~= "table" then
    wrong("tags", "a list of strings", given.tags, where)
  end
  local context = {}
  for key, value in pairs(given.context or {}) do
    context[key] = value
  end
  for i, tag in ipairs(given.tags or EMPTY) do
    if type(tag) ~= "string" then
      wrong("tags[" .. i .. "]", "a string", tag, where)
    end
  end
  return frozen({
    input = given.input,
    name = given.name or "",
    expected = expected_of(given.expected, where),
    context = context,
    tags = list(given.tags or EMPTY),
  })
end

function Case.is_case(value)
  return type(value) == "table" and made[value] == true
end

function Case.has_tag(case, tag)
  for _, own in ipairs(case.tags) do
    if own == tag then
      return true
    end
  end
  return false
end

-- case {...} and case "name" {...}
return setmetatable(Case, {
  __call = function(_, first)
    if type(first) ~= "string" then
      return Case.new(first)
    end
    return function(given)
      if type(given) ~= "table" then
        error("case '" .. first .. "': expected a table, got " .. type(given), 0)
      end
      local named = {}
      for key, value in pairs(given) do
        named[key] = value
      end
      named.name = first
      return Case.new(named)
    end
  end,
})
