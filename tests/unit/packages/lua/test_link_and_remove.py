"""Links, and removing what was installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.errors import BadPackage, BadPackageFile
from everhold.packages.lua.fetch import INSTALLED_SOURCE
from everhold.packages.lua.install import install, link, remove, unlink
from everhold.packages.lua.installed import load_installed
from everhold.packages.lua.paths import AlcHome
from everhold.packages.lua.project import LockedPackage, Project
from tests.unit.packages.lua.making import package

# Links


def test_a_folder_is_used_where_it_is(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    folder = package(tmp_path / "src" / "debate")
    assert link(folder) == {
        "linked": ["debate"],
        "mode": "single",
        "scope": "global",
        "targets": {"debate": str(folder)},
    }
    assert (home.packages / "debate").readlink() == folder


def test_a_link_can_be_made_from_where_one_stands(nowhere: Path, home: AlcHome) -> None:
    package(nowhere / "debate")
    assert link("debate", "talk")["targets"] == {"talk": str(nowhere / "debate")}


def test_each_package_of_a_folder_is_linked(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    package(tmp_path / "src" / "two")
    package(tmp_path / "src" / "one")
    done = link(tmp_path / "src")
    assert (done["linked"], done["mode"]) == (["one", "two"], "collection")


def test_links_are_replaced_and_folders_only_by_force(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    folder, other = package(tmp_path / "src" / "debate"), package(tmp_path / "other" / "debate")
    install(str(folder))
    with pytest.raises(BadPackage, match=r"is a real directory. only force=true replaces it."):
        link(other)
    assert (home.packages / "debate" / "init.lua").is_file()
    link(other, force=True)
    assert "debate" not in load_installed(home)
    link(folder)
    assert (home.packages / "debate").readlink() == folder
    (home.packages / "debate").unlink()
    (home.packages / "debate").symlink_to("/no/such")
    link(folder)
    assert (home.packages / "debate").readlink() == folder


def test_a_variant_is_of_one_project_and_one_machine(
    tmp_path: Path, home: AlcHome, project: Project
) -> None:
    folder = package(tmp_path / "src" / "debate")
    done = link(folder, scope="variant")
    assert done == {
        "linked": ["debate"],
        "mode": "single",
        "scope": "variant",
        "targets": {"debate": str(folder)},
        "alc_local_toml": str(project.local),
    }
    assert project.local.read_text() == f'[packages.debate]\npath = "{folder}"\n'
    again = link(package(tmp_path / "other" / "debate"), scope="variant")
    assert (again["linked"], again["targets"]) == ([], {"debate": str(folder)})
    assert project.variants() == {"debate": folder}
    assert not home.packages.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "/no/such"}, "/no/such is not a directory"),
        ({"path": "{empty}"}, "No init.lua found: "),
        ({"path": "{src}", "name": "x"}, "'name' renames one package"),
        ({"path": "{one}", "name": "a/b"}, "Invalid package name"),
        ({"path": "{one}", "name": ""}, "Invalid package name"),
        ({"path": "{one}", "scope": "odd"}, "invalid scope 'odd'"),
        ({"path": "{one}", "scope": "variant"}, "alc.toml not found"),
        (
            {"path": "{one}", "scope": "variant", "force": True},
            "scope 'variant' takes no force",
        ),
    ],
)
def test_links_that_cannot_be_made(
    tmp_path: Path, home: AlcHome, nowhere: Path, arguments: dict[str, object], words: str
) -> None:
    package(tmp_path / "src" / "one")
    (tmp_path / "empty").mkdir()
    places = {"src": tmp_path / "src", "one": tmp_path / "src" / "one", "empty": tmp_path / "empty"}
    with pytest.raises(BadPackage, match=words):
        link(**{**arguments, "path": str(arguments["path"]).format(**places)})  # type: ignore[arg-type]
    assert not home.root.exists()


def test_unlinking_leaves_the_folder(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    folder = package(tmp_path / "src" / "debate")
    link(folder)
    assert unlink("debate") == {"unlinked": "debate"}
    assert (folder.is_dir(), (home.packages / "debate").is_symlink()) == (True, False)


def test_a_variant_is_unlinked_too(tmp_path: Path, project: Project) -> None:
    link(package(tmp_path / "src" / "debate"), scope="variant")
    assert unlink("debate")["alc_local_toml"] == str(project.local)
    assert project.variants() == {}


def test_what_is_no_link_is_not_unlinked(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    install(str(package(tmp_path / "src" / "debate")))
    with pytest.raises(BadPackage, match=r"Package 'debate' is not a symlink; pkg_remove"):
        unlink("debate")
    with pytest.raises(BadPackage, match="'order' is not installed"):
        unlink("order")


# Removing


def test_what_was_installed_is_deleted_and_what_it_came_from_stays(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    folder = package(tmp_path / "src" / "debate")
    install(str(folder))
    assert remove("debate", scope="global") == {
        "removed": "debate",
        "scope": "global",
        "installed_json": str(home.installed),
        "deleted": str(home.packages / "debate"),
    }
    assert (list(home.packages.iterdir()), load_installed(home), folder.is_dir()) == ([], {}, True)


def test_what_was_installed_stays_on_disk_with_keep_files(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    """As the tools of the algocline profile call it: a model deletes nothing, not even a copy."""
    install(str(package(tmp_path / "src" / "debate")))
    package(home.pinned("debate", "2"))
    assert remove("debate", scope="global", version="2", keep_files=True) == {
        "removed": "debate",
        "scope": "global",
        "installed_json": str(home.installed),
        "kept": str(home.packages / "debate"),
    }
    assert load_installed(home) == {}
    assert sorted(path.name for path in home.packages.iterdir()) == ["debate", "debate@2"]
    with pytest.raises(
        BadPackage, match="Package 'debate' not found in a project or among the installed ones"
    ):
        remove("debate", scope="all", keep_files=True)


def test_an_entry_without_a_folder_can_be_removed(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    """Nobody edits installed.json by hand."""
    install(str(package(tmp_path / "src" / "debate")))
    (home.packages / "debate").rename(tmp_path / "away")
    remove("debate", scope="global")
    assert load_installed(home) == {}


def test_a_folder_that_nobody_installed_is_not_deleted(home: AlcHome, nowhere: Path) -> None:
    package(home.packages / "mine")
    with pytest.raises(BadPackage, match=r"Package 'mine' not found in .*installed\.json"):
        remove("mine", scope="global")
    assert (home.packages / "mine" / "init.lua").is_file()


def test_a_project_forgets_a_package(tmp_path: Path, home: AlcHome, project: Project) -> None:
    install(str(package(tmp_path / "src" / "debate")))
    assert remove("debate") == {
        "removed": "debate",
        "scope": "project",
        "alc_toml": str(project.toml),
        "alc_lock": str(project.lock),
    }
    assert (project.toml.read_text(), project.locked()) == ("# ours\n[packages]\n", [])
    assert (home.packages / "debate").is_dir()


def test_one_that_is_named_and_not_locked_can_go(project: Project) -> None:
    project.add(["debate"])
    remove("debate")
    assert project.needs() == {}


def test_a_version_is_removed_alone(project: Project, home: AlcHome) -> None:
    project.add(["debate"])
    project.write_lock(
        [
            LockedPackage("debate", INSTALLED_SOURCE, "1"),
            LockedPackage("debate", INSTALLED_SOURCE, "2"),
        ]
    )
    remove("debate", version="1")
    assert ("debate" in project.needs(), project.locked()) == (
        True,
        [LockedPackage("debate", INSTALLED_SOURCE, "2")],
    )
    package(home.pinned("debate", "2"))
    package(home.packages / "debate")
    remove("debate", version="2", scope="global")
    assert [path.name for path in home.packages.iterdir()] == ["debate"]
    with pytest.raises(BadPackage, match="has no copy of version 2"):
        remove("debate", version="2", scope="global")


def test_from_everywhere_tells_of_both(tmp_path: Path, project: Project, home: AlcHome) -> None:
    install(str(package(tmp_path / "src" / "debate")))
    remove("debate")
    done = remove("debate", scope="all")
    assert (done["project_removed"], done["global_removed"], done["global_note"]) == (
        False,
        True,
        None,
    )
    assert "alc.lock" in done["project_note"]
    with pytest.raises(
        BadPackage, match="Package 'debate' not found in a project or among the installed ones"
    ):
        remove("debate", scope="all")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"name": "debate", "scope": "odd"},
            "invalid scope 'odd': it is project, global or all",
        ),
        ({"name": "../x"}, "Invalid package name"),
        ({"name": "debate"}, "alc.toml not found, so there is no project to remove 'debate' from"),
    ],
)
def test_what_cannot_be_removed(nowhere: Path, arguments: dict[str, str], words: str) -> None:
    with pytest.raises(BadPackage, match=words):
        remove(**arguments)  # type: ignore[arg-type]


def test_files_that_cannot_be_read_stay(project: Project) -> None:
    project.add(["debate"])
    before = project.toml.read_text()
    project.lock.write_text("version = 2")
    with pytest.raises(BadPackageFile):
        remove("debate")
    assert (project.toml.read_text(), project.lock.read_text()) == (before, "version = 2")
