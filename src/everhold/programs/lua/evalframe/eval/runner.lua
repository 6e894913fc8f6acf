-- Runs cases: the provider answers the input, each binding grades the answer, and the weighted scores are summed up.

local runner = {}

local PASSED = 1 - 1e-6 -- weights such as 0.7 and 0.3 do not add up to exactly 1

-- What a provider returned, as a new table with `text` and `latency_ms`.
local function response_of(answer, elapsed)
  if type(answer) == "string" then
    return { text = answer, latency_ms = elapsed }
  elseif type(answer) ~= "table" then
    return {
      text = "",
      latency_ms = elapsed,
      error = "the provider returned " .. type(answer) .. ", not a string or a table",
    }
  end
  local response = {}
  for key, value in pairs(answer) do
    response[key] = value
  end
  response.text = type(answer.text) == "string" and answer.text or ""
  response.latency_ms = answer.latency_ms or elapsed
  return response
end

function runner.ask(provider, case)
  local begun = alc.time()
  local ok, answer = pcall(provider, case.input)
  local elapsed = (alc.time() - begun) * 1000
  if ok then
    return response_of(answer, elapsed)
  end
  return { text = "", latency_ms = elapsed, error = tostring(answer) }
end

local function graded(binding, response, case)
  local row = { grader = binding.grader.name, weight = binding.weight, score = 0.0 }
  local grade, reason = binding.grader.check(response, case)
  if reason then
    row.error = tostring(reason)
    return row
  end
  row.grade = grade
  local ok, score = pcall(binding.scorer.score, grade)
  if not ok then
    row.error = "scorer '" .. binding.scorer.name .. "': " .. tostring(score)
  elseif type(score) ~= "number" or not (score >= 0 and score <= 1) then
    row.error = "scorer '" .. binding.scorer.name .. "' gave " .. tostring(score) .. ", not a number from 0 to 1"
  else
    row.score = score
    if score == 0 and (type(grade) == "string" or type(grade) == "table") then
      row.warning = "the grade is a " .. type(grade) .. ", which the scorer may not understand"
    end
  end
  return row
end

-- A provider that failed and has no text is not graded: an empty text could pass.
function runner.grade(bindings, case, response)
  local result = { case = case, response = response, grades = alc.json_decode("[]"), score = 0.0 }
  local sum, weights = 0.0, 0.0
  if not (response.error and response.text == "") then
    for i, binding in ipairs(bindings) do
      local row = graded(binding, response, case)
      result.grades[i] = row
      sum, weights = sum + row.score * row.weight, weights + row.weight
    end
  end
  if weights > 0 then
    result.score = sum / weights
  end
  result.passed = result.score >= PASSED
  return result
end

function runner.run(bindings, cases, provider, on_case)
  if type(provider) ~= "function" then
    error("runner.run: the provider must be a function, got " .. type(provider), 2)
  end
  local results = {}
  for i, case in ipairs(cases) do
    results[i] = runner.grade(bindings, case, runner.ask(provider, case))
    if on_case then
      on_case(results[i], i, #cases)
    end
  end
  return results
end

return runner
