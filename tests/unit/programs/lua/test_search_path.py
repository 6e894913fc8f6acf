"""Roots: a folder of packages, or one package under a name that was chosen for it."""

from pathlib import Path

import pytest

from everhold.programs.lua import search_path
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.requirements import is_fully_trusted
from everhold.programs.lua.search_path import LuaSource, SearchRoot, parse_search_root


def written(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.lua").write_text(text)
    return folder


@pytest.mark.parametrize("text", ["/a/b", "panel=/a/b", "!/a/b", "!panel=/a/b", "x-1=/a=b/c"])
def test_a_root_is_a_line_of_text(text: str) -> None:
    assert str(parse_search_root(text)) == text


@pytest.mark.parametrize("text", ["a/b", "", "=/a", "a b=/c"])
def test_other_text_is_no_root(text: str) -> None:
    with pytest.raises(ValueError, match="is not a search root"):
        parse_search_root(text)


def test_a_name_can_be_chosen_for_a_package(tmp_path: Path) -> None:
    folder = written(tmp_path / "panel-2-dev", init="return 1", judge="return 2")
    written(folder / "parts", init="return 3")
    roots = (f"panel={folder}",)
    assert search_path.find_lua_module("panel", roots) == LuaSource("panel/init.lua", b"return 1")
    assert search_path.find_lua_module("panel.judge", roots) == LuaSource(
        "panel/judge.lua", b"return 2"
    )
    assert search_path.find_lua_module("panel.parts", roots) == LuaSource(
        "panel/parts/init.lua", b"return 3"
    )
    assert search_path.find_lua_module("panel-2-dev", roots) is None


def test_a_chosen_package_is_looked_for_nowhere_else(tmp_path: Path) -> None:
    """Its missing parts are not taken from another version of it."""
    chosen = written(tmp_path / "chosen", init="return 'chosen'")
    written(tmp_path / "all" / "panel", init="return 'other'", judge="return 'other'")
    roots = (f"panel={chosen}", str(tmp_path / "all"))
    assert search_path.find_lua_module("panel", roots) == LuaSource(
        "panel/init.lua", b"return 'chosen'"
    )
    assert search_path.find_lua_module("panel.judge", roots) is None


def test_a_link_in_a_folder_is_followed_unless_it_is_strict(tmp_path: Path) -> None:
    written(tmp_path / "elsewhere", init="return 1")
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "panel").symlink_to(tmp_path / "elsewhere")
    assert search_path.find_lua_module("panel", (str(tmp_path / "packages"),)) == LuaSource(
        "panel/init.lua", b"return 1"
    )
    assert search_path.find_lua_module("panel", (f"!{tmp_path / 'packages'}",)) is None
    assert (
        search_path.find_lua_module("panel", (f"!panel={tmp_path / 'packages' / 'panel'}",)) is None
    )
    assert search_path.find_lua_module("panel", (f"!panel={tmp_path / 'elsewhere'}",)) == LuaSource(
        "panel/init.lua", b"return 1"
    )


def test_a_link_inside_a_package_never_leads_out(tmp_path: Path) -> None:
    (tmp_path / "secret.lua").write_text("return 'secret'")
    folder = written(tmp_path / "packages" / "panel", init="return 1")
    (folder / "leak.lua").symlink_to(tmp_path / "secret.lua")
    for root in (f"panel={folder}", str(folder.parent), f"!{folder.parent}"):
        assert search_path.find_lua_module("panel.leak", (root,)) is None


def test_a_package_is_what_its_reference_says(tmp_path: Path) -> None:
    """A session keeps its program, whatever the name means by now."""
    mine = written(tmp_path / "mine" / "panel", init="return 1")
    other = written(tmp_path / "dev", init="return 2")
    program = LuaProgram.found(
        f"{mine}/init.lua:panel", roots=[SearchRoot(other, "panel"), tmp_path / "mine"]
    )
    assert program.is_package
    assert search_path.find_lua_module("panel", program.roots) == LuaSource(
        "panel/init.lua", b"return 1"
    )


def test_a_package_under_a_chosen_name_brings_no_neighbours(tmp_path: Path) -> None:
    chosen = written(tmp_path / "src" / "p2", init="return 1")
    written(tmp_path / "src" / "private", init="return 2")
    program = LuaProgram.found(f"{chosen}/init.lua:panel", roots=[SearchRoot(chosen, "panel")])
    assert program.roots == (f"panel={chosen}",)


def test_roots_that_were_handed_on_stay_what_they_are(tmp_path: Path) -> None:
    folder = written(tmp_path / "packages" / "panel", init="return 1")
    program = LuaProgram.package(folder, roots=[tmp_path / "more"])
    again = LuaProgram.found(program.ref, roots=program.roots)
    assert again.roots == program.roots


def test_a_folder_whose_name_is_no_modules_is_run_as_a_file(tmp_path: Path) -> None:
    folder = written(tmp_path / "my.panel", init="return 1")
    assert not LuaProgram.package(folder).is_package


def test_trust_is_asked_of_the_chosen_folder(tmp_path: Path) -> None:
    needed = written(tmp_path / "j2", init="return 1")
    panel = written(tmp_path / "panel", init='local judge = require("judge")')
    roots = (f"judge={needed}", str(tmp_path))
    assert is_fully_trusted(
        panel, roots, lambda place: "yes" * (place in (str(panel), str(needed)))
    )
    assert not is_fully_trusted(panel, roots, lambda place: "yes" * (place == str(panel)))
    assert is_fully_trusted(
        panel, (f"judge={tmp_path / 'gone'}",), lambda place: "yes" * (place == str(panel))
    )
