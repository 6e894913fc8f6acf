-- Bindings: a grader, the scorer of its grades, and its weight among the other bindings.

local Grader = require("evalframe.model.grader")
local Scorer = require("evalframe.model.scorer")

local Binding = {}

local made = setmetatable({}, { __mode = "k" })

function Binding.is_binding(value)
  return type(value) == "table" and made[value] == true
end

-- The name of a binding is that of its grader.
function Binding.key(binding)
  return binding.grader.name
end

local function new(given, where)
  if type(given) ~= "table" then
    error(where .. ": expected a table, got " .. type(given), 3)
  end
  local grader, scorer
  for i, part in ipairs(given) do
    if Grader.is_grader(part) then
      if grader then
        error(where .. ": only one grader is allowed", 3)
      end
      grader = part
    elseif Scorer.is_scorer(part) then
      if scorer then
        error(where .. ": only one scorer is allowed", 3)
      end
      scorer = part
    else
      error(string.format("%s: part %d is neither a grader nor a scorer", where, i), 3)
    end
  end
  if not grader then
    error(where .. ": a grader is required", 3)
  end
  local weight = given.weight == nil and 1.0 or given.weight
  if type(weight) ~= "number" or not (weight >= 0 and weight < math.huge) then
    error(string.format("%s: 'weight' must be a number, 0 or more, got %s", where, tostring(weight)), 3)
  end
  local binding = { grader = grader, scorer = scorer or Scorer.default_bool, weight = weight }
  made[binding] = true
  return binding
end

-- bind { grader, scorer, weight = 1 } and bind "label" {...}
return setmetatable(Binding, {
  __call = function(_, first)
    if type(first) ~= "string" then
      return new(first, "bind")
    end
    return function(given)
      return new(given, "bind '" .. first .. "'")
    end
  end,
})
