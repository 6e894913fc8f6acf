-- alc.math: special functions, and the distributions made of them.
--
-- A chunk of the Lua library: `local alc, host = ...` adds functions to `alc.math`, and returns what tests are made of.

local alc, host = ...

local exp, log, sqrt, abs, floor, huge, pi = math.exp, math.log, math.sqrt, math.abs, math.floor, math.huge, math.pi
local arguments = host.part("alc_math")
local fail, real, number, positive = arguments.fail, arguments.real, arguments.number, arguments.positive
local share, count = arguments.share, arguments.count

local M = alc.math

local TINY = 1e-300 -- in place of a 0 that would be divided by
local CLOSE = 4e-16 -- a factor that differs from 1 by less changes nothing

-- The error function ---------------------------------------------------------------------------------------------------

-- A series of positive terms, good for small x.
local function erf_series(x)
  local term, total, n = x, x, 0
  repeat
    n = n + 1
    term = term * 2 * x * x / (2 * n + 1)
    total = total + term
  until abs(term) <= 1e-17 * abs(total)
  return total * exp(-x * x) * 1.1283791670955126
end

-- Above 2 a continued fraction, evaluated from its end. It converges faster the further out.
local function erfc(x)
  if x < 0 then
    return 2 - erfc(-x)
  elseif x < 2 then
    return 1 - erf_series(x)
  elseif x > 27.3 then
    return 0.0
  end
  local fraction = 0.0
  for n = floor(300 / (x * x)) + 12, 1, -1 do
    fraction = n / 2 / (x + fraction)
  end
  return exp(-x * x) * 0.5641895835477563 / (x + fraction)
end

function M.erf(x)
  x = real("erf", "x", x)
  if abs(x) < 2 then
    return erf_series(x)
  end
  return x > 0 and 1 - erfc(x) or erfc(-x) - 1
end

function M.erfc(x)
  return erfc(real("erfc", "x", x))
end

-- Gamma and beta -------------------------------------------------------------------------------------------------------

-- What Stirling's formula lacks of the logarithm of gamma, for x of 15 and more.
local function stirling(x)
  local r = 1 / (x * x)
  return (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r * (1 / 1680 - r * (1 / 1188 - r * 691 / 360360))))) / x
end

local ROOT = 0.9189385332046727 -- half the logarithm of 2 pi

-- Logarithm of the size of gamma: recurs upwards to where Stirling's formula is exact. Infinite at 0, -1, -2 ...
local function lgamma(x)
  if x <= 0 then
    if x == floor(x) then
      return huge
    end
    return log(pi / abs(math.sin(pi * (x - floor(x))))) - lgamma(1 - x)
  end
  if x == 1 or x == 2 or x == huge then
    return x == huge and huge or 0.0
  end
  local product = 1.0
  while x < 15 do
    product = product * x
    x = x + 1
  end
  return (x - 0.5) * (log(x) - 1) - 0.5 + ROOT + stirling(x) - log(product)
end

-- The same for all x > 0: the difference of two close numbers only where these are small.
local function lack(x)
  return x >= 15 and stirling(x) or lgamma(x) - ((x - 0.5) * log(x) - x + ROOT)
end

local function ln_beta(a, b)
  if a + b < 15 then
    return lgamma(a) + lgamma(b) - lgamma(a + b)
  end
  local small, large = a < b and a or b, a < b and b or a
  if small < 15 then
    -- lgamma(large) - lgamma(large + small), without their common size
    local near = log(1 + small / large)
    if small < large * 1e-4 then
      local r = small / large
      near = r * (1 - r * (1 / 2 - r * (1 / 3 - r * (1 / 4 - r / 5))))
    end
    return lgamma(small) + lack(large) - lack(large + small) - (large + small - 0.5) * near - small * log(large) + small
  end
  local whole = small + large
  return ROOT - log(small) / 2 + lack(small) + lack(large) - lack(whole)
    + (small) * log(small / whole) + (large - 0.5) * log(large / whole)
end

-- a * log(a / m) + m - a, exact also where a and m are close.
local function deviance(a, m)
  local d = a - m
  if abs(d) >= 0.1 * (a + m) then
    return a * log(a / m) - d
  end
  local v = d / (a + m)
  local squared, term, total, n = v * v, 2 * a * v, d * v, 1
  repeat
    n = n + 2
    term = term * squared
    local new = total + term / n
    local done = new == total
    total = new
  until done
  return total
end

-- x ^ a * rest ^ b / beta(a, b), without the large numbers that cancel.
local function beta_front(x, rest, a, b)
  local whole = a + b
  return sqrt(a / whole * b / (2 * pi))
    * exp(lack(whole) - lack(a) - lack(b) - deviance(a, whole * x) - deviance(b, whole * rest))
end

