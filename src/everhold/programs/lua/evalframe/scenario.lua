-- Scenarios: finds one by name, and makes a suite of it.
--
--   full     { ef.bind {...}, ..., cases = {...} }
--   simple   { cases = { {input = ..., expected = ...}, ... }, graders = { "exact_match" } }

local scenario = {}

-- Whether an error says that this module is missing, and not one that it requires.
local function is_missing(problem, name)
  return type(problem) == "string" and problem:find("module '" .. name .. "' not found", 1, true) ~= nil
end

-- The name of a scenario that was given by name or by the path of its file.
function scenario.name_of(given)
  return given:match("([^/]+)%.lua$") or given
end

-- What a module, or a file in the folder of scenarios, returns.
function scenario.load(name, who)
  for _, module in ipairs({ name, "scenarios." .. name }) do
    local ok, found = pcall(require, module)
    if ok then
      return found
    elseif not is_missing(found, module) then
      error(string.format("%s: scenario '%s' cannot be loaded: %s", who, name, tostring(found)), 0)
    end
  end
  error(
    string.format("%s: could not resolve scenario '%s': no module and no file in the folder of scenarios has it", who, name),
    0
  )
end

local function grader_of(ef, given, i)
  if type(given) == "string" then
    if not ef.graders[given] then
      local names = {}
      for name in pairs(ef.graders) do
        names[#names + 1] = name
      end
      table.sort(names)
      error(string.format("alc.eval: unknown grader '%s'; there are %s", given, table.concat(names, ", ")), 0)
    end
    return ef.graders[given]
  elseif type(given) == "function" then
    return ef.grader("grader_" .. i)({ check = given })
  elseif ef.grader.is_grader(given) then
    return given
  end
  error("alc.eval: a grader must be a name, a function or a grader, got " .. type(given), 0)
end

local function bindings_of(ef, spec)
  local found = {}
  for i, value in ipairs(spec) do
    found[i] = value
  end
  if #found > 0 then
    return found
  end
  local graders = spec.graders == nil and { "exact_match" } or spec.graders
  if type(graders) ~= "table" then
    error("alc.eval: 'graders' must be a list of names, got " .. type(graders), 0)
  end
  for i, given in ipairs(graders) do
    found[i] = ef.bind({ grader_of(ef, given, i) })
  end
  return found
end

-- A suite that asks `provider`; raises if the scenario is malformed.
function scenario.suite(ef, name, spec, provider)
  if type(spec) ~= "table" then
    error("alc.eval: the scenario is not a table, but a value of type " .. type(spec), 0)
  end
  local given = bindings_of(ef, spec)
  given.provider, given.cases = provider, spec.cases
  if type(spec.cases) ~= "table" or #spec.cases == 0 then
    error("alc.eval: the scenario has no cases: its 'cases' must be a list with at least one", 0)
  end
  for i, case in ipairs(spec.cases) do
    if type(case) ~= "table" or case.input == nil then
      error("alc.eval: case #" .. i .. " has no 'input'", 0)
    end
  end
  return ef.suite(name)(given)
end

return scenario
