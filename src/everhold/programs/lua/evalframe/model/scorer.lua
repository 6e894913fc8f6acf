-- Scorers turn a raw grade into a score from 0 to 1.

local Scorer = {}

local made = setmetatable({}, { __mode = "k" })

function Scorer.is_scorer(value)
  return type(value) == "table" and made[value] == true
end

local function limited(number)
  return number < 0 and 0.0 or number > 1 and 1.0 or number + 0.0
end

local function number_of(grade)
  if type(grade) == "boolean" then
    return grade and 1 or 0
  end
  return type(grade) == "number" and grade == grade and grade or nil
end

-- A straight line from `low`, which scores 0, to `high`, which scores 1.
local function along_line(low, high)
  return function(grade)
    return type(grade) == "number" and limited((grade - low) / (high - low)) or 0.0
  end
end

local function from(bar)
  return function(grade)
    local number = number_of(grade)
    return number and number >= bar and 1.0 or 0.0
  end
end

-- The score of the highest step that the grade reaches.
local function by_steps(name, steps)
  local sorted = {}
  for i, step in ipairs(type(steps) == "table" and steps or {}) do
    if type(step) ~= "table" or type(step[1]) ~= "number" or type(step[2]) ~= "number" then
      error(string.format("scorer '%s': steps[%d] must be {from, score}", name, i), 3)
    end
    sorted[i] = step
  end
  if #sorted < 2 then
    error(string.format("scorer '%s': 'steps' needs at least two steps", name), 3)
  end
  table.sort(sorted, function(one, other)
    return one[1] < other[1]
  end)
  return function(grade)
    local score = 0
    for _, step in ipairs(sorted) do
      if type(grade) == "number" and grade >= step[1] then
        score = step[2]
      end
    end
    return limited(score)
  end
end

local function chosen(name, given)
  if given.score ~= nil then
    if type(given.score) ~= "function" then
      error(string.format("scorer '%s': 'score' must be a function, got %s", name, type(given.score)), 3)
    end
    return given.score
  elseif given.min ~= nil and given.max ~= nil then
    if type(given.min) ~= "number" or type(given.max) ~= "number" or given.min == given.max then
      error(string.format("scorer '%s': 'min' and 'max' must be two different numbers", name), 3)
    end
    return along_line(given.min, given.max)
  elseif given.pass ~= nil then
    if type(given.pass) ~= "number" then
      error(string.format("scorer '%s': 'pass' must be a number, got %s", name, type(given.pass)), 3)
    end
    return from(given.pass)
  elseif given.steps ~= nil then
    return by_steps(name, given.steps)
  end
  error(string.format("scorer '%s': give 'score', 'min' and 'max', 'pass', or 'steps'", name), 3)
end

local function new(name, given)
  local scorer = { name = name, score = chosen(name, given) }
  made[scorer] = true
  return scorer
end

-- Used if a binding names none: true is 1, false is 0, a number counts as it is.
Scorer.default_bool = new("bool", {
  score = function(grade)
    local number = number_of(grade)
    return number and limited(number) or 0.0
  end,
})

-- scorer "name" {...}
return setmetatable(Scorer, {
  __call = function(_, name)
    if type(name) ~= "string" then
      error("scorer: its name must be a string, got " .. type(name), 2)
    end
    return function(given)
      if type(given) ~= "table" then
        error(string.format("scorer '%s': expected a table, got %s", name, type(given)), 2)
      end
      return new(name, given)
    end
  end,
})
