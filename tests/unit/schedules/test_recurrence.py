"""When schedules come round: cron in timezones, pauses, single moments; nobody's clock is asked."""

import datetime as dates
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everhold.errors import BadSchedule, UnknownTimezone
from everhold.schedules.recurrence import (
    Cron,
    Every,
    Once,
    find_latest_time,
    find_next_time,
    format_recurrence,
    parse_recurrence,
)

BERLIN = ZoneInfo("Europe/Berlin")


def moment(*parts, tz=dates.UTC, fold=0):
    return dates.datetime(*parts, tzinfo=tz, fold=fold).timestamp()


def following(expression, start, count, timezone="UTC"):
    found, at = [], start
    for _ in range(count):
        at = find_next_time(parse_recurrence(expression, timezone), at)
        found.append(at)
    return found


def walls(found, tz=BERLIN):
    return [f"{dates.datetime.fromtimestamp(at, tz):%m-%d %H:%M %Z}" for at in found]


def test_weekdays_at_three():
    """Friday, then Monday."""
    found = following("0 3 * * 1-5", moment(2026, 3, 13, 0, 0), 2)
    assert found == [moment(2026, 3, 13, 3), moment(2026, 3, 16, 3)]


def test_a_moment_is_later_than_the_one_before_it():
    """At the very moment, the next one is meant."""
    assert following("0 3 * * *", moment(2026, 3, 13, 3), 1) == [moment(2026, 3, 14, 3)]


def test_names_stand_for_expressions():
    assert following("@daily", moment(2026, 1, 31, 12), 1) == [moment(2026, 2, 1)]


def test_seconds_are_a_sixth_field_in_front():
    assert following("*/30 * * * * *", moment(2026, 1, 1), 2) == [
        moment(2026, 1, 1) + 30,
        moment(2026, 1, 1) + 60,
    ]


def test_a_fixed_time_in_the_hour_that_is_left_out_comes_when_the_clock_has_jumped():
    """On 29 March 2026 it is never half past two in Berlin; that day's moment comes at three."""
    found = following("30 2 * * *", moment(2026, 3, 28, 12, tz=BERLIN), 2, "Europe/Berlin")
    assert walls(found) == ["03-29 03:00 CEST", "03-30 02:30 CEST"]


def test_two_fixed_times_in_the_hour_that_is_left_out_are_one():
    found = following("15,45 2 * * *", moment(2026, 3, 28, 12, tz=BERLIN), 2, "Europe/Berlin")
    assert walls(found) == ["03-29 03:00 CEST", "03-30 02:15 CEST"]


def test_a_fixed_time_in_the_hour_that_comes_twice_comes_once():
    """On 25 October 2026 it is half past two twice in Berlin; the first one counts."""
    found = following("30 2 * * *", moment(2026, 10, 24, 12, tz=BERLIN), 2, "Europe/Berlin")
    assert walls(found) == ["10-25 02:30 CEST", "10-26 02:30 CET"]


def test_in_the_second_of_two_equal_hours_nothing_comes_that_has_passed():
    """At a quarter past two for the second time, half past two has been."""
    late = moment(2026, 10, 25, 2, 15, tz=BERLIN, fold=1)
    assert walls(following("30 2 * * *", late, 1, "Europe/Berlin")) == ["10-26 02:30 CET"]


def test_what_comes_every_half_hour_follows_real_time():
    """The hour that comes twice has four half hours, the one that is left out none."""
    autumn = following("*/30 * * * *", moment(2026, 10, 25, 1, 30, tz=BERLIN), 5, "Europe/Berlin")
    assert {two - one for one, two in pairwise(autumn)} == {1800.0}
    spring = following("*/30 * * * *", moment(2026, 3, 29, 1, 30, tz=BERLIN), 2, "Europe/Berlin")
    assert walls(spring) == ["03-29 03:00 CEST", "03-29 03:30 CEST"]


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "* * * *",
        "61 * * * *",
        "* * * * * * *",
        "x",
        "0 0 31 2 *",
        "a b c d e",
        "*/0 * * * *",
        "1#2/3 * * * *",
    ],
)
def test_what_is_no_expression_is_refused(wrong):
    with pytest.raises(BadSchedule, match="is not a schedule"):
        parse_recurrence(wrong)


