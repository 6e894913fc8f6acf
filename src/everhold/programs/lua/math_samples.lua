-- alc.math: samples of distributions.
--
-- A chunk of the Lua library: `local alc, host = ...` adds functions to `alc.math`. The methods, and the order in which
-- they draw, are those of algocline, so that a seed gives the same samples.

local alc, host = ...

local exp, log, sqrt, floor, abs, huge, pi = math.exp, math.log, math.sqrt, math.floor, math.abs, math.huge, math.pi
local tointeger = math.tointeger
local arguments, random, edges = host.part("alc_math"), host.part("math_random"), host.part("math_ziggurat")
local fail, number, positive, share = arguments.fail, arguments.number, arguments.positive, arguments.share
local count, numbers = arguments.count, arguments.numbers
local generators, generator, beyond = random.generators, random.generator, random.beyond

local M = alc.math

local NORMAL, NORMAL_END = edges.normal, edges.normal[2]
local EXPONENTIAL, EXPONENTIAL_END = edges.exponential, edges.exponential[2]

-- The draws are written out where they are needed, because a call takes as long as the rest.

local function half_open(rng)
  local at = rng.at
  local draw = rng[at]
  if draw then
    rng.at = at + 1
  else
    draw = beyond(rng)
  end
  return (draw >> 11) * 0x1p-53
end

-- Neither 0 nor 1
local function open(rng)
  local at = rng.at
  local draw = rng[at]
  if draw then
    rng.at = at + 1
  else
    draw = beyond(rng)
  end
  return (draw >> 11 | 1) * 0x1p-53
end

-- The tail beyond the last edge of the normal distribution, by Marsaglia's method
local function tail(rng)
  while true do
    local x, y = log(open(rng)) / NORMAL_END, log(open(rng))
    if -2 * y >= x * x then
      return NORMAL_END - x
    end
  end
end

-- Eight bits of a draw choose the layer, 52 the place in it. Nearly always that is below the edge of the next layer.
local function normal(rng)
  while true do
    local at = rng.at
    local draw = rng[at]
    if draw then
      rng.at = at + 1
    else
      draw = beyond(rng)
    end
    local layer = draw & 0xff
    local u = ((draw >> 12) - 0x8000000000000) * 0x1p-51
    local edge, x = NORMAL[layer + 2], u * NORMAL[layer + 1]
    if (x < 0 and -x or x) < edge then
      return x
    elseif layer == 0 then
      return u < 0 and -tail(rng) or tail(rng)
    end
    local low, high = exp(-edge * edge / 2), exp(-NORMAL[layer + 1] * NORMAL[layer + 1] / 2)
    if low + (high - low) * half_open(rng) < exp(-x * x / 2) then
      return x
    end
  end
end

local function exponential(rng)
  while true do
    local at = rng.at
    local draw = rng[at]
    if draw then
      rng.at = at + 1
    else
      draw = beyond(rng)
    end
    local layer = draw & 0xff
    local edge, x = EXPONENTIAL[layer + 2], (draw >> 11 | 1) * 0x1p-53 * EXPONENTIAL[layer + 1]
    if x < edge then
      return x
    elseif layer == 0 then
      return EXPONENTIAL_END - log(half_open(rng))
    end
    local low, high = exp(-edge), exp(-EXPONENTIAL[layer + 1])
    if low + (high - low) * half_open(rng) < exp(-x) then
      return x
    end
  end
end

-- From low to high, without high. The width shrinks if rounding would exceed high.
local function width_of(low, high)
  local width = high - low
  while width * (1 - 0x1p-52) + low > high do
    width = width * (1 - 0x1p-53)
  end
  return width
end

local function uniform(rng, low, width)
  local at = rng.at
  local draw = rng[at]
  if draw then
    rng.at = at + 1
  else
    draw = beyond(rng)
  end
  return (draw >> 12) * 0x1p-52 * width + low
end

-- Marsaglia and Tsang's method for shapes above 1; smaller shapes take a power of a uniform number, drawn before.
local function gamma(rng, shape, scale)
  if shape == 1 then
    return exponential(rng) * (1 / (1 / scale))
  end
  local power = 1.0
  local d = (shape < 1 and shape + 1 or shape) - 1 / 3
  local u = shape < 1 and open(rng)
  local c = 1 / sqrt(9 * d)
  while true do
    local x = normal(rng)
    local root = 1 + c * x
    if root > 0 then
      local v, v_open = root * root * root, open(rng)
      local squared = x * x
      if v_open < 1 - 0.0331 * squared * squared or log(v_open) < 0.5 * squared + d * (1 - v + log(v)) then
        if u then
          power = u ^ (1 / shape)
        end
        return d * v * scale * power
      end
    end
  end
