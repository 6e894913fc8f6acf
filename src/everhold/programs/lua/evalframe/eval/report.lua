-- Reports: a summary for people, and results as plain tables without functions.

local report = {}

local format = string.format

local function percent(rate)
  return format("%.1f %%", rate * 100)
end

local function sorted_names(t)
  local names = {}
  for name in pairs(t) do
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

local function name_of(case)
  local text = case.name ~= "" and case.name or case.input
  if #text <= 40 then
    return text
  end
  local last = utf8.offset(text, 0, 38) -- where the character at this byte begins
  return text:sub(1, last - 1) .. "…"
end

-- The cases that could not be graded as intended, one line for each kind of trouble.
local function troubles(results)
  local lines, places = {}, {}
  local function add(words, case)
    words = words:match("^[^\n]*"):gsub(":$", "")
    local place = places[words]
    if not place then
      place = { words = words, cases = {} }
      places[words], lines[#lines + 1] = place, place
    end
    place.cases[#place.cases + 1] = name_of(case)
  end
  for _, result in ipairs(results) do
    if result.response.error then
      add("no answer: " .. result.response.error, result.case)
    end
    for _, grade in ipairs(result.grades) do
      if grade.error then
        add(format("grader '%s' failed: %s", grade.grader, grade.error), result.case)
      end
    end
  end
  for i, line in ipairs(lines) do
    local few = table.concat(line.cases, ", ", 1, math.min(3, #line.cases))
    local more = #line.cases > 3 and format(" and %d more", #line.cases - 3) or ""
    lines[i] = format("%s (%s%s)", line.words, few, more)
  end
  return lines
end

function report.summary(aggregated, opts)
  local lines = {}
  opts = opts or {}
  lines[1] = format(
    "%s%d of %d case%s passed (%s)",
    opts.name and opts.name .. ": " or "",
    aggregated.passed,
    aggregated.total,
    aggregated.total == 1 and "" or "s",
    percent(aggregated.pass_rate)
  )
  local scores, interval = aggregated.scores, aggregated.ci_95
  if scores.n > 0 then
    lines[2] = format(
      "Score: mean %.3f, standard deviation %.3f, 95 %% interval %.3f to %.3f",
      scores.mean,
      scores.std_dev,
      interval.lower,
      interval.upper
    )
  end
  for _, tag in ipairs(sorted_names(aggregated.by_tag)) do
    local row = aggregated.by_tag[tag]
    lines[#lines + 1] = format("Tag %s: %d of %d (%s)", tag, row.pass, row.pass + row.fail, percent(row.rate))
  end
  for _, words in ipairs(troubles(opts.results or {})) do
    lines[#lines + 1] = "Problem: " .. words
  end
  return table.concat(lines, "\n")
end

function report.failures(results)
  local failed = alc.json_decode("[]")
  for _, result in ipairs(results) do
    if not result.passed then
      failed[#failed + 1] = result
    end
  end
  return failed
end

-- One result in some lines.
function report.format_result(result)
  local lines = { format("%s: %s, score %.3f", name_of(result.case), result.passed and "passed" or "failed", result.score) }
  if result.response.error then
    lines[2] = "  no answer: " .. result.response.error
  end
  for _, row in ipairs(result.grades) do
    local grade = tostring(row.grade)
    local note = row.error and " error: " .. row.error or row.warning and " warning: " .. row.warning or ""
    lines[#lines + 1] = format("  %s: %.3f (grade %s)%s", row.grader, row.score, grade:sub(1, 60), note)
  end
  return table.concat(lines, "\n")
end

local function copy(value, above)
  if type(value) ~= "table" then
    return value
  elseif above[value] then
    return nil -- it contains itself
  end
  above[value] = true
  local is_list = #value > 0 or next(value) == nil and alc.json_encode(value) == "[]"
  local out = is_list and alc.json_decode("[]") or {}
  for key, part in pairs(value) do
    if type(part) ~= "function" and type(part) ~= "thread" and key ~= "raw" then
      out[key] = copy(part, above)
    end
  end
  above[value] = nil
  return out
end

-- A copy that JSON can represent, without the raw results of providers.
function report.plain(value)
  return copy(value, {})
end

return report
