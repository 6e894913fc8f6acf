"""alc.toml, alc.lock, alc.local.toml, installed.json: read, edited, and never half written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from everhold.errors import BadPackage, BadPackageFile, StoreBusy
from everhold.packages.lua.atomic_file import hold_file_lock, write_atomically, write_together
from everhold.packages.lua.fetch import (
    INSTALLED_SOURCE,
    UNKNOWN_SOURCE,
    BundledSource,
    FolderSource,
    GitSource,
)
from everhold.packages.lua.folder import check_package_name
from everhold.packages.lua.installed import change_installed, load_installed
from everhold.packages.lua.paths import AlcHome
from everhold.packages.lua.project import GitNeed, LockedPackage, PathNeed, Project, VersionNeed

# Files


def test_a_file_is_written_whole_and_for_its_owner(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b.json", "text")
    file = tmp_path / "a" / "b.json"
    assert (file.read_text(), file.stat().st_mode & 0o777, os.listdir(file.parent)) == (
        "text",
        0o600,
        ["b.json"],
    )


def test_a_file_keeps_its_rights_and_a_link_its_place(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_atomically(link, "new")
    assert (file.read_text(), file.stat().st_mode & 0o777, link.is_symlink()) == (
        "new",
        0o640,
        True,
    )


def test_what_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadPackageFile, match="cannot be written"):
        write_atomically(tmp_path / "file" / "x", "text")
    with (
        pytest.raises(BadPackageFile, match="cannot be written") as refused,
        hold_file_lock(tmp_path / "file" / "x"),
    ):
        pass
    assert refused.value.hint.startswith(f"Nothing was changed. Make {tmp_path / 'file'} a folder")
    assert (tmp_path / "file").is_file()


def test_files_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    """One that cannot be written leaves the others as they were, and nothing beside them."""
    (tmp_path / "one").write_text("old")
    (tmp_path / "file").touch()
    with pytest.raises(BadPackageFile, match="cannot be written"):
        write_together({tmp_path / "one": "new", tmp_path / "file" / "two": "new"})
    assert (tmp_path / "one").read_text() == "old"
    assert not list(tmp_path.glob(".*"))
    write_together({tmp_path / "one": "new", tmp_path / "folder" / "two": "two"})
    assert [(tmp_path / name).read_text() for name in ("one", "folder/two")] == ["new", "two"]
    assert not list(tmp_path.rglob(".*"))


def test_what_is_not_a_regular_file_is_not_replaced(tmp_path: Path) -> None:
    """A device such as /dev/null, or a pipe."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(BadPackageFile, match="is not a regular file"):
            write_atomically(tmp_path / name, "text")
    assert (tmp_path / "pipe").is_fifo()


def test_one_who_waits_too_long_for_a_lock_is_told(tmp_path: Path) -> None:
    late = hold_file_lock(tmp_path / "lock", patience=0.05)
    with (
        hold_file_lock(tmp_path / "lock"),
        pytest.raises(StoreBusy, match="locked by another process"),
        late,
    ):
        pass
    with hold_file_lock(tmp_path / "lock", patience=0.0):  # and it is free again
        pass


# alc.toml


def test_what_a_project_needs(project: Project) -> None:
    project.toml.write_text(
        """[packages]
any = "*"
one = "1.2.3"
near = { path = "../near", version = "2" }
[packages.far]
git = "https://example.org/far"
rev = "v1"
[hub]
collection_url = "x"
"""
    )
    assert project.needs() == {
        "any": VersionNeed("*"),
        "one": VersionNeed("1.2.3"),
        "near": PathNeed("../near", "2"),
        "far": GitNeed("https://example.org/far", "v1"),
    }


def test_edits_keep_comments(project: Project) -> None:
    project.toml.write_text('# ours\n[packages]\ncot = "1"  # why\n')
    project.add(["cot", "panel"])
    assert project.toml.read_text() == '# ours\n[packages]\ncot = "1"  # why\npanel = "*"\n'
    project.forget("cot")
    assert project.toml.read_text() == '# ours\n[packages]\npanel = "*"\n'


def test_without_a_file_nothing_is_needed(tmp_path: Path) -> None:
    empty = Project(tmp_path)
    assert (empty.needs(), empty.locked(), empty.variants()) == ({}, [], {})


BAD: list[tuple[str, bytes, Callable[[Project], object]]] = [
    ("alc.toml", b"[packages", Project.needs),
    ("alc.toml", b"\xff", Project.needs),
    ("alc.toml", b"packages = 1", Project.needs),
    ("alc.toml", b"[packages]\nx = 1", Project.needs),
    ("alc.toml", b"[packages]\nx = ''", Project.needs),
    ("alc.toml", b"[packages]\nx = { path = 1 }", Project.needs),
    ("alc.toml", b"[packages]\nx = { path = 'a', git = 'b' }", Project.needs),
    ("alc.toml", b"[packages]\nx = { rev = 'b' }", Project.needs),
    ("alc.toml", b"[packages]\n'../x' = '*'", Project.needs),
    ("alc.toml", b"packages.x = '*'", lambda project: project.add(["y"])),
    (
        "alc.toml",
        b"[[a]]\n[packages]\nx = '*'\n[[a]]",
        lambda project: project.forget("x"),
    ),
    ("alc.lock", b"version = 2", Project.locked),
    ("alc.lock", b"", Project.locked),
    ("alc.lock", b"version = 1\npackage = 1", Project.locked),
    ("alc.lock", b"version = 1\npackage = [1]", Project.locked),
    ("alc.lock", b"version = 1\n[[package]]\nname = 'x'", Project.locked),
    ("alc.lock", b"version = 1\n[[package]]\nname = 1\nsource = 'bundled'", Project.locked),
    (
        "alc.lock",
        b"version = 1\n[[package]]\nname = 'x'\nsource = { type = 'odd' }",
        Project.locked,
    ),
    (
        "alc.lock",
        b"version = 1\n[[package]]\nname = '..'\nsource = { type = 'installed' }",
        Project.locked,
    ),
    (
        "alc.lock",
        b"version = 1\n[[package]]\nname = 'x'\nsource = { type = 'local_dir' }",
        Project.locked,
    ),
    (
        "alc.lock",
        b"version = 1\n[[package]]\nname = 'x'\nversion = '1/../../../x'\n"
        b"source = { type = 'installed' }",
        Project.locked,
    ),
    (
        "alc.lock",
        b"version = 1\n[[package]]\nname = 'x'\n"
        b"source = { type = 'git', url = 'u', rev = '../../../..' }",
        Project.locked,
    ),
    ("alc.local.toml", b"[packages]\nx = 'p'", Project.variants),
    ("alc.local.toml", b"[packages.x]\npath = 1", Project.variants),
    ("alc.local.toml", b"[packages.'a b']\npath = 'p'", Project.variants),
]


