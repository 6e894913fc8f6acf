"""Which references mean one program."""

import sys
from pathlib import Path

import pytest

from everhold.ports.program_identity import (
    find_same_program,
    is_same_program,
    list_filter_programs,
    list_program_aliases,
)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on `sys.path`: a module, a package, and a folder without `__init__.py`."""
    for name in ("desk_7.py", "store_7/__init__.py", "store_7/orders.py", "plain_7/jobs.py"):
        file = tmp_path / "shop" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "shop")
    monkeypatch.syspath_prepend(str(tmp_path / "shop"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "shop"


def test_a_module_its_file_and_links_to_it_are_one_place(shop: Path) -> None:
    """However the file is named: by module, whole path, relative path, or through a link."""
    refs = ["desk_7:a", f"{shop}/desk_7.py:a", "shop/desk_7.py:a", f"{shop}/../link/desk_7.py:a"]
    assert all(is_same_program(one, other) for one in refs for other in refs)


def test_modules_in_packages_and_plain_folders_are_found(shop: Path) -> None:
    """Also the package's own file."""
    assert is_same_program("store_7.orders:a", f"{shop}/store_7/orders.py:a")
    assert is_same_program("plain_7.jobs:a", f"{shop}/plain_7/jobs.py:a")
    assert is_same_program("store_7:a", f"{shop}/store_7/__init__.py:a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("desk_7:a", "desk_7:b"),
        ("desk_7:a", "store_7.orders:a"),
        ("desk_7:a", "a"),
        ("a", "b"),
        ("gone_7:a", "lost_7:a"),
        ("/old/esk_7.py:a", "desk_7:a"),
        ("/old/x/desk_7.py:a", "/older/x/desk_7.py:a"),
    ],
)
def test_other_names_and_other_places_are_other_programs(shop: Path, one: str, other: str) -> None:
    """A shorter name that only ends alike is another one; so are two files that are both gone."""
    assert not is_same_program(one, other)
    assert not is_same_program(other, one)


def test_a_file_that_is_not_here_is_known_by_its_module_name(shop: Path) -> None:
    """It was moved, or is on another machine."""
    assert is_same_program("/app/desk_7.py:a", "desk_7:a")
    assert is_same_program("/app/store_7/orders.py:a", f"{shop}/store_7/orders.py:a")
    assert not is_same_program("/app/orders.py:a", "store_7.orders:a")


def test_two_files_that_are_both_here_are_two_programs(shop: Path, tmp_path: Path) -> None:
    """Also if they have the same name."""
    other = tmp_path / "desk_7.py"
    other.write_text("")
    assert not is_same_program(f"{other}:a", f"{shop}/desk_7.py:a")


def test_a_file_that_appears_is_seen(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compared before a folder was on `sys.path` is compared again."""
    later = shop.parent / "later"
    later.mkdir()
    (later / "late_7.py").write_text("")
    assert list_program_aliases("late_7:a") == ("late_7:a",)
    monkeypatch.syspath_prepend(str(later))
    assert is_same_program("late_7:a", f"{later}/late_7.py:a")


def test_a_filter_finds_all_references_of_a_program(shop: Path) -> None:
    """A bare name stays alone: stores compare it with the end of the reference."""
    assert set(list_filter_programs("desk_7:a")) == {
        "desk_7:a",
        f"{shop}/desk_7.py:a",
        "shop.desk_7:a",
    }
    assert list_filter_programs("a") == ("a",)
    assert list_filter_programs(None) == ()


def test_no_code_runs_to_compare(shop: Path) -> None:
    """Packages are not imported."""
    (shop / "store_7" / "__init__.py").write_text("raise SystemExit('imported')")
    assert find_same_program("store_7.orders:a", [f"{shop}/store_7/orders.py:a"])
    assert "store_7" not in sys.modules