end

local function chi_squared(rng, df)
  if df == 1 then
    local x = normal(rng)
    return x * x
  end
  return gamma(rng, 0.5 * df, 2.0)
end

-- Cheng's methods: BB if both parameters are above 1, else BC.

local LN4, LN5 = log(4.0), log(5.0)

local function beta_bb(rng, a, b)
  local whole = a + b
  local scale = sqrt((whole - 2) / (2 * a * b - whole))
  local gain = a + 1 / scale
  while true do
    local u, other = open(rng), open(rng)
    local v = scale * log(u / (1 - u))
    local w, z, r = a * exp(v), u * u * other, gain * v - LN4
    local s = a + r - w
    if s + 1 + LN5 >= 5 * z then
      return w
    end
    local t = log(z)
    if s >= t or not (r + whole * log(whole / (b + w)) < t) then
      return w
    end
  end
end

local function beta_bc(rng, a, b)
  local whole, scale, delta = a + b, 1 / b, 1 + a - b
  local first = delta * (1 / 18 / 4 + 3 / 18 / 4 * b) / (a * scale - 14 / 18)
  local second = 0.25 + (0.5 + 0.25 / delta) * b
  while true do
    local u, other = open(rng), open(rng)
    local z, kept, sure
    if u < 0.5 then
      local y = u * other
      z = u * y
      kept = 0.25 * other + z - y < first
    else
      z = u * u * other
      sure = z <= 0.25
      kept = sure or z < second
    end
    if kept then
      local v = scale * log(u / (1 - u))
      local w = a * exp(v)
      if sure or not (whole * (log(whole / (b + w)) + v) - LN4 < log(z)) then
        return w
      end
    end
  end
end

local function beta(rng, alpha, other)
  local least, most = alpha, other
  if not (alpha < other) then
    least, most = other, alpha
  end
  if least > 1 then
    local w = beta_bb(rng, least, most)
    if alpha < other then
      return w == huge and 1.0 or w / (most + w)
    end
    return most / (most + w)
  end
  local w = beta_bc(rng, most, least)
  if alpha < other then
    return least / (least + w)
  end
  return w == huge and 1.0 or w / (least + w)
end

-- Products of uniform numbers (Knuth), for a small mean
local function poisson_few(rng, lambda)
  local goal, found, product = exp(-lambda), 0, half_open(rng)
  while product > goal do
    product = product * half_open(rng)
    found = found + 1
  end
  return found
end

-- Ahrens and Dieter's method PD, with the constants of their table 1
local A = {
  -0.5000000002, 0.3333333343, -0.2499998565, 0.1999997049, -0.1666848753, 0.1428833286, -0.1241963125, 0.1101687109,
  -0.1142650302, 0.1055093006,
}

local function poisson_many(rng, lambda)
  local s, b1 = sqrt(lambda), 1 / 24 / lambda
  local b2 = 0.3 * b1 * b1
  local c3 = 1 / 7 * b1 * b2
  local c2, c1 = b2 - 15 * c3, b1 - 6 * b2 + 45 * c3
  local c0 = 1 - b1 + 3 * b2 - 15 * c3
  local root = sqrt(2 * pi)

  local function densities(k)
    local px, py
    if k < 10 then
      local product = 1.0
      for i = 2, k do
        product = product * i
      end
      px, py = -lambda, lambda ^ k / product
    else
      local delta = 1 / (12 * k)
      delta = delta - 4.8 * (delta * delta * delta)
      local v = (lambda - k) / k
      if abs(v) <= 0.25 then
        local total = 0.0
        for i = 10, 1, -1 do
          total = total * v + A[i]
        end
        px = k * (v * v) * total - delta
      else
        px = k * log(1 + v) - (lambda - k) - delta
      end
      py = 1 / root / sqrt(k)
    end
    local x = (k - lambda + 0.5) / s
    local fy = 1 / root / s * (((c3 * x * x + c2) * x * x + c1) * x * x + c0)
    return px, py, -0.5 * x * x, fy
  end

  local g = lambda + s * normal(rng)
  if g >= 0 then
    local k = floor(g) + 0.0
    if k >= floor(lambda - 1.1484) then
      return k
    end
    local u, off = half_open(rng), lambda - k
    if 6 * (lambda * lambda) * u >= off * off * off then
      return k
    end
    local px, py, fx, fy = densities(k)
    if fy * (1 - u) <= py * exp(px - fx) then
      return k
    end
  end
  while true do
    local e = exponential(rng)
    local u = half_open(rng) * 2 - 1
    local t = 1.8 + (u < 0 and -e or e)
    if t > -0.6744 then
      local k = floor(lambda + s * t) + 0.0
      local px, py, fx, fy = densities(k)
      if 0.1069 / lambda * abs(u) <= py * exp(px + e) - fy * exp(fx + e) then
        return k
      end
    end
  end
