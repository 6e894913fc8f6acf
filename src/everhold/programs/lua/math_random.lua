-- alc.math: generators of random numbers, shuffling, and drawing from a list.
--
-- A chunk of the Lua library: `local alc, host = ...` adds functions to `alc.math`, and returns what samplers draw with.
-- The generator is ChaCha with 12 rounds. Its stream is one of words of 32 bits: a number takes one word or two.

local alc, host = ...

local error, setmetatable, type, rawlen = error, setmetatable, type, rawlen
local tointeger, ult, unwatched = math.tointeger, math.ult, host.unwatched
local arguments = host.part("alc_math")
local fail, integer, count = arguments.fail, arguments.integer, arguments.count

local M = alc.math

local LOW <const> = 0xffffffff
local TWICE <const> = 0x100000001 -- times a word: the word, and once more above it
local MANY = 16 -- blocks that are made at once, at most: a generator that is used more gets more

-- The state of each handle: words in pairs at 1, 2, ...; `at` is the next pair. When the lower half of a pair was taken
-- alone, `place` is that pair, and `at` is 0, where no pair is. A program has only the handle, which has no fields.
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
  local rng = generators[handle]
  if not rng then
    fail(name, "the first argument must come from rng_create")
  end
  return rng
end

-- Make the next blocks. The bits above 32 of a local are rubbish until it is masked, which is done once for each
-- rotation: the product puts a copy of the word above it, and the shift cuts the rotated word out. In the first round
-- only one column depends on the counter (of 32 bits: more numbers than a program can draw), so the others are made once.
local function fill(rng)
  local counter, blocks = rng.counter, rng.blocks
  local k1, k2, k3, k4, k5, k6, k7, k8 = rng.k1, rng.k2, rng.k3, rng.k4, rng.k5, rng.k6, rng.k7, rng.k8
  local b, f, j, n = 0x3320646e, k2, k6, 0
  local c, g, k, o = 0x79622d32, k3, k7, 0
  local d, h, l, p = 0x6b206574, k4, k8, 0
  b = b + f; n = ((n ~ b) & LOW) * TWICE >> 16
  j = j + n; f = ((f ~ j) & LOW) * TWICE >> 20
  b = b + f; n = ((n ~ b) & LOW) * TWICE >> 24
  j = j + n; f = ((f ~ j) & LOW) * TWICE >> 25
  c = c + g; o = ((o ~ c) & LOW) * TWICE >> 16
  k = k + o; g = ((g ~ k) & LOW) * TWICE >> 20
  c = c + g; o = ((o ~ c) & LOW) * TWICE >> 24
  k = k + o; g = ((g ~ k) & LOW) * TWICE >> 25
  d = d + h; p = ((p ~ d) & LOW) * TWICE >> 16
  l = l + p; h = ((h ~ l) & LOW) * TWICE >> 20
  d = d + h; p = ((p ~ d) & LOW) * TWICE >> 24
  l = l + p; h = ((h ~ l) & LOW) * TWICE >> 25
  local b1, c1, d1, f1, g1, h1, j1, l1, n1, o1, p1, kk = b, c, d, f, g, h, j, l, n, o, p, k
  for at = 1, blocks * 8, 8 do
    local a, e, i, m = 0x61707865, k1, k5, counter
    b, c, d, f, g, h, j, k, l, n, o, p = b1, c1, d1, f1, g1, h1, j1, kk, l1, n1, o1, p1
    a = a + e; m = ((m ~ a) & LOW) * TWICE >> 16
    i = i + m; e = ((e ~ i) & LOW) * TWICE >> 20
    a = a + e; m = ((m ~ a) & LOW) * TWICE >> 24
    i = i + m; e = ((e ~ i) & LOW) * TWICE >> 25
    for _ = 1, 5 do
      a = a + f; p = ((p ~ a) & LOW) * TWICE >> 16
      k = k + p; f = ((f ~ k) & LOW) * TWICE >> 20
      a = a + f; p = ((p ~ a) & LOW) * TWICE >> 24
      k = k + p; f = ((f ~ k) & LOW) * TWICE >> 25
      b = b + g; m = ((m ~ b) & LOW) * TWICE >> 16
      l = l + m; g = ((g ~ l) & LOW) * TWICE >> 20
      b = b + g; m = ((m ~ b) & LOW) * TWICE >> 24
      l = l + m; g = ((g ~ l) & LOW) * TWICE >> 25
      c = c + h; n = ((n ~ c) & LOW) * TWICE >> 16
      i = i + n; h = ((h ~ i) & LOW) * TWICE >> 20
      c = c + h; n = ((n ~ c) & LOW) * TWICE >> 24
      i = i + n; h = ((h ~ i) & LOW) * TWICE >> 25
      d = d + e; o = ((o ~ d) & LOW) * TWICE >> 16
      j = j + o; e = ((e ~ j) & LOW) * TWICE >> 20
      d = d + e; o = ((o ~ d) & LOW) * TWICE >> 24
      j = j + o; e = ((e ~ j) & LOW) * TWICE >> 25
      a = a + e; m = ((m ~ a) & LOW) * TWICE >> 16
      i = i + m; e = ((e ~ i) & LOW) * TWICE >> 20
      a = a + e; m = ((m ~ a) & LOW) * TWICE >> 24
      i = i + m; e = ((e ~ i) & LOW) * TWICE >> 25
      b = b + f; n = ((n ~ b) & LOW) * TWICE >> 16
      j = j + n; f = ((f ~ j) & LOW) * TWICE >> 20
      b = b + f; n = ((n ~ b) & LOW) * TWICE >> 24
      j = j + n; f = ((f ~ j) & LOW) * TWICE >> 25
      c = c + g; o = ((o ~ c) & LOW) * TWICE >> 16
      k = k + o; g = ((g ~ k) & LOW) * TWICE >> 20
      c = c + g; o = ((o ~ c) & LOW) * TWICE >> 24
      k = k + o; g = ((g ~ k) & LOW) * TWICE >> 25
      d = d + h; p = ((p ~ d) & LOW) * TWICE >> 16
      l = l + p; h = ((h ~ l) & LOW) * TWICE >> 20
      d = d + h; p = ((p ~ d) & LOW) * TWICE >> 24
      l = l + p; h = ((h ~ l) & LOW) * TWICE >> 25
    end
    a = a + f; p = ((p ~ a) & LOW) * TWICE >> 16
    k = k + p; f = ((f ~ k) & LOW) * TWICE >> 20
    a = a + f; p = ((p ~ a) & LOW) * TWICE >> 24
    k = k + p; f = ((f ~ k) & LOW) * TWICE >> 25
    b = b + g; m = ((m ~ b) & LOW) * TWICE >> 16
    l = l + m; g = ((g ~ l) & LOW) * TWICE >> 20
    b = b + g; m = ((m ~ b) & LOW) * TWICE >> 24
    l = l + m; g = ((g ~ l) & LOW) * TWICE >> 25
    c = c + h; n = ((n ~ c) & LOW) * TWICE >> 16
    i = i + n; h = ((h ~ i) & LOW) * TWICE >> 20
    c = c + h; n = ((n ~ c) & LOW) * TWICE >> 24
    i = i + n; h = ((h ~ i) & LOW) * TWICE >> 25
    d = d + e; o = ((o ~ d) & LOW) * TWICE >> 16
    j = j + o; e = ((e ~ j) & LOW) * TWICE >> 20
    d = d + e; o = ((o ~ d) & LOW) * TWICE >> 24
    j = j + o; e = ((e ~ j) & LOW) * TWICE >> 25
    rng[at] = a + 0x61707865 & LOW | b + 0x3320646e << 32
    rng[at + 1] = c + 0x79622d32 & LOW | d + 0x6b206574 << 32
    rng[at + 2] = e + k1 & LOW | f + k2 << 32
    rng[at + 3] = g + k3 & LOW | h + k4 << 32
    rng[at + 4] = i + k5 & LOW | j + k6 << 32
    rng[at + 5] = k + k7 & LOW | l + k8 << 32
    rng[at + 6] = m + counter & LOW | n << 32
    rng[at + 7] = o & LOW | p << 32
    counter = counter + 1
  end
  rng.counter, rng.blocks = counter, blocks < MANY and blocks * 2 or MANY
