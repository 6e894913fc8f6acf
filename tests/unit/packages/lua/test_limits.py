"""The limits of Lua programs: what the settings say, what a program gets, what an error names."""

from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold.core.status import Raised
from everhold.errors import BadSetting
from everhold.packages.lua.limits import PACKAGE_CPU_SECONDS, read_limit_tables
from everhold.packages.settings import read_lua_options, settings
from everhold.programs.lua.host import is_too_long_here
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.protocol import LuaLimits
from tests.failures import collect_failures

TABLE: dict[str, Any] = {
    "cpu": 5,
    "memory": "100MB",
    "code": {"cpu": "0.5s"},
    "packages": {"boids": {"cpu": 40, "replay": "1m"}, "small": {"memory": "10MB"}},
}
SPIN = "return { run = function(ctx) while true do end end }"
FILL = "return { run = function(ctx) local t = {} for i = 1, 1e7 do t[i] = i end end }"


def limits_of(name: str, table: dict[str, Any] = TABLE) -> LuaLimits:
    ref = "lua:code" if name == "code" else f"/somewhere/{name}/init.lua:{name}"
    return read_limit_tables(table, "lua").choose(LuaProgram(ref))


def test_a_package_has_its_own_limits_then_those_of_all() -> None:
    found = {name: limits_of(name) for name in ("boids", "small", "other", "code")}
    assert {name: (one.cpu, one.memory, one.replay) for name, one in found.items()} == {
        "boids": (40.0, 10**8, 60.0),
        "small": (5.0, 10**7, 0.0),
        "other": (5.0, 10**8, 0.0),
        "code": (0.5, LuaLimits().memory, 0.0),
    }


def test_without_settings_a_package_has_more_time_than_a_text() -> None:
    assert limits_of("any", {}).cpu == PACKAGE_CPU_SECONDS
    assert limits_of("code", {}).cpu == LuaLimits().cpu == 2.0


def test_a_worker_is_killed_after_every_limit_inside() -> None:
    for name in ("boids", "small", "code"):
        limits = limits_of(name)
        assert limits.wall > limits.again >= limits.cpu


def test_only_a_chosen_limit_keeps_a_trusted_package_out_of_this_process() -> None:
    assert [
        is_too_long_here(limits_of("boids", table))
        for table in ({}, {"cpu": 0.5}, {"cpu": 3}, {"packages": {"boids": {"cpu": 3}}})
    ] == [False, False, True, True]


def test_the_address_space_of_a_worker_grows_with_the_memory_of_programs() -> None:
    large = read_limit_tables({"packages": {"one": {"memory": "2GB"}}}, "lua").base()
    assert large.space >= 3 * 2 * 10**9
    assert read_limit_tables({}, "lua").base().space == LuaLimits().space


def test_wrong_limits_are_refused_with_the_place() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"cpu": 0}, "cpu of lua"),
        ({"cpu": "2x"}, "cpu of lua"),
        ({"cpu": 4000}, "cpu of lua"),
        ({"replay": -1}, "replay of lua"),
        ({"memory": "1kB"}, "memory of lua"),
        ({"memory": "9GB"}, "memory of lua"),
        ({"code": {"time": 1}}, "code of lua"),
        ({"code": 3}, "code of lua"),
        ({"packages": "boids"}, "packages of lua"),
        ({"packages": {"boids": 20}}, "packages.boids of lua"),
        ({"packages": {"boids": {"cpu": True}}}, "cpu of packages.boids of lua"),
    ]
    with collect_failures() as row:
        for table, place in wrong:
            with row(str(table)), pytest.raises(BadSetting, match=place):
                read_limit_tables(table, "lua")


def write_project(folder: Path, text: str, **packages: str) -> None:
    (folder / "everhold.toml").write_text(f'database = "memory://"\n{text}')
    for name, source in packages.items():
        (folder / "packages" / name).mkdir(parents=True)
        (folder / "packages" / name / "init.lua").write_text(source)


def test_the_settings_file_has_them(tmp_path: Path) -> None:
    write_project(tmp_path, "[lua.packages.boids]\ncpu = 20\n")
    tables = read_lua_options(settings(start=tmp_path)).limits
    assert tables.packages["boids"].cpu == 20.0


def outcome_of(name: str) -> Raised:
    with everhold.open_blocking() as runtime:
        status: Any = runtime.start(LuaProgram.package(Path("packages", name))())
    assert isinstance(status.outcome, Raised)
    return status.outcome


@pytest.mark.process
def test_an_error_names_the_setting_and_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(
        tmp_path,
        '[lua.packages.spin]\ncpu = 0.2\n[lua.packages.fill]\nmemory = "20MB"\n',
        spin=SPIN,
        fill=FILL,
    )
    monkeypatch.chdir(tmp_path)
    spun, full = outcome_of("spin"), outcome_of("fill")
    assert (spun.kind, spun.error) == (
        "spinning",
        "Spinning: the program did not pause within 0.2 s of CPU time; the setting is cpu in"
        " [lua.packages.spin]",
    )
    assert full.error == (
        "not enough memory: the limit is 20 MB; the setting is memory in [lua.packages.fill]"
    )


@pytest.mark.process
def test_a_package_may_be_given_more_than_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More memory than a state has by default, in a worker that also runs others."""
    fill = FILL.replace("end end }", "end return #t end }")
    write_project(tmp_path, '[lua.packages.fill]\nmemory = "300MB"\n', fill=fill, other=fill)
    monkeypatch.chdir(tmp_path)
    assert outcome_of("other").error.startswith("not enough memory: the limit is 64 MB")
    with everhold.open_blocking() as runtime:
        assert runtime.run(LuaProgram.package(Path("packages", "fill"))()) == 10**7


@pytest.mark.process
def test_a_session_beyond_its_limit_is_retried_with_a_higher_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its recorded answers; also in another process, which replays the long steps."""
    long = (
        "local function count() local n = 0 for i = 1, 2e7 do n = n + i % 3 end return n end\n"
        "return { run = function(ctx) local before = alc.llm('go?')"
        " return { before, count(), alc.llm('done?') } end }"
    )
    write_project(tmp_path, "[lua.packages.count]\ncpu = 0.05\n", count=long)
    monkeypatch.chdir(tmp_path)
    database = f"sqlite:///{tmp_path / 'app.db'}"
    count = LuaProgram.package(Path("packages", "count"))
    with everhold.open_blocking(database) as runtime:
        asked = runtime.start(count(), key="long")
        status: Any = runtime.answer(asked.session_id, "go")
        assert "the setting is cpu in [lua.packages.count]" in status.outcome.error
    (tmp_path / "everhold.toml").write_text("[lua.packages.count]\ncpu = 60\n")
    with everhold.open_blocking(database) as runtime:
        assert [one.prompt for one in runtime.retry("long").queries] == ["done?"]
    with everhold.open_blocking(database) as runtime:
        ended: Any = runtime.answer("long", "yes")
        assert ended.outcome.value == ["go", 20_000_001, "yes"]