end

-- Inversion, for a small mean
local function binomial_few(rng, n, p)
  local q = 1 - p
  if q == 1 then
    return poisson_few(rng, n * p)
  end
  local odds = p / q
  local start, a = q ^ n, (n + 1) * odds
  while true do
    local r, u, x = start, half_open(rng), 0
    while u > r and x <= 110 do
      u = u - r
      x = x + 1
      r = r * (a / x - odds)
    end
    if x <= 110 then
      return x
    end
  end
end

local function whole_part(x)
  return x < 0 and -floor(-x) or floor(x)
end

local function stirling(a)
  local squared = a * a
  return (13860 - (462 - (132 - (99 - 140 / squared) / squared) / squared) / squared) / a / 166320
end

local function falling(a)
  return a * (1 + 0.5 * a)
end

-- Kachitvichyanukul and Schmeiser's method BTPE: a triangle, two parallelograms and two exponential tails cover the
-- probabilities.
local function binomial_many(rng, n, p)
  local q, np = 1 - p, n * p
  local npq, top = np * q, np + p
  local m = floor(top) + 0.0
  local p1 = floor(2.195 * sqrt(npq) - 4.6 * q) + 0.5
  local middle = m + 0.5
  local left, right = middle - p1, middle + p1
  local c = 0.134 + 20.5 / (15.3 + m)
  local p2 = p1 * (1 + 2 * c)
  local fall_left, fall_right = falling((top - left) / (top - left * p)), falling((right - top) / (right * q))
  local p3 = p2 + c / fall_left
  local p4 = p3 + c / fall_right
  local width = width_of(0.0, p4)

  -- Whether y is kept, where v is the height of the point.
  local function kept(y, v)
    local k = abs(y - m)
    if not (k > 20 and k < 0.5 * npq - 1) then
      local s, f = p / q, 1.0
      local a = s * (n + 1)
      for i = m + 1, y do
        f = f * (a / i - s)
      end
      for i = y + 1, m do
        f = f / (a / i - s)
      end
      return not (v > f)
    end
    local rho = (k / npq) * ((k * (k / 3 + 0.625) + 1 / 6) / npq + 0.5)
    local t, height = -0.5 * k * k / npq, log(v)
    if height < t - rho or height > t + rho then
      return height < t - rho
    end
    local x1, f1, z, w = y + 1, m + 1, n + 1 - m, n - y + 1
    return not (
      height
      > middle * log(f1 / x1)
        + (n - m + 0.5) * log(z / w)
        + (y - m) * log(w * p / (x1 * q))
        + stirling(f1)
        + stirling(z)
        - stirling(x1)
        - stirling(w)
    )
  end

  while true do
    local u, v = uniform(rng, 0.0, width), uniform(rng, 0.0, 1.0)
    local y
    if u <= p1 then
      return whole_part(middle - p1 * v + u) + 0.0
    elseif u <= p2 then
      local x = left + (u - p1) / c
      v = v * c + 1 - abs(x - middle) / p1
      y = v <= 1 and whole_part(x) + 0.0
    elseif v > 0 then
      if u <= p3 then
        y = whole_part(left + log(v) / fall_left) + 0.0
        v = v * ((u - p2) * fall_left)
      else
        y = whole_part(right - log(v) / fall_right) + 0.0
        v = v * ((u - p3) * fall_right)
      end
      y = y >= 0 and y <= n and y
    end
    if y and kept(y, v) then
      return y
    end
  end
end

-- The three that simulations use most keep the last parameters that they checked. Nothing equals the first: NaN.

local last_mean, last_stddev, mean, stddev = 0 / 0, 0 / 0, nil, nil

function M.normal_sample(handle, new_mean, new_stddev)
  local rng = generators[handle] or generator("normal_sample", handle)
  if new_mean ~= last_mean or new_stddev ~= last_stddev then
    mean, stddev = number("normal_sample", "the mean", new_mean), number("normal_sample", "the deviation", new_stddev)
    last_mean, last_stddev = new_mean, new_stddev
  end
  return mean + stddev * normal(rng)
end

