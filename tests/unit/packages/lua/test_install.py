"""Installing: from a folder, from a repository at one revision; whole, once, and without running
anything.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everhold.errors import BadPackage, BadPackageFile, MissingExtra
from everhold.packages.lua import fetch
from everhold.packages.lua.fetch import (
    INSTALLED_SOURCE,
    FolderSource,
    GitSource,
    hide_credentials,
    normalize_git_url,
)
from everhold.packages.lua.install import install
from everhold.packages.lua.installed import load_installed, recover_packages_folder
from everhold.packages.lua.paths import AlcHome
from everhold.packages.lua.project import LockedPackage, Project
from tests.unit.packages.lua.making import committed, git, package


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one package in two files, tagged v1."""
    folder = package(tmp_path / "src" / "debate", "1.0", judge="return 1")
    package(folder / "parts")
    committed(folder, "v1")
    return folder


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """A repository of two packages, a card and a scenario."""
    folder = tmp_path / "src" / "several"
    package(folder / "one", helper="return 1")
    package(folder / "two")
    (folder / "docs").mkdir()
    (folder / "docs" / "read.md").write_text("")
    (folder / "one" / "cards").mkdir()
    (folder / "one" / "cards" / "c1.toml").write_text('card_id = "c1"')
    (folder / "one" / "cards" / "c1.samples.jsonl").write_text("{}\n")
    (folder / "one" / "cards" / "odd.toml").write_text("= no")
    (folder / "scenarios").mkdir()
    (folder / "scenarios" / "easy.lua").write_text("return {}")
    committed(folder)
    return folder


def told(value: dict[str, object]) -> dict[str, object]:
    """What an installation tells, without where the types are."""
    return {key: item for key, item in value.items() if key != "types_path"}


# From a repository


@pytest.mark.process
def test_a_repository_is_one_package_known_by_its_commit(
    repository: Path, home: AlcHome, nowhere: Path
) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert told(install(f"file://{repository}")) == {
        "installed": ["debate"],
        "mode": "single",
        "rev": commit,
    }
    assert load_installed(home)["debate"].source == GitSource(f"file://{repository}", commit)
    assert load_installed(home)["debate"].version == "1.0"


@pytest.mark.process
def test_a_package_is_installed_whole_and_without_git(
    repository: Path, home: AlcHome, nowhere: Path
) -> None:
    install(f"file://{repository}")
    files = sorted(
        str(path.relative_to(home.packages)) for path in home.packages.rglob("*") if path.is_file()
    )
    assert files == ["debate/init.lua", "debate/judge.lua", "debate/parts/init.lua"]


@pytest.mark.process
@pytest.mark.parametrize("of", ["tag", "commit", "short", "branch"])
def test_a_revision_can_be_named(repository: Path, home: AlcHome, nowhere: Path, of: str) -> None:
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "branch", "old")
    package(repository, "2.0")
    committed(repository)
    rev = {"tag": "v1", "commit": first, "short": first[:10], "branch": "old"}[of]
    assert install(f"file://{repository}", rev=rev)["rev"] == first
    assert load_installed(home)["debate"].version == "1.0"


@pytest.mark.process
def test_installing_again_updates(repository: Path, home: AlcHome, nowhere: Path) -> None:
    install(f"file://{repository}")
    package(repository, "2.0")
    (repository / "judge.lua").unlink()
    commit = committed(repository)
    done = told(install(f"file://{repository}"))
    assert done == {
        "installed": ["debate"],
        "replaced": ["debate"],
        "mode": "single",
        "rev": commit,
    }
    assert load_installed(home)["debate"].version == "2.0"
    assert not (home.packages / "debate" / "judge.lua").exists()


@pytest.mark.process
def test_a_package_that_came_from_elsewhere_is_replaced_by_force_alone(
    repository: Path, home: AlcHome, nowhere: Path
) -> None:
    package(home.packages / "debate", says="mine")
    with pytest.raises(BadPackage, match="Package 'debate' already exists"):
        install(f"file://{repository}")
    assert "mine" in (home.packages / "debate" / "init.lua").read_text()
    assert install(f"file://{repository}", force=True)["replaced"] == ["debate"]


@pytest.mark.process
def test_a_name_can_be_chosen_for_one_package(
    repository: Path, home: AlcHome, nowhere: Path
) -> None:
    assert install(f"file://{repository}", "talk")["installed"] == ["talk"]
    assert (home.packages / "talk" / "judge.lua").is_file()


