"""alc.math: numbers.lua, compared with what Python computes in other ways."""

import math
import statistics
import struct

import pytest

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
    """What is left of a draw times the range, by whole numbers; draws in the uneven rest are passed
    over.
    """
    size = most - least + 1
    if size == 2**64:
        return (stream.pop(0) + 2**63) % 2**64 - 2**63
    zone = (size << (64 - size.bit_length())) - 1
    while True:
        high, low = divmod(stream.pop(0) * size, 2**64)
        if low <= zone:
            return least + high


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
    """In place, the same list comes back, everything is still in it, and the seed decides the
    order.
    """
    ask = """
    local r, t = alc.math.rng_create({}), {{1, 2, 3, 4, 5, 6, 7, 8, 9}}
    return t, rawequal(t, alc.math.shuffle(r, t))"""
    one, same = Library().run(ask.format(1))
    assert (sorted(one), same) == (list(range(1, 10)), True)
    assert Library().run(ask.format(1))[0] == one != Library().run(ask.format(2))[0]
    assert Library().run("return alc.math.shuffle(alc.math.rng_create(1), {})") == {}


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

LISTS = ["mean", "variance", "stddev", "median", "softmax", "entropy"]
BAD = [
    ("{}", "the array is empty"),
    ("nil", "expected an array of numbers, got nil"),
    ("5", "expected an array of numbers, got number"),
    ("{1, 0/0}", "value 2 must be a finite number"),
    ("{1/0, 1}", "value 1 must be a finite number"),
    ("{1, -1/0}", "value 2 must be a finite number"),
    ("{1, 'x'}", "value 2 must be a finite number"),
    ("{1, '2'}", "value 2 must be a finite number"),
]


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(("given", "words"), BAD)
def test_bad_lists(name, given, words):
    assert Library().error(f"alc.math.{name}({given})") == f"alc.math.{name}: {words}"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("variance({1})", "variance: needs at least 2 values"),
        ("stddev({1})", "stddev: needs at least 2 values"),
        ("entropy({0.5, -0.1})", "entropy: value 2 is negative"),
        ("percentile({}, 5)", "percentile: the array is empty"),
        ("percentile({1}, 101)", "percentile: the percentile must be between 0 and 100"),
        ("percentile({1}, -1)", "percentile: the percentile must be between 0 and 100"),
        ("percentile({1})", "percentile: the percentile must be a finite number"),
        ("wilson_ci(1, 0)", "wilson_ci: total must be greater than 0"),
        ("wilson_ci(6, 5)", "wilson_ci: successes must be between 0 and total"),
        ("wilson_ci(-1, 5)", "wilson_ci: successes must be between 0 and total"),
        ("wilson_ci(1, 5, 1)", "wilson_ci: confidence must be between 0 and 1"),
        ("wilson_ci(1, 5, 0/0)", "wilson_ci: confidence must be a finite number"),
        ("normal_cdf(1, 0, 0)", "normal_cdf: sigma must be greater than 0"),
        ("normal_cdf(1/0)", "normal_cdf: x must be a finite number"),
        ("welch_t_test({1}, {1, 2})", "welch_t_test: needs at least 2 values"),
        ("welch_t_test({1, 1}, {2, 2})", "welch_t_test: neither sample varies"),
        ("rng_create()", "rng_create: the seed must be an integer"),
        ("rng_create(1.5)", "rng_create: the seed must be an integer"),
        ("rng_create('x')", "rng_create: the seed must be an integer"),
        ("rng_float()", "rng_float: the first argument must come from rng_create"),
        ("rng_int(alc.math.rng_create(1), 2, 1)", "rng_int: min is greater than max"),
        ("rng_int(alc.math.rng_create(1), 1.5, 2)", "rng_int: min must be an integer"),
        ("rng_int(alc.math.rng_create(1), 1)", "rng_int: max must be an integer"),
        ("shuffle(alc.math.rng_create(1), 1)", "shuffle: expected an array, got number"),
        ("erf(1)", "erf: comes with a later version of everhold"),
        ("permutations(3)", "permutations: comes with a later version of everhold"),
        ("normal_sample()", "normal_sample: comes with a later version of everhold"),
    ],
)
def test_bad_calls(call, words):
    assert Library().error(f"alc.math.{call}") == f"alc.math.{words}"


def test_other_names_are_not_there():
    assert Library().run(
        "return alc.math.nonsense == nil, type(alc.math.erf), type(alc.math.mean)"
    ) == [
        True,
        "function",
        "function",
    ]


LATER = """
sample_with_replacement normal_sample beta_sample gamma_sample exp_sample uniform_sample lognormal_sample
student_t_sample chi_squared_sample poisson_sample binomial_sample dirichlet_sample categorical_sample iqr
covariance correlation log_normalize histogram beta_cdf gamma_cdf poisson_cdf normal_inverse_cdf normal_ppf
beta_ppf beta_mean beta_variance erf erfc lgamma beta ln_beta regularized_incomplete_beta
regularized_incomplete_gamma digamma factorial ln_factorial logsumexp logit expit mann_whitney_u
chi_squared_test ks_test rank spearman_correlation kendall_tau ndcg mrr kl_divergence js_divergence
cross_entropy moving_average ewma autocorrelation permutations
"""  # noqa: E501


def test_every_name_is_there():
    """What is not here yet says so under its own name."""
    library = Library()
    for name in LATER.split():
        words = library.error(f"alc.math.{name}(1)")
        assert words == f"alc.math.{name}: comes with a later version of everhold"
