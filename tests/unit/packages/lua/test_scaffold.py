"""A new package runs, passes its own test, is listed, and can be installed. The types name all that
there is.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import everhold
from everhold.errors import BadPackage
from everhold.packages.lua.install import install
from everhold.packages.lua.listing import list_packages
from everhold.packages.lua.meta import read_package_meta
from everhold.packages.lua.paths import AlcHome
from everhold.packages.lua.scaffold import load_stubs, scaffold, write_stubs
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.vm import _places
from tests.warm import start


@pytest.mark.process
def test_a_new_package_passes_its_own_test(tmp_path: Path) -> None:
    made = scaffold("debate", tmp_path)
    assert (made["status"], made["path"]) == ("ok", str(tmp_path / "debate" / "init.lua"))
    assert made["bytes_written"] == (tmp_path / "debate" / "init.lua").stat().st_size
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", made["test_path"]]
    done = subprocess.run([*start.python(), *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.process
def test_a_new_package_says_what_it_takes_and_returns(tmp_path: Path) -> None:
    """By `T.shape`; calls are checked against it if ALC_SHAPE_CHECK is 1."""
    text = Path(scaffold("debate", tmp_path)["path"]).read_text()
    assert "input = T.shape({" in text
    code = (
        "local M = require('debate') local input = M.spec.entries.run.input"
        " return {require('alc_shapes').check({task = 1}, input)}"
    )
    program = LuaProgram.text(code, roots=[tmp_path])
    assert everhold.run(program, database="memory://") == [
        False,
        "shape violation at $.task: it is a number, not a string",
    ]


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    ["Talks.", 'Says "no" \\ twice', "x\x00\x1b\ny", "]] --[[ end", "päd", '" .. os.exit() .. "'],
)
def test_any_words_describe_it(tmp_path: Path, words: str) -> None:
    made = scaffold("debate", tmp_path, category=words, description=words)
    code = Path(made["path"]).read_text()
    told = everhold.run(
        LuaProgram.text(f"return (function() {code} end)().meta"), database="memory://"
    )
    assert told == {
        "name": "debate",
        "version": "0.1.0",
        "description": " ".join(words.split()),
        "category": " ".join(words.split()),
        "alc_shapes_compat": ">=0.25.0, <0.26",
    }


def test_a_new_package_is_found_by_those_who_look_for_it(
    tmp_path: Path, home: AlcHome, nowhere: Path
) -> None:
    """Also by those who look for the words `M.meta`."""
    made = scaffold("debate", tmp_path, description="Two sides talk.")
    assert "M.meta = {" in Path(made["path"]).read_text()
    assert read_package_meta(Path(made["path"])).description == "Two sides talk."
    install(str(Path(made["path"]).parent))
    [row] = list_packages(verbose="full")["packages"]
    assert (row["version"], row["description"], row["category"]) == (
        "0.1.0",
        "Two sides talk.",
        "general",
    )


@pytest.mark.parametrize("name", ["", "Debate", "1x", "a-b", "a.b", "../x", "x" * 65])
def test_names_that_a_new_package_may_not_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadPackage, match="invalid package name"):
        scaffold(name, tmp_path)
    assert list(tmp_path.glob("**/*.lua")) == []


@pytest.mark.parametrize("there", ["debate/init.lua", "test_debate.py"])
def test_what_is_there_is_not_touched(tmp_path: Path, there: str) -> None:
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("mine")
    with pytest.raises(BadPackage, match="already exists"):
        scaffold("debate", tmp_path)
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ["mine"]


# Types


def named() -> set[str]:
    """What the types name under `alc`."""
    found = set(re.findall(r"^function alc\.([\w.]+)\(", load_stubs(), re.MULTILINE))
    found |= set(re.findall(r"^---@field (null|log|_dirs) ", load_stubs(), re.MULTILINE))
    return found | set(re.findall(r"^alc\.(\w+) = \{\}", load_stubs(), re.MULTILINE))


@pytest.mark.process
def test_all_that_the_types_name_is_there() -> None:
    code = """
local missing = {}
for _, path in ipairs(ctx.names) do
  local value = alc
  for part in path:gmatch("[^.]+") do value = value[part] end
  if value == nil then missing[#missing + 1] = path end
end
return #missing == 0 and "none" or missing
"""
    call = LuaProgram.text(code, {"names": sorted(named())})
    assert everhold.run(call, database="memory://") == "none"


@pytest.mark.process
def test_all_that_is_there_is_named() -> None:
    code = """
local found = {"llm", "time"}
for _, home in ipairs({"state", "stats", "card", "math"}) do
  for name in pairs(alc[home]) do found[#found + 1] = home .. "." .. name end
end
return found
"""
    there = {name.decode() for home, name in _places() if home == b"alc"}
    there |= set(everhold.run(LuaProgram.text(code), database="memory://"))
    assert there - named() == set()


def test_all_that_the_reference_tells_of_is_named() -> None:
    """Every function in the tables of docs/reference/lua.md; where one begins with `alc.x.f`, `g`
    means `alc.x.g`.
    """
    page = (Path(__file__).parents[4] / "docs" / "reference" / "lua.md").read_text()
    told: set[str] = set()
    for title, table in re.findall(
        r"^## ([^\n]+)\n(?:(?!^## ).)*?^\| call \|(.+?)\n\n", page, re.MULTILINE | re.DOTALL
    ):
        for cell in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE):
            home = title if title.startswith("alc.") else "alc"
            for name in re.findall(r"`([\w.]+)", cell):
                home = name.rpartition(".")[0] or home
                told.add(f"{home}.{name.rpartition('.')[2]}".removeprefix("alc."))
    told -= {"log.warn", "log.print"}  # a level, and a function of Lua
    assert len(told) > 60
    assert told - named() == set()


@pytest.mark.process
def test_the_types_are_lua(tmp_path: Path) -> None:
    assert everhold.run(LuaProgram.text(f"{load_stubs()}\nreturn 1"), database="memory://") == 1


def test_the_types_are_written_when_they_differ(home: AlcHome) -> None:
    file = Path(write_stubs(home)["types_path"])
    before = file.stat().st_mtime_ns
    write_stubs(home)
    assert (file.read_text(), file.stat().st_mtime_ns) == (load_stubs(), before)
    file.write_text("old")
    (home.types / "alc_shapes.d.lua").write_text("")
    assert write_stubs(home)["alc_shapes_types_path"] == str(home.types / "alc_shapes.d.lua")
    assert file.read_text() == load_stubs()
