"""alc.math, compared with what Python computes in other ways, and with algocline's answers."""

import math
import statistics
import struct
from typing import Any

import pytest

from tests.unit.programs.lua.alc_math_reference import DRAWS, MIXED, MIXED_CODE, VALUES
from tests.unit.programs.lua.library_harness import Library

# ---- ChaCha, written again from its definition


def block(key: list[int], count: int, rounds: int) -> list[int]:
    def turn(a: int, b: int, c: int, d: int) -> None:
        for one, two, three, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            w[one] = (w[one] + w[two]) % 2**32
            mixed = w[three] ^ w[one]
            w[three] = (mixed << by | mixed >> (32 - by)) % 2**32

    start = [*struct.unpack("<4I", b"expand 32-byte k"), *key, count % 2**32, count >> 32, 0, 0]
    w = list(start)
    for _ in range(rounds // 2):
        for i in range(4):
            turn(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            turn(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(one + two) % 2**32 for one, two in zip(w, start, strict=True)]


def expand(seed: int) -> list[int]:
    key, state = [], seed % 2**64
    for _ in range(8):
        state = (state * 6364136223846793005 + 11634580027462260723) % 2**64
        mixed = (((state >> 18) ^ state) >> 27) % 2**32
        by = state >> 59
        key.append((mixed >> by | mixed << (32 - by)) % 2**32)
    return key


def draws(seed: int, count: int) -> list[int]:
    words = [word for n in range(count // 8 + 1) for word in block(expand(seed), n, 12)]
    return [words[2 * i + 1] << 32 | words[2 * i] for i in range(count)]


def test_the_reference_is_chacha():
    """The published first block of ChaCha12 with a key and a nonce of zeros."""
    found = b"".join(struct.pack("<I", word) for word in block([0] * 8, 0, 12))
    assert found.hex().startswith(
        "9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f"
    )


SEEDS = [0, 1, 42, 2**31, 2**63 - 1, -1, -(2**63)]


@pytest.mark.parametrize("seed", SEEDS)
def test_floats_are_those_of_chacha(seed):
    """53 bits of each draw, over several blocks."""
    code = f"""
    local r, t = alc.math.rng_create({"math.mininteger" if seed == -(2**63) else seed}), {{}}
    for i = 1, 40 do t[i] = alc.math.rng_float(r) end return t"""
    assert Library().run(code) == [(draw >> 11) / 2**53 for draw in draws(seed, 40)]


def between(stream: list[int], least: int, most: int) -> int:
    """The upper half of a draw times the range, rounded by the next draw where that may matter."""
    size = most - least + 1
    if size == 2**64:
        return (stream.pop(0) + 2**63) % 2**64 - 2**63
    product = stream.pop(0) * size
    if product % 2**64 > 2**64 - size:
        product += stream.pop(0) * size >> 64
    return least + (product >> 64)


@pytest.mark.parametrize(
    ("least", "most"),
    [
        (1, 6),
        (0, 0),
        (-5, 5),
        (0, 2**62),
        (-(2**63), 2**63 - 1),
        (-(2**62), 2**62 + 7),
        (0, 2**63 - 1),
    ],
)
def test_integers_are_those_of_chacha(least, most):
    code = f"""
    local r, t = alc.math.rng_create(7), {{}}
    local least = {"math.mininteger" if least == -(2**63) else least}
    for i = 1, 30 do t[i] = alc.math.rng_int(r, least, {most}) end return t"""
    stream = draws(7, 200)
    assert Library().run(code) == [between(stream, least, most) for _ in range(30)]


def test_dice_are_fair():
    """Each side falls about as often as the others."""
    found = Library().run(
        "local r = alc.math.rng_create(3) local t = {} for i = 1, 6000 do t[i] ="
        " alc.math.rng_int(r, 1, 6) end return t"
    )
    assert all(850 < found.count(side) < 1150 for side in range(1, 7))


def test_shuffle():
    """Makes a copy with the same values, and leaves the list alone."""
    code = """
    local t = {1, 2, 3, 4, 5, 6, 7, 8, 9}
    return alc.math.shuffle(alc.math.rng_create(1), t), t"""
    made, given = Library().run(code)
    assert sorted(made) == given == list(range(1, 10)) != made
    assert Library().run("return alc.math.shuffle(alc.math.rng_create(1), {})") == {}
    # `nil` and other values are moved too
    found = Library().run("return #alc.math.shuffle(alc.math.rng_create(1), {{}, 'x', true})")
    assert found == 3


def close(found: Any, expected: Any, rel: float) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            close(found[name], expected[name], rel) for name in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            close(one, other, rel) for one, other in zip(found, expected, strict=True)
        )
    return type(found) is type(expected) and found == pytest.approx(expected, rel=rel, abs=1e-300)


@pytest.mark.parametrize(("name", "given", "seed", "draws"), DRAWS)
def test_samples_are_those_of_algocline(name, given, seed, draws):
    """The same draws for a seed, bit for bit, integers as integers."""
    code = f"""
    local r, out = alc.math.rng_create({seed}), {{}}
    for i = 1, 2000 do
      local value = alc.math.{name}(r{given and ", " + given})
      if i <= 4 or i == 1000 or i == 2000 then out[#out + 1] = value end
    end
    return out"""
    assert close(Library().run(code), draws, 0)


def test_words_and_pairs_of_words_are_one_stream():
    """A shuffle draws single words, so what follows begins in the middle of a pair."""
    assert Library().run(f"{MIXED_CODE} return out") == MIXED


@pytest.mark.parametrize(("expression", "expected"), VALUES)
def test_values_are_those_of_algocline(expression, expected):
    """To ten digits, which is what algocline's error function has."""
    assert close(Library().run(f"return alc.math.{expression}"), expected, 1.5e-10)


def test_the_reference_has_every_function():
    names = {name for name, *_ in DRAWS} | {text.partition("(")[0] for text, _ in VALUES}
    assert len(names | {"rng_create"}) == 68


@pytest.mark.parametrize(
    ("name", "given", "mean", "spread"),
    [
        ("normal_sample", "3, 2", 3, 2),
        ("lognormal_sample", "0, 0.5", math.exp(0.125), 0.604),
        ("uniform_sample", "-1, 5", 2, math.sqrt(3)),
        ("exp_sample", "0.5", 2, 2),
        ("gamma_sample", "3, 2", 6, math.sqrt(12)),
        ("gamma_sample", "0.5, 2", 1, math.sqrt(2)),
        ("beta_sample", "2, 6", 0.25, math.sqrt(1 / 48)),
        ("beta_sample", "0.5, 0.5", 0.5, math.sqrt(1 / 8)),
        ("chi_squared_sample", "4", 4, math.sqrt(8)),
        ("student_t_sample", "9", 0, math.sqrt(9 / 7)),
        ("poisson_sample", "2.5", 2.5, math.sqrt(2.5)),
        ("poisson_sample", "60", 60, math.sqrt(60)),
        ("binomial_sample", "12, 0.25", 3, 1.5),
        ("binomial_sample", "400, 0.9", 360, 6),
        ("categorical_sample", "{1, 2, 1}", 2, math.sqrt(0.5)),
    ],
)
def test_samples_have_their_mean_and_spread(name, given, mean, spread):
    code = f"""
    local r, out = alc.math.rng_create(11), {{}}
    for i = 1, 4000 do out[i] = alc.math.{name}(r, {given}) end
    return alc.math.mean(out), alc.math.stddev(out)"""
    found, deviation = Library().run(code)
    assert found == pytest.approx(mean, abs=5 * spread / math.sqrt(4000))
    assert deviation == pytest.approx(spread, rel=0.15)


def test_generators_are_apart():
    """Two with one seed say the same; drawing from one does not move the other."""
    code = """
    local a, b = alc.math.rng_create(5), alc.math.rng_create(5)
    alc.math.rng_float(a)
    local second = alc.math.rng_float(a)
    alc.math.rng_float(b)
    return second == alc.math.rng_float(b)"""
    assert Library().run(code) is True


@pytest.mark.parametrize(
    "code",
    [
        "return getmetatable(r)",
        "return next(r) == nil and false",
        "return pcall(setmetatable, r, {})",
        "return (pcall(function() r.key = 1 end))",
        "return pcall(alc.math.rng_float, {})",
        "return pcall(alc.math.rng_float, setmetatable({}, {__index = r}))",
        "return pcall(alc.math.rng_float, 1)",
        "return pcall(alc.math.rng_float)",
    ],
)
def test_a_generator_is_closed(code):
    """Nothing of it can be read, changed or made up."""
    found = Library().run(f"local r = alc.math.rng_create(1) {code}")
    assert (found[0] if isinstance(found, list) else found) is False


def test_its_name():
    assert Library().run("return tostring(alc.math.rng_create(1))") == "rng"


# ---- statistics

SAMPLES = [
    [1],
    [3, 1, 2],
    [1, 2, 3, 4],
    [0.1] * 10,
    [1e16, 1, -1e16],
    [-2.5, 7, 0, 1e-9],
    [float(i * i % 37) for i in range(100)],
]


def lua(values: list[float]) -> str:
    return "{" + ", ".join(repr(value) for value in values) + "}"


@pytest.mark.parametrize("values", SAMPLES, ids=str)
def test_middle_and_spread(values):
    run = Library().run
    assert run(f"return alc.math.mean({lua(values)})") == pytest.approx(
        statistics.fmean(values), rel=1e-15
    )
    assert run(f"return alc.math.median({lua(values)})") == statistics.median(values)
    if len(values) > 1:
        assert run(f"return alc.math.variance({lua(values)})") == pytest.approx(
            statistics.variance(values), rel=1e-12
        )
        assert run(f"return alc.math.stddev({lua(values)})") == pytest.approx(
            statistics.stdev(values), rel=1e-12
        )


@pytest.mark.parametrize("percent", [1, 10, 25, 33, 50, 75, 90, 99])
@pytest.mark.parametrize("values", [values for values in SAMPLES if len(values) > 1], ids=str)
def test_percentiles(values, percent):
    """Those of the inclusive method, which goes straight from one value to the next."""
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert Library().run(f"return alc.math.percentile({lua(values)}, {percent})") == pytest.approx(
        expected, rel=1e-12
    )


def test_percentiles_at_the_ends():
    run = Library().run
    assert [run(f"return alc.math.percentile({{5, 1, 3}}, {percent})") for percent in (0, 100)] == [
        1,
        5,
    ]
    # the list is not sorted in place
    assert run("local t = {3, 1, 2} alc.math.median(t) return t") == [3, 1, 2]


def test_one_value_does_not_vary():
    assert Library().run("return alc.math.variance({7}), alc.math.stddev({7})") == [0, 0]


@pytest.mark.parametrize("x", [-9, -3, -1.9, -0.5, -1e-9, 0, 0.3, 0.5, 0.75, 1.99, 2, 2.01, 4, 26])
def test_error_function(x):
    """To fourteen digits, where algocline has ten."""
    run = Library().run
    assert run(f"return alc.math.erf({x})") == pytest.approx(math.erf(x), rel=1e-14)
    assert run(f"return alc.math.erfc({x})") == pytest.approx(math.erfc(x), rel=1e-13)


@pytest.mark.parametrize("x", [-20.5, -3.5, -1.5, -0.1, 1e-9, 0.5, 1, 1.5, 2, 14.9, 15, 99, 1e9])
def test_lgamma(x):
    """The logarithm of the size of gamma."""
    found = Library().run(f"return alc.math.lgamma({x})")
    assert found == pytest.approx(math.lgamma(x), rel=1e-13, abs=1e-14)


@pytest.mark.parametrize("x", [-2.7, 0.4, 1, 3.3, 40])
def test_digamma_is_the_slope_of_lgamma(x):
    step = 1e-5
    slope = (math.lgamma(x + step) - math.lgamma(x - step)) / (2 * step)
    assert Library().run(f"return alc.math.digamma({x})") == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("p", [1e-300, 1e-30, 1e-9, 0.01, 0.3, 0.5, 0.8, 0.999])
def test_normal_quantiles(p):
    """Those of the standard library, and back again to thirteen digits."""
    found = Library().run(f"return alc.math.normal_ppf({p})")
    assert found == pytest.approx(statistics.NormalDist().inv_cdf(p), rel=1e-14)
    assert Library().run(f"return alc.math.normal_cdf({found!r})") == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize("p", [1e-9, 0.01, 0.4, 0.5, 0.9, 0.9999])
@pytest.mark.parametrize(("a", "b"), [(0.2, 1000), (0.5, 0.5), (1, 3), (7, 2), (3000, 5000)])
def test_beta_quantiles_lead_back(p, a, b):
    x = Library().run(f"return alc.math.beta_ppf({p}, {a}, {b})")
    assert Library().run(f"return alc.math.beta_cdf({x!r}, {a}, {b})") == pytest.approx(p, rel=1e-9)


def test_beta_of_whole_numbers_is_a_sum_of_binomials():
    expected = sum(math.comb(11, k) * 0.3**k * 0.7 ** (11 - k) for k in range(4, 12))
    found = Library().run("return alc.math.regularized_incomplete_beta(0.3, 4, 8)")
    assert found == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("k", [0, 3, 40, 90, 200])
def test_poisson_is_a_sum(k):
    expected = math.fsum(math.exp(i * math.log(40) - 40 - math.lgamma(i + 1)) for i in range(k + 1))
    found = Library().run(f"return alc.math.poisson_cdf({k}, 40)")
    assert found == pytest.approx(expected, rel=1e-12)


def test_large_parameters_keep_their_digits():
    """The logarithms of gamma would cancel to nine digits."""
    run = Library().run
    half = run("return alc.math.regularized_incomplete_beta(0.5, 1e6, 1e6)")
    assert half == pytest.approx(0.5, rel=1e-12)
    # Near its mean a gamma distribution is half plus this much (Ramanujan).
    expected = 0.5 + 1 / (3 * math.sqrt(2 * math.pi * 1e5))
    found = run("return alc.math.regularized_incomplete_gamma(1e5, 1e5)")
    assert found == pytest.approx(expected, rel=1e-8)


def test_samples_that_are_equal():
    """They differ by nothing, so the p value is 1."""
    found = Library().run("return alc.math.ks_test({1, 2, 3}, {3, 1, 2})")
    assert found == {"d_stat": 0, "p_value": 1}


@pytest.mark.parametrize("x", [0.15, 0.5, 0.99, 1, 1.5])
def test_both_series_of_kolmogorov_agree(x):
    """Whatever the size of the samples: 2 * sum of (-1)^(k-1) * exp(-2 (k x)^2)."""
    size = math.sqrt(5000)
    code = f"""
    local xs, ys, off = {{}}, {{}}, math.floor({x} / {size} * 10000 + 0.5)
    for i = 1, 10000 do xs[i], ys[i] = i, i + off end
    return alc.math.ks_test(xs, ys), off"""
    found, off = Library().run(code)
    scaled = (size + 0.12 + 0.11 / size) * off / 10000
    terms = ((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 200))
    assert found["d_stat"] == pytest.approx(off / 10000, rel=1e-12)
    assert found["p_value"] == pytest.approx(2 * math.fsum(terms), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_kendall(seed):
    """By comparing all pairs; equal values in both lists."""
    run = Library().run
    xs, ys = run(f"""
    local r, xs, ys = alc.math.rng_create({seed}), {{}}, {{}}
    for i = 1, 40 do
      xs[i], ys[i] = alc.math.rng_int(r, 1, 12), alc.math.rng_int(r, 1, 1 << 3 * {seed})
    end
    ys[1] = 0
    return xs, ys""")
    score = untied_x = untied_y = 0
    for i in range(40):
        for j in range(i):
            dx, dy = xs[i] - xs[j], ys[i] - ys[j]
            score += (dx * dy > 0) - (dx * dy < 0)
            untied_x += dx != 0
            untied_y += dy != 0
    found = run(f"return alc.math.kendall_tau({lua(xs)}, {lua(ys)})")
    assert found == pytest.approx(score / math.sqrt(untied_x * untied_y), rel=1e-14)


def test_permutations_are_all_orders():
    found = Library().run("return alc.math.permutations(5)")
    assert len(found) == len({tuple(order) for order in found}) == 120
    assert all(sorted(order) == [1, 2, 3, 4, 5] for order in found)


def test_a_moving_average_does_not_drift():
    """A large value that has left the window leaves nothing behind."""
    assert Library().run("return alc.math.moving_average({1e16, 1, 2, 4}, 2)") == [5e15, 1.5, 3]


def test_infinity_where_it_has_a_meaning():
    code = """
    local m, inf = alc.math, 1 / 0
    return m.normal_cdf(inf), m.normal_cdf(-inf, 2, 3), m.erf(-inf), m.erfc(inf), m.expit(-inf),
      m.gamma_cdf(inf, 2, 1), m.beta_cdf(inf, 2, 1), m.normal_ppf(0) == -inf, m.lgamma(-2) == inf,
      m.digamma(0) == -inf, m.exp_sample(m.rng_create(1), 0) == inf"""
    assert Library().run(code) == [1, 0, -1, 0, 0, 1, 1, True, True, True, True]


def test_numbers_may_be_text_and_fractions_are_cut_off():
    """Like algocline, and like arithmetic in Lua."""
    run = Library().run
    assert run("return alc.math.mean({'3', ' 4 ', '0x5'})") == 4
    assert run("return alc.math.factorial(5.9), alc.math.factorial('4')") == [120, 24]
    one, other = "alc.math.rng_create(7.9)", "alc.math.rng_create(7)"
    assert run(f"return alc.math.rng_float({one}) == alc.math.rng_float({other})") is True
    most, same = "alc.math.rng_create(2^64 - 2048)", "alc.math.rng_create(-2048)"
    assert run(f"return alc.math.rng_float({most}) == alc.math.rng_float({same})") is True
    drawn = run("return alc.math.rng_int(alc.math.rng_create(1), -1.9, 1.9)")
    assert drawn in (-1, 0, 1)


def test_checked_parameters_are_not_mixed_up():
    """Samplers keep the last parameters; other ones, and bad ones, are noticed."""
    code = """
    local r, m = alc.math.rng_create(1), alc.math
    local before = m.uniform_sample(r, 0, 1) < 1 and m.uniform_sample(r, 5, 6) >= 5
    local bad = pcall(m.uniform_sample, r, 6, 5) or pcall(m.uniform_sample, r, 0 / 0, 1)
    local also = pcall(m.normal_sample, r, 0, {}) or pcall(m.exp_sample, r, -1)
    local float = m.rng_int(r, 1.0, 6.0)
    local dice = m.rng_int(r, 1, 6)
    return before, bad, also, m.uniform_sample(r, 5, 6) >= 5, math.type(float), math.type(dice),
      math.type(m.rng_int(r, 1.0, 6.0))"""
    assert Library().run(code) == [True, False, False, True, *["integer"] * 3]


def test_softmax():
    """Shares of e to the power of each; large numbers do not overflow."""
    total = sum(math.exp(x) for x in (1, 2, 3))
    expected = [math.exp(x) / total for x in (1, 2, 3)]
    assert Library().run("return alc.math.softmax({1, 2, 3})") == pytest.approx(expected, rel=1e-14)
    assert Library().run("return alc.math.softmax({1001, 1002, 1003})") == pytest.approx(
        expected, rel=1e-14
    )
    assert Library().run("return alc.math.softmax({-1e308, 1e308})") == [0, 1]


@pytest.mark.parametrize("shares", [[1], [0.5, 0.5], [0.2, 0.3, 0.5], [0, 1, 0], [0.25] * 4])
def test_entropy(shares):
    expected = math.fsum(-p * math.log(p) for p in shares if p)
    assert Library().run(f"return alc.math.entropy({lua(shares)})") == pytest.approx(
        expected, abs=1e-15
    )


@pytest.mark.parametrize(
    "x", [-30, -8, -5, -2.9, -2, -1.5, -1, -0.3, 0, 1e-9, 0.3, 1, 1.4142, 1.5, 2, 3, 5, 9, 40]
)
def test_normal_cdf(x):
    """To thirteen digits, also far out in the tail."""
    expected = math.erfc(-x / math.sqrt(2)) / 2
    assert Library().run(f"return alc.math.normal_cdf({x})") == pytest.approx(expected, rel=1e-13)
    assert Library().run(f"return alc.math.normal_cdf({x * 2 + 10}, 10, 2)") == pytest.approx(
        expected, rel=1e-13
    )


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.99, 0.9999])
@pytest.mark.parametrize(("hits", "of"), [(0, 5), (5, 5), (1, 3), (50, 100), (999, 1000), (1, 1)])
def test_wilson(hits, of, confidence):
    """The two shares from which the observed one is just z away: roots of a quadratic."""
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    share = hits / of
    a, b, c = 1 + z * z / of, -(2 * share + z * z / of), share * share
    root = math.sqrt(max(b * b - 4 * a * c, 0))
    found = Library().run(f"return alc.math.wilson_ci({hits}, {of}, {confidence})")
    assert found["lower"] == pytest.approx((-b - root) / (2 * a), rel=1e-9, abs=1e-12)
    assert found["upper"] == pytest.approx((-b + root) / (2 * a), rel=1e-9)
    assert found["center"] == pytest.approx(-b / (2 * a), rel=1e-9)


def test_wilson_says_95_by_default():
    assert Library().run("return alc.math.wilson_ci(8, 10)") == Library().run(
        "return alc.math.wilson_ci(8, 10, 0.95)"
    )


def tails(t: float, df: float) -> float:
    """Both tails of Student's distribution, by Simpson's rule over angles: the density becomes a
    power of a cosine.
    """
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    start, stop, parts = math.atan(abs(t) / math.sqrt(df)), math.pi / 2, 20_000
    step = (stop - start) / parts
    weights = (1 if i in (0, parts) else 4 if i % 2 else 2 for i in range(parts + 1))
    total = math.fsum(
        w * max(math.cos(start + i * step), 0) ** (df - 1) for i, w in enumerate(weights)
    )
    return 2 * scale * total * step / 3


@pytest.mark.parametrize(
    ("xs", "ys"),
    [
        ([1, 2, 3, 4, 5], [2, 3, 4, 5, 6]),
        ([1, 2, 3], [1, 2, 3]),
        ([27.5, 21.0, 19.0, 23.6, 17.0, 17.9], [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0]),
        ([0, 0, 0, 1], [1, 1, 1, 0, 1, 1]),
        ([1, 1.0001], [5, 5.0002]),
        ([float(i % 7) for i in range(200)], [float(i % 11) for i in range(300)]),
    ],
)
def test_welch(xs, ys):
    """Mean, spread and freedom by the statistics module, the p value by integrating the density."""
    a, b = statistics.variance(xs) / len(xs), statistics.variance(ys) / len(ys)
    t = (statistics.fmean(xs) - statistics.fmean(ys)) / math.sqrt(a + b)
    df = (a + b) ** 2 / (a * a / (len(xs) - 1) + b * b / (len(ys) - 1))
    found = Library().run(f"return alc.math.welch_t_test({lua(xs)}, {lua(ys)})")
    assert found["t_stat"] == pytest.approx(t, rel=1e-12)
    assert found["df"] == pytest.approx(df, rel=1e-12)
    assert found["p_value"] == pytest.approx(tails(t, df), rel=1e-6)


# ---- what is refused

LISTS = [
    *("mean", "variance", "stddev", "median", "iqr", "softmax", "logsumexp", "log_normalize"),
    *("rank", "mrr", "entropy"),
]
BAD = [
    ("{}", "the array is empty"),
    ("nil", "expected an array of numbers, got nil"),
    ("5", "expected an array of numbers, got number"),
    ("{1, 0/0}", "value 2 must be a finite number"),
    ("{1/0, 1}", "value 1 must be a finite number"),
    ("{1, -1/0}", "value 2 must be a finite number"),
    ("{1, 'x'}", "value 2 must be a finite number"),
    ("{1, true}", "value 2 must be a finite number"),
    ("{1, 'inf'}", "value 2 must be a finite number"),
    ("{1, nil, 3}", "value 2 must be a finite number"),
    ("{1, setmetatable({}, {__add = function() return 1 end})}", "value 2 must be a finite number"),
    ("setmetatable({}, {__len = function() return 5 end})", "the array is empty"),
]


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(("given", "words"), BAD)
def test_bad_lists(name, given, words):
    assert Library().error(f"alc.math.{name}({given})") == f"alc.math.{name}: {words}"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("covariance({1}, {1})", "covariance: needs at least 2 values"),
        (
            "correlation({1, 2}, {1, 2, 3})",
            "correlation: the arrays have 2 and 3 values; they must have the same number",
        ),
        ("correlation({1, 1}, {1, 2})", "correlation: the values of one array are all equal"),
        ("kendall_tau({1, 1}, {1, 2})", "kendall_tau: the values of one array are all equal"),
        ("kendall_tau({1, 1})", "kendall_tau: expected an array of numbers, got nil"),
        ("entropy({1.5, -0.5})", "entropy: value 2 is negative"),
        ("entropy({0.5, 0.4})", "entropy: the shares must add up to 1, not 0.9"),
        (
            "kl_divergence({0.5, 0.5}, {1, 0})",
            "kl_divergence: value 2 of q is 0 where that of p is not",
        ),
        ("js_divergence({1}, {2})", "js_divergence: the shares of q must add up to 1, not 2"),
        ("percentile({}, 5)", "percentile: the array is empty"),
        ("percentile({1}, 101)", "percentile: the percentile must be between 0 and 100"),
        ("percentile({1}, -1)", "percentile: the percentile must be between 0 and 100"),
        ("percentile({1})", "percentile: the percentile must be a finite number"),
        ("histogram({1}, 0)", "histogram: bins must be greater than 0"),
        ("histogram({1}, -1)", "histogram: bins must not be negative"),
        ("histogram({1e308, -1e308}, 2)", "histogram: the values are too far apart"),
        ("moving_average({1, 2}, 3)", "moving_average: the window must be between 1 and 2"),
        ("ewma({1}, 1.5)", "ewma: alpha must be between 0 and 1"),
        (
            "autocorrelation({1, 2}, 2)",
            "autocorrelation: the lag must be smaller than the number of values",
        ),
        ("autocorrelation({1, 1}, 1)", "autocorrelation: the values are all equal"),
        ("permutations(9)", "permutations: n must be between 1 and 8"),
        ("permutations(0)", "permutations: n must be between 1 and 8"),
        ("mrr({1, 0})", "mrr: value 2 must be a rank: a whole number from 1"),
        ("mrr({1.5})", "mrr: value 1 must be a rank: a whole number from 1"),
        ("log_normalize({1, 0})", "log_normalize: value 2 must be greater than 0"),
        ("ndcg({1})", "ndcg: k must be an integer"),
        ("wilson_ci(1, 0)", "wilson_ci: total must be greater than 0"),
        ("wilson_ci(6, 5)", "wilson_ci: successes must be between 0 and total"),
        ("wilson_ci(-1, 5)", "wilson_ci: successes must be between 0 and total"),
        ("wilson_ci(1, 5, 1.1)", "wilson_ci: confidence must be between 0 and 1"),
        ("wilson_ci(1, 5, 0/0)", "wilson_ci: confidence must be a finite number"),
        ("normal_cdf(1, 0, 0)", "normal_cdf: sigma must be greater than 0"),
        ("normal_cdf(0/0)", "normal_cdf: x must be a number"),
        ("normal_ppf(1.1)", "normal_ppf: p must be between 0 and 1"),
        ("normal_inverse_cdf(0.5, 1/0)", "normal_inverse_cdf: mu must be a finite number"),
        ("beta_cdf(0.5, 0, 1)", "beta_cdf: alpha must be greater than 0"),
        ("beta_ppf(-0.1, 1, 1)", "beta_ppf: p must be between 0 and 1"),
        ("gamma_cdf(1, 1, 0)", "gamma_cdf: scale must be greater than 0"),
        ("poisson_cdf(-1, 2)", "poisson_cdf: k must not be negative"),
        ("poisson_cdf(1, 0)", "poisson_cdf: lambda must be greater than 0"),
        ("erf({})", "erf: x must be a number"),
        ("beta(0, 1)", "beta: a must be greater than 0"),
        (
            "regularized_incomplete_beta(2, 1, 1)",
            "regularized_incomplete_beta: x must be between 0 and 1",
        ),
        (
            "regularized_incomplete_gamma(1, -1)",
            "regularized_incomplete_gamma: x must not be negative",
        ),
        (
            "factorial(171)",
            "factorial: of more than 170 is too large for a number; ln_factorial is not",
        ),
        ("factorial(-1)", "factorial: n must not be negative"),
        ("logit(1)", "logit: p must be greater than 0 and smaller than 1"),
        ("welch_t_test({1}, {1, 2})", "welch_t_test: needs at least 2 values"),
        ("welch_t_test({1, 1}, {2, 2})", "welch_t_test: neither sample varies"),
        (
            "mann_whitney_u({1}, {1, 2}, 1)",
            "mann_whitney_u: the options must be a table, got number",
        ),
        (
            "mann_whitney_u({1}, {1}, {tie_correction = true})",
            "mann_whitney_u: all values are equal",
        ),
        (
            "chi_squared_test({1, 2}, {1, 0})",
            "chi_squared_test: value 2 of the expected ones must be greater than 0",
        ),
        ("ks_test({1}, {})", "ks_test: the array is empty"),
        ("rng_create()", "rng_create: the seed must be an integer"),
        ("rng_create(0/0)", "rng_create: the seed must be an integer"),
        ("rng_create(2^70)", "rng_create: the seed must be an integer"),
        ("rng_create('x')", "rng_create: the seed must be an integer"),
        ("rng_float()", "rng_float: the first argument must come from rng_create"),
        ("rng_int(alc.math.rng_create(1), 2, 1)", "rng_int: min is greater than max"),
        ("rng_int(alc.math.rng_create(1), 'a', 2)", "rng_int: min must be an integer"),
        ("rng_int(alc.math.rng_create(1), 1)", "rng_int: max must be an integer"),
        ("shuffle(alc.math.rng_create(1), 1)", "shuffle: expected an array, got number"),
        ("shuffle({}, {1})", "shuffle: the first argument must come from rng_create"),
        (
            "sample_with_replacement(alc.math.rng_create(1), {}, 1)",
            "sample_with_replacement: the array is empty",
        ),
        (
            "sample_with_replacement(alc.math.rng_create(1), {1}, -1)",
            "sample_with_replacement: n must not be negative",
        ),
    ],
)
def test_bad_calls(call, words):
    assert Library().error(f"alc.math.{call}") == f"alc.math.{words}"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("normal_sample(r, 0, 1/0)", "the deviation must be a finite number"),
        ("normal_sample(r, nil, 1)", "the mean must be a finite number"),
        ("lognormal_sample(r, 0)", "sigma must be a finite number"),
        ("uniform_sample(r, 1, 1)", "low must be smaller than high"),
        ("uniform_sample(r, -1e308, 1e308)", "low and high are too far apart"),
        ("exp_sample(r, -1)", "lambda must not be negative"),
        ("gamma_sample(r, 0, 1)", "shape must be greater than 0"),
        ("beta_sample(r, 1, 0)", "beta must be greater than 0"),
        ("student_t_sample(r, 0)", "df must be greater than 0"),
        ("chi_squared_sample(r, -1)", "df must be greater than 0"),
        ("poisson_sample(r, 0)", "lambda must be greater than 0"),
        ("poisson_sample(r, 1e20)", "lambda must not be greater than 1.844e19"),
        ("binomial_sample(r, -1, 0.5)", "n must not be negative"),
        ("binomial_sample(r, 1, 1.5)", "p must be between 0 and 1"),
        ("binomial_sample(r, 1 << 60, 0.5)", "n must not be greater than 2^53"),
        ("dirichlet_sample(r, {1})", "needs at least 2 values"),
        ("dirichlet_sample(r, {1, 0})", "value 2 must be greater than 0"),
        ("dirichlet_sample(r, {1e-320, 1e-320})", "the values are too small: all samples are 0"),
        ("categorical_sample(r, {})", "the array is empty"),
        ("categorical_sample(r, {0, 0})", "all weights are 0"),
        ("categorical_sample(r, {1, -1})", "value 2 is negative"),
        ("categorical_sample(r, {1e308, 1e308})", "the weights are too large"),
    ],
)
def test_bad_samples(call, words):
    name = call.partition("(")[0]
    found = Library().error(f"local r = alc.math.rng_create(1) alc.math.{call}")
    assert found == f"alc.math.{name}: {words}"


def test_other_names_are_not_there():
    found = Library().run("return alc.math.nonsense == nil, type(alc.math.erf), type(alc.math[1])")
    assert found == [True, "function", "nil"]
