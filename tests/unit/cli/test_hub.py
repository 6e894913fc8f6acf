"""`everhold hub`: what it prints, and that JSON is one document. It reaches no network here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Cli

PACKAGE = (
    '--- {name}: a package\n---\n--- Does one thing.\nreturn {{ meta = {{ name = "{name}",'
    ' version = "1.0.0", description = "Does {name}", category = "c" }} }}\n'
)


@pytest.fixture
def folder(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection of two packages, and a home without the network."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("ALC_HOME", str(tmp_path / "home"))
    for name in ("ALC_PACKAGES_PATH", "ALC_PROJECT_ROOT", "ALC_PKG_STRICT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        f'[hub]\nbuiltin_sources = false\ncollection_url = "{tmp_path}/src/hub_index.json"\n'
    )
    for name in ("one", "two"):
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "init.lua").write_text(PACKAGE.format(name=name))
    return tmp_path / "src"


def test_a_published_package_is_found_and_installed(cli: Cli, folder: Path) -> None:
    said = cli("hub", "reindex", str(folder))
    assert said.out == f"2 packages in {folder}/hub_index.json\n"
    assert cli("pkg", "install", str(folder / "one"), "--no-trust").code == 0
    said = cli("hub", "search", "does")
    rows = [line.split() for line in said.out.splitlines()[1:3]]
    assert rows == [
        ["one", "1.0.0", "c", "yes", "Does", "one"],
        ["two", "1.0.0", "c", "Does", "two"],
    ]
    assert said.out.splitlines()[-1] == f"indexes: {folder}/hub_index.json"
    assert "its index does not say where it is" in cli("hub", "info", "two").out
    assert "installed:   yes" in cli("hub", "info", "one").out


def test_the_words_of_an_index_are_one_line_each_and_no_command(cli: Cli, folder: Path) -> None:
    """Whoever wrote it: nothing of it is a control, a line of its own, or part of a command."""
    entry = {
        "name": "odd",
        "version": "1\x1b[2J",
        "description": "one\nto install it: everhold pkg install evil",
        "source": {"type": "git", "url": "https://x/y;curl evil", "rev": None},
    }
    index = {"schema_version": "hub_index/v0", "packages": [entry]}
    (folder / "hub_index.json").write_text(json.dumps(index))
    lines = cli("hub", "info", "odd").out.splitlines()
    assert lines[0] == "odd 1\ufffd[2J"
    assert lines[1].split(maxsplit=1)[1] == "one to install it: everhold pkg install evil"
    assert lines[-1] == "to install it: everhold pkg install 'https://x/y;curl evil'"


def test_what_is_not_found_is_told(cli: Cli, folder: Path) -> None:
    said = cli("hub", "search", "zzz")
    assert "no package matches 'zzz'" in said.out
    assert "warning: there is no index" in said.err
    said = cli("hub", "info", "on")
    assert (said.code, "not found in any index" in said.err) == (2, True)


@pytest.mark.process
def test_dist_makes_all_and_says_what(cli: Cli, folder: Path) -> None:
    said = cli("hub", "dist", str(folder), "--preset", "publish")
    assert said.out.splitlines() == [
        f"2 packages in {folder}/hub_index.json",
        "2 generated, 0 failed, lint: 0 error(s) / 0 warning(s)",
        f"6 files written to {folder}/docs",
    ]
    assert "alc_shapes_compat not declared" in said.err
    assert "no file has changed" in cli("hub", "gendoc", str(folder), "--projection", "hub").out


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [
        ["search", "--offline"],
        ["search", "one", "--full", "--filter", "installed=false", "--field", "name"],
        ["info", "one"],
        ["reindex", "src"],
        ["reindex"],
        ["gendoc", "src", "--out", "out"],
        ["dist", "src", "--strict"],
    ],
)
def test_json_is_one_document(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    cli("hub", "reindex", "src")
    said = cli("hub", *words, "--json")
    assert (said.code, said.err) == (0, "")
    assert isinstance(said.json, dict)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gendoc", "nope"], "is not a directory"),
        (["gendoc", "src"], "hub_index.json not found"),
        (["dist", "src", "--preset", "publsh"], "Did you mean 'publish'?"),
        (["dist", "src", "--projection", "hob"], "Did you mean 'hub'?"),
        (["reindex", "src/one"], "is a package, not a folder of packages"),
        (["search", "--sort", "a,,b"], "a key is missing"),
    ],
)
def test_mistakes_are_told_with_a_hint(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(folder.parent)
    said = cli("hub", *words)
    assert said.code == 2 and told in said.err and "hint: " in said.err
