"""Packages and files: what a program is made of, and what it may read."""

from pathlib import Path

import pytest

from everhold.core.status import Raised
from everhold.errors import BadArguments, NotAProgram, UnknownProgram
from everhold.programs.lua.program import TEXT_REF, LuaProgram
from tests.unit.programs.lua.life import Life, failure, package, run


def test_a_package_is_run_with_its_ctx(tmp_path: Path) -> None:
    home = package(
        tmp_path,
        "cot",
        "return {run = function(ctx) ctx.result = alc.llm(ctx.task) return ctx end}",
    )
    program = LuaProgram.package(home)
    assert program.ref == f"{home}/init.lua:cot"
    assert Life(program(task="x")).finish() == {"task": "x", "result": "<x>"}


def test_a_package_has_all_its_files(tmp_path: Path) -> None:
    home = package(
        tmp_path,
        "deep",
        "return {run = function(ctx) return require('deep.a').v .. require('deep.b.c').v end}",
    )
    package(tmp_path, "deep", "return {v = 'a' .. require('deep.b').v}", "a.lua")
    package(tmp_path, "deep", "return {v = 'b'}", "b/init.lua")
    package(tmp_path, "deep", "return {v = ...}", "b/c.lua")
    assert Life(LuaProgram.package(home)()).finish() == "abdeep.b.c"


def test_a_file_may_be_named_by_its_path(tmp_path: Path) -> None:
    home = package(
        tmp_path,
        "deep",
        "return {run = function() return {(require('deep/a')), (require('deep/b/c'))} end}",
    )
    package(tmp_path, "deep", "return 'a of ' .. ...", "a.lua")
    package(tmp_path, "deep", "return 'c'", "b/c/init.lua")
    assert Life(LuaProgram.package(home)()).finish() == ["a of deep/a", "c"]


def test_a_hyphen_in_a_name(tmp_path: Path) -> None:
    home = package(tmp_path, "tree-of", "return {run = function() return 1 end}")
    assert Life(LuaProgram.package(home)()).finish() == 1


def test_packages_are_found_in_the_roots_in_their_order(tmp_path: Path) -> None:
    package(tmp_path / "a", "x", "return 'from a'")
    package(tmp_path / "b", "x", "return 'from b'")
    package(tmp_path / "b", "y", "return 'only b'")
    assert run(
        "return {(require('x')), (require('y'))}", roots=[tmp_path / "a", tmp_path / "b"]
    ) == [
        "from a",
        "only b",
    ]


def test_a_file_is_a_module_or_a_script(tmp_path: Path) -> None:
    (tmp_path / "m.lua").write_text(
        "#!/usr/bin/lua\nreturn {run = function(ctx) return ctx.n + 1 end}"
    )
    (tmp_path / "s.lua").write_text("\ufeffreturn ctx.n * 2")
    assert Life(LuaProgram.file(tmp_path / "m.lua")(n=1)).finish() == 2
    assert Life(LuaProgram.file(tmp_path / "s.lua")(n=4)).finish() == 8


def test_text_that_is_a_module_is_run_like_the_file(tmp_path: Path) -> None:
    assert run("return {run = function(ctx) return ctx.n + 1 end}", {"n": 1}) == 2
    assert run("return {run = 'a word'}") == {"run": "a word"}


@pytest.mark.parametrize("before", ["#!/usr/bin/env lua\n", "\ufeff", "\ufeff#!lua\n"])
def test_text_may_come_out_of_a_file(before: str) -> None:
    """A line for the shell and a byte order mark do no harm, as in files, and lines are counted as
    they stand.
    """
    assert run(before + "return 5") == 5
    assert failure(before + "error('x')") == f"code:{1 + before.count(chr(10))}: x"


def test_a_module_is_loaded_once(tmp_path: Path) -> None:
    package(tmp_path, "once", "loads = (loads or 0) + 1 return {}")
    assert run(
        "return {require('once') == require('once'), loads, package.loaded.once ~= nil}",
        roots=[tmp_path],
    ) == [
        True,
        1,
        True,
    ]


def test_a_module_that_returns_nothing_is_true(tmp_path: Path) -> None:
    package(tmp_path, "none", "")
    assert run("return require('none')", roots=[tmp_path]) is True


def test_what_is_put_into_preload_is_found() -> None:
    assert (
        run("package.preload.x = function(name) return name .. '!' end return require('x')") == "x!"
    )


def test_the_libraries_are_modules_too() -> None:
    assert (
        run("return require('string') == string and require('table').concat == table.concat")
        is True
    )


def test_a_circle_of_modules_is_an_error(tmp_path: Path) -> None:
    package(tmp_path, "a", "require('b')")
    package(tmp_path, "b", "require('a')")
    assert "loop or previous error loading module 'a'" in failure("require('a')", roots=[tmp_path])