-- The continued fraction of the incomplete beta function (Lentz), good for x below (a + 1) / (a + b + 2).
local function beta_fraction(x, a, b)
  local c, d = 1.0, 1 - (a + b) * x / (a + 1)
  d = 1 / (abs(d) < TINY and TINY or d)
  local value, m = d, 0
  repeat
    m = m + 1
    local term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
    d = 1 + term * d
    d = 1 / (abs(d) < TINY and TINY or d)
    c = 1 + term / c
    c = abs(c) < TINY and TINY or c
    value = value * c * d
    term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
    d = 1 + term * d
    d = 1 / (abs(d) < TINY and TINY or d)
    c = 1 + term / c
    c = abs(c) < TINY and TINY or c
    value = value * c * d
  until not (abs(c * d - 1) > CLOSE)
  return value
end

-- The shares of the beta distribution below and above x, where `rest` is 1 - x: passed separately, and both returned,
-- so that neither loses digits.
local function beta_shares(x, rest, a, b)
  if x <= 0 then
    return 0.0, 1.0
  elseif rest <= 0 then
    return 1.0, 0.0
  end
  local front = beta_front(x, rest, a, b)
  if x < (a + 1) / (a + b + 2) then
    local below = front * beta_fraction(x, a, b) / a
    return below, 1 - below
  end
  local above = front * beta_fraction(rest, b, a) / b
  return 1 - above, above
end

-- The shares of the gamma distribution of shape a below and above x: a series, and far out a continued fraction (Lentz).
local function gamma_shares(a, x)
  if x <= 0 then
    return 0.0, 1.0
  elseif x == huge then
    return 1.0, 0.0
  end
  local front = sqrt(a / (2 * pi)) * exp(-lack(a) - deviance(a, x))
  if x < a + 1 then
    local term, total, n = 1 / a, 1 / a, a
    repeat
      n = n + 1
      term = term * x / n
      total = total + term
    until not (term > total * 1e-17)
    return front * total, 1 - front * total
  end
  local b = x + 1 - a
  local c, d, n = 1 / TINY, 1 / b, 0
  local value = d
  repeat
    n = n + 1
    local term = -n * (n - a)
    b = b + 2
    d = term * d + b
    d = 1 / (abs(d) < TINY and TINY or d)
    c = b + term / c
    c = abs(c) < TINY and TINY or c
    value = value * c * d
  until not (abs(c * d - 1) > CLOSE)
  return 1 - front * value, front * value
end

function M.lgamma(x)
  return lgamma(number("lgamma", "x", x))
end

function M.ln_beta(a, b)
  return ln_beta(positive("ln_beta", "a", a), positive("ln_beta", "b", b))
end

function M.beta(a, b)
  return exp(ln_beta(positive("beta", "a", a), positive("beta", "b", b)))
end

function M.regularized_incomplete_beta(x, a, b)
  x = share("regularized_incomplete_beta", "x", x)
  a, b = positive("regularized_incomplete_beta", "a", a), positive("regularized_incomplete_beta", "b", b)
  return (beta_shares(x, 1 - x, a, b))
end

function M.regularized_incomplete_gamma(a, x)
  a, x = positive("regularized_incomplete_gamma", "a", a), real("regularized_incomplete_gamma", "x", x)
  if x < 0 then
    fail("regularized_incomplete_gamma", "x must not be negative")
  end
  return (gamma_shares(a, x))
end

-- The derivative of lgamma: recurs upwards to where the asymptotic series is exact.
local function digamma(x)
  if x <= 0 then
    if x == floor(x) then
      return -huge
    end
    return digamma(1 - x) - pi / math.tan(pi * (x - floor(x)))
  end
  local shift = 0.0
  while x < 15 do
    shift = shift + 1 / x
    x = x + 1
  end
  local r = 1 / (x * x)
  local series = r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r * (1 / 132 - r * 691 / 32760)))))
  return log(x) - 0.5 / x - series - shift
end

function M.digamma(x)
  return digamma(number("digamma", "x", x))
end

local function factorial(n)
  local product = 1.0
  for i = 2, n do
    product = product * i
  end
  return product
end

function M.factorial(n)
  n = count("factorial", "n", n)
  if n > 170 then
    fail("factorial", "of more than 170 is too large for a number; ln_factorial is not")
  end
  return factorial(n)
end

function M.ln_factorial(n)
  n = count("ln_factorial", "n", n)
  return n > 170 and lgamma(n + 1.0) or log(factorial(n))
end

function M.logit(p)
  p = number("logit", "p", p)
  if p <= 0 or p >= 1 then
    fail("logit", "p must be greater than 0 and smaller than 1")
  end
  return log(p / (1 - p))
end

function M.expit(x)
  x = real("expit", "x", x)
  if x >= 0 then
    return 1 / (1 + exp(-x))
  end
  return exp(x) / (1 + exp(x))
end

-- Distributions --------------------------------------------------------------------------------------------------------

local function normal_cdf(z)
  return erfc(-z * 0.7071067811865476) / 2
end

