"""Where a Lua program runs: here with the user's trust, else in a worker; and what it may require
where it runs.
"""

from __future__ import annotations

import locale
import os
import subprocess
import sys
from pathlib import Path
from time import process_time, sleep, time_ns
from typing import Any

import pytest

import everhold
from everhold import Runtime
from everhold.core.metrics import Metrics
from everhold.core.session import Birth, Seed, SessionId
from everhold.packages.lua import trust as marks
from everhold.packages.lua.trust import trust_package
from everhold.programs.lua import requirements, search_path
from everhold.programs.lua.host import LuaHost, explain_place
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.protocol import LuaLimits
from everhold.programs.lua.requirements import is_fully_trusted
from everhold.programs.lua.search_path import is_settled, make_file_fingerprint

RUN = "local M = {} function M.run(ctx) return 'ran' end return M"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "get_data_folder", lambda: tmp_path / "home")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "packages"


def package(root: Path, name: str, text: str = RUN, **files: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "init.lua").write_text(text)
    for file, content in files.items():
        (folder / f"{file}.lua").write_text(content)
    return folder


def runs_here(program: LuaProgram) -> bool:
    host = LuaHost(lambda ref, version: program, marks.get_trusted_fingerprint)
    birth = Birth(
        id=SessionId("s-1"),
        program=program.ref,
        args={"code": "return 1"} if program.is_text else {},
        created_at=0.0,
        seeds=[Seed(0, "00")],
    )
    return not host.begin(birth, Metrics()).remote


def in_root(root: Path, name: str) -> LuaProgram:
    return LuaProgram.package(root / name, roots=[root])


def test_text_never_runs_here() -> None:
    assert not runs_here(LuaProgram("lua:code"))


def test_a_package_runs_here_once_it_is_trusted_and_until_it_changes(root: Path) -> None:
    folder = package(root, "one")
    before = runs_here(in_root(root, "one"))
    trust_package(folder)
    trusted = runs_here(in_root(root, "one"))
    (folder / "init.lua").write_text(RUN + "--")
    assert (before, trusted, runs_here(in_root(root, "one"))) == (False, True, False)


GERMAN = """
import locale, sys
from pathlib import Path
from time import process_time
import everhold
from everhold.packages.lua.trust import trust_package
from everhold.programs.lua.program import LuaProgram

category = getattr(locale, sys.argv[2])
assert locale.setlocale(category, "de_DE.UTF-8")
folder = Path(sys.argv[1])
trust_package(folder)
print(everhold.run(LuaProgram.package(folder)()))
"""


@pytest.mark.process
@pytest.mark.parametrize("category", ["LC_ALL", "LC_TIME"])
def test_a_language_of_the_process_is_not_that_of_its_programs(
    category: str, root: Path, tmp_path: Path
) -> None:
    """Numbers have a point, keys are in the order of their bytes, and days are English."""
    if subprocess.run(
        ["sh", "-c", f"localedef -i de_DE -f UTF-8 {tmp_path}/de_DE.UTF-8"], capture_output=True
    ).returncode:
        pytest.skip("no localedef here that makes a German locale")
    says = (
        "return {run = function() return alc.json_encode({a = 3.5, B = tostring(0.25), c ="
        " os.date('%A', 0)}) end}"
    )
    folder = package(root, "says", says)
    env = {
        **os.environ,
        "LOCPATH": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path),
        "EVERHOLD_DATABASE": ":memory:",
    }
    command = [sys.executable, "-c", GERMAN, str(folder), category]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.stdout.strip() == '{"B":"0.25","a":3.5,"c":"Thursday"}', done.stderr