@pytest.mark.process
def test_a_collection_brings_all_its_packages(several: Path, home: AlcHome, nowhere: Path) -> None:
    done = install(f"file://{several}")
    assert told(done) == {
        "installed": ["one", "two"],
        "mode": "collection",
        "rev": git(several, "rev-parse", "HEAD"),
        "skipped": [],
        "skipped_symlinks": [],
        "cards_installed": ["c1"],
        "cards_failures": ["one/odd: Invalid statement (at line 1, column 1)"],
        "scenarios_installed": ["easy"],
        "scenarios_failures": [],
    }
    assert (home.packages / "one" / "helper.lua").is_file()
    assert sorted(os.listdir(home.cards / "one")) == ["c1.samples.jsonl", "c1.toml"]
    assert os.listdir(home.scenarios) == ["easy.lua"]


@pytest.mark.process
def test_of_a_collection_what_is_mine_stays(several: Path, home: AlcHome, nowhere: Path) -> None:
    """What came from there is updated, what did not is skipped, and links are named."""
    install(f"file://{several}")
    package(several / "three")
    package(several / "four")
    package(home.packages / "three", says="mine")
    (home.packages / "four").symlink_to(several / "four")
    committed(several)
    done = told(install(f"file://{several}"))
    assert (done["installed"], done["updated"]) == ([], ["one", "two"])
    assert (done["skipped"], done["skipped_symlinks"]) == (["three"], ["four"])


@pytest.mark.process
def test_nothing_of_a_repository_is_run(
    repository: Path, home: AlcHome, nowhere: Path, tmp_path: Path
) -> None:
    """Neither its Lua, nor its hooks, nor filters that it asks for."""
    (repository / "init.lua").write_text(
        f"io.open('{tmp_path}/ran', 'w') os.execute('touch {tmp_path}/ran')"
    )
    (repository / ".gitattributes").write_text("* filter=evil\n")
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    committed(repository)
    install(f"file://{repository}")
    install(f"file://{repository}", rev="v1")
    assert not (tmp_path / "ran").exists()


# Addresses


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("github.com/a/b", "https://github.com/a/b"),
        ("https://h/a", "https://h/a"),
        ("git@h:a/b.git", "git@h:a/b.git"),
        ("ssh://git@h/a", "ssh://git@h/a"),
        ("file:///a", "file:///a"),
    ],
)
def test_addresses_of_repositories(given: str, meant: str) -> None:
    assert normalize_git_url(given) == meant


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c 'touch /tmp/x'",
        "--upload-pack=touch",
        "",
        "ftp://h/a",
        "a\nb",
        "git@h::x",
        "fd::17",
    ],
)
def test_addresses_that_would_run_something_are_refused(url: str, nowhere: Path) -> None:
    with pytest.raises(BadPackage):
        install(url)


@pytest.mark.parametrize("url", ["./debate", "../debate", "."])
def test_a_path_from_here_is_no_address(url: str, nowhere: Path) -> None:
    """Nobody knows from where: the server was started somewhere. It is not looked for on the
    network either.
    """
    with pytest.raises(BadPackage, match="Not the address of a repository"):
        install(url)


@pytest.mark.process
@pytest.mark.parametrize("rev", ["", "-x", "a:b", "a b", "--upload-pack=x"])
def test_a_revision_is_a_name_and_no_option(repository: Path, nowhere: Path, rev: str) -> None:
    with pytest.raises(BadPackage, match="Not a revision"):
        install(f"file://{repository}", rev=rev)


def test_passwords_are_not_written_down() -> None:
    assert hide_credentials("https://ana:secret@h/a") == "https://h/a"
    assert hide_credentials("ssh://git@h/a") == "ssh://git@h/a"


@pytest.mark.process
@pytest.mark.parametrize(("rev", "words"), [(None, "git clone failed"), ("v9", "git clone failed")])
def test_what_cannot_be_fetched_changes_nothing(
    home: AlcHome, nowhere: Path, rev: str | None, words: str
) -> None:
    with pytest.raises(BadPackage, match=words):
        install("file:///no/such/repository", rev=rev)
    assert not home.root.exists()


