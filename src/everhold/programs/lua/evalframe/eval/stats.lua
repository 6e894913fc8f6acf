-- Statistics of scores: description, confidence interval, pass@k, and Welch's t-test.

local stats = {}

local sqrt, abs, exp, log, huge = math.sqrt, math.abs, math.exp, math.log, math.huge

function stats.describe(values)
  local n, sum, sorted = #values, 0, {}
  if n == 0 then
    return { n = 0, mean = 0, std_dev = 0, min = 0, max = 0, median = 0 }
  end
  for i, value in ipairs(values) do
    sorted[i], sum = value, sum + value
  end
  table.sort(sorted)
  local mean, squares = sum / n, 0
  for _, value in ipairs(sorted) do
    squares = squares + (value - mean) * (value - mean)
  end
  local half = n // 2
  return {
    n = n,
    mean = mean,
    std_dev = n > 1 and sqrt(squares / (n - 1)) or 0,
    min = sorted[1],
    max = sorted[n],
    median = n % 2 == 1 and sorted[half + 1] or (sorted[half] + sorted[half + 1]) / 2,
  }
end

-- The chance that k of n results, drawn without replacement, have one of the c passed ones.
function stats.pass_at_k(n, c, k)
  if c <= 0 then
    return 0.0
  elseif n < k or n - c < k then
    return 1.0
  end
  local none = 1.0
  for i = 0, k - 1 do
    none = none * (n - c - i) / (n - i)
  end
  return 1.0 - none
end

-- Student's t distribution -------------------------------------------------------------------------------------------

-- log Γ(x) for x > 0: Stirling's series, after a shift to where it is exact enough.
local function ln_gamma(x)
  local shift = 0
  while x < 15 do
    shift, x = shift + log(x), x + 1
  end
  local r = 1 / (x * x)
  local series = (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r / 1680))) / x
  return (x - 0.5) * log(x) - x + 0.91893853320467274178 + series - shift
end

-- The continued fraction of the incomplete beta function, by Lentz's method.
local function beta_fraction(a, b, x)
  local tiny = 1e-300
  local c, d = 1.0, 1 - (a + b) * x / (a + 1)
  d = 1 / (abs(d) < tiny and tiny or d)
  local value = d
  for m = 1, 500 do
    local even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
    local odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
    for _, step in ipairs({ even, odd }) do
      d = 1 + step * d
      d = 1 / (abs(d) < tiny and tiny or d)
      c = 1 + step / c
      c = abs(c) < tiny and tiny or c
      value = value * c * d
    end
    if abs(c * d - 1) < 1e-15 then
      break
    end
  end
  return value
end

-- The regularized incomplete beta function.
local function incomplete_beta(a, b, x)
  if x <= 0 or x >= 1 then
    return x <= 0 and 0.0 or 1.0
  end
  local front = exp(ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * log(x) + b * log(1 - x))
  if x < (a + 1) / (a + b + 2) then
    return front * beta_fraction(a, b, x) / a
  end
  return 1 - front * beta_fraction(b, a, 1 - x) / b
end

-- The chance of a value at least as far from 0 as t, on either side.
local function two_sided(t, df)
  return incomplete_beta(df / 2, 0.5, df / (df + t * t))
end

local criticals = {}

-- The t that is exceeded, on either side, with a chance of 5 %.
local function critical(df)
  if not criticals[df] then
    local low, high = 1.9, 13.0 -- its values from infinitely many degrees of freedom to one
    for _ = 1, 60 do
      local middle = (low + high) / 2
      if two_sided(middle, df) > 0.05 then
        low = middle
      else
        high = middle
      end
    end
    criticals[df] = (low + high) / 2
  end
  return criticals[df]
end

-- The 95 % confidence interval of the mean, within 0 to 1 unless it is `unbounded`.
function stats.ci_95(described, opts)
  if described.n < 2 then
    return described.mean, described.mean
  end
  local margin = critical(described.n - 1) * described.std_dev / sqrt(described.n)
  local low, high = described.mean - margin, described.mean + margin
  if opts and opts.unbounded then
    return low, high
  end
  return low < 0 and 0.0 or low, high > 1 and 1.0 or high
end

