"""Scenarios in Lua: files of algocline's home."""

from pathlib import Path

import pytest

from everhold import packages
from everhold.errors import BadPackage, BadScenario, UnknownScenario
from tests.unit.packages.lua.making import committed

CODE = 'return { cases = { { input = "1+1", expected = "2" } } }\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALC_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "scenarios"


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.lua").write_text(text)
    return folder


def test_a_home_without_scenarios(home: Path) -> None:
    assert packages.list_scenarios() == {"scenarios": [], "failures": []}
    with pytest.raises(UnknownScenario, match="Scenario 'sums' not found"):
        packages.show_scenario("sums")


def test_files_are_listed_and_shown_as_they_lie(home: Path) -> None:
    write(home, sums=CODE, bad="x")
    (home / "bad.lua").write_bytes(b"\xff")
    (home / "gone.lua").symlink_to(home / "nothing")
    (home / "notes.txt").write_text("x")
    assert packages.list_scenarios() == {
        "scenarios": [{"name": "sums", "path": str(home / "sums.lua"), "size_bytes": len(CODE)}],
        "failures": [
            "bad.lua: it is not UTF-8 text",
            "gone.lua: it cannot be read: No such file or directory",
        ],
    }
    assert packages.show_scenario("sums") == {
        "name": "sums",
        "path": str(home / "sums.lua"),
        "content": CODE,
    }
    with pytest.raises(BadScenario, match="not UTF-8"):
        packages.show_scenario("bad")


@pytest.mark.parametrize("name", ["sum", "../sums", "sums.lua", "", "/etc/passwd", "a\0b"])
def test_only_a_name_of_the_list_is_shown(home: Path, name: str) -> None:
    write(home, sums=CODE)
    with pytest.raises(UnknownScenario) as refused:
        packages.show_scenario(name)
    if name == "sum":
        assert refused.value.hint == "Did you mean 'sums'?"


def test_a_folder_is_installed(home: Path, tmp_path: Path) -> None:
    """Files that are here stay as they are; what cannot be read is named; links are left out."""
    write(home, mine="return {}")
    source = write(tmp_path / "source", sums=CODE, mine="return { other = 1 }", bad="x")
    (source / "bad.lua").write_bytes(b"\xff")
    (source / "link.lua").symlink_to(home / "mine.lua")
    assert packages.install_scenarios(str(source)) == {
        "installed": ["sums"],
        "skipped": ["mine"],
        "failures": ["bad.lua: it is not UTF-8 text"],
    }
    assert (home / "sums.lua").read_text() == CODE
    assert (home / "mine.lua").read_text() == "return {}"
    assert sorted(file.name for file in home.iterdir()) == ["mine.lua", "sums.lua"]
    assert packages.install_scenarios(str(source))["installed"] == []


def test_a_folder_of_scenarios_in_a_folder(home: Path, tmp_path: Path) -> None:
    """It is used if the folder itself has no Lua file."""
    write(tmp_path / "source" / "scenarios", sums=CODE)
    assert packages.install_scenarios(str(tmp_path / "source"))["installed"] == ["sums"]


@pytest.mark.process
def test_a_repository_is_installed(home: Path, tmp_path: Path) -> None:
    """It has the scenarios in its folder `scenarios`; other Lua files are not copied."""
    write(tmp_path / "source" / "scenarios", sums=CODE)
    write(tmp_path / "source", build="x")
    committed(tmp_path / "source")
    made = packages.install_scenarios(f"file://{tmp_path / 'source'}")
    assert made == {"installed": ["sums"], "skipped": [], "failures": []}


@pytest.mark.parametrize("url", ["{base}/nothing", "{base}/empty", "nothing"])
def test_what_has_no_scenarios_is_refused(home: Path, tmp_path: Path, url: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadPackage):
        packages.install_scenarios(url.format(base=tmp_path))
    assert not home.exists()