end

local function refill(rng)
  unwatched(fill, rng)
end

-- The next 64 bits if they are not at `at`: new blocks are due, or half of a pair is left.
local function beyond(rng)
  if rng.at > 0 then
    refill(rng)
    rng.at = 2
    return rng[1]
  end
  local place = rng.place
  local low = rng[place] >> 32
  if rng[place + 1] then
    place = place + 1
  else
    refill(rng)
    place = 1
  end
  rng.place = place
  return low | rng[place] << 32
end

local function next64(rng)
  local at = rng.at
  local pair = rng[at]
  if pair then
    rng.at = at + 1
    return pair
  end
  return beyond(rng)
end

local function next32(rng)
  local at = rng.at
  if at == 0 then
    local place = rng.place
    rng.at = place + 1
    return rng[place] >> 32
  end
  local pair = rng[at]
  if not pair then
    refill(rng)
    at, pair = 1, rng[1]
  end
  rng.place, rng.at = at, 0
  return pair & LOW
end

-- Eight words of key from one seed, by a PCG32 sequence: similar seeds give unrelated keys.

local KEY = { "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8" }

local function key_of(seed)
  local key = {}
  for i = 1, 8 do
    seed = seed * 0x5851f42d4c957f2d + 0xa17654e46fbe17f3
    local x, turn = ((seed >> 18 ~ seed) >> 27) & LOW, seed >> 59
    key[KEY[i]] = (x >> turn | x << (32 - turn)) & LOW
  end
  return key
