"""The commands of packages: what they ask, what they say, and that JSON is one document."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Cli


@pytest.fixture
def folder(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `debate` to be installed, and a home that nobody else has."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("ALC_HOME", str(tmp_path / "home"))
    for name in ("ALC_PACKAGES_PATH", "ALC_PROJECT_ROOT", "ALC_PKG_STRICT"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "src" / "debate"
    place.mkdir(parents=True)
    (place / "init.lua").write_text(
        'return { meta = { version = "1", description = "Two sides talk." } }'
    )
    return place


@pytest.mark.parametrize(("typed", "marks"), [("y\n", 1), ("n\n", 0), ("\n", 0)])
def test_at_a_terminal_trust_is_asked_for_once(
    cli: Cli, folder: Path, typed: str, marks: int
) -> None:
    said = cli("pkg", "install", str(folder), typed=typed)
    assert said.code == 0
    assert said.out.count("Do you trust debate") == 1
    assert len(cli("pkg", "trusted", "--json").json["packages"]) == marks


def test_for_many_packages_trust_is_asked_for_once(cli: Cli, folder: Path) -> None:
    for name in "abcd":
        (folder.parent / name).mkdir()
        (folder.parent / name / "init.lua").write_text("return {}")
    said = cli("pkg", "install", str(folder.parent), typed="y\n")
    assert "Do you trust these 5 packages" in said.out
    assert len(cli("pkg", "trusted", "--json").json["packages"]) == 5


@pytest.mark.parametrize(("option", "marks"), [("--trust", 1), ("--no-trust", 0)])
def test_an_option_answers_the_question(cli: Cli, folder: Path, option: str, marks: int) -> None:
    said = cli("pkg", "install", str(folder), option, typed="")
    assert "Do you trust" not in said.out
    assert len(cli("pkg", "trusted", "--json").json["packages"]) == marks


def test_where_nobody_can_be_asked_nothing_is_trusted(cli: Cli, folder: Path) -> None:
    said = cli("pkg", "install", str(folder))
    assert said.out == (
        "installed: debate\nUntrusted packages run in a process of their own; see: everhold pkg"
        " trust --help\n"
    )
    assert cli("pkg", "install", str(folder), "--json", typed="y\n").json["trusted"] == []


def test_a_folder_can_be_named_from_where_one_stands(cli: Cli, folder: Path) -> None:
    assert cli("pkg", "install", "src/debate", "--name", "talk").out.startswith("installed: talk\n")


@pytest.mark.process
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("./none", "folder {here}/none does not exist"),
        ("../none", "folder {here}/../none does not exist"),
        ("shop.py", "folder {here}/shop.py does not exist"),
        ("", "Not the address of a repository: ''"),
        ("debate", "Not the address of a repository: 'debate'"),
        ("file:///none", "git clone failed: fatal: '/none' does not appear to be a git repository"),
    ],
)
def test_a_place_where_nothing_is_is_told_in_one_line(
    cli: Cli, folder: Path, tmp_path: Path, source: str, words: str
) -> None:
    """What looks like a path is never looked for on the network."""
    said = cli("pkg", "install", source)
    assert said.code == 2
    first, hint = said.err.splitlines()
    assert first.startswith("error: " + words.format(here=tmp_path))
    assert hint.startswith("hint: ")


def test_everything_of_an_installation_is_said(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (folder / "out").symlink_to("/etc")
    (tmp_path / "alc.toml").write_text('packages.x = "*"')
    said = cli("pkg", "install", str(folder))
    assert "left out, because they point outside the package: debate/out" in said.out
    assert "cannot be edited" in said.err


def test_the_list_says_what_is_hidden_and_where_it_looked(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    cli("pkg", "install", str(folder))
    near = tmp_path / "packages" / "debate"
    near.mkdir(parents=True)
    (near / "init.lua").write_text('return { meta = { description = "Nearer." } }')
    lines = cli("pkg").out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["debate", "debate"]
    assert "Nearer." in lines[1] and "hidden" in lines[2]
    assert lines[-1].startswith(f"searched: {tmp_path}/packages, ")


def test_a_list_can_be_cut(cli: Cli, folder: Path) -> None:
    cli("pkg", "install", str(folder))
    words = ["pkg", "list", "--json", "--field", "name", "--field", "active"]
    assert cli(*words, "--filter", "active=true").json["packages"] == [
        {"name": "debate", "active": True}
    ]
    assert cli(*words, "--filter", "active=false").json["packages"] == []
    assert (
        cli("pkg", "list", "--json", "--full").json["packages"][0]["description"]
        == "Two sides talk."
    )
    assert cli(*words, "--limit", "1", "--sort", "-name").json["packages"][0]["name"] == "debate"


def test_files_that_cannot_be_read_are_warned_of(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alc.toml").write_text("[[")
    said = cli("pkg", "list")
    assert (said.code, "alc.toml: it is not TOML" in said.err) == (0, True)


def test_a_link_is_said_and_taken_away(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alc.toml").write_text("[packages]\n")
    assert cli("pkg", "link", str(folder)).out == f"linked: debate is {folder}\n"
    assert cli("pkg", "link", str(folder), "--variant", "--json").json["scope"] == "variant"
    assert "has it already" in cli("pkg", "link", str(folder), "--variant").out
    assert cli("pkg", "unlink", "debate").out == "unlinked: debate\n"
    assert cli("pkg", "unlink", "debate", "--json").json["scope"] == "variant"
    assert cli("pkg", "unlink", "debate").code == 2


def test_deleting_is_confirmed(cli: Cli, folder: Path, tmp_path: Path) -> None:
    cli("pkg", "install", str(folder))
    assert cli("pkg", "remove", "debate", "--global", typed="n\n").code == 130
    assert (tmp_path / "home" / "packages" / "debate").is_dir()
    assert cli("pkg", "remove", "debate", "--global", typed="y\n").code == 0
    assert not (tmp_path / "home" / "packages" / "debate").exists()


def test_removing_tells_what_was_not_there(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alc.toml").write_text("[packages]\n")
    cli("pkg", "install", str(folder))
    assert cli("pkg", "remove", "debate").out == "removed: debate\n"
    assert "alc.lock" in cli("pkg", "remove", "debate", "--all", "--yes").out


def test_what_is_wrong_comes_with_what_to_do(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / "packages").mkdir(parents=True)
    (tmp_path / "home" / "packages" / "gone").symlink_to("/no/such")
    found = cli("pkg", "doctor")
    assert found.code == 1
    assert (
        "✗ gone: it links to a missing folder: /no/such\n  hint: everhold pkg unlink gone"
        in found.out
    )
    assert cli("pkg", "doctor", "--json").json["symlink_dangling"][0]["name"] == "gone"
    assert cli("pkg", "repair").code == 1
    (tmp_path / "home" / "packages" / "gone").unlink()
    assert [cli("pkg", verb).out for verb in ("doctor", "repair")] == ["no problems\n"] * 2
    assert cli("pkg", "repair", "--json").json["repaired"] == []


def test_what_was_mended_is_said(cli: Cli, folder: Path, tmp_path: Path) -> None:
    cli("pkg", "install", str(folder))
    (tmp_path / "home" / "packages" / "debate").rename(tmp_path / "away")
    assert cli("pkg", "repair").out == f"✓ debate, from {folder}\n"


def test_a_project_is_begun_and_resolved(cli: Cli, folder: Path, tmp_path: Path) -> None:
    assert cli("pkg", "migrate").out == "Nothing to do: there is no alc.lock.\n"
    assert cli("pkg", "migrate", "--json").json["status"] == "nothing to migrate"
    assert cli("pkg", "init").out.startswith(f"created {tmp_path}/alc.toml\n")
    assert cli("pkg", "init", "--json").json["code"] == "bad_package"
    cli("pkg", "install", str(folder))
    assert cli("pkg", "update").out == f"1 resolved in {tmp_path}/alc.lock\n"
    (tmp_path / "alc.toml").write_text('[packages]\nnobody = "*"\n')
    failed = cli("pkg", "update")
    assert (failed.code, "✗ 'nobody': not installed" in failed.out) == (1, True)
    assert cli("pkg", "update", "--json").json["resolved"] == 0


def test_an_old_lock_is_taken_over(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alc.lock").write_text(
        'version = 1\n[[package]]\nname = "debate"\n[package.source]\ntype = "local_dir"\npath'
        f' = "{folder}"\n'
    )
    assert "Next: everhold pkg update" in cli("pkg", "migrate").out
    assert cli("pkg", "update").code == 0


def test_a_new_package_is_made(cli: Cli, folder: Path, tmp_path: Path) -> None:
    said = cli("pkg", "scaffold", "talk", "--in", "made", "--category", "x", "--description", "y")
    assert (
        said.out == f"created {tmp_path}/made/talk/init.lua\ncreated {tmp_path}/made/test_talk.py\n"
    )
    assert cli("pkg", "scaffold", "talk2", "--json").json["status"] == "ok"
