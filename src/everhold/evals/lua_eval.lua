-- The code of a session that measures a Lua package on a scenario. Its ctx has `scenario` (`name`, `title` of errors,
-- `code`), `strategy`, `strategy_opts` and `auto_card`.

local given = ctx.scenario

local function fail(template, ...)
  error("scenario '" .. given.name .. "': " .. string.format(template, ...), 0)
end

-- What the code returns. It may also be a single expression, or JSON.
local function load_scenario()
  local is_json, value = pcall(alc.json_decode, given.code)
  if is_json then
    return value
  end
  local chunk = load("return " .. given.code, "=" .. given.title, "t")
  local problem
  if not chunk then
    chunk, problem = load(given.code, "=" .. given.title, "t")
  end
  if not chunk then
    fail("it is not Lua: %s", problem)
  end
  return chunk()
end

local scenario = load_scenario()
if type(scenario) ~= "table" then
  fail("it is %s, not a table; end it with `return { cases = {...} }`", type(scenario))
end
if type(scenario.name) ~= "string" then
  scenario.name = given.name
end

-- The figures so far: lists of evals show them before the report exists.
local totals = { scenario = scenario.name, done = 0, passed = 0, total = 0, score = 0 }

local function tell(done, total)
  totals.done, totals.total = done, total
  alc.stats.record("eval", totals)
  alc.progress(done, total, totals.passed .. " passed")
end

if type(scenario.cases) == "table" then
  tell(0, #scenario.cases)
end
return alc.eval(scenario, ctx.strategy, {
  strategy_opts = ctx.strategy_opts,
  auto_card = ctx.auto_card,
  on_case = function(result, done, total)
    totals.passed = totals.passed + (result.passed and 1 or 0)
    totals.score = totals.score + result.score
    tell(done, total)
  end,
})
