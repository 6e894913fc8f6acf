"""Where packages are found, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.errors import BadPackageFile, UnknownProgram
from everhold.packages.catalog import find_named_program, load_catalog
from everhold.packages.lua.fetch import INSTALLED_SOURCE, BundledSource, FolderSource, GitSource
from everhold.packages.lua.paths import AlcHome
from everhold.packages.lua.project import LockedPackage, Project, find_package_roots
from everhold.packages.settings import settings
from everhold.programs.lua import search_path
from everhold.programs.lua.search_path import SearchRoot
from tests.unit.packages.lua.making import package


def said(name: str) -> str:
    """What the package that `require(name)` finds here says."""
    search_path._sources.clear()  # as text: it was not wanted before
    found = search_path.find_lua_module(name, tuple(str(root) for root in find_package_roots().all))
    assert found is not None
    return found.code.decode().partition("Says ")[2].partition(".")[0]


def test_what_is_nearer_wins(
    project: Project, home: AlcHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's, those of the variable, the pinned, those of this machine."""
    monkeypatch.setenv("ALC_PACKAGES_PATH", str(tmp_path / "more"))
    heard = []
    package(home.packages / "debate", says="home")
    heard.append(said("debate"))
    package(tmp_path / "more" / "debate", says="more")
    heard.append(said("debate"))
    package(tmp_path / "p1", says="pinned")
    project.write_lock([LockedPackage("debate", FolderSource("../p1"))])
    heard.append(said("debate"))
    package(tmp_path / "p2", says="mine")
    project.add_variants({"debate": "../p2"})
    heard.append(said("debate"))
    assert heard == ["home", "more", "pinned", "mine"]


def test_versions_and_revisions_are_found_under_their_own_name(
    project: Project, home: AlcHome
) -> None:
    package(home.packages / "debate", "3.0", says="newest")
    package(home.pinned("debate", "1.0"), "1.0", says="pinned")
    package(home.pinned("order", "0123456789ab"), says="revision")
    project.write_lock(
        [
            LockedPackage("debate", INSTALLED_SOURCE, "1.0"),
            LockedPackage("order", GitSource("u", "0123456789abcdef")),
        ]
    )
    assert (said("debate"), said("order")) == ("pinned", "revision")


def test_the_installed_version_serves_if_it_is_the_one(project: Project, home: AlcHome) -> None:
    package(home.packages / "debate", "1.0", says="usual")
    project.write_lock([LockedPackage("debate", INSTALLED_SOURCE, "1.0")])
    assert said("debate") == "usual"


def test_another_version_is_never_taken(project: Project, home: AlcHome) -> None:
    package(home.packages / "debate", "3.0", says="newest")
    project.write_lock([LockedPackage("debate", INSTALLED_SOURCE, "1.0")])
    assert (
        search_path.find_lua_module("debate", tuple(str(root) for root in find_package_roots().all))
        is None
    )
    with pytest.raises(UnknownProgram, match="there is no file"):
        find_named_program("debate", settings())
    assert "debate" not in [entry.name for entry in load_catalog(settings()).entries]


def test_what_is_only_installed_needs_no_root(project: Project, home: AlcHome) -> None:
    project.write_lock(
        [
            LockedPackage("a", INSTALLED_SOURCE),
            LockedPackage("b", BundledSource()),
            LockedPackage("c", GitSource("u")),
        ]
    )
    assert find_package_roots().all == (SearchRoot(home.packages),)


def test_a_package_that_is_installed_while_we_run_is_found(nowhere: Path, home: AlcHome) -> None:
    settled = settings()
    with pytest.raises(UnknownProgram):
        find_named_program("debate", settled)
    package(home.packages / "debate")
    assert find_named_program("debate", settled).ref == f"{home.packages}/debate/init.lua:debate"


def test_variants_pins_and_the_variable_count_for_run(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALC_PACKAGES_PATH", str(tmp_path / "more"))
    package(tmp_path / "more" / "order")
    package(tmp_path / "p1")
    package(tmp_path / "p2")
    project.write_lock([LockedPackage("debate", FolderSource("../p1"))])
    project.add_variants({"think": str(tmp_path / "p2")})
    refs = [find_named_program(name, settings()).ref for name in ("order", "debate", "think")]
    assert refs == [
        f"{tmp_path}/more/order/init.lua:order",
        f"{tmp_path}/p1/init.lua:debate",
        f"{tmp_path}/p2/init.lua:think",
    ]
    listed = {
        entry.name: entry.ref for entry in load_catalog(settings()).entries if not entry.hidden
    }
    assert [listed[name] for name in ("order", "debate", "think")] == refs


def test_no_link_leads_out_if_it_is_strict(
    nowhere: Path, home: AlcHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(nowhere / "elsewhere", says="linked")
    home.packages.mkdir(parents=True)
    (home.packages / "debate").symlink_to(nowhere / "elsewhere")
    assert said("debate") == "linked"
    assert find_named_program("debate", settings()).name == "debate"
    monkeypatch.setenv("ALC_PKG_STRICT", "1")
    assert (
        search_path.find_lua_module("debate", tuple(str(root) for root in find_package_roots().all))
        is None
    )
    with pytest.raises(UnknownProgram):
        find_named_program("debate", settings())


def test_a_lock_that_cannot_be_read_is_told(project: Project) -> None:
    project.lock.write_text("version = 7")
    with pytest.raises(BadPackageFile, match=r"unsupported alc\.lock version 7; 1 is read"):
        find_named_program("think", settings())


def test_a_lock_that_cannot_be_read_stops_no_python_program(project: Project) -> None:
    project.lock.write_text("version = 7")
    (project.root / "jobs.py").write_text(
        "import everhold\n\n@everhold.program\nasync def job(ctx): ...\n"
    )
    assert find_named_program(f"{project.root}/jobs.py:job", settings()).name == "job"