@pytest.mark.parametrize(("name", "text", "act"), BAD)
def test_a_file_that_says_something_else_is_refused_and_left_alone(
    project: Project, name: str, text: bytes, act: Callable[[Project], object]
) -> None:
    (project.root / name).write_bytes(text)
    with pytest.raises(BadPackageFile, match=name):
        act(project)
    assert (project.root / name).read_bytes() == text


@pytest.mark.parametrize("name", ["", "1x", "a/b", "..", "a.b", "-a", "é", "a\n"])
def test_names_that_no_package_may_have(name: str) -> None:
    with pytest.raises(BadPackage, match="Invalid package name"):
        check_package_name(name)


# alc.lock


def test_a_lock_comes_back_as_it_was_written(project: Project) -> None:
    packages = [
        LockedPackage("a", INSTALLED_SOURCE),
        LockedPackage("b", INSTALLED_SOURCE, "1.2"),
        LockedPackage("c", FolderSource("../c"), "3"),
        LockedPackage("d", GitSource("https://example.org/d", "abc")),
        LockedPackage("e", BundledSource()),
        LockedPackage("f", UNKNOWN_SOURCE),
    ]
    project.write_lock(packages)
    assert project.locked() == packages


def test_a_lock_reads_as_algoclines_does(project: Project) -> None:
    project.write_lock([LockedPackage("head", FolderSource("packages/head"), "0.3.0")])
    assert project.lock.read_text() == (
        'version = 1\n\n[[package]]\nname = "head"\nversion = "0.3.0"\n\n'
        '[package.source]\ntype = "path"\npath = "packages/head"\n'
    )


# alc.local.toml


def test_variants_are_added_once_and_forgotten(project: Project) -> None:
    project.add_variants({"panel": "../p", "cot": "/abs/cot"})
    project.add_variants({"panel": "../other"})
    assert project.variants() == {"panel": project.root / "../p", "cot": Path("/abs/cot")}
    project.forget_variant("panel")
    assert project.local.read_text() == '[packages.cot]\npath = "/abs/cot"\n'


# installed.json


def test_old_sources_are_understood_and_written_anew(home: AlcHome) -> None:
    home.root.mkdir()
    old = {"a": "", "b": "bundled", "c": "/abs", "d": "https://example.org/d"}
    packages = {
        name: {"source": text, "version": None, "installed_at": "then"}
        for name, text in old.items()
    }
    home.installed.write_text(json.dumps({"packages": packages, "more": [1]}))
    assert [entry.source for entry in load_installed(home).values()] == [
        UNKNOWN_SOURCE,
        BundledSource(),
        INSTALLED_SOURCE,
        GitSource("https://example.org/d"),
    ]
    with change_installed(home) as changes:
        changes.put("d", GitSource("https://example.org/d", "abc"), "2")
        changes.drop("a")
    kept = json.loads(home.installed.read_text())
    assert (kept["more"], sorted(kept["packages"])) == ([1], ["b", "c", "d"])
    assert kept["packages"]["d"]["source"] == {
        "type": "git",
        "url": "https://example.org/d",
        "rev": "abc",
    }
    assert kept["packages"]["d"]["installed_at"] == "then" != kept["packages"]["d"]["updated_at"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"packages": []}',
        '{"packages": {"x": 1}}',
        '{"packages": {"x": {"source": {"type": "o"}}}}',
    ],
)
def test_a_damaged_list_is_refused_and_left_alone(home: AlcHome, text: str) -> None:
    home.root.mkdir()
    home.installed.write_text(text)
    with pytest.raises(BadPackageFile, match=r"installed\.json"), change_installed(home) as changes:
        changes.put("x", UNKNOWN_SOURCE)
    assert home.installed.read_text() == text


ADD = """
import sys
from everhold.packages.lua.paths import get_alc_home
from everhold.packages.lua.installed import change_installed
from everhold.packages.lua.fetch import INSTALLED_SOURCE
for n in range(10):
    with change_installed(get_alc_home()) as changes:
        changes.put(f"{sys.argv[1]}{n}", INSTALLED_SOURCE)
"""


@pytest.mark.process
def test_processes_that_install_at_once_lose_nothing(home: AlcHome) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", ADD, name]) for name in "abc"]
    assert [one.wait(60) for one in busy] == [0, 0, 0]
    assert len(load_installed(home)) == 30