-- The value below which a share p lies: a rational guess for the nearer tail (Abramowitz and Stegun 26.2.23), and steps
-- of Halley's method. A step squares the error twice over, so three are exact.
local function normal_ppf(p)
  if p <= 0 or p >= 1 then
    return p <= 0 and -huge or huge
  elseif p == 0.5 then
    return 0.0
  end
  local tail = p < 0.5 and p or 1 - p
  local t = sqrt(-2 * log(tail))
  local z = (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t
  for _ = 1, 3 do
    local off = (normal_cdf(z) / tail - 1) * tail * 2.5066282746310002 * exp(z * z / 2)
    z = z - off / (1 + z * off / 2)
  end
  return p < 0.5 and z or -z
end

local function spread(name, sigma)
  return sigma == nil and 1.0 or positive(name, "sigma", sigma)
end

local function middle(name, mu)
  return mu == nil and 0.0 or number(name, "mu", mu)
end

function M.normal_cdf(x, mu, sigma)
  x, mu, sigma = real("normal_cdf", "x", x), middle("normal_cdf", mu), spread("normal_cdf", sigma)
  return normal_cdf((x - mu) / sigma)
end

function M.normal_inverse_cdf(p, mu, sigma)
  p, mu = share("normal_inverse_cdf", "p", p), middle("normal_inverse_cdf", mu)
  return mu + spread("normal_inverse_cdf", sigma) * normal_ppf(p)
end

function M.normal_ppf(p)
  return normal_ppf(share("normal_ppf", "p", p))
end

local function shapes(name, alpha, beta)
  return positive(name, "alpha", alpha), positive(name, "beta", beta)
end

function M.beta_cdf(x, alpha, beta)
  x = real("beta_cdf", "x", x)
  alpha, beta = shapes("beta_cdf", alpha, beta)
  return (beta_shares(x, 1 - x, alpha, beta))
end

-- The x in the lower half below which a share p lies. Newton's method on logarithms, where the distribution is nearly
-- straight; a step that leaves the known bounds is replaced by halving these.
local function lower_ppf(p, a, b)
  local low, high, goal = -745.0, -0.6931471805599453, log(p)
  local u = (goal + log(a) + ln_beta(a, b)) / a -- for small x the distribution is x ^ a / (a * beta(a, b))
  if not (u > low and u < high) then
    u = log(a / (a + b))
  end
  u = u > low and u < high and u or (low + high) / 2
  for _ = 1, 200 do
    local x = exp(u)
    local found = beta_shares(x, 1 - x, a, b)
    if found < p then
      low = u
    else
      high = u
    end
    local slope = beta_front(x, 1 - x, a, b) / (1 - x)
    local new = u - (found > 0 and (log(found) - goal) * found / slope or huge)
    if not (new > low and new < high) then
      new = (low + high) / 2
    end
    local moved = abs(new - u)
    u = new
    if moved <= 4e-16 * (1 - u) then
      break
    end
  end
  return exp(u)
end

function M.beta_ppf(p, alpha, beta)
  p = share("beta_ppf", "p", p)
  alpha, beta = shapes("beta_ppf", alpha, beta)
  if p == 0 or p == 1 then
    return p
  end
  local below = beta_shares(0.5, 0.5, alpha, beta)
  if p <= below then
    return lower_ppf(p, alpha, beta)
  end
  return 1 - lower_ppf(1 - p, beta, alpha)
end

function M.beta_mean(alpha, beta)
  alpha, beta = shapes("beta_mean", alpha, beta)
  return alpha / (alpha + beta)
end

function M.beta_variance(alpha, beta)
  alpha, beta = shapes("beta_variance", alpha, beta)
  local whole = alpha + beta
  return alpha / whole * (beta / whole) / (whole + 1)
end

function M.gamma_cdf(x, shape, scale)
  x = real("gamma_cdf", "x", x)
  shape, scale = positive("gamma_cdf", "shape", shape), positive("gamma_cdf", "scale", scale)
  return (gamma_shares(shape, x / scale))
end

function M.poisson_cdf(k, lambda)
  k, lambda = count("poisson_cdf", "k", k), positive("poisson_cdf", "lambda", lambda)
  local _, above = gamma_shares(k + 1.0, lambda)
  return above
end

local last_confidence, last_z

function M.wilson_ci(successes, total, confidence)
  successes, total = number("wilson_ci", "successes", successes), positive("wilson_ci", "total", total)
  confidence = confidence == nil and 0.95 or share("wilson_ci", "confidence", confidence)
  if successes < 0 or successes > total then
    fail("wilson_ci", "successes must be between 0 and total")
  elseif confidence == 1 then
    return { lower = 0.0, upper = 1.0, center = 0.5 }
  end
  if confidence ~= last_confidence then
    last_confidence, last_z = confidence, -normal_ppf((1 - confidence) / 2)
  end
  local z = last_z
  local part, squared = successes / total, z * z
  local whole = 1 + squared / total
  local center = (part + squared / (2 * total)) / whole
  local reach = z / whole * sqrt(part * (1 - part) / total + squared / (4 * total * total))
  -- At the ends the interval touches them; rounding must not move it away or beyond.
  return {
    lower = successes == 0 and 0.0 or math.max(0.0, center - reach),
    upper = successes == total and 1.0 or math.min(1.0, center + reach),
    center = center,
  }
end

return { beta_shares = beta_shares, gamma_shares = gamma_shares, normal_cdf = normal_cdf }