function M.lognormal_sample(handle, mu, sigma)
  local rng = generator("lognormal_sample", handle)
  mu, sigma = number("lognormal_sample", "mu", mu), number("lognormal_sample", "sigma", sigma)
  return exp(mu + sigma * normal(rng))
end

local last_low, last_high, low, width = 0 / 0, 0 / 0, nil, nil

function M.uniform_sample(handle, new_low, new_high)
  local rng = generators[handle] or generator("uniform_sample", handle)
  if new_low ~= last_low or new_high ~= last_high then
    local least, most = number("uniform_sample", "low", new_low), number("uniform_sample", "high", new_high)
    if least >= most then
      fail("uniform_sample", "low must be smaller than high")
    elseif most - least == huge then
      fail("uniform_sample", "low and high are too far apart")
    end
    low, width = least, width_of(least, most)
    last_low, last_high = new_low, new_high
  end
  return uniform(rng, low, width)
end

local last_lambda, mean_time = 0 / 0, nil

-- With a rate of 0 nothing ever happens: the sample is infinite.
function M.exp_sample(handle, new_lambda)
  local rng = generators[handle] or generator("exp_sample", handle)
  if new_lambda ~= last_lambda then
    local lambda = number("exp_sample", "lambda", new_lambda)
    if lambda < 0 then
      fail("exp_sample", "lambda must not be negative")
    end
    mean_time, last_lambda = 1 / abs(lambda), new_lambda
  end
  return exponential(rng) * mean_time
end

function M.gamma_sample(handle, shape, scale)
  local rng = generator("gamma_sample", handle)
  return gamma(rng, positive("gamma_sample", "shape", shape), positive("gamma_sample", "scale", scale))
end

function M.beta_sample(handle, alpha, other)
  local rng = generator("beta_sample", handle)
  return beta(rng, positive("beta_sample", "alpha", alpha), positive("beta_sample", "beta", other))
end

function M.chi_squared_sample(handle, df)
  local rng = generator("chi_squared_sample", handle)
  return chi_squared(rng, positive("chi_squared_sample", "df", df))
end

function M.student_t_sample(handle, df)
  local rng = generator("student_t_sample", handle)
  df = positive("student_t_sample", "df", df)
  local x = normal(rng)
  return x * sqrt(df / chi_squared(rng, df))
end

function M.poisson_sample(handle, lambda)
  local rng = generator("poisson_sample", handle)
  lambda = positive("poisson_sample", "lambda", lambda)
  if lambda > 1.844e19 then
    fail("poisson_sample", "lambda must not be greater than 1.844e19")
  end
  local found = lambda < 12 and poisson_few(rng, lambda) or poisson_many(rng, lambda)
  return tointeger(found) or found
end

function M.binomial_sample(handle, n, p)
  local rng = generator("binomial_sample", handle)
  n, p = count("binomial_sample", "n", n), share("binomial_sample", "p", p)
  if n > 0x20000000000000 then
    fail("binomial_sample", "n must not be greater than 2^53")
  elseif p == 0 or p == 1 then
    return p == 0 and 0 or n
  end
  local less = p > 0.5 and 1 - p or p
  local found = n * less < 10 and binomial_few(rng, n, less) or binomial_many(rng, n + 0.0, less)
  return tointeger(p > 0.5 and n - found or found)
end

function M.dirichlet_sample(handle, alphas)
  local rng, out, total = generator("dirichlet_sample", handle), numbers("dirichlet_sample", alphas, 2), 0.0
  for i = 1, #out do
    positive("dirichlet_sample", "value " .. i, out[i])
  end
  for i = 1, #out do
    out[i] = gamma(rng, out[i], 1.0)
    total = total + out[i]
  end
  if total == 0 then
    fail("dirichlet_sample", "the values are too small: all samples are 0")
  end
  for i = 1, #out do
    out[i] = out[i] / total
  end
  return out
end

-- The place of a weight, from 1.
function M.categorical_sample(handle, weights)
  local rng, sums, total = generator("categorical_sample", handle), numbers("categorical_sample", weights), 0.0
  for i = 1, #sums do
    if sums[i] < 0 then
      fail("categorical_sample", "value %d is negative", i)
    end
    total = total + sums[i]
    sums[i] = total
  end
  if total == 0 or total == huge then
    fail("categorical_sample", total == 0 and "all weights are 0" or "the weights are too large")
  end
  local chosen = uniform(rng, 0.0, width_of(0.0, total))
  for i = 1, #sums - 1 do
    if chosen < sums[i] then
      return i
    end
  end
  return #sums
end
