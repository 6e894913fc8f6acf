"""Statistics: known values, and how often equal programs are called different."""

import random

import pytest

from everhold.evals.statistics import (
    LEVEL,
    compare_groups,
    compare_pairs,
    describe_scores,
    find_mean_interval,
    find_paired_interval,
    find_pass_at,
    find_sign_flip_p,
    find_t_cdf,
    find_t_quantile,
    run_welch_test,
)


def test_description():
    """Six numbers; none of no scores."""
    found = describe_scores([1, 0, 0.5, 0.5])
    assert (found.n, found.mean, found.min, found.max, found.median) == (4, 0.5, 0, 1, 0.5)
    assert found.std_dev == pytest.approx(0.408248, abs=1e-6)
    assert describe_scores([]).n == 0 and describe_scores([1]).std_dev == 0


@pytest.mark.parametrize(
    ("df", "quantile"), [(1, 12.7062), (2, 4.30265), (5, 2.57058), (30, 2.04227), (1000, 1.96234)]
)
def test_students_t(df, quantile):
    """The quantiles are those of the printed tables."""
    assert find_t_quantile(0.975, df) == pytest.approx(quantile, abs=1e-4)
    assert find_t_cdf(quantile, df) == pytest.approx(0.975, abs=1e-6)
    assert find_t_cdf(-quantile, df) == pytest.approx(0.025, abs=1e-6)


def test_welch():
    """1 to 5 against their doubles: t -1.8974, df 5.8824, p 0.10753."""
    found = run_welch_test([1, 2, 3, 4, 5], [2, 4, 6, 8, 10])
    assert found.t_stat == pytest.approx(-1.8974, abs=1e-4) and found.direction == "a<b"
    assert found.df == pytest.approx(5.8824, abs=1e-4)
    assert found.p_value == pytest.approx(0.10753, abs=1e-5) and not found.significant


def test_welch_without_spread():
    """Equal scores are equal; one score is not enough."""
    assert run_welch_test([1, 1], [1, 1, 1]).direction == "equal"
    assert run_welch_test([1, 1], [0, 0]).direction == "a>b"
    assert run_welch_test([1], [0, 0]).direction == "insufficient_data"


def test_wilson_interval():
    """8 of 10: 0.490 to 0.943. All of 10 is no certainty."""
    found = find_mean_interval([1] * 8 + [0] * 2)
    assert (found.lower, found.upper) == (
        pytest.approx(0.4902, abs=1e-4),
        pytest.approx(0.9433, abs=1e-4),
    )
    assert find_mean_interval([1] * 10).lower == pytest.approx(0.7225, abs=1e-4)


def test_interval_of_other_scores():
    """Between 0 and 1; scores without spread are no certainty either."""
    found = find_mean_interval([0.2, 0.4, 0.6])
    assert found.lower == 0 and found.upper == pytest.approx(0.8968, abs=1e-3)
    alike = find_mean_interval([0.5] * 5)
    assert alike.lower < 0.3 and alike.upper > 0.7
    assert find_mean_interval([0.5]).lower == 0 and find_mean_interval([]).upper == 1


def test_pass_at():
    """1 - C(n-c, k) / C(n, k)."""
    assert find_pass_at(10, 3, 1) == pytest.approx(0.3)
    assert find_pass_at(10, 3, 5) == pytest.approx(1 - 21 / 252)
    assert find_pass_at(10, 0, 5) == 0 and find_pass_at(10, 10, 1) == 1


def test_signs_are_flipped_exactly():
    """Six cases, all better: 2 / 64. Five: not enough for any difference."""
    assert find_sign_flip_p([1] * 6) == pytest.approx(2 / 64)
    assert find_sign_flip_p([1] * 5 + [0] * 20) == pytest.approx(2 / 32)
    assert find_sign_flip_p([0.5, 0.25, 1]) == pytest.approx(2 / 8)
    assert find_sign_flip_p([1, -1]) == 1 and find_sign_flip_p([0, 0]) == 1


def test_a_clear_difference_is_shown():
    """20 of 30 cases better, none worse."""
    found = compare_pairs([1.0] * 20 + [0.0] * 10)
    assert found.shown and found.delta == pytest.approx(2 / 3)
    assert 0.4 < found.interval.lower < 0.55 and 0.8 < found.interval.upper < 0.9


def test_same_scores_twice():
    """Nothing differs: no difference is shown, and the interval has a width."""
    found = compare_pairs([0.0] * 20)
    assert not found.shown and found.interval.lower == pytest.approx(-found.interval.upper)
    assert 0.1 < found.interval.upper < 0.2


def test_one_pair_shows_nothing():
    """A single case is no evidence."""
    assert not compare_pairs([1.0]).shown
    assert not compare_groups([0.0], [1.0]).shown


def test_the_same_data_gives_the_same_numbers():
    """Draws are seeded."""
    dice = random.Random(1)
    differences = [dice.uniform(-1, 1) for _ in range(30)]
    assert compare_pairs(differences) == compare_pairs(differences)
    assert compare_groups(differences, differences[:9]) == compare_groups(
        differences, differences[:9]
    )


def test_the_interval_covers_the_truth():
    """Of 100 samples with a known mean, at most 10 miss it."""
    dice = random.Random(3)
    missed = 0
    for _ in range(100):
        found = find_paired_interval([dice.gauss(0.1, 0.3) for _ in range(12)])
        missed += not found.lower <= 0.1 <= found.upper
    assert missed <= 10


def simulate(count, n, draw):
    """The share of simulated pairs of equal programs that are called different, paired and not."""
    paired = grouped = 0
    for seed in range(count):
        dice = random.Random(seed)
        hard = [dice.random() for _ in range(n)]  # how hard each case is, for both programs
        a = [draw(dice, one) for one in hard]
        b = [draw(dice, one) for one in hard]
        differences = [two - one for one, two in zip(a, b, strict=True)]
        # nothing is shown without a small p-value, and it is found much faster than the rest
        paired += find_sign_flip_p(differences) < LEVEL and compare_pairs(differences).shown
        other = [draw(dice, dice.random()) for _ in range(n)]
        grouped += run_welch_test(a, other).p_value < LEVEL and compare_groups(a, other).shown
    return paired / count, grouped / count


def draw_pass(dice, rate):
    return float(dice.random() < rate)


def draw_points(dice, rate):
    """A score in steps of a fifth, as a judge gives."""
    return round(min(1.0, max(0.0, dice.gauss(rate, 0.2))) * 5) / 5


@pytest.mark.parametrize("draw", [draw_pass, draw_points])
def test_equal_programs_are_rarely_called_different(draw):
    """A short form of the 2,000 below."""
    for share in simulate(500, 10, draw):
        assert share <= LEVEL


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("n", [5, 10, 25, 60])
@pytest.mark.parametrize("draw", [draw_pass, draw_points])
def test_false_alarms_of_2000_evals(n, draw):
    """Of 2,000 evals of equal programs, at most 5 % are called different."""
    paired, grouped = simulate(2000, n, draw)
    assert paired <= LEVEL and grouped <= LEVEL, (paired, grouped)