end

function M.rng_create(seed)
  if type(seed) == "number" and seed >= 0x1p63 and seed < 0x1p64 then
    seed = seed - 0x1p64
  end
  local rng, handle = key_of(integer("rng_create", "the seed", seed)), setmetatable({}, Handle)
  rng.counter, rng.blocks, rng.at = 0, 1, 1
  generators[handle] = rng
  return handle
end

function M.rng_float(handle)
  local rng = generators[handle]
  if not rng then
    fail("rng_float", "the first argument must come from rng_create")
  end
  local at = rng.at
  local pair = rng[at]
  if pair then
    rng.at = at + 1
    return (pair >> 11) * 0x1p-53
  end
  return (beyond(rng) >> 11) * 0x1p-53
end

-- Integers of a range: the upper half of a draw times the range. Where the lower half shows that more bits might carry
-- into the upper one, the next draw decides.

-- The 128 bits of a product of two words of 64, as high and low.
local function product(a, b)
  local a0, a1, b0, b1 = a & LOW, a >> 32, b & LOW, b >> 32
  local low, mid, cross = a0 * b0, a1 * b0, a0 * b1
  local carry = (low >> 32) + (mid & LOW) + (cross & LOW)
  return a1 * b1 + (mid >> 32) + (cross >> 32) + (carry >> 32), a * b
end

local function between(rng, least, range)
  local draw = next64(rng)
  if range == 0 then
    return draw
  end
  local high, low = product(draw, range)
  if ult(-range, low) and ult(low + product(next64(rng), range), low) then
    high = high + 1
  end
  return least + high
end

-- The last range below 2^32, which needs no second check, and up to where the lower half of a draw times the range cannot
-- carry into the result. Nothing equals the first: NaN.
local last_least, last_most, last_range, last_sure = 0 / 0, 0 / 0, 1, 0

function M.rng_int(handle, least, most)
  local rng = generators[handle] or generator("rng_int", handle)
  if least ~= last_least or most ~= last_most then
    least = tointeger(least) or integer("rng_int", "min", least)
    most = tointeger(most) or integer("rng_int", "max", most)
    if least > most then
      fail("rng_int", "min is greater than max")
    end
    local range = most - least + 1
    if range <= 0 or range > LOW then
      return between(rng, least, range)
    end
    last_least, last_most, last_range, last_sure = least, most, range, LOW - range
  end
  local at = rng.at
  local pair = rng[at]
  if pair then
    local high = (pair >> 32) * last_range
    if high & LOW <= last_sure then
      rng.at = at + 1
      return last_least + (high >> 32)
    end
  end
  return between(rng, last_least, last_range)
end

-- A whole number from 0 to range - 1, from one word; the range is at most 2^32.
local function below(rng, range)
  local whole = next32(rng) * range
  if whole & LOW > 0x100000000 - range and (whole & LOW) + (next32(rng) * range >> 32) > LOW then
    whole = whole + 0x100000000
  end
  return whole >> 32
end

local function array(name, list)
  if type(list) ~= "table" then
    fail(name, "expected an array, got %s", type(list))
  end
  return rawlen(list)
end

function M.shuffle(handle, list)
  local rng, size, out = generator("shuffle", handle), array("shuffle", list), {}
  for i = 1, size do
    out[i] = list[i]
  end
  for i = size, 2, -1 do
    local j = below(rng, i) + 1
    out[i], out[j] = out[j], out[i]
  end
  return out
end

function M.sample_with_replacement(handle, list, n)
  local rng, out = generator("sample_with_replacement", handle), {}
  local size = array("sample_with_replacement", list)
  if size == 0 then
    fail("sample_with_replacement", "the array is empty")
  end
  for i = 1, count("sample_with_replacement", "n", n) do
    out[i] = list[below(rng, size) + 1]
  end
  return out
end

return { generators = generators, generator = generator, beyond = beyond }
