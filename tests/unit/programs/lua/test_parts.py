"""Our own Lua: its parts find all that they use, whatever a program did before they were needed."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from tests.unit.programs.lua.life import Life, run

HOME = files("everhold.programs.lua")
SANDBOX = HOME.joinpath("sandbox.lua").read_text("utf-8")
APART = {"sandbox.lua", "code_executor.lua"}  # where programs' own globals are meant
PARTS = sorted(
    file.name for file in HOME.iterdir() if file.name.endswith(".lua") and file.name not in APART
)
COMMENT = re.compile(r"--[^\n]*")
SPOILT = (
    "for _, t in pairs({string, math, table, utf8, os}) do for k in pairs(t) do t[k] = nil end end "
)


def kept(library: str) -> set[str]:
    """The functions of a library of which the sandbox keeps copies for its parts."""
    found = re.search(rf"^  {library} = {{(.*?)}},$", SANDBOX, re.MULTILINE | re.DOTALL)
    assert found is not None, library
    return set(re.findall(r"(\w+) = ", found[1]))


def test_a_part_uses_no_more_of_a_library_than_is_kept_for_it() -> None:
    missing = []
    for part in PARTS:
        text = COMMENT.sub("", HOME.joinpath(part).read_text("utf-8"))
        for library in ("math", "string", "table", "utf8"):
            used = set(re.findall(rf"(?<![\w.])(?<!_){library}\.(\w+)", text))
            missing += [f"{part}: {library}.{name}" for name in sorted(used - kept(library))]
    assert missing == []


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("return alc.json_encode({b = 1.5, a = {}})", '{"a":{},"b":1.5}'),
        ("return alc.math.mean({1, 2, 3})", 2.0),
        ("local t = alc.map({1, 2}, function(x) return x * 2 end) return t[2]", 4),
        ("return select('#', coroutine.resume(coroutine.create(function() return 1, 2 end)))", 3),
        ("return {xpcall(error, function(e) return e end, 'x')}", [False, "x"]),
    ],
)
def test_a_part_that_comes_late_works_as_ever(code: str, value: object) -> None:
    assert run(SPOILT + code) == value


@pytest.mark.parametrize("library", ["coroutine", "io", "os", "package"])
def test_a_library_that_comes_with_its_first_use_looks_like_one(library: str) -> None:
    names = run(f"local t = {{}} for k in pairs({library}) do t[#t + 1] = k end return t")
    again = run(
        f"local _ = {library}.x local t = {{}} for k in pairs({library}) do t[#t + 1] = k end"
        " return t"
    )
    assert names == again != []
    assert run(f"local _ = {library}.x return getmetatable({library}) == nil") is True


@pytest.mark.parametrize(
    ("table", "some"),
    [("alc", "cache llm llm_batch math pipe state vote"), ("alc.state", "get update")],
)
def test_whoever_goes_through_alc_sees_all_of_it(table: str, some: str) -> None:
    """Packages wrap what they find there: what comes with its first use is there, and so is what
    they put there.
    """
    names = run(
        f"{table}.mine = 1 local t = {{}} for k in pairs({table}) do t[#t + 1] = k end return t"
    )
    assert {"mine", *some.split()} <= set(names)
    assert names == sorted(names)


def test_what_a_program_puts_into_a_library_stays() -> None:
    assert run("os.time = function() return 7 end return {os.clock() ~= nil, os.time()}") == [
        True,
        7,
    ]


def test_a_source_is_not_kept_once_it_runs() -> None:
    life = Life("alc.llm('x') --" + "x" * 200_000)
    life.step()
    assert life.execution.memory < 100_000