@pytest.mark.process
def test_a_server_that_says_nothing_is_not_waited_for(
    tmp_path: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whoever git started ends with it."""
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(slow))
    for limit in (1.0, 10.0, 60.0):  # a busy machine may need more until git has started anybody
        monkeypatch.setattr(fetch, "LIMIT", limit)
        with pytest.raises(
            BadPackage, match=f"git clone failed: it took longer than {limit:g} s: git@h:a"
        ):
            install("git@h:a/b")
        if (tmp_path / "pid").exists():
            break
    ended = int((tmp_path / "pid").read_text())
    for _ in range(600):
        if not Path(f"/proc/{ended}").exists() or " Z " in Path(f"/proc/{ended}/stat").read_text():
            return
        time.sleep(0.1)
    raise AssertionError("it is still there")


@pytest.mark.process
def test_without_git_it_says_so(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(nowhere))
    with pytest.raises(BadPackage, match="git cannot be started"):
        install("github.com/a/b")


# From a folder


def test_a_folder_is_copied_and_again(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    folder = package(tmp_path / "src" / "debate")
    (folder / ".git").mkdir()
    assert told(install(str(folder))) == {"installed": ["debate"], "mode": "local_single"}
    assert told(install(str(folder))) == {
        "installed": ["debate"],
        "replaced": ["debate"],
        "mode": "local_single",
    }
    assert load_installed(home)["debate"].source == FolderSource(str(folder))
    assert not (home.packages / "debate" / ".git").exists()


@pytest.mark.process
def test_a_folder_of_packages_is_a_collection(several: Path, nowhere: Path) -> None:
    done = told(install(str(several)))
    assert (done["installed"], done["mode"]) == (["one", "two"], "local_collection")


def test_links_that_lead_out_are_left_out(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    folder = package(tmp_path / "src" / "debate", judge="return 1")
    (folder / "secret.lua").symlink_to("/etc/passwd")
    (folder / "etc").symlink_to("/etc")
    (folder / "again.lua").symlink_to("judge.lua")
    os.mkfifo(folder / "pipe")
    assert sorted(told(install(str(folder)))["left_out"]) == [
        "debate/etc",
        "debate/pipe",
        "debate/secret.lua",
    ]  # type: ignore[call-overload]
    assert (home.packages / "debate" / "again.lua").read_text() == "return 1"


def test_what_is_installed_is_the_users_alone(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    install(str(package(tmp_path / "src" / "debate")))
    assert stat.S_IMODE(home.packages.stat().st_mode) == 0o700
    assert stat.S_IMODE(home.installed.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("url", "name", "words"),
    [
        ("/no/such", None, "folder /no/such does not exist"),
        ("{empty}", None, "No packages found: "),
        ("{several}", "x", "'name' renames one package"),
        ("{one}", "../x", "Invalid package name '../x'"),
        ("{odd}", None, "Invalid package name '1 odd'"),
    ],
)
def test_folders_that_cannot_be_installed(
    tmp_path: Path, home: AlcHome, nowhere: Path, url: str, name: str | None, words: str
) -> None:
    package(tmp_path / "several" / "one")
    package(tmp_path / "1 odd")
    (tmp_path / "empty").mkdir()
    places = {"empty": "empty", "several": "several", "one": "several/one", "odd": "1 odd"}
    place = url.format(**{key: tmp_path / value for key, value in places.items()})
    with pytest.raises(BadPackage, match=words.replace("*", r"\*")):
        install(place, name)
    assert not home.root.exists()


def test_a_folder_has_no_revision(tmp_path: Path, nowhere: Path) -> None:
    with pytest.raises(BadPackage, match="A directory has no revision"):
        install(str(package(tmp_path / "debate")), rev="v1")


def test_a_link_of_that_name_is_not_overwritten(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    folder = package(tmp_path / "src" / "debate")
    home.packages.mkdir(parents=True)
    (home.packages / "debate").symlink_to(folder)
    with pytest.raises(BadPackage, match="is a symlink"):
        install(str(folder))
    assert (home.packages / "debate").is_symlink()


def test_a_folder_is_not_copied_into_itself(home: AlcHome, nowhere: Path) -> None:
    package(home.root)
    with pytest.raises(BadPackage, match="is inside"):
        install(str(home.root), "debate")


# In a project


def test_in_a_project_packages_are_named_in_its_files(tmp_path: Path, project: Project) -> None:
    project.toml.write_text('# ours\n[packages]\ndebate = "1.0"  # pinned\n')
    install(str(package(tmp_path / "src" / "debate")))
    install(str(package(tmp_path / "src" / "order")))
    assert project.toml.read_text() == '# ours\n[packages]\ndebate = "1.0"  # pinned\norder = "*"\n'
    assert project.locked() == [
        LockedPackage("debate", INSTALLED_SOURCE),
        LockedPackage("order", INSTALLED_SOURCE),
    ]


@pytest.mark.parametrize("name", ["alc.toml", "alc.lock"])
def test_a_project_that_cannot_be_read_stops_it_before_anything_is_done(
    tmp_path: Path, project: Project, home: AlcHome, name: str
) -> None:
    (project.root / name).write_text("[[[")
    with pytest.raises(BadPackageFile, match=name):
        install(str(package(tmp_path / "src" / "debate")))
    assert not home.root.exists()
    assert (project.root / name).read_text() == "[[["


def test_a_list_that_cannot_be_read_stops_it_before_anything_is_done(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    home.root.mkdir()
    home.installed.write_text("no")
    with pytest.raises(BadPackageFile):
        install(str(package(tmp_path / "src" / "debate")))
    assert not home.packages.exists()


def test_files_that_cannot_be_edited_are_told(
    tmp_path: Path, project: Project, home: AlcHome
) -> None:
    project.toml.write_text('packages.order = "*"')
    done = install(str(package(tmp_path / "src" / "debate")))
    assert done["installed"] == ["debate"]
    assert (
        "has a form that cannot be edited; edit the file by hand"
        in done["project_files_warnings"][0]
    )
    assert project.toml.read_text() == 'packages.order = "*"'


def test_a_project_that_cannot_be_edited_here_is_refused_before_anything_is_installed(
    tmp_path: Path, project: Project, home: AlcHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without tomlkit its alc.toml can be read, and not edited."""
    project.toml.write_text("[packages]\n")
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    with pytest.raises(MissingExtra, match=r"editing .*alc\.toml needs the extra 'lua'"):
        install(str(package(tmp_path / "src" / "debate")))
    assert not home.packages.exists()


# Dying on the way


def test_who_dies_between_two_renames_leaves_a_whole_package(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    folder = package(tmp_path / "src" / "debate", says="old")
    install(str(folder))
    (home.packages / "debate").rename(home.packages / ".old-debate")
    package(home.packages / ".new-debate", says="half")
    recover_packages_folder(home.packages)
    assert os.listdir(home.packages) == ["debate"]
    assert "Says old" in (home.packages / "debate" / "init.lua").read_text()


def test_a_disk_that_is_full_leaves_the_old_package(
    tmp_path: Path, home: AlcHome, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = package(tmp_path / "src" / "debate", "1", says="old")
    install(str(folder))
    package(folder, "2", says="new", more="return 1")

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(BadPackage, match=r"The package cannot be copied to .*No space left"):
            install(str(folder))
    assert "Says old" in (home.packages / "debate" / "init.lua").read_text()
    assert load_installed(home)["debate"].version == "1"
    install(str(folder))
    assert sorted(os.listdir(home.packages)) == ["debate"]


def test_a_submodule_brings_no_git_either(tmp_path: Path, home: AlcHome, nowhere: Path) -> None:
    folder = package(tmp_path / "src" / "debate")
    (folder / ".git").write_text("gitdir: ../.git/modules/debate")
    install(str(folder))
    assert os.listdir(home.packages / "debate") == ["init.lua"]


KILLED = """
import os, sys
from everhold.packages.lua.installed import recover_packages_folder
from everhold.packages.lua.install import install
seen = 0
def hook(event, args):
    global seen
    if event in ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "open") and "home" in str(args):
        seen += 1
        if seen == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
sys.addaudithook(hook)
install(sys.argv[1])
print(seen)
"""


@pytest.mark.process
def test_killed_at_any_moment_an_update_leaves_the_old_or_the_new(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    folder = package(tmp_path / "src" / "debate", "1", says="old", judge="return 'old'")
    install(str(folder))
    package(folder, "2", says="new", judge="return 'new'")

    def run(moment: int) -> int:
        return subprocess.run(
            [sys.executable, "-c", KILLED, str(folder), str(moment)], capture_output=True
        ).returncode

    moment, codes = 1, set[int]()
    while (code := run(moment)) == -9:
        codes.add(code)
        recover_packages_folder(home.packages)
        package_ = home.packages / "debate"
        heard = {
            "new" if "new" in (package_ / name).read_text() else "old"
            for name in ("init.lua", "judge.lua")
        }
        assert len(heard) == 1, moment
        assert json.loads(home.installed.read_text())["packages"]["debate"]["version"] in ("1", "2")
        moment += 1
    assert (code, codes) == (0, {-9}) and moment > 8
    assert load_installed(home)["debate"].version == "2"
