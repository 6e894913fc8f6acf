-- alc.math: statistics of lists, series, ranks, and information.
--
-- A chunk of the Lua library: `local alc, host = ...` adds functions to `alc.math`, and returns what tests are made of.

local alc, host = ...

local floor, exp, log, sqrt, abs, huge, sort = math.floor, math.exp, math.log, math.sqrt, math.abs, math.huge, table.sort
local arguments = host.part("alc_math")
local fail, number, numbers, pair, count = arguments.fail, arguments.number, arguments.numbers, arguments.pair, arguments.count

local M = alc.math

-- A sum with error compensation (Neumaier): add a value to a total and what it has lost.
local function added(total, lost, value)
  local new = total + value
  if abs(total) >= abs(value) then
    return new, lost + ((total - new) + value)
  end
  return new, lost + ((value - new) + total)
end

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

-- The sum of the products of the distances from the means. Without `ys` it is that of squares.
local function spread(xs, ys)
  local mx, my, products = mean(xs), ys and mean(ys), {}
  for i = 1, #xs do
    local dx = xs[i] - mx
    products[i] = dx * (ys and ys[i] - my or dx)
  end
  return sum(products)
end

-- The variance of a sample. One value does not vary.
local function variance(data)
  return #data > 1 and spread(data) / (#data - 1) or 0.0
end

local function most_of(data)
  local most = data[1]
  for i = 2, #data do
    if data[i] > most then
      most = data[i]
    end
  end
  return most
end

