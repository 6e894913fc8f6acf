"""Trust in Lua packages: it is given by the user, and lost with the first change."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from everhold.errors import BadSetting, NotAllowed, UnknownProgram
from everhold.packages.lua import trust as room
from everhold.packages.lua.trust import (
    fingerprint_package,
    get_trusted_fingerprint,
    list_trust_marks,
    trust_package,
    untrust_package,
)
from everhold.programs.lua.search_path import TICK


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder is one of our own."""
    monkeypatch.setattr(room, "get_data_folder", lambda: tmp_path / "home")
    return tmp_path / "home" / "trust.json"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "packages" / "panel"
    (folder / "parts").mkdir(parents=True)
    (folder / "init.lua").write_text("return {}")
    (folder / "parts" / "judge.lua").write_text("return 1")
    return folder


def test_a_package_is_strange_until_it_is_trusted(package: Path) -> None:
    before = get_trusted_fingerprint(package)
    trust_package(package)
    assert (before, get_trusted_fingerprint(package)) == ("", list_trust_marks()[0][0].digest)


def test_trust_can_be_taken_back(package: Path) -> None:
    trust_package(package)
    assert [
        untrust_package(package),
        untrust_package(package),
        get_trusted_fingerprint(package),
    ] == [True, False, ""]


def changed(package: Path) -> None:
    (package / "parts" / "judge.lua").write_text("return 2")


def added(package: Path) -> None:
    (package / "more.lua").write_text("return 2")


def removed(package: Path) -> None:
    (package / "parts" / "judge.lua").unlink()


def renamed(package: Path) -> None:
    (package / "parts" / "judge.lua").rename(package / "parts" / "jury.lua")


def split(package: Path) -> None:
    """The same bytes in the same order, divided otherwise among the same names."""
    (package / "init.lua").write_text("return {}return")
    (package / "parts" / "judge.lua").write_text(" 1")


@pytest.mark.parametrize(
    "change", [changed, added, removed, renamed, split], ids=lambda change: change.__name__
)
def test_a_package_that_changed_is_trusted_no_more(package: Path, change) -> None:
    trust_package(package)
    change(package)
    assert not get_trusted_fingerprint(package)
    assert [fits for _, fits in list_trust_marks()] == [False]
    trust_package(package)
    assert get_trusted_fingerprint(package)


def test_a_change_that_keeps_size_and_time_is_seen(package: Path) -> None:
    trust_package(package)
    file = package / "parts" / "judge.lua"
    before = file.stat()
    file.write_text("return 2")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not get_trusted_fingerprint(package)


def test_what_changed_a_moment_ago_is_read_again(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one tick of the file system's clock a file can change twice and look the same."""
    same = os.stat(package / "init.lua")
    monkeypatch.setattr(
        room,
        "make_file_fingerprint",
        lambda found: (0, 0, found.st_mode, os.getuid(), 0, 0, same.st_ctime_ns),
    )
    monkeypatch.setattr(room.time, "time_ns", lambda: same.st_ctime_ns + TICK)
    first = fingerprint_package(str(package))
    (package / "init.lua").write_text("return 1")
    second = fingerprint_package(str(package))
    monkeypatch.setattr(room.time, "time_ns", lambda: same.st_ctime_ns + TICK + 1)
    third = fingerprint_package(str(package))
    (package / "init.lua").write_text("return 2")
    assert (first != second, second == third, third == fingerprint_package(str(package))) == (
        True,
        True,
        True,
    )


def test_hidden_files_do_not_belong_to_a_package(package: Path) -> None:
    trust_package(package)
    (package / ".git").mkdir()
    (package / ".git" / "HEAD").write_text("x")
    assert get_trusted_fingerprint(package)


def test_a_copy_elsewhere_is_another_package(package: Path, tmp_path: Path) -> None:
    trust_package(package)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "init.lua").write_text("return {}")
    assert not get_trusted_fingerprint(copy)


def test_a_link_to_a_package_is_the_package(package: Path, tmp_path: Path) -> None:
    trust_package(package)
    (tmp_path / "link").symlink_to(package)
    assert get_trusted_fingerprint(tmp_path / "link")


def test_a_link_that_is_turned_to_another_package_is_that_package(
    package: Path, tmp_path: Path
) -> None:
    trust_package(package)
    other, link = tmp_path / "other", tmp_path / "link"
    other.mkdir()
    (other / "init.lua").write_text("return {}")
    link.symlink_to(package)
    before = get_trusted_fingerprint(link)
    link.unlink()
    link.symlink_to(other)
    assert (bool(before), get_trusted_fingerprint(link)) == (True, "")


def test_a_single_file_can_be_trusted(package: Path) -> None:
    trust_package(package / "parts" / "judge.lua")
    assert get_trusted_fingerprint(package / "parts" / "judge.lua")
    assert not get_trusted_fingerprint(package)


def test_a_package_that_links_outside_cannot_be_trusted(
    package: Path, tmp_path: Path, file: Path
) -> None:
    (tmp_path / "outside.lua").write_text("return 3")
    (package / "more.lua").symlink_to(tmp_path / "outside.lua")
    with pytest.raises(NotAllowed, match="leads out of the package"):
        trust_package(package)
    assert not file.exists()


def test_a_link_that_comes_later_ends_the_trust(package: Path, tmp_path: Path) -> None:
    trust_package(package)
    (tmp_path / "more").mkdir()
    (package / "more").symlink_to(tmp_path / "more")
    assert not get_trusted_fingerprint(package)


@pytest.mark.parametrize("name", ["nowhere", "packages", "packages/panel/parts"])
def test_what_is_no_package_cannot_be_trusted(
    package: Path, tmp_path: Path, name: str, file: Path
) -> None:
    with pytest.raises(UnknownProgram, match="neither a folder"):
        trust_package(tmp_path / name)
    assert not file.exists()


def test_only_the_user_can_read_and_write_the_marks(package: Path, file: Path) -> None:
    trust_package(package)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_marks_that_others_may_write_count_for_nothing(package: Path, file: Path) -> None:
    trust_package(package)
    file.chmod(0o660)
    assert not get_trusted_fingerprint(package)
    with pytest.raises(BadSetting, match="others may write it"):
        list_trust_marks()


@pytest.mark.parametrize("text", ["", "[]", '{"packages": [1]}', '{"format": 2}', "\xff"])
def test_a_damaged_file_trusts_nothing_and_is_not_overwritten(
    package: Path, file: Path, text: str
) -> None:
    trust_package(package)
    file.write_bytes(text.encode("latin-1"))
    assert not get_trusted_fingerprint(package)
    with pytest.raises(BadSetting):
        trust_package(package)
    assert file.read_bytes() == text.encode("latin-1")


def test_marks_of_several_packages_live_together(package: Path, tmp_path: Path, file: Path) -> None:
    other = tmp_path / "packages" / "other"
    other.mkdir()
    (other / "init.lua").write_text("return 5")
    trust_package(package)
    trust_package(other)
    trust_package(package)
    assert [mark.path for mark, fits in list_trust_marks() if fits] == [str(other), str(package)]
    assert len(json.loads(file.read_text())["packages"]) == 2


def test_the_fingerprint_is_of_the_files_and_not_of_their_place(
    package: Path, tmp_path: Path
) -> None:
    found = fingerprint_package(package)
    package.rename(tmp_path / "elsewhere")
    assert fingerprint_package(tmp_path / "elsewhere") == found
