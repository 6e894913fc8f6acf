-- alc.math: reproducible random numbers, and statistics for decisions.
--
-- A chunk of the Lua library: `local alc = ...` adds functions to `alc`. Plain Lua only.
-- Lists of numbers are non-empty, and NaN and infinities are refused: a decision based on them would be random.

local alc = ...

local type, error, format, setmetatable = type, error, string.format, setmetatable
local tointeger, floor, exp, log, sqrt, abs, huge = math.tointeger, math.floor, math.exp, math.log, math.sqrt, math.abs, math.huge
local sort, unpack, gmatch = table.sort, table.unpack, string.gmatch

local M = {}

local function fail(name, ...)
  error("alc.math." .. name .. ": " .. format(...), 0)
end

local function number(name, what, value)
  if type(value) ~= "number" or value ~= value or value == huge or value == -huge then
    fail(name, "%s must be a finite number", what)
  end
  return value + 0.0
end

local function integer(name, what, value)
  local whole = type(value) == "number" and tointeger(value)
  if not whole then
    fail(name, "%s must be an integer", what)
  end
  return whole
end

-- A copy of the list as floats.
local function numbers(name, data, least)
  if type(data) ~= "table" then
    fail(name, "expected an array of numbers, got %s", type(data))
  end
  local out = {}
  for i = 1, #data do
    out[i] = number(name, "value " .. i, data[i])
  end
  if #out == 0 then
    fail(name, "the array is empty")
  elseif #out < (least or 1) then
    fail(name, "needs at least %d values", least)
  end
  return out
end

-- Random numbers: ChaCha with 12 rounds ------------------------------------------------------------------------------

-- The state of each handle. A program has only the handle, which has no fields, and cannot reach its metatable.
local generators = setmetatable({}, { __mode = "k" })
local Handle = {
  __metatable = false,
  __name = "rng",
  __newindex = function()
    error("alc.math: a random generator has no fields", 2)
  end,
  __tostring = function()
    return "rng"
  end,
}

local function generator(name, handle)
  local found = generators[handle]
  if not found then
    fail(name, "the first argument must come from rng_create")
  end
  return found
end

local function quarter(w, a, b, c, d)
  local x, y, z, v = w[a], w[b], w[c], w[d]
  x = (x + y) & 0xffffffff
  v = v ~ x
  v = (v << 16 | v >> 16) & 0xffffffff
  z = (z + v) & 0xffffffff
  y = y ~ z
  y = (y << 12 | y >> 20) & 0xffffffff
  x = (x + y) & 0xffffffff
  v = v ~ x
  v = (v << 8 | v >> 24) & 0xffffffff
  z = (z + v) & 0xffffffff
  y = y ~ z
  y = (y << 7 | y >> 25) & 0xffffffff
  w[a], w[b], w[c], w[d] = x, y, z, v
end

-- The next sixteen words: columns and diagonals six times, then the start added.
local function refill(rng)
  local k, count = rng.key, rng.block
  local start = {
    0x61707865, 0x3320646e, 0x79622d32, 0x6b206574,
    k[1], k[2], k[3], k[4], k[5], k[6], k[7], k[8],
    count & 0xffffffff, count >> 32, 0, 0,
  }
  local w = { unpack(start) }
  for _ = 1, 6 do
    quarter(w, 1, 5, 9, 13)
    quarter(w, 2, 6, 10, 14)
    quarter(w, 3, 7, 11, 15)
    quarter(w, 4, 8, 12, 16)
    quarter(w, 1, 6, 11, 16)
    quarter(w, 2, 7, 12, 13)
    quarter(w, 3, 8, 9, 14)
    quarter(w, 4, 5, 10, 15)
  end
  for i = 1, 16 do
    w[i] = (w[i] + start[i]) & 0xffffffff
  end
  rng.words, rng.at, rng.block = w, 1, count + 1
end

local function next64(rng)
  if rng.at > 15 then
    refill(rng)
  end
  local at = rng.at
  rng.at = at + 2
  return rng.words[at + 1] << 32 | rng.words[at]
end

-- Eight words of key from one seed, by a PCG32 sequence: similar seeds give unrelated keys.
local function key_of(seed)
  local key, state = {}, seed
  for i = 1, 8 do
    state = state * 0x5851f42d4c957f2d + 0xa17654e46fbe17f3
    local x, turn = ((state >> 18 ~ state) >> 27) & 0xffffffff, state >> 59
    key[i] = (x >> turn | x << (32 - turn)) & 0xffffffff
  end
  return key
end

function M.rng_create(seed)
  local handle = setmetatable({}, Handle)
  generators[handle] = { key = key_of(integer("rng_create", "the seed", seed)), block = 0, at = 17 }
  return handle
end

local function float(rng)
  return (next64(rng) >> 11) * 0x1p-53
end

function M.rng_float(handle)
  return float(generator("rng_float", handle))
end

