"""A project's own files: begun, resolved, taken over."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.errors import BadPackage, BadPackageFile
from everhold.packages.lua import resolve as resolving
from everhold.packages.lua.fetch import INSTALLED_SOURCE, FolderSource, GitSource
from everhold.packages.lua.install import install
from everhold.packages.lua.legacy_import import migrate
from everhold.packages.lua.paths import AlcHome
from everhold.packages.lua.project import LockedPackage, PackageNeed, Project, find_package_roots
from everhold.packages.lua.resolve import update
from everhold.packages.lua.scaffold import init
from everhold.programs.lua import search_path
from tests.unit.packages.lua.making import committed, git, package


def heard(name: str) -> str:
    """The version of the package that `require(name)` finds here."""
    search_path._sources.clear()  # as text: it was not wanted before
    found = search_path.find_lua_module(name, tuple(str(root) for root in find_package_roots().all))
    assert found is not None
    return found.code.decode().partition('version = "')[2].partition('"')[0]


# Beginning


def test_a_project_begins_with_an_empty_list(nowhere: Path, home: AlcHome) -> None:
    assert init() == {
        "created": str(nowhere / "alc.toml"),
        "gitignore_path": str(nowhere / ".gitignore"),
        "gitignore_updated": True,
        "types_path": str(home.types / "alc.d.lua"),
    }
    assert (nowhere / "alc.toml").read_text() == "[packages]\n"
    assert (nowhere / ".gitignore").read_text() == "alc.local.toml\n.alc-install.lock\n"
    assert "function alc.llm(prompt, opts)" in (home.types / "alc.d.lua").read_text()


def test_what_is_ignored_already_stays(nowhere: Path) -> None:
    (nowhere / ".gitignore").write_text("*.db\nalc.local.toml")
    init(nowhere)
    assert (nowhere / ".gitignore").read_text() == "*.db\nalc.local.toml\n.alc-install.lock\n"


def test_a_project_is_begun_once(project: Project) -> None:
    with pytest.raises(BadPackage, match=r"alc\.toml already exists"):
        init()
    assert project.toml.read_text() == "# ours\n[packages]\n"


# Resolving


def test_a_path_is_locked_and_found_under_its_own_name(project: Project, tmp_path: Path) -> None:
    package(tmp_path / "somewhere-else", "4")
    project.toml.write_text('[packages]\ndebate = { path = "../somewhere-else", version = "4" }\n')
    done = update()
    assert (done["resolved"], done["errors"], done["alc_lock"]) == (1, [], str(project.lock))
    assert project.locked() == [LockedPackage("debate", FolderSource("../somewhere-else"), "4")]
    assert heard("debate") == "4"


def test_any_version_is_the_installed_one(project: Project, tmp_path: Path) -> None:
    install(str(package(tmp_path / "src" / "debate", "4")))
    assert update()["resolved"] == 1
    assert (project.locked(), heard("debate")) == ([LockedPackage("debate", INSTALLED_SOURCE)], "4")


def test_a_version_stays_when_another_is_installed(project: Project, tmp_path: Path) -> None:
    install(str(package(tmp_path / "src" / "debate", "1.0")), project=project.root)
    project.toml.write_text('[packages]\ndebate = "1.0"\n')
    assert update()["errors"] == []
    install(str(package(tmp_path / "src" / "debate", "2.0")))
    assert (update()["errors"], heard("debate")) == ([], "1.0")
    assert project.locked() == [LockedPackage("debate", INSTALLED_SOURCE, "1.0")]


@pytest.mark.process
def test_a_version_is_found_among_the_tags_of_its_repository(
    project: Project, tmp_path: Path
) -> None:
    folder = package(tmp_path / "src" / "debate", "1.0")
    committed(folder, "v1.0")
    package(folder, "2.0")
    committed(folder, "2.0")
    install(f"file://{folder}")
    project.toml.write_text('[packages]\ndebate = "1.0"\n')
    assert (update()["errors"], heard("debate")) == ([], "1.0")


@pytest.mark.process
def test_a_repository_is_locked_to_its_commit(project: Project, tmp_path: Path) -> None:
    folder = package(tmp_path / "src" / "debate", "1.0", judge="return 1")
    first = committed(folder, "v1")
    project.toml.write_text(f'[packages]\ndebate = {{ git = "file://{folder}" }}\n')
    update()
    package(folder, "2.0")
    second = committed(folder)
    assert (project.locked(), heard("debate")) == (
        [LockedPackage("debate", GitSource(f"file://{folder}", first), "1.0")],
        "1.0",
    )
    update()
    assert (project.locked()[0].source, heard("debate")) == (
        GitSource(f"file://{folder}", second),
        "2.0",
    )
    project.toml.write_text(f'[packages]\ndebate = {{ git = "file://{folder}", rev = "v1" }}\n')
    update()
    assert (project.locked()[0].source, heard("debate")) == (
        GitSource(f"file://{folder}", first),
        "1.0",
    )


@pytest.mark.process
def test_a_commit_that_is_here_is_not_fetched_again(project: Project, tmp_path: Path) -> None:
    folder = package(tmp_path / "src" / "debate", "1.0")
    commit = committed(folder)
    project.toml.write_text(
        f'[packages]\ndebate = {{ git = "file://{folder}", rev = "{commit}" }}\n'
    )
    update()
    folder.rename(tmp_path / "away")
    assert (update()["errors"], heard("debate")) == ([], "1.0")


@pytest.mark.process
def test_one_package_of_a_collection_can_be_needed(project: Project, tmp_path: Path) -> None:
    package(tmp_path / "src" / "debate", "7")
    committed(tmp_path / "src")
    project.toml.write_text(f'[packages]\ndebate = {{ git = "file://{tmp_path}/src" }}\n')
    assert (update()["errors"], heard("debate")) == ([], "7")


@pytest.mark.process
def test_what_cannot_be_resolved_is_told_and_stays_as_it_was(
    project: Project, tmp_path: Path, home: AlcHome
) -> None:
    folder = package(tmp_path / "src" / "debate", "1.0")
    committed(folder, "v1")
    project.toml.write_text(f'[packages]\ndebate = {{ git = "file://{folder}" }}\n')
    update()
    before = project.locked()
    install(str(package(tmp_path / "src" / "old", "1")), project=tmp_path)
    folder.rename(tmp_path / "away")
    with project.toml.open("a") as file:
        file.write('gone = { path = "../gone" }\nabsent = "*"\nold = "9"\nnever = "1.0"\n')
    done = update()
    assert done["resolved"] == 0
    assert [error.partition(":")[0] for error in done["errors"]] == [
        "'debate'",
        "'gone'",
        "'absent'",
        "'old@9'",
        "'never@1.0'",
    ]
    assert "not installed: " in done["errors"][2]
    assert "installed is 1" in done["errors"][3]
    assert project.locked() == before


@pytest.mark.process
def test_a_tag_with_another_version_in_it_is_not_taken(project: Project, tmp_path: Path) -> None:
    folder = package(tmp_path / "src" / "debate", "2.0")
    committed(folder, "v1.0")
    install(f"file://{folder}")
    project.toml.write_text('[packages]\ndebate = "1.0"\n')
    git(folder, "tag", "1.0")
    assert "tag 1.0" in update()["errors"][0]


@pytest.mark.process
def test_a_repository_without_the_package_is_told(project: Project, tmp_path: Path) -> None:
    package(tmp_path / "src" / "other")
    committed(tmp_path / "src")
    project.toml.write_text(f'[packages]\ndebate = {{ git = "file://{tmp_path}/src" }}\n')
    assert "no init.lua in" in update()["errors"][0]


def test_no_version_leads_out_of_the_packages(project: Project, home: AlcHome) -> None:
    """Of a project and a package that agree on it."""
    package(home.packages / "debate", "1/../../../escaped")
    project.toml.write_text('[packages]\ndebate = "1/../../../escaped"\n')
    assert update()["errors"] == ["'debate': '1/../../../escaped' is not a version of 'debate'"]
    assert not list(home.root.parent.rglob("escaped*"))


def test_without_a_project_nothing_is_resolved(nowhere: Path) -> None:
    with pytest.raises(BadPackage, match=r"No alc.toml found; alc_init creates one"):
        update()


def test_what_somebody_adds_meanwhile_is_kept(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolving may take a minute, and holds no lock for it."""
    install(str(package(tmp_path / "src" / "debate")))
    resolve = resolving._resolve

    def slow(name: str, need: PackageNeed, *more: object) -> LockedPackage:
        install(str(package(tmp_path / "src" / "order")))
        return resolve(name, need, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(resolving, "_resolve", slow)
    update()
    assert project.locked() == [
        LockedPackage("debate", INSTALLED_SOURCE),
        LockedPackage("order", INSTALLED_SOURCE),
    ]


# An old lock

OLD = """version = 1

[[package]]
name = "debate"
linked_at = "2024-01-01T00:00:00Z"

[package.source]
type = "local_dir"
path = "/some/debate"

[[package]]
name = "order"
[package.source]
type = "installed"
"""


def test_an_old_lock_becomes_a_list(nowhere: Path) -> None:
    (nowhere / "alc.lock").write_text(OLD)
    assert migrate() == {
        "migrated": True,
        "alc_toml": str(nowhere / "alc.toml"),
        "backup": str(nowhere / "alc.lock.bak"),
        "note": "alc_update writes the new alc.lock",
    }
    assert (nowhere / "alc.toml").read_text() == '[packages]\ndebate = { path = "/some/debate" }\n'
    assert (nowhere / "alc.lock.bak").read_text() == OLD
    assert not (nowhere / "alc.lock").exists()


def test_there_may_be_nothing_to_take_over(nowhere: Path) -> None:
    assert migrate() == {"status": "nothing to migrate", "reason": "there is no alc.lock"}
    Project(nowhere).write_lock([LockedPackage("a", INSTALLED_SOURCE)])
    assert migrate()["reason"] == "alc.lock has no entry of the old form"


def test_a_list_that_is_there_is_not_overwritten(project: Project) -> None:
    project.lock.write_text(OLD)
    with pytest.raises(BadPackage, match=r"alc\.toml already exists"):
        migrate()
    assert project.lock.read_text() == OLD


@pytest.mark.parametrize(
    "text", ["[[", "package = 1", "[[package]]\nlinked_at = 1", OLD.replace('"debate"', '"../x"')]
)
def test_an_old_lock_that_cannot_be_read_stays(nowhere: Path, text: str) -> None:
    (nowhere / "alc.lock").write_text(text)
    with pytest.raises(BadPackageFile):
        migrate()
    assert (nowhere / "alc.lock").read_text() == text
    assert not (nowhere / "alc.toml").exists()
