"""What is wrong with packages, and what can be mended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from everhold.errors import BadPackage
from everhold.packages.lua.doctor import doctor, repair
from everhold.packages.lua.fetch import INSTALLED_SOURCE
from everhold.packages.lua.install import install
from everhold.packages.lua.paths import AlcHome
from everhold.packages.lua.project import LockedPackage, Project
from everhold.packages.lua.resolve import update
from tests.unit.packages.lua.making import committed, package

EMPTY: dict[str, list[object]] = {
    "healthy": [],
    "incomplete_pkg": [],
    "installed_missing": [],
    "symlink_dangling": [],
    "path_missing": [],
}


def test_where_nothing_is_nothing_is_wrong(nowhere: Path) -> None:
    assert doctor() == EMPTY
    assert repair() == {"repaired": [], "skipped": [], "unrepairable": [], "failed": []}


def test_a_package_that_is_whole_is_healthy(tmp_path: Path, nowhere: Path) -> None:
    folder = package(tmp_path / "src" / "debate", judge="return 1")
    package(folder / "parts")
    with (folder / "init.lua").open("a") as file:
        file.write(
            '-- require("debate.gone")\nrequire("debate.judge") require "debate.parts"'
            ' require("other.x")'
        )
    install(str(folder))
    assert doctor() == EMPTY | {"healthy": [{"name": "debate"}]}
    assert repair()["skipped"] == [{"name": "debate", "reason": "healthy"}]


def test_a_folder_that_is_gone_is_got_again(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    folder = package(tmp_path / "src" / "debate")
    install(str(folder))
    shutil.rmtree(home.packages / "debate")
    assert doctor()["installed_missing"] == [
        {
            "name": "debate",
            "kind": "installed_missing",
            "reason": f"its folder is missing: {home.packages}/debate",
            "suggestion": f'alc_pkg_install("{folder}")',
        }
    ]
    assert repair()["repaired"] == [
        {
            "name": "debate",
            "kind": "installed_missing",
            "action": "reinstall",
            "source": str(folder),
        }
    ]
    assert doctor()["healthy"] == [{"name": "debate"}]


@pytest.mark.process
def test_a_package_with_files_missing_is_got_again_at_its_commit(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    """As `alc init` of algocline 0.29 leaves packages of several files. It is mended, not
    updated.
    """
    folder = package(tmp_path / "src" / "several" / "flow", "1.0", step="return 1")
    with (folder / "init.lua").open("a") as file:
        file.write('require("flow.step")')
    committed(folder.parent)
    install(f"file://{folder.parent}")
    package(folder, "2.0")
    committed(folder.parent)
    (home.packages / "flow" / "step.lua").unlink()
    found = doctor("flow")["incomplete_pkg"]
    assert [(one["name"], one["kind"], one["missing_subs"]) for one in found] == [
        ("flow", "incomplete_pkg", ["step"])
    ]
    assert len(repair("flow")["repaired"]) == 1
    assert (home.packages / "flow" / "step.lua").is_file()
    assert 'version = "1.0"' in (home.packages / "flow" / "init.lua").read_text()


def test_an_init_that_is_gone_is_a_part_that_is_missing(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    install(str(package(tmp_path / "src" / "debate")))
    (home.packages / "debate" / "init.lua").unlink()
    assert doctor()["incomplete_pkg"][0]["missing_subs"] == ["init"]
    assert len(repair()["repaired"]) == 1


@pytest.mark.parametrize("source", ["", "bundled", "/gone/debate"])
def test_what_nobody_knows_where_to_get_is_named(home: AlcHome, nowhere: Path, source: str) -> None:
    home.root.mkdir()
    home.installed.write_text(json.dumps({"packages": {"debate": {"source": source}}}))
    [one] = repair()["unrepairable"]
    assert (one["name"], one["kind"]) == ("debate", "installed_missing")
    assert "alc_pkg_install" in one["suggestion"]


def test_a_source_that_is_gone_too_is_named(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    folder = package(tmp_path / "src" / "debate")
    install(str(folder))
    shutil.rmtree(folder)
    shutil.rmtree(home.packages / "debate")
    assert [one["name"] for one in repair()["unrepairable"]] == ["debate"]


@pytest.mark.process
def test_a_repository_that_is_gone_fails(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    folder = package(tmp_path / "src" / "debate")
    committed(folder)
    install(f"file://{folder}")
    shutil.rmtree(folder)
    shutil.rmtree(home.packages / "debate")
    [one] = repair()["failed"]
    assert (one["name"], one["kind"]) == ("debate", "installed_missing")
    assert "git clone failed" in one["reason"]


def test_links_that_lead_nowhere(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    install(str(package(tmp_path / "src" / "debate")))
    shutil.rmtree(home.packages / "debate")
    for name in ("debate", "order"):
        (home.packages / name).symlink_to("/no/such")
    found = doctor()["symlink_dangling"]
    assert [(one["name"], one["reason"]) for one in found] == [
        ("debate", "it links to a missing folder: /no/such"),
        ("order", "it links to a missing folder: /no/such"),
    ]
    assert found[0]["suggestion"] == (
        'alc_pkg_unlink("debate"), and alc_pkg_link with the folder where it is now'
    )
    assert [one["name"] for one in repair()["unrepairable"]] == ["debate", "order"]


def test_paths_of_a_project_that_lead_nowhere(project: Project) -> None:
    project.toml.write_text('[packages]\ndebate = { path = "../gone" }\n')
    project.add_variants({"order": "/gone"})
    found = [(one["name"], one["kind"], one["scope"]) for one in doctor()["path_missing"]]
    assert found == [("debate", "path_missing", "project"), ("order", "path_missing", "variant")]
    assert [one["scope"] for one in repair()["unrepairable"]] == ["project", "variant"]


def test_what_a_project_names_and_nobody_installed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.toml.write_text(
        '[packages]\nany = "*"\nfar = { git = "h/far" }\nmine = "*"\nmore = "*"\n'
    )
    project.add_variants({"mine": str(package(tmp_path / "mine"))})
    package(tmp_path / "path" / "more")
    monkeypatch.setenv("ALC_PACKAGES_PATH", str(tmp_path / "path"))
    found = [
        (one["name"], one["scope"], one["suggestion"]) for one in doctor()["installed_missing"]
    ]
    assert found == [
        (
            "any",
            "project",
            'alc_pkg_install with a source; none was recorded for "any"',
        ),
        ("far", "project", "alc_update"),
    ]
    assert [one["name"] for one in repair()["unrepairable"]] == ["any", "far"]


def test_whatever_can_be_found_is_looked_at(
    project: Project, tmp_path: Path, home: AlcHome
) -> None:
    """Also what nobody installed: put there by hand, linked, or used by a project where it is."""
    package(home.packages / "hand")
    (home.packages / "linked").symlink_to(package(tmp_path / "linked"))
    package(home.pinned("old", "1.0"))
    project.toml.write_text('[packages]\nnear = { path = "../near" }\n')
    package(tmp_path / "near")
    project.add_variants(
        {"mine": str(package(tmp_path / "mine")), "hand": str(home.packages / "hand")}
    )
    project.write_lock([LockedPackage("old", INSTALLED_SOURCE, "1.0")])
    names = ["hand", "linked", "near", "mine", "old"]
    assert doctor()["healthy"] == [{"name": name} for name in names]
    assert [doctor(name)["healthy"] for name in names] == [[{"name": name}] for name in names]
    for folder in (home.packages / "hand", tmp_path / "near"):
        package(folder, part="", init=f'return require("{folder.name}.gone")')
    found = [
        (one["name"], one.get("scope"), one["missing_subs"]) for one in doctor()["incomplete_pkg"]
    ]
    assert found == [
        ("hand", None, ["gone"]),
        ("near", "project", ["gone"]),
        ("hand", "variant", ["gone"]),
    ]
    assert [one["name"] for one in repair()["unrepairable"]] == ["hand", "near", "hand"]


@pytest.mark.process
def test_a_pinned_copy_that_is_gone_is_got_again(
    project: Project, tmp_path: Path, home: AlcHome
) -> None:
    folder = package(tmp_path / "src" / "debate")
    commit = committed(folder)
    project.toml.write_text(f'[packages]\ndebate = {{ git = "file://{folder}" }}\n')
    update()
    package(folder, "2")
    committed(folder)
    shutil.rmtree(home.packages)
    assert [one["kind"] for one in doctor()["path_missing"]] == ["pin_missing"]
    assert len(repair()["repaired"]) == 1
    assert [path.name for path in home.packages.iterdir()] == [f"debate@{commit[:12]}"]
    assert doctor()["path_missing"] == []


def test_a_pinned_version_that_is_gone_is_named(project: Project) -> None:
    project.write_lock([LockedPackage("debate", INSTALLED_SOURCE, "1.0")])
    assert [one["kind"] for one in repair()["unrepairable"]] == ["pin_missing"]


@pytest.mark.parametrize("act", [doctor, repair])
def test_a_package_that_nobody_knows(act: object, nowhere: Path) -> None:
    with pytest.raises(BadPackage, match=r"Package 'debate' not found in installed\.json, "):
        act("debate")  # type: ignore[operator]