-- The 128 bits of a product of two words of 64, as high and low.
local function product(a, b)
  local a0, a1, b0, b1 = a & 0xffffffff, a >> 32, b & 0xffffffff, b >> 32
  local low, mid, cross = a0 * b0, a1 * b0, a0 * b1
  local carry = (low >> 32) + (mid & 0xffffffff) + (cross & 0xffffffff)
  return a1 * b1 + (mid >> 32) + (cross >> 32) + (carry >> 32), a * b
end

-- A uniform integer of least..most: draws that would favour some values are rejected.
local function between(rng, least, most)
  local range = most - least + 1
  if range == 0 then
    return next64(rng)
  end
  local zone = range
  while zone > 0 do
    zone = zone << 1
  end
  zone = zone - 1
  while true do
    local high, low = product(next64(rng), range)
    if not math.ult(zone, low) then
      return least + high
    end
  end
end

function M.rng_int(handle, least, most)
  local rng = generator("rng_int", handle)
  least, most = integer("rng_int", "min", least), integer("rng_int", "max", most)
  if least > most then
    fail("rng_int", "min is greater than max")
  end
  return between(rng, least, most)
end

function M.shuffle(handle, list)
  local rng = generator("shuffle", handle)
  if type(list) ~= "table" then
    fail("shuffle", "expected an array, got %s", type(list))
  end
  for i = #list, 2, -1 do
    local j = between(rng, 1, i)
    list[i], list[j] = list[j], list[i]
  end
  return list
end

-- Statistics ---------------------------------------------------------------------------------------------------------

-- A sum with error compensation (Neumaier).
local function sum(data)
  local total, lost = 0.0, 0.0
  for i = 1, #data do
    local value = data[i]
    local new = total + value
    if abs(total) >= abs(value) then
      lost = lost + ((total - new) + value)
    else
      lost = lost + ((value - new) + total)
    end
    total = new
  end
  return total + lost
end

local function mean(data)
  return sum(data) / #data
end

local function variance(data)
  local middle, squares = mean(data), {}
  for i = 1, #data do
    squares[i] = (data[i] - middle) ^ 2
  end
  return sum(squares) / (#data - 1)
end

local function percentile(data, percent)
  sort(data)
  local rank = percent / 100 * (#data - 1)
  local below = floor(rank)
  local low = data[below + 1]
  local high = data[below + 2] or low
  return low + (rank - below) * (high - low)
end

function M.mean(data)
  return mean(numbers("mean", data))
end

function M.variance(data)
  return variance(numbers("variance", data, 2))
end

function M.stddev(data)
  return sqrt(variance(numbers("stddev", data, 2)))
end

function M.median(data)
  return percentile(numbers("median", data), 50)
end

function M.percentile(data, percent)
  data, percent = numbers("percentile", data), number("percentile", "the percentile", percent)
  if percent < 0 or percent > 100 then
    fail("percentile", "the percentile must be between 0 and 100")
  end
  return percentile(data, percent)
end

function M.softmax(data)
  data = numbers("softmax", data)
  local most = data[1]
  for i = 2, #data do
    most = data[i] > most and data[i] or most
  end
  for i = 1, #data do
    data[i] = exp(data[i] - most)
  end
  local total = sum(data)
  for i = 1, #data do
    data[i] = data[i] / total
  end
  return data
end

function M.entropy(data)
  data = numbers("entropy", data)
  for i = 1, #data do
    local p = data[i]
    if p < 0 then
      fail("entropy", "value %d is negative", i)
    end
    data[i] = p > 0 and -p * log(p) or 0.0
  end
  return sum(data)
end

-- The normal distribution ---------------------------------------------------------------------------------------------

-- The upper tail of the error function. A series near zero; further out a continued fraction, evaluated from its end.
local function erfc(x)
  if x < 0 then
    return 2 - erfc(-x)
  elseif x < 1 then
    local term, total, n = x, x, 0
    repeat
      n = n + 1
      term = -term * x * x / n
      local part = term / (2 * n + 1)
      total = total + part
    until abs(part) < 1e-17 * abs(total) or term == 0
    return 1 - total * 1.1283791670955126
  elseif x > 27 then
    return 0.0
  end
  local fraction = 0.0
  for n = 200, 1, -1 do
    fraction = n / 2 / (x + fraction)
  end
  return exp(-x * x) * 0.5641895835477563 / (x + fraction)
end

local function normal_cdf(z)
  return erfc(-z * 0.7071067811865476) / 2
end

-- The quantile of p, by bisection: the distribution is monotonic. Sixty halvings are exact enough.
local function normal_quantile(p)
  local low, high = -40.0, 40.0
  for _ = 1, 64 do
    local middle = (low + high) / 2
    if normal_cdf(middle) < p then
      low = middle
    else
      high = middle
    end
  end
  return (low + high) / 2
end

function M.normal_cdf(x, mu, sigma)
  x = number("normal_cdf", "x", x)
  mu = mu == nil and 0.0 or number("normal_cdf", "mu", mu)
  sigma = sigma == nil and 1.0 or number("normal_cdf", "sigma", sigma)
  if sigma <= 0 then
    fail("normal_cdf", "sigma must be greater than 0")
  end
  return normal_cdf((x - mu) / sigma)
end

function M.wilson_ci(successes, total, confidence)
  successes, total = number("wilson_ci", "successes", successes), number("wilson_ci", "total", total)
  confidence = confidence == nil and 0.95 or number("wilson_ci", "confidence", confidence)
  if total <= 0 then
    fail("wilson_ci", "total must be greater than 0")
  elseif successes < 0 or successes > total then
    fail("wilson_ci", "successes must be between 0 and total")
  elseif confidence <= 0 or confidence >= 1 then
    fail("wilson_ci", "confidence must be between 0 and 1")
  end
  local z = normal_quantile((1 + confidence) / 2)
  local share, squared = successes / total, z * z
  local whole = 1 + squared / total
  local center = (share + squared / (2 * total)) / whole
  local reach = z / whole * sqrt(share * (1 - share) / total + squared / (4 * total * total))
  -- At the ends the interval touches them; rounding must not move it away or beyond.
  return {
    lower = successes == 0 and 0.0 or math.max(0.0, center - reach),
    upper = successes == total and 1.0 or math.min(1.0, center + reach),
    center = center,
  }
end

-- Welch's test ---------------------------------------------------------------------------------------------------------

-- Logarithm of the gamma function for x > 0: recurs upwards to where Stirling's series is exact.
local function lgamma(x)
  local shift = 0.0
  while x < 15 do
    shift = shift + log(x)
    x = x + 1
  end
  local r = 1 / (x * x)
  local series = (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r * (1 / 1680 - r * (1 / 1188 - r * 691 / 360360))))) / x
  return (x - 0.5) * log(x) - x + 0.9189385332046727 + series - shift