-- Of a sorted list
local function percentile(data, percent)
  local rank = percent / 100 * (#data - 1)
  local below = floor(rank)
  local low = data[below + 1]
  local high = data[below + 2] or low
  return low + (rank - below) * (high - low)
end

local function sorted(name, data)
  data = numbers(name, data)
  sort(data)
  return data
end

function M.mean(data)
  return mean(numbers("mean", data))
end

function M.variance(data)
  return variance(numbers("variance", data))
end

function M.stddev(data)
  return sqrt(variance(numbers("stddev", data)))
end

function M.median(data)
  return percentile(sorted("median", data), 50)
end

function M.percentile(data, percent)
  data, percent = numbers("percentile", data), number("percentile", "the percentile", percent)
  if percent < 0 or percent > 100 then
    fail("percentile", "the percentile must be between 0 and 100")
  end
  sort(data)
  return percentile(data, percent)
end

function M.iqr(data)
  data = sorted("iqr", data)
  return percentile(data, 75) - percentile(data, 25)
end

function M.covariance(xs, ys)
  xs, ys = pair("covariance", xs, ys, 2)
  return spread(xs, ys) / (#xs - 1)
end

local function correlation(name, xs, ys)
  local a, b = spread(xs), spread(ys)
  local whole = sqrt(a * b)
  if whole == huge or whole == 0 then
    whole = sqrt(a) * sqrt(b)
  end
  if whole == 0 then
    fail(name, "the values of one array are all equal")
  end
  return spread(xs, ys) / whole
end

function M.correlation(xs, ys)
  xs, ys = pair("correlation", xs, ys, 2)
  return correlation("correlation", xs, ys)
end

function M.softmax(data)
  data = numbers("softmax", data)
  local most = most_of(data)
  for i = 1, #data do
    data[i] = exp(data[i] - most)
  end
  local total = sum(data)
  for i = 1, #data do
    data[i] = data[i] / total
  end
  return data
end

function M.logsumexp(data)
  data = numbers("logsumexp", data)
  local most = most_of(data)
  for i = 1, #data do
    data[i] = exp(data[i] - most)
  end
  return most + log(sum(data))
end

function M.log_normalize(data)
  data = numbers("log_normalize", data)
  for i = 1, #data do
    if data[i] <= 0 then
      fail("log_normalize", "value %d must be greater than 0", i)
    end
  end
  local most = log(1 + most_of(data))
  for i = 1, #data do
    data[i] = log(1 + data[i]) / most * 100
  end
  return data
end

-- If the values are equal but for rounding, all are in the first bin, and the bins cover one unit.
function M.histogram(data, bins)
  bins = count("histogram", "bins", bins)
  if bins == 0 then
    fail("histogram", "bins must be greater than 0")
  end
  data = numbers("histogram", data)
  local most, least = most_of(data), data[1]
  for i = 2, #data do
    if data[i] < least then
      least = data[i]
    end
  end
  if most - least == huge then
    fail("histogram", "the values are too far apart")
  end
  local even = most - least <= abs(most) * 0x1p-52
  local width = even and 1 / bins or (most - least) / bins
  local counts, edges = {}, {}
  for i = 1, bins do
    counts[i], edges[i] = 0, least + (i - 1) * width
  end
  edges[bins + 1] = least + bins * width
  for i = 1, #data do
    local place = even and 1 or floor((data[i] - least) / width) + 1
    if place > bins then
      place = bins
    end
    counts[place] = counts[place] + 1
  end
  return { counts = counts, edges = edges }
end

-- Series ---------------------------------------------------------------------------------------------------------------

function M.moving_average(data, window)
  data, window = numbers("moving_average", data), count("moving_average", "the window", window)
  if window == 0 or window > #data then
    fail("moving_average", "the window must be between 1 and %d", #data)
  end
  local total, lost, out = 0.0, 0.0, {}
  for i = 1, #data do
    total, lost = added(total, lost, data[i])
    if i > window then
      total, lost = added(total, lost, -data[i - window])
    end
    if i >= window then
      out[i - window + 1] = (total + lost) / window
    end
  end
  return out
end

function M.ewma(data, alpha)
  alpha = arguments.share("ewma", "alpha", alpha)
  data = numbers("ewma", data)
  for i = 2, #data do
    data[i] = alpha * data[i] + (1 - alpha) * data[i - 1]
  end
  return data
end

function M.autocorrelation(data, lag)
  data, lag = numbers("autocorrelation", data), count("autocorrelation", "the lag", lag)
  if lag == 0 then
    return 1.0
  elseif lag >= #data then
    fail("autocorrelation", "the lag must be smaller than the number of values")
  end
  local whole, middle, products = spread(data), mean(data), {}
  if whole == 0 then
    fail("autocorrelation", "the values are all equal")
  end
  for i = 1, #data - lag do
    products[i] = (data[i] - middle) * (data[i + lag] - middle)
  end
  return sum(products) / whole
end

-- All orders of 1 to n, by Heap's algorithm.
function M.permutations(n)
  n = count("permutations", "n", n)
  if n < 1 or n > 8 then
    fail("permutations", "n must be between 1 and 8")
  end
  local order, turns, out = {}, {}, {}
  for i = 1, n do
    order[i], turns[i] = i, 1
  end
  local i = 1
  while i <= n do
    if i == 1 then
      local copy = {}
      for j = 1, n do
        copy[j] = order[j]
      end
      out[#out + 1] = copy
      i = 2
    elseif turns[i] < i then
      local j = i % 2 == 1 and 1 or turns[i]
      order[j], order[i] = order[i], order[j]
      turns[i] = turns[i] + 1
      i = 1
    else
      turns[i] = 1
      i = i + 1
    end
  end
  return out
end

-- Ranks ----------------------------------------------------------------------------------------------------------------

-- The rank of each value, as a table from value to rank, and the sizes of the groups of equal values.
local function ranks(data)
  local order, rank, groups, size = {}, {}, {}, #data
  for i = 1, size do
    order[i] = data[i]
  end
  sort(order)
  local first = 1
  while first <= size do
    local value, last = order[first], first
    while order[last + 1] == value do
      last = last + 1
    end
    rank[value] = (first + last) / 2
    if last > first then
      groups[#groups + 1] = last - first + 1.0
    end
    first = last + 1
  end
  return rank, groups
end

local function ranked(data)
  local rank, out = ranks(data), {}
  for i = 1, #data do
    out[i] = rank[data[i]]
  end
  return out
end

function M.rank(data)
  return ranked(numbers("rank", data))
end

function M.spearman_correlation(xs, ys)
  xs, ys = pair("spearman_correlation", xs, ys, 2)
  return correlation("spearman_correlation", ranked(xs), ranked(ys))
end

-- Sorts a list from first to last by merging, and returns how many pairs were out of order. `spare` is room.
local function inversions(list, spare, first, last)
  if first >= last then
    return 0
  end
  local middle = (first + last) // 2
  local found = inversions(list, spare, first, middle) + inversions(list, spare, middle + 1, last)
  local left, right = first, middle + 1
  for i = first, last do
    if left <= middle and (right > last or list[left] <= list[right]) then
      spare[i], left = list[left], left + 1
    else
      spare[i], right, found = list[right], right + 1, found + middle - left + 1
    end
  end
  for i = first, last do
    list[i] = spare[i]
  end
  return found
end

local function pairs_in(groups)
  local found = 0
  for i = 1, #groups do
    found = found + groups[i] * (groups[i] - 1) / 2
  end
  return found
end

-- Knight's method: in the order of xs (and of ys where these are equal), each inversion of ys is a discordant pair.
function M.kendall_tau(xs, ys)
  xs, ys = pair("kendall_tau", xs, ys, 2)
  local size, order, rank, grid = #xs, {}, ranks(ys), {}
  local rank_x, ties_x = ranks(xs)
  local _, ties_y = ranks(ys)
  for i = 1, size do
    grid[i] = rank_x[xs[i]] * (2 * size + 1) + rank[ys[i]] -- ranks are halves at most, so pairs do not collide
  end
  local of = {}
  for i = 1, size do
    order[i], of[grid[i]] = grid[i], ys[i]
  end
  sort(order)
  local _, ties_both = ranks(order)
  for i = 1, size do
    order[i] = of[order[i]]
  end
  local both, tied_x, tied_y = pairs_in(ties_both), pairs_in(ties_x), pairs_in(ties_y)
  local all, discordant = size * (size - 1) / 2, inversions(order, {}, 1, size)
  local whole = sqrt((all - tied_x) * (all - tied_y))
  if whole == 0 then
    fail("kendall_tau", "the values of one array are all equal")
  end
  return (all - tied_x - tied_y + both - 2 * discordant) / whole
end

-- The gain of the first values from a place on, going by `step`.
local function gain(relevance, depth, place, step)
  local parts = {}
  for i = 1, depth do
    parts[i] = relevance[place] / log(i + 1, 2)
    place = place + step
  end
  return sum(parts)
end

function M.ndcg(relevance, k)
  relevance, k = numbers("ndcg", relevance), count("ndcg", "k", k)
  local depth = k < #relevance and k or #relevance
  local found = gain(relevance, depth, 1, 1)
  sort(relevance)
  local ideal = gain(relevance, depth, #relevance, -1)
  return ideal == 0 and 0.0 or found / ideal
end

function M.mrr(found)
  found = numbers("mrr", found)
  for i = 1, #found do
    if found[i] < 1 or found[i] % 1 ~= 0 then
      fail("mrr", "value %d must be a rank: a whole number from 1", i)
    end
    found[i] = 1 / found[i]
  end
  return mean(found)
end

-- Information ----------------------------------------------------------------------------------------------------------

local function distribution(name, what, data)
  local total = sum(data)
  for i = 1, #data do
    if data[i] < 0 then
      fail(name, "value %d%s is negative", i, what)
    end
  end
  if abs(total - 1) > 1e-6 then
    fail(name, "the shares%s must add up to 1, not %.14g", what, total)
  end
end

function M.entropy(data)
  data = numbers("entropy", data)
  distribution("entropy", "", data)
  for i = 1, #data do
    local p = data[i]
    data[i] = p > 0 and -p * log(p) or 0.0
  end
  return sum(data)
end

local function distributions(name, p, q)
  p, q = pair(name, p, q)
  distribution(name, " of p", p)
  distribution(name, " of q", q)
  return p, q
end

-- The sum of a function of both shares, where that of p is not 0.
local function divergence(name, p, q, f)
  local parts = {}
  for i = 1, #p do
    if p[i] > 0 and q[i] == 0 then
      fail(name, "value %d of q is 0 where that of p is not", i)
    end
    parts[i] = p[i] > 0 and f(p[i], q[i]) or 0.0
  end
  return sum(parts)
end

local function relative(p, q)
  return p * log(p / q)
end

function M.kl_divergence(p, q)
  p, q = distributions("kl_divergence", p, q)
  return divergence("kl_divergence", p, q, relative)
end

function M.cross_entropy(p, q)
  p, q = distributions("cross_entropy", p, q)
  return divergence("cross_entropy", p, q, function(one, other)
    return -one * log(other)
  end)
end

function M.js_divergence(p, q)
  p, q = distributions("js_divergence", p, q)
  local middle = {}
  for i = 1, #p do
    middle[i] = (p[i] + q[i]) / 2
  end
  return (divergence("js_divergence", p, middle, relative) + divergence("js_divergence", q, middle, relative)) / 2
end

return { sum = sum, mean = mean, variance = variance, ranks = ranks }
