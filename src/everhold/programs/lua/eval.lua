-- alc.eval: measures a strategy on a scenario, with the package evalframe.
--
-- A chunk of the Lua library, see `layer1.lua`. The user's own package evalframe is used if there is one.

local alc, host = ...

local type, error = type, error

-- A card with the scores, and the results of the cases as its samples.
local function record(report, strategy, scenario, package)
  local aggregated = report.aggregated
  local card = alc.card.create({
    pkg = { name = package or strategy },
    scenario = { name = scenario },
    stats = {
      pass_rate = aggregated.pass_rate,
      mean_score = aggregated.scores.mean,
      n = aggregated.total,
      passed = aggregated.passed,
    },
  })
  alc.card.write_samples(card.card_id, report.results)
  alc.log("info", "alc.eval: recorded as card " .. card.card_id)
  return card.card_id
end

function alc.eval(scenario, strategy, opts)
  if scenario == nil then
    error("alc.eval: name a scenario, or give one as a table", 2)
  elseif type(scenario) ~= "string" and type(scenario) ~= "table" then
    error("alc.eval: a scenario is a name or a table, not a " .. type(scenario), 2)
  elseif type(strategy) ~= "string" then
    error("alc.eval: a strategy is the name of a package, not a " .. type(strategy), 2)
  end
  if opts == nil or opts == host.null then
    opts = {}
  elseif type(opts) ~= "table" then
    error("alc.eval: opts must be a table, got " .. type(opts), 2)
  elseif opts.on_case ~= nil and type(opts.on_case) ~= "function" then
    error("alc.eval: on_case must be a function, got " .. type(opts.on_case), 2)
  end
  local ef, scenarios = host.require("evalframe"), host.require("evalframe.scenario")
  local name, spec = scenario, scenario
  if type(scenario) == "string" then
    spec = scenarios.load(scenario, "alc.eval")
    name = scenarios.name_of(scenario)
  else
    name = type(scenario.name) == "string" and scenario.name or "inline"
  end
  local provider = ef.providers.algocline({ strategy = strategy, opts = opts.strategy_opts })
  local report = scenarios.suite(ef, strategy .. ":" .. name, spec, provider):run(opts.on_case):to_table()
  if opts.auto_card == true then
    report.card_id = record(report, strategy, name, opts.card_pkg)
  end
  return report
end
