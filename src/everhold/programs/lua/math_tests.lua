-- alc.math: statistical tests. The p values are two-sided.
--
-- A chunk of the Lua library: `local alc, host = ...` adds functions to `alc.math`.

local alc, host = ...

local exp, sqrt, abs, sort, type, pi = math.exp, math.sqrt, math.abs, table.sort, type, math.pi
local arguments, statistics, special = host.part("alc_math"), host.part("math_statistics"), host.part("math_special")
local fail, numbers, pair = arguments.fail, arguments.numbers, arguments.pair
local mean, variance, sum, ranks = statistics.mean, statistics.variance, statistics.sum, statistics.ranks

local M = alc.math

function M.welch_t_test(xs, ys)
  xs, ys = numbers("welch_t_test", xs, 2), numbers("welch_t_test", ys, 2)
  local a, b = variance(xs) / #xs, variance(ys) / #ys
  if a + b == 0 then
    fail("welch_t_test", "neither sample varies")
  end
  local t = (mean(xs) - mean(ys)) / sqrt(a + b)
  local x, y = a / (a + b), b / (a + b)
  local df = 1 / (x * x / (#xs - 1) + y * y / (#ys - 1))
  local p = special.beta_shares(df / (df + t * t), t * t / (df + t * t), df / 2, 0.5)
  return { t_stat = t, df = df, p_value = p }
end

-- The ranks of xs among all values. The p value is that of a normal distribution.
function M.mann_whitney_u(xs, ys, opts)
  xs, ys = numbers("mann_whitney_u", xs), numbers("mann_whitney_u", ys)
  if opts ~= nil and type(opts) ~= "table" then
    fail("mann_whitney_u", "the options must be a table, got %s", type(opts))
  end
  local n, m, all = #xs, #ys, {}
  for i = 1, n do
    all[i] = xs[i]
  end
  for i = 1, m do
    all[n + i] = ys[i]
  end
  local rank, groups = ranks(all)
  for i = 1, n do
    xs[i] = rank[xs[i]]
  end
  local u = sum(xs) - n * (n + 1) / 2
  u = u < n * m - u and u or n * m - u
  local ties, size = 0.0, n + m
  for i = 1, opts and opts.tie_correction and #groups or 0 do
    ties = ties + (groups[i] ^ 3 - groups[i])
  end
  local sigma = sqrt(n * m / 12 * (size + 1 - ties / (size * (size - 1))))
  if not (sigma > 0) then
    fail("mann_whitney_u", "all values are equal")
  end
  local z = (u - n * m / 2) / sigma
  return { u_stat = u, z_score = z, p_value = 2 * special.normal_cdf(z) }
end

function M.chi_squared_test(observed, expected)
  observed, expected = pair("chi_squared_test", observed, expected, 2)
  for i = 1, #expected do
    if expected[i] <= 0 then
      fail("chi_squared_test", "value %d of the expected ones must be greater than 0", i)
    end
    observed[i] = (observed[i] - expected[i]) ^ 2 / expected[i]
  end
  local found, df = sum(observed), #observed - 1.0
  local _, p = special.gamma_shares(df / 2, found / 2)
  return { chi2_stat = found, df = df, p_value = p }
end

-- The share of Kolmogorov's distribution above x: one series for large x, another for small.
local function kolmogorov(x)
  local total = 0.0
  if x < 0.1 then
    return 1.0
  elseif x < 1 then
    for k = 1, 9, 2 do
      total = total + exp(-(k * pi / x) ^ 2 / 8)
    end
    return 1 - sqrt(2 * pi) / x * total
  end
  for k = 1, 10 do
    total = total + (k % 2 == 1 and 2 or -2) * exp(-2 * (k * x) ^ 2)
  end
  return total
end

-- Two samples: the largest distance between their distributions, with Stephens' correction of the p value.
function M.ks_test(xs, ys)
  xs, ys = numbers("ks_test", xs), numbers("ks_test", ys)
  sort(xs)
  sort(ys)
  local n, m, i, j, most = #xs, #ys, 0, 0, 0.0
  while i < n and j < m do
    local value = xs[i + 1] < ys[j + 1] and xs[i + 1] or ys[j + 1]
    while xs[i + 1] == value do
      i = i + 1
    end
    while ys[j + 1] == value do
      j = j + 1
    end
    local apart = abs(i / n - j / m)
    most = apart > most and apart or most
  end
  local size = sqrt(n * m / (n + m))
  return { d_stat = most, p_value = kolmogorov((size + 0.12 + 0.11 / size) * most) }
end