end

-- The continued fraction of the incomplete beta function (Lentz), good for x below (a + 1) / (a + b + 2).
local function beta_fraction(x, a, b)
  local tiny = 1e-300
  local c, d = 1.0, 1 - (a + b) * x / (a + 1)
  d = 1 / (abs(d) < tiny and tiny or d)
  local value = d
  for m = 1, 10000 do
    for half = 1, 2 do
      local term
      if half == 1 then
        term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
      else
        term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
      end
      d = 1 + term * d
      d = 1 / (abs(d) < tiny and tiny or d)
      c = 1 + term / c
      c = abs(c) < tiny and tiny or c
      value = value * c * d
    end
    if abs(c * d - 1) < 1e-16 then
      break
    end
  end
  return value
end

-- The share of the beta distribution below x, where `rest` is 1 - x, passed separately so that neither loses digits.
local function beta_share(x, rest, a, b)
  if x <= 0 then
    return 0.0
  elseif rest <= 0 then
    return 1.0
  end
  local front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(rest))
  if x < (a + 1) / (a + b + 2) then
    return front * beta_fraction(x, a, b) / a
  end
  return 1 - front * beta_fraction(rest, b, a) / b
end

function M.welch_t_test(xs, ys)
  xs, ys = numbers("welch_t_test", xs, 2), numbers("welch_t_test", ys, 2)
  local a, b = variance(xs) / #xs, variance(ys) / #ys
  if a + b == 0 then
    fail("welch_t_test", "neither sample varies")
  end
  local t = (mean(xs) - mean(ys)) / sqrt(a + b)
  local df = (a + b) ^ 2 / (a * a / (#xs - 1) + b * b / (#ys - 1))
  local p = beta_share(df / (df + t * t), t * t / (df + t * t), df / 2, 0.5)
  return { t_stat = t, df = df, p_value = p }
end

-- Not implemented yet --------------------------------------------------------------------------------------------------

local LATER = [[
  sample_with_replacement normal_sample beta_sample gamma_sample exp_sample uniform_sample lognormal_sample
  student_t_sample chi_squared_sample poisson_sample binomial_sample dirichlet_sample categorical_sample
  iqr covariance correlation log_normalize histogram beta_cdf gamma_cdf poisson_cdf normal_inverse_cdf normal_ppf
  beta_ppf beta_mean beta_variance erf erfc lgamma beta ln_beta regularized_incomplete_beta
  regularized_incomplete_gamma digamma factorial ln_factorial logsumexp logit expit mann_whitney_u chi_squared_test
  ks_test rank spearman_correlation kendall_tau ndcg mrr kl_divergence js_divergence cross_entropy moving_average
  ewma autocorrelation permutations
]]

-- Created on first use, so that a paused session does not hold fifty functions that only raise.
alc.math = setmetatable(M, {
  __metatable = false,
  __index = function(_, name)
    for known in gmatch(LATER, "%S+") do
      if known == name then
        return function()
          fail(name, "comes with a later version of everhold")
        end
      end
    end
  end,
})
