-- Suites: cases, bindings and a provider, checked together before anything is asked.

local Binding = require("evalframe.model.binding")
local Case = require("evalframe.model.case")
local report = require("evalframe.eval.report")
local runner = require("evalframe.eval.runner")
local stats = require("evalframe.eval.stats")

local Suite = {}
Suite.__index = Suite

local function fail(name, template, ...)
  error(string.format("suite '%s': " .. template, name, ...), 0)
end

local function bindings_of(name, given)
  local bindings = {}
  for i, value in ipairs(given) do
    if not Binding.is_binding(value) then
      fail(name, "entry %d is a %s; make it with ef.bind {...}", i, type(value))
    end
    bindings[i] = value
  end
  if #bindings == 0 then
    fail(name, "it has no binding; add one with ef.bind {...}")
  end
  return bindings
end

local function cases_of(name, given)
  if type(given) ~= "table" then
    fail(name, "'cases' must be a list, got %s", type(given))
  end
  local cases, places = {}, {}
  for i, value in ipairs(given) do
    if not Case.is_case(value) and type(value) ~= "table" then
      fail(name, "cases[%d] is a %s; make it with ef.case {...}", i, type(value))
    end
    local case = Case.is_case(value) and value or Case.new(value)
    if case.name ~= "" and places[case.name] then
      fail(name, "the cases %d and %d are both named '%s'", places[case.name], i, case.name)
    end
    cases[i], places[case.name] = case, i
  end
  return cases
end

local function new(name, given)
  if type(given) ~= "table" then
    fail(name, "expected a table, got %s", type(given))
  elseif type(given.provider) ~= "function" then
    fail(name, "'provider' must be a function, got %s", type(given.provider))
  end
  return setmetatable({
    name = name,
    provider = given.provider,
    bindings = bindings_of(name, given),
    cases = cases_of(name, given.cases or {}),
  }, Suite)
end

-- What `run` returns: `results`, `aggregated`, `failures`, and summary().
local function reported(name, results)
  local aggregated = stats.aggregate(results)
  local made = {
    name = name,
    results = results,
    aggregated = aggregated,
    failures = report.failures(results),
    format_result = report.format_result,
  }

  function made.summary()
    return report.summary(aggregated, { name = name, results = results })
  end

  -- The same as plain data.
  function made.to_table()
    return {
      name = name,
      aggregated = report.plain(aggregated),
      failures = report.plain(made.failures),
      results = report.plain(results),
      summary = made.summary(),
    }
  end

  return made
end

-- `on_case(result, done, total)` is called after each case.
function Suite:run(on_case)
  if #self.cases == 0 then
    fail(self.name, "there are no cases to evaluate")
  end
  return reported(self.name, runner.run(self.bindings, self.cases, self.provider, on_case))
end

-- suite "name" {...}; `reported` makes the report of results that were collected elsewhere.
return setmetatable({ reported = reported }, {
  __call = function(_, name)
    if type(name) ~= "string" then
      error("suite: its name must be a string, got " .. type(name), 2)
    end
    return function(given)
      return new(name, given)
    end
  end,
})
