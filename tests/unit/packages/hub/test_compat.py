"""Ranges of versions, as Cargo reads them."""

import pytest

from everhold.packages.hub.compat import is_in_range, parse_version


@pytest.mark.parametrize(
    ("wanted", "fits", "does_not"),
    [
        (">=0.25.0, <0.26", "0.25.9", "0.26.0"),
        ("0.25", "0.25.1", "0.26.0"),
        ("^0.25.1", "0.25.2", "0.25.0"),
        ("^0.0.3", "0.0.3", "0.0.4"),
        ("^1.2", "1.9.0", "2.0.0"),
        ("0", "0.99.0", "1.0.0"),
        ("~1.2.3", "1.2.9", "1.3.0"),
        ("~1", "1.9.9", "2.0.0"),
        ("1.2.*", "1.2.7", "1.3.0"),
        ("=1.2.3", "1.2.3", "1.2.4"),
        ("=1.2", "1.2.9", "1.3.0"),
        (">1.2", "1.3.0", "1.2.9"),
        (">1.2.3", "1.2.4", "1.2.3"),
        ("<=1.2", "1.2.9", "1.3.0"),
        ("<1.2", "1.1.9", "1.2.0"),
    ],
)
def test_a_range_has_a_last_and_a_first_version(wanted: str, fits: str, does_not: str) -> None:
    assert (is_in_range(fits, wanted), is_in_range(does_not, wanted)) == (True, False)


def test_a_star_is_every_version() -> None:
    assert is_in_range("0.0.1", "*") and is_in_range("99.0.0", "*")


@pytest.mark.parametrize(
    "wanted", ["", "latest", ">=", "1.2.3.4", "1.*.3", ">=1.*", "1,,2", "01.2"]
)
def test_what_is_no_range_is_refused(wanted: str) -> None:
    with pytest.raises(ValueError, match="not a range"):
        is_in_range("1.0.0", wanted)


def test_a_version_has_three_numbers() -> None:
    assert parse_version("1.22.3-rc.1") == (1, 22, 3)
    with pytest.raises(ValueError, match="not a version"):
        parse_version("1.2")