@pytest.mark.parametrize(
    "wrong", ["Nowhere/City", "", "../passwd", "Europe", "Europe/Berlin\n", None, 7]
)
def test_what_is_no_timezone_is_refused(wrong):
    with pytest.raises(UnknownTimezone):
        parse_recurrence("0 3 * * *", wrong)


@pytest.mark.parametrize(
    "wrong", [dates.timedelta(0), dates.timedelta(seconds=-5), dates.timedelta(seconds=0.5)]
)
def test_a_pause_is_a_second_at_least(wrong):
    with pytest.raises(BadSchedule):
        parse_recurrence(wrong)


@pytest.mark.parametrize("wrong", [None, 60, ["0 3 * * *"]])
def test_when_is_text_a_pause_or_a_moment(wrong):
    with pytest.raises(BadSchedule):
        parse_recurrence(wrong)


def test_a_moment_without_a_timezone_is_meant_in_the_one_that_was_given():
    assert parse_recurrence(dates.datetime(2026, 3, 1, 9), "Europe/Berlin") == Once(
        moment(2026, 3, 1, 8)
    )
    assert parse_recurrence(
        dates.datetime(2026, 3, 1, 9, tzinfo=dates.UTC), "Europe/Berlin"
    ) == Once(moment(2026, 3, 1, 9))


def test_a_single_moment_comes_once():
    assert find_next_time(Once(50.0), 49.0) == 50.0
    assert find_next_time(Once(50.0), 50.0) is None


def test_a_pause_is_counted_from_where_it_began():
    assert find_next_time(Every(60.0), 1000.0, 1000.0) == 1060.0
    assert find_next_time(Every(60.0), 1059.9, 1000.0) == 1060.0
    assert find_next_time(Every(60.0), 1060.0, 1000.0) == 1120.0


@given(st.floats(1, 1e6), st.floats(0, 2e9), st.floats(0, 1e8))
def test_a_pause_always_comes_again(seconds, since, passed):
    """Whatever floats do, the next moment is later, and no more than one pause away."""
    found = find_next_time(Every(seconds), since + passed, since)
    assert since + passed < found <= since + passed + seconds * 1.0001 + 1e-3


def test_the_last_of_many_that_were_missed_is_found_without_counting_them():
    """Ten years of every second."""
    first = moment(2016, 1, 1)
    assert find_latest_time(Cron("* * * * * *", "UTC"), first, moment(2026, 1, 1) + 0.5) == moment(
        2026, 1, 1
    )
    assert find_latest_time(Every(1.0), first, first + 3e8 + 0.5, first) == first + 3e8


def test_the_last_of_those_that_were_missed_is_the_last_one():
    nightly = Cron("0 3 * * *", "UTC")
    first = moment(2026, 1, 1, 3)
    assert find_latest_time(nightly, first, first) == first
    assert find_latest_time(nightly, first, moment(2026, 1, 9, 2, 59)) == moment(2026, 1, 8, 3)
    assert find_latest_time(
        Cron("0 0 29 2 *", "UTC"), moment(2024, 2, 29), moment(2027, 1, 1)
    ) == moment(2024, 2, 29)


def test_a_rhythm_is_told_as_people_say_it():
    assert (
        format_recurrence(parse_recurrence(" 0  3 * * * ", "Europe/Berlin"))
        == "0 3 * * * (Europe/Berlin)"
    )
    assert format_recurrence(Every(90.0)) == "every 0:01:30"
    assert format_recurrence(Once(0.0)) == "once at 1970-01-01 00:00:00 UTC"


@pytest.mark.parametrize(
    "when",
    [
        dates.datetime.min,
        dates.datetime.max,
        dates.datetime(1, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")),
        dates.datetime(9999, 12, 31, 23, 59, tzinfo=ZoneInfo("America/New_York")),
        dates.timedelta.max,
        dates.timedelta(days=36526),
    ],
)
def test_what_no_calendar_can_show_is_refused(when):
    """Else nobody could list the schedules any more."""
    with pytest.raises(BadSchedule):
        parse_recurrence(when, "Europe/Berlin")