@pytest.mark.parametrize(
    ("chosen", "here"),
    [
        ({}, True),
        ({"LC_ALL": "C.UTF-8"}, True),
        ({"LC_ALL": "de_DE.UTF-8"}, False),
        ({"LC_NUMERIC": "de_DE.UTF-8"}, False),
        ({"LC_COLLATE": "de_DE.UTF-8"}, False),
        ({"LC_TIME": "de_DE.UTF-8"}, False),
        ({"LC_CTYPE": "de_DE.UTF-8"}, True),
        ({"LC_CTYPE": "en_US.utf8"}, True),
        ({"LC_CTYPE": "de_DE.ISO-8859-1"}, False),
        ({"LC_CTYPE": "de_DE@euro"}, False),
    ],
)
def test_nothing_runs_here_in_another_language(
    chosen: dict[str, str], here: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers, dates, order and letters are those of Lua everywhere; in UTF-8 no single byte is a
    letter.
    """
    trust_package(package(root, "p"))
    names = {getattr(locale, category): name for category, name in chosen.items()}
    # as C says it: one or a list
    every = names.setdefault(locale.LC_ALL, "C" if not names else f"all of {chosen}")
    monkeypatch.setattr(
        locale, "setlocale", lambda category: names.get(category, "C" if " " in every else every)
    )
    assert runs_here(in_root(root, "p")) is here


def test_a_file_runs_here_once_it_is_trusted(tmp_path: Path) -> None:
    file = tmp_path / "one.lua"
    file.write_text("return 1")
    before = runs_here(LuaProgram.file(file))
    trust_package(file)
    assert (before, runs_here(LuaProgram.file(file))) == (False, True)


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("local other = require('other')", True),
        ('local other = require "other.part"', True),
        ("local other = require('strange')", False),
        ('local strange = require "strange.part"', False),
        ("local other = require('other/part')", True),
        ("local strange = require('strange/part')", False),
        ("local own = require('one.part')", True),
        ("local missing = require('nowhere')", True),
        ("-- this does not require anything", True),
        ("--[[ require(x) ]]", True),
        ("local x = require(ctx.name)", False),
        ("local load = require", False),
        ("alc.fork({'other'}, {})", False),
        ("alc.pipe({'other'}, {})", False),
        ("local s = 'we require strange things'", True),
        ('local s = "require(name), \\"require\\" and alc.fork"', True),
        ("local s = [[ require('strange') alc.pipe ]]", True),
        ("local s = [==[ ]] require(x) ]==] local o = require('other')", True),
        ("local s = '--' local x = require('strange')", False),
        ("local s = '\\'' local x = require('strange')", False),
        ("local s = [[ -- ]] local x = require('strange')", False),
        ("--[==[ ' ]==] local x = require(ctx.name)", False),
    ],
)
def test_a_trusted_package_runs_here_if_all_that_it_needs_is_trusted(
    root: Path, text: str, here: bool
) -> None:
    package(root, "strange", part="return 1")
    trust_package(package(root, "other", part="return 1"))
    trust_package(package(root, "one", text, part="return 1"))
    assert runs_here(in_root(root, "one")) is here


@pytest.mark.parametrize(
    "unit", ["--[[\n", "--[==[\n", "require" + " " * 60_000, "require '" + "a" * 60_000, "alc "]
)
def test_what_a_package_needs_is_read_in_a_moment(root: Path, unit: str) -> None:
    """However its text is built, and however long it is."""
    trust_package(package(root, "one", unit * (300_000 // len(unit))))
    began = process_time()
    runs_here(in_root(root, "one"))
    assert process_time() - began < 10


@pytest.mark.parametrize("folder", ["spec", "tests"])
def test_tests_of_a_package_need_no_trust_for_what_they_require(root: Path, folder: str) -> None:
    home = package(root, "one")
    (home / folder).mkdir()
    (home / folder / "one_spec.lua").write_text("require('strange') require(anything)")
    package(root, "strange")
    trust_package(home)
    assert runs_here(in_root(root, "one"))


def test_reasons_name_every_package_that_is_missing(root: Path) -> None:
    package(root, "two", "require 'three'")
    package(root, "three", "alc.fork({}, {})")
    trust_package(package(root, "one", "require 'two'"))
    trust_package(package(root, "four"))

    def reasons(name: str, limits: LuaLimits | None = None) -> list[str]:
        return explain_place(
            in_root(root, name), limits or LuaLimits(), marks.get_trusted_fingerprint
        )

    assert reasons("four") == []
    assert [reason.partition(":")[0] for reason in reasons("one")] == ["two", "three", "three"]
    assert reasons("one")[-1] == "three: init.lua runs programs by name (alc.fork)"
    (long,) = reasons("four", LuaLimits(cpu=20.0, setting="lua.packages.four", chosen=True))
    assert "[lua.packages.four] or [lua] of the settings give it 20 s" in long


def test_a_comment_without_an_end_hides_nothing_of_other_files(root: Path) -> None:
    package(root, "strange")
    trust_package(package(root, "one", "return 1 --[[", part="require 'strange'"))
    assert not runs_here(in_root(root, "one"))


def test_a_folder_that_is_called_like_a_file_is_none(root: Path) -> None:
    folder = package(root, "one")
    (folder / "odd.lua").mkdir()
    trust_package(folder)
    assert runs_here(in_root(root, "one"))


def test_what_a_package_needs_is_read_once_and_when_it_changes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = package(root, "one", part="return 1")
    trust_package(folder)
    read: list[str] = []
    native = requirements.read_requires
    monkeypatch.setattr(
        requirements, "read_requires", lambda file: read.append(file.name) or native(file)
    )
    runs_here(in_root(root, "one")), runs_here(in_root(root, "one"))
    once = sorted(read)
    (folder / "part.lua").write_text("return require('strange')")
    package(root, "strange")
    trust_package(folder)
    assert (once, runs_here(in_root(root, "one"))) == (["init.lua", "part.lua"], False)


def test_needs_are_followed_through_others(root: Path) -> None:
    package(root, "strange")
    for name, needed in (
        ("one", "two"),
        ("two", "three"),
        ("three", "one"),
        ("four", "strange"),
        ("five", "four"),
    ):
        trust_package(package(root, name, f"require '{needed}'"))
    roots = (str(root),)
    assert [
        is_fully_trusted(root / name, roots, marks.get_trusted_fingerprint)
        for name in ("one", "three", "four", "five")
    ] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "part",
    [
        "local M = {}\nfunction M.f(t)\n  return t.x.y\nend\nreturn M",
        "local M = {}\nfunction M.f(t)\n  error({code = 7})\nend\nreturn M",
        "local M = {}\nfunction M.f(t)\n  local text = t\n  return text + 1\nend\nreturn M",
        "return (",
        "error('not today')",
        "local M = {}\nfunction M.f(t)\n  return debug\nend\nreturn M",
    ],
)
def test_what_is_compiled_says_what_its_text_says(root: Path, part: str) -> None:
    """The text is loaded the first time, later what was compiled from it: errors name the same
    lines and names.
    """
    text = (
        "local part = require('one.part')\nlocal M = {}\n\nfunction M.run(ctx)\n  return"
        " part.f({})\nend\nreturn M"
    )
    folder = package(root, "one", text, part=part)
    trust_package(folder)
    search_path._sources.clear()
    while not is_settled(make_file_fingerprint(os.stat(folder / "part.lua")), time_ns()):
        sleep(0.01)
    outcomes = [ran(in_root(root, "one")) for _ in range(4)]
    assert {found.mode for _, found in search_path._sources.values()} >= {
        b"t" if part[-1] == "(" else b"b"
    }
    assert outcomes == outcomes[:1] * 4


def test_what_a_text_hides_is_refused_when_it_is_required(root: Path) -> None:
    """The reading of texts can be deceived; the door cannot."""
    package(root, "strange")
    hidden = "local M = {} function M.run(ctx) return _G['req' .. 'uire']('strange') end return M"
    trust_package(package(root, "one", hidden))
    outcome = ran(in_root(root, "one"))
    assert outcome.kind == "LuaError"
    assert "its package is not trusted; run `everhold pkg trust strange`" in outcome.error


@pytest.mark.process
def test_a_strange_package_may_require_what_it_likes_in_its_worker(root: Path) -> None:
    package(root, "strange", "return 'found'")
    package(root, "one", "local M = {} function M.run(ctx) return require('strange') end return M")
    assert ran(in_root(root, "one")).value == "found"


def ran(program: LuaProgram) -> Any:
    with everhold.open_blocking("memory://") as runtime:
        status: Any = runtime.start(program())
    return status.outcome


@pytest.mark.process
async def test_a_session_goes_on_when_its_package_loses_the_trust(root: Path) -> None:
    """Where it runs makes no difference to what it asks."""
    text = "local M = {} function M.run(ctx) return alc.llm('one') .. alc.llm('two') end return M"
    folder = package(root, "one", text)
    trust_package(folder)
    async with everhold.open("memory://") as runtime:
        status = await runtime.start(in_root(root, "one")())
        here = _is_here(runtime, status.session_id)
        (folder / "more.lua").write_text("return 1")
        runtime.engine.sessions.drop(runtime.engine.sessions.all()[0])
        await runtime.answer(status.session_id, "a")
        assert (here, _is_here(runtime, status.session_id)) == (True, False)
        done: Any = await runtime.answer(status.session_id, "b")
        assert done.outcome.value == "ab"


def _is_here(runtime: Runtime, session_id: str) -> bool:
    live: Any = runtime.engine.sessions.cached(session_id)
    return not live.execution.remote
