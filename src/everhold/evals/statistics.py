"""Statistics of scores: description, intervals, and tests of whether two programs differ.

Rules
  1. All results are deterministic: random draws have a fixed seed.
  2. A difference counts as shown only if a permutation test *and* the interval agree. Of programs
     that are equal, a permutation test reports at most 5 % as different, however few or coarse the
     scores are; the bootstrap alone does not keep that promise for small samples.
  3. For pairs, the permutation test flips the signs of the differences: exact, as long as few pairs
     differ. The interval is a bootstrap of the pairs, its percentiles widened for small samples as
     Student's t widens those of a normal distribution.
  4. Without pairs, the permutation test exchanges scores between the two groups, and the interval
     is that of Welch's t.
  5. Scores that are all equal have no spread to resample. Then the interval says how much of what
     was not sampled could differ, at the same confidence.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

import msgspec

#: The level of all tests, and the confidence of all intervals.
LEVEL: Final = 0.05
#: The quantile of the normal distribution for an interval of this confidence.
_NORMAL: Final = 1.959963984540054
#: Resamples of a bootstrap.
RESAMPLES: Final = 4000
#: Draws of a permutation test that cannot try all.
PERMUTATIONS: Final = 4999
#: Pairs that differ, up to which every combination of signs is tried.
_ALL_SIGNS: Final = 12
_SEED: Final = 20231
#: Sums that differ by less than this are equal.
_ROUNDING: Final = 1e-9


class ScoreStats(msgspec.Struct, frozen=True):
    """A list of scores in six numbers. `std_dev` is that of a sample."""

    n: int = 0
    mean: float = 0.0
    std_dev: float = 0.0
    min: float = 0.0
    max: float = 0.0
    median: float = 0.0


class Interval(msgspec.Struct, frozen=True):
    """An interval of 95 % confidence."""

    lower: float
    upper: float

    def excludes_zero(self) -> bool:
        return self.lower > 0 or self.upper < 0


class WelchTest(msgspec.Struct, frozen=True):
    """Welch's t test of two groups; `direction` is "a>b", "a<b", "equal" or "insufficient_data"."""

    t_stat: float
    df: float
    significant: bool
    direction: str
    p_value: float = 1.0


class Difference(msgspec.Struct, frozen=True):
    """The difference of two means, b minus a, and whether it is shown."""

    delta: float
    interval: Interval
    p_value: float
    shown: bool


def describe_scores(scores: Sequence[float]) -> ScoreStats:
    """Describe scores; all zero if there are none."""
    if not scores:
        return ScoreStats()
    spread = _find_std_dev(scores) if len(scores) > 1 else 0.0
    return ScoreStats(
        len(scores),
        find_mean(scores),
        spread,
        min(scores),
        max(scores),
        _find_median(scores),
    )


def find_mean(scores: Sequence[float]) -> float:
    """The mean, without the rounding of a plain sum."""
    return math.fsum(scores) / len(scores)


def _find_std_dev(scores: Sequence[float]) -> float:
    mean = find_mean(scores)
    return math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1))


def _find_median(scores: Sequence[float]) -> float:
    ranked = sorted(scores)
    middle = len(ranked) // 2
    return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2


def find_mean_interval(scores: Sequence[float]) -> Interval:
    """The interval of the mean of scores between 0 and 1: Wilson's if all are 0 or 1, else that of
    Student's t.
    """
    n = len(scores)
    if n == 0:
        return Interval(0.0, 1.0)
    if all(score in (0, 1) for score in scores):
        return _find_wilson_interval(sum(scores), n)
    mean = find_mean(scores)
    if n == 1:
        return Interval(0.0, 1.0)
    spread = _find_std_dev(scores)
    if spread == 0:
        missed = _find_unseen_share(n)
        return Interval(mean * (1 - missed), mean + (1 - mean) * missed)
    margin = find_t_quantile(1 - LEVEL / 2, n - 1) * spread / math.sqrt(n)
    return Interval(max(0.0, mean - margin), min(1.0, mean + margin))


def _find_wilson_interval(passed: float, n: int) -> Interval:
    z = _NORMAL
    rate = passed / n
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    margin = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # at the ends the formula is exact but for rounding
    lower = 0.0 if passed == 0 else middle - margin
    upper = 1.0 if passed == n else middle + margin
    return Interval(lower, upper)


def find_pass_at(n: int, passed: int, k: int) -> float:
    """The probability that at least one of `k` results, drawn from `n` of which some passed, is a
    pass.
    """
    k = min(k, n)
    return 1 - math.comb(n - passed, k) / math.comb(n, k) if n else 0.0


# ---- two evals of the same cases


def compare_pairs(differences: Sequence[float]) -> Difference:
    """Whether paired differences (b minus a) have a mean other than 0."""
    n = len(differences)
    delta = find_mean(differences)
    p_value = find_sign_flip_p(differences)
    interval = find_paired_interval(differences)
    shown = n > 1 and p_value < LEVEL and interval.excludes_zero()
    return Difference(delta, interval, p_value, shown)


