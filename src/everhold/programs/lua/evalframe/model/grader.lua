-- Graders: `check(response, case)` returns a raw grade (a boolean, a number, a text), or nil and the reason why
-- there is none. A check that raises has no grade, and its error is the reason.

local Grader = {}

local made = setmetatable({}, { __mode = "k" })

function Grader.is_grader(value)
  return type(value) == "table" and made[value] == true
end

local function new(name, check)
  local function safe(response, case)
    local ok, grade, reason = pcall(check, response, case)
    if not ok then
      return nil, tostring(grade)
    end
    return grade, reason
  end
  local grader = { name = name, check = safe }
  made[grader] = true
  return grader
end

local function combined(kind, graders, check)
  local names = {}
  for i, grader in ipairs(graders) do
    if not Grader.is_grader(grader) then
      error(string.format("grader.%s: argument %d is not a grader", kind, i), 3)
    end
    names[i] = grader.name
  end
  if #names == 0 then
    error("grader." .. kind .. ": at least one grader is needed", 3)
  end
  return new(kind .. "(" .. table.concat(names, ",") .. ")", check)
end

-- Each grader must accept. If they give numbers, the smallest one is the grade.
function Grader.all(...)
  local graders = { ... }
  return combined("all", graders, function(response, case)
    local least
    for _, grader in ipairs(graders) do
      local grade, reason = grader.check(response, case)
      if reason then
        return nil, reason
      elseif not grade then
        return false
      elseif type(grade) == "number" and (least == nil or grade < least) then
        least = grade
      end
    end
    return least == nil or least
  end)
end

-- The first grader that accepts gives the grade.
function Grader.any(...)
  local graders = { ... }
  return combined("any", graders, function(response, case)
    local why
    for _, grader in ipairs(graders) do
      local grade, reason = grader.check(response, case)
      if grade and not reason then
        return grade
      end
      why = why or reason
    end
    if why then
      return nil, why
    end
    return false
  end)
end

-- grader "name" { check = function(response, case) ... end }
return setmetatable(Grader, {
  __call = function(_, name)
    if type(name) ~= "string" then
      error("grader: its name must be a string, got " .. type(name), 2)
    end
    return function(given)
      local check = type(given) == "table" and given.check
      if type(check) ~= "function" then
        error(string.format("grader '%s': 'check' must be a function, got %s", name, type(check)), 2)
      end
      return new(name, check)
    end
  end,
})