-- Wilson's interval of a share.
local function wilson(passed, n)
  local z, rate = 1.959963984540054, passed / n
  local middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
  local margin = z / (1 + z * z / n) * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
  return passed == 0 and 0.0 or middle - margin, passed == n and 1.0 or middle + margin
end

-- The 95 % confidence interval of the mean of scores from 0 to 1: Wilson's if all are 0 or 1, else Student's t. Equal
-- scores have no spread: then it says how many of the cases that were not tried may differ.
function stats.score_ci(scores)
  local described, passed = stats.describe(scores), 0
  local n, mean = described.n, described.mean
  for _, score in ipairs(scores) do
    passed = passed and (score == 0 or score == 1) and passed + score or nil
  end
  if n == 0 then
    return 0.0, 1.0
  elseif passed then
    return wilson(passed, n)
  elseif described.std_dev == 0 then
    local missed = n == 1 and 1.0 or 1 - 0.025 ^ (1 / n)
    return mean * (1 - missed), mean + (1 - mean) * missed
  end
  return stats.ci_95(described)
end

function stats.describe_with_ci(values, opts)
  local described = stats.describe(values)
  described.ci_lower, described.ci_upper = stats.ci_95(described, opts)
  return described
end

local function direction(difference)
  return difference > 0 and "a>b" or difference < 0 and "a<b" or "equal"
end

-- The chance that a random split of na + nb values separates them as far as they are, if all of a are equal and all
-- of b are: only two of the splits do.
local function split_chance(na, nb)
  local splits = 1.0
  for i = 1, na do
    splits = splits * (nb + i) / i
  end
  return 2 / splits
end

-- Whether the means of two groups differ, without assuming that their variances are equal. A group is what `describe`
-- returns, or a list of scores. Groups without any variance have no t: then t_stat is 0 and the chance is exact.
function stats.welch_t(a, b)
  a, b = a.n and a or stats.describe(a), b.n and b or stats.describe(b)
  if a.n < 2 or b.n < 2 then
    return { t_stat = 0, df = 0, p_value = 1.0, significant = false, direction = "insufficient_data" }
  end
  local difference = a.mean - b.mean
  local va, vb = a.std_dev * a.std_dev / a.n, b.std_dev * b.std_dev / b.n
  if va + vb == 0 then
    local p = difference == 0 and 1.0 or split_chance(a.n, b.n)
    return { t_stat = 0, df = a.n + b.n - 2, p_value = p, significant = p < 0.05, direction = direction(difference) }
  end
  local t = difference / sqrt(va + vb)
  local df = (va + vb) * (va + vb) / (va * va / (a.n - 1) + vb * vb / (b.n - 1))
  if df ~= df or df == huge then -- variances too small to be squared
    df = a.n + b.n - 2
  end
  local p = two_sided(t, df)
  return { t_stat = t, df = df, p_value = p, significant = p < 0.05, direction = direction(difference) }
end

-- Results of cases ---------------------------------------------------------------------------------------------------

local function count_tags(results)
  local tags = {}
  for _, result in ipairs(results) do
    for _, tag in ipairs(result.case.tags) do
      local row = tags[tag] or { pass = 0, fail = 0, scores = {} }
      tags[tag] = row
      row.scores[#row.scores + 1] = result.score
      local which = result.passed and "pass" or "fail"
      row[which] = row[which] + 1
    end
  end
  for _, row in pairs(tags) do
    row.rate = row.pass / (row.pass + row.fail)
    row.stats, row.scores = stats.describe(row.scores), nil
  end
  return tags
end

function stats.aggregate(results)
  local total, passed, scores = #results, 0, {}
  for i, result in ipairs(results) do
    scores[i] = result.score
    passed = passed + (result.passed and 1 or 0)
  end
  local described = stats.describe(scores)
  local low, high = stats.score_ci(scores)
  return {
    total = total,
    passed = passed,
    pass_rate = total > 0 and passed / total or 0,
    pass_at_1 = stats.pass_at_k(total, passed, 1),
    pass_at_5 = total >= 5 and stats.pass_at_k(total, passed, 5) or nil,
    pass_at_10 = total >= 10 and stats.pass_at_k(total, passed, 10) or nil,
    scores = described,
    ci_95 = { lower = low, upper = high },
    by_tag = count_tags(results),
  }
end

return stats