def test_a_module_that_fails_may_be_tried_again(tmp_path: Path) -> None:
    package(tmp_path, "bad", "error('no luck', 0)")
    code = "local _, a = pcall(require, 'bad') local _, b = pcall(require, 'bad') return {a, b}"
    assert run(code, roots=[tmp_path]) == ["no luck", "no luck"]


def test_a_mistake_in_a_module_names_its_file_in_the_package(tmp_path: Path) -> None:
    package(tmp_path, "bad", "return {run = function()\n  local x = nil + 1\nend}")
    life = Life(LuaProgram.package(tmp_path / "bad")())
    life.step()
    assert life.outcome.error == "bad/init.lua:2: attempt to perform arithmetic on a nil value"
    assert '  File "bad/init.lua", line 2, in function' in life.outcome.traceback
    assert str(tmp_path) not in life.outcome.error + life.outcome.traceback


def test_what_does_not_compile_is_said(tmp_path: Path) -> None:
    package(tmp_path, "bad", "return {")
    assert "error loading module 'bad' from file 'bad/init.lua'" in failure(
        "require('bad')", roots=[tmp_path]
    )
    assert failure("return {").startswith("code:1: ")


def test_bytecode_is_not_loaded(tmp_path: Path) -> None:
    import lupa.lua54 as lupa

    dumped = lupa.LuaRuntime(encoding=None).execute(b"return string.dump(function() return 1 end)")
    (tmp_path / "code.lua").write_bytes(dumped)
    assert "attempt to load a binary chunk" in failure("require('code')", roots=[tmp_path])


def test_a_package_without_run_is_no_program(tmp_path: Path) -> None:
    package(tmp_path, "lib", "return {}")
    life = Life(LuaProgram.package(tmp_path / "lib")())
    life.step()
    assert life.outcome.error == "package 'lib' has no function run(ctx)"


SECRET = "return 'secret'"


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "..secret",
        "a/../../secret",
        "/secret",
        "a//secret",
        "a/",
        "./secret",
        "x.",
        ".x",
        "x..y",
        "x\0y",
        "",
    ],
)
def test_a_name_cannot_leave_the_roots(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.lua").write_text(SECRET)
    (tmp_path / "root" / "a").mkdir(parents=True)
    life = Life("return require(ctx.name)", {"name": name}, roots=[tmp_path / "root"])
    life.step()
    assert isinstance(life.outcome, Raised)
    assert "not found" in life.outcome.error


def test_a_link_in_a_package_cannot_leave_it(tmp_path: Path) -> None:
    (tmp_path / "secret.lua").write_text(SECRET)
    home = package(tmp_path / "root", "p", "return {}")
    (home / "out.lua").symlink_to(tmp_path / "secret.lua")
    assert "not found" in failure("require('p.out')", roots=[tmp_path / "root"])


def test_a_package_may_itself_be_a_link(tmp_path: Path) -> None:
    package(tmp_path / "work", "p", "return require('p.more')")
    package(tmp_path / "work", "p", "return 'linked'", "more.lua")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "p").symlink_to(tmp_path / "work" / "p")
    assert run("return require('p')", roots=[tmp_path / "root"]) == "linked"


# ---- the program as data


def test_text_is_in_its_arguments() -> None:
    call = LuaProgram.text("return 1", {"a": 1})
    assert (call.program.ref, call.args) == (TEXT_REF, {"code": "return 1", "ctx": {"a": 1}})
    assert call.program.digest != LuaProgram.text("return 2").program.digest


def test_a_package_takes_its_ctx_by_name_or_as_one_object(tmp_path: Path) -> None:
    program = LuaProgram.package(package(tmp_path, "p", ""))
    assert program({"a": 1}, b=2).args == {"a": 1, "b": 2}
    with pytest.raises(BadArguments):
        program(1)
    with pytest.raises(BadArguments):
        program(a=object())


@pytest.mark.parametrize(
    "args", [{}, {"code": 1}, {"code": "x", "more": 1}, {"code": "x", "ctx": []}]
)
def test_text_takes_code_and_ctx(args: dict[str, object]) -> None:
    with pytest.raises(BadArguments):
        LuaProgram(TEXT_REF).arguments(args)


def test_text_is_called_with_its_text() -> None:
    with pytest.raises(BadArguments):
        LuaProgram(TEXT_REF)()


def test_what_is_not_there_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownProgram):
        LuaProgram.package(tmp_path / "nothing")
    program = LuaProgram.file(tmp_path / package(tmp_path, "p", "").name / "init.lua")
    (tmp_path / "p" / "init.lua").unlink()
    assert program.digest == ""


def test_python_cannot_call_it_from_within(tmp_path: Path) -> None:
    with pytest.raises(NotAProgram, match=r"ctx\.spawn"):
        _ = LuaProgram.package(package(tmp_path, "p", "")).body