def find_sign_flip_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of the test that flips signs.

    If both programs are equal, each difference is as likely with the other sign. The p-value is the
    share of flips whose mean is at least as far from 0 as the one found.
    """
    sizes = [abs(one) for one in differences if abs(one) > _ROUNDING]
    found = abs(math.fsum(differences)) - _ROUNDING
    if not sizes:
        return 1.0
    if max(sizes) - min(sizes) < _ROUNDING:
        return _find_sign_test_p(len(sizes), round(abs(math.fsum(differences)) / sizes[0]))
    if len(sizes) <= _ALL_SIGNS:
        flips = product((1, -1), repeat=len(sizes) - 1)  # the other half mirrors this one
        sums = [
            abs(sizes[0] + sum(sign * size for sign, size in zip(signs, sizes[1:], strict=True)))
            for signs in flips
        ]
        return sum(1 for one in sums if one >= found) / len(sums)
    dice = random.Random(_SEED)
    as_far = 0
    for _ in range(PERMUTATIONS):
        bits = dice.getrandbits(len(sizes))
        total = 0.0
        for size in sizes:
            total += size if bits & 1 else -size
            bits >>= 1
        as_far += abs(total) >= found
    return (as_far + 1) / (PERMUTATIONS + 1)


def _find_sign_test_p(n: int, surplus: int) -> float:
    """The p-value if all differences have one size: a binomial tail."""
    if surplus == 0:
        return 1.0
    least = (n + surplus + 1) // 2
    tail = sum(math.comb(n, k) for k in range(least, n + 1))
    return min(1.0, float(2 * tail / 2**n))


def find_paired_interval(differences: Sequence[float]) -> Interval:
    """The bootstrap interval of the mean of paired differences."""
    n = len(differences)
    if max(differences) - min(differences) < _ROUNDING:
        value = find_mean(differences)
        missed = _find_unseen_share(n)
        return Interval(value * (1 - missed) - missed, value * (1 - missed) + missed)
    dice = random.Random(_SEED)
    means = sorted(sum(dice.choices(differences, k=n)) / n for _ in range(RESAMPLES))
    widened = math.sqrt(n / (n - 1)) * find_t_quantile(1 - LEVEL / 2, n - 1)
    tail = math.erfc(widened / math.sqrt(2)) / 2
    cut = math.floor(tail * RESAMPLES)
    return Interval(means[cut], means[-1 - cut])


def _find_unseen_share(n: int) -> float:
    """The largest share of cases of which `n` samples may have found none, at our confidence."""
    return float(1 - (LEVEL / 2) ** (1 / n))


# ---- two evals of other cases


def compare_groups(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Whether two groups of scores have means that differ."""
    delta = find_mean(b) - find_mean(a)
    test = run_welch_test(a, b)
    interval = _find_welch_interval(a, b)
    p_value = max(_find_exchange_p(a, b), test.p_value)
    return Difference(delta, interval, p_value, p_value < LEVEL and interval.excludes_zero())


def run_welch_test(a: Sequence[float], b: Sequence[float]) -> WelchTest:
    """Welch's t test. Groups without any spread are different if their means are."""
    if len(a) < 2 or len(b) < 2:
        return WelchTest(0.0, 0.0, False, "insufficient_data")
    delta = find_mean(a) - find_mean(b)
    error, df = _find_welch_error(a, b)
    if error < _ROUNDING:
        if abs(delta) < _ROUNDING:
            return WelchTest(0.0, float(len(a) + len(b) - 2), False, "equal")
        return WelchTest(0.0, df, True, "a>b" if delta > 0 else "a<b", 0.0)
    t_stat = delta / error
    p_value = 2 * (1 - find_t_cdf(abs(t_stat), df))
    direction = "equal" if abs(delta) < _ROUNDING else "a>b" if delta > 0 else "a<b"
    return WelchTest(t_stat, df, p_value < LEVEL, direction, p_value)


def _find_welch_error(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """The standard error of the difference, and its degrees of freedom."""
    of_a = _find_std_dev(a) ** 2 / len(a)
    of_b = _find_std_dev(b) ** 2 / len(b)
    below = of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1)
    df = (of_a + of_b) ** 2 / below if below else float(len(a) + len(b) - 2)
    return math.sqrt(of_a + of_b), df


def _find_welch_interval(a: Sequence[float], b: Sequence[float]) -> Interval:
    delta = find_mean(b) - find_mean(a)
    if len(a) < 2 or len(b) < 2:
        return Interval(-1.0, 1.0)
    error, df = _find_welch_error(a, b)
    if error < _ROUNDING:
        margin = _find_unseen_share(len(a)) + _find_unseen_share(len(b))
        return Interval(max(-1.0, delta - margin), min(1.0, delta + margin))
    margin = find_t_quantile(1 - LEVEL / 2, df) * error
    return Interval(delta - margin, delta + margin)


def _find_exchange_p(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided p-value of the test that exchanges scores between the groups."""
    pool = [*a, *b]
    total = math.fsum(pool)
    found = abs(math.fsum(b) / len(b) - math.fsum(a) / len(a)) - _ROUNDING
    dice = random.Random(_SEED)
    as_far = 0
    for _ in range(PERMUTATIONS):
        drawn = sum(dice.sample(pool, len(a)))
        as_far += abs((total - drawn) / len(b) - drawn / len(a)) >= found
    return (as_far + 1) / (PERMUTATIONS + 1)


# ---- Student's t


def find_t_cdf(t: float, df: float) -> float:
    """The probability that Student's t is at most `t`."""
    tail = _find_beta_share(df / (df + t * t), df / 2, 0.5) / 2
    return 1 - tail if t > 0 else tail


def find_t_quantile(probability: float, df: float) -> float:
    """The value that Student's t does not exceed with this probability, which is above 0.5."""
    return _bisect(lambda t: find_t_cdf(t, df) - probability, 0.0, 1e4)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(80):
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _find_beta_share(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _find_beta_share(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return front * _expand_beta_fraction(x, a, b) / a


def _expand_beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, from its first term on."""
    tiny = 1e-300
    c = 1.0
    d = 1 / (1 - (a + b) * x / (a + 1) or tiny)
    result = d
    for m in range(1, 400):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + even * d or tiny)
        c = 1 + even / c or tiny
        result *= c * d
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + odd * d or tiny)
        c = 1 + odd / c or tiny
        step = c * d
        result *= step
        if abs(step - 1) < 1e-13:
            break
    return result
