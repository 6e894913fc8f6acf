"""One name space: strategies, programs of the settings, installed ones, Lua packages and files."""

from pathlib import Path

import pytest

import everhold
from everhold.errors import EverholdError, UnknownProgram, VersionMissing
from everhold.packages import find as finding
from everhold.packages.catalog import (
    KnownPrograms,
    describe_program,
    estimate_program,
    find_named_program,
    load_catalog,
    strategy_of,
    summary_of,
)
from everhold.packages.lua.folder import PackageFolders
from everhold.packages.settings import PACKAGES_FOLDER, get_data_folder, settings
from everhold.packages.strategies import NAMES
from everhold.ports.program import program
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.search_path import SearchRoot

PYTHON = """
@program
async def {name}(ctx, task: str) -> str:
    '''Python's own.

    More of it.
    '''
    return task
"""
LUA = """
local M = {{}}
M.meta = {{ name = "{name}", description = "Does {name}." }}
function M.run(ctx) return ctx end
return M
"""


@pytest.fixture(autouse=True)
def away_from_home(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "share"))
    monkeypatch.delenv("EVERHOLD_DATABASE_URL", raising=False)


@pytest.fixture
def install(write):
    """Put a Lua package into a folder."""

    def install(folder: Path, name: str) -> Path:
        main = Path(folder) / name / "init.lua"
        main.parent.mkdir(parents=True)
        main.write_text(LUA.format(name=name))
        return main.resolve()

    return install


@pytest.fixture
def points(monkeypatch):
    """Entry points of installed packages."""
    listed: list[tuple[str, str]] = []
    monkeypatch.setattr(finding, "_entry_points", lambda: listed)
    return listed


# What a name means


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_is_found_by_its_name_and_stored_by_its_place(name, here):
    found = find_named_program(name, settings())
    assert found.ref == f"everhold.packages.strategies.{name}:{name}"
    assert find_named_program(found.ref, settings(), 1) is found


def test_a_lua_package_of_the_project(here, install):
    main = install(here / "packages", "debate")
    found = find_named_program("debate", settings())
    assert isinstance(found, LuaProgram)
    assert (found.ref, found.version, found.is_package) == (f"{main}:debate", 1, True)
    assert find_named_program(found.ref, settings(), 1).ref == found.ref


def test_a_lua_package_of_the_packages_path(here, write, install):
    """Folders of the setting come in their order, before packages/; ~ and relative paths are
    understood.
    """
    write("everhold.toml", "packages_path = ['first', '~/second']\n")
    install(here / "packages", "debate")
    install(get_data_folder().parent.parent / "second", "debate")
    assert find_named_program("debate", settings()).ref.startswith(
        str(get_data_folder().parent.parent / "second")
    )
    main = install(here / "first", "debate")
    assert find_named_program("debate", settings()).ref == f"{main}:debate"


def test_a_package_that_is_installed_meanwhile_is_found(here, install):
    found = settings()
    with pytest.raises(UnknownProgram):
        find_named_program("debate", found)
    install(get_data_folder() / PACKAGES_FOLDER, "debate")
    assert find_named_program("debate", found).name == "debate"


def test_a_hyphenated_package(here, install):
    install(here / "packages", "deep-debate")
    assert find_named_program("deep-debate", settings()).name == "deep-debate"


def test_a_linked_package_keeps_its_name(here, install):
    install(here / "elsewhere", "original")
    (here / "packages").mkdir()
    (here / "packages" / "linked").symlink_to(here / "elsewhere" / "original")
    assert find_named_program("linked", settings()).ref == f"{here}/packages/linked/init.lua:linked"


def test_a_package_finds_others_where_the_settings_say(here, install):
    """It is itself whatever its name means elsewhere, and then the search path counts."""
    install(get_data_folder() / PACKAGES_FOLDER, "debate")
    own = get_data_folder() / PACKAGES_FOLDER
    assert find_named_program("debate", settings()).roots == (
        f"debate={own / 'debate'}",
        str(here / "packages"),
        str(own),
        f"scenarios={get_data_folder() / 'scenarios'}",
    )


# The order


def test_what_is_nearer_wins(here, write, install, points):
    """Built in, then of this process, then installed, then the project's own."""
    assert find_named_program("panel", settings()).ref.startswith("everhold.packages.strategies")

    @program
    async def panel(ctx) -> None: ...

    assert find_named_program("panel", settings()) is panel
    main = install(get_data_folder() / PACKAGES_FOLDER, "panel")
    assert find_named_program("panel", settings()).ref == f"{main}:panel"
    main = install(here / "packages", "panel")
    assert find_named_program("panel", settings()).ref == f"{main}:panel"


def test_a_listed_module_hides_a_strategy(here, write):
    write("everhold.toml", "programs = ['own_panels']\n")
    write("own_panels.py", PYTHON.format(name="panel"))
    assert find_named_program("panel", settings()).ref == "own_panels:panel"


def test_an_entry_point_hides_a_strategy(here, write, points):
    write("installed_panels.py", PYTHON.format(name="panel"))
    points.append(("panel", "installed_panels:panel"))
    assert find_named_program("panel", settings()).ref == "installed_panels:panel"


def test_two_in_the_project_are_refused(here, write, install):
    """A listed module and a Lua package of one name: the error names both, and each can be had by
    its reference.
    """
    write("everhold.toml", "programs = ['both_debates']\n")
    write("both_debates.py", PYTHON.format(name="debate"))
    main = install(here / "packages", "debate")
    with pytest.raises(UnknownProgram) as refused:
        find_named_program("debate", settings())
    assert (
        refused.value.reason
        == f"several programs have this name: {main}:debate, both_debates:debate"
    )
    assert find_named_program("both_debates:debate", settings()).name == "debate"
    assert find_named_program(f"{main}:debate", settings()).name == "debate"


def test_two_that_are_installed_are_refused(here, write, install, points):
    write("installed_debates.py", PYTHON.format(name="debate"))
    points.append(("debate", "installed_debates:debate"))
    install(get_data_folder() / PACKAGES_FOLDER, "debate")
    with pytest.raises(UnknownProgram, match="several programs have this name"):
        find_named_program("debate", settings())


# Files


def test_a_lua_file(here, write):
    main = write("tools/count.lua", "return { run = function(ctx) return ctx end }")
    assert find_named_program("tools/count.lua", settings()).ref == f"{main}:count"
    assert find_named_program(str(main), settings()).ref == f"{main}:count"
    assert find_named_program(f"{main}:count", settings()).ref == f"{main}:count"


def test_a_folder_with_a_package(here, install):
    main = install(here / "mine", "debate")
    assert find_named_program("./mine/debate", settings()).ref == f"{main}:debate"


def test_lua_text_is_found_by_its_stored_reference(here):
    found = find_named_program("lua:code", settings(), 1)
    assert isinstance(found, LuaProgram) and found.is_text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere", "no program has this name"),
        ("missing.lua", "there is no file {here}/missing.lua"),
        ("gone/init.lua:gone", "there is no file {here}/gone/init.lua"),
        ("../secret", "there is no file {here.parent}/secret"),
        ("", "no program has this name"),
        ("a\0b", "no program has this name"),
        ("de bate", "no program has this name"),
    ],
)
def test_what_is_not_there_says_so(name, reason, here, install):
    install(here / "packages", "debate")
    with pytest.raises(UnknownProgram) as refused:
        find_named_program(name, settings())
    assert refused.value.reason == reason.format(here=here)
    assert refused.value.hint


def test_the_name_that_was_probably_meant(here, install):
    install(here / "packages", "debate")
    with pytest.raises(UnknownProgram) as refused:
        find_named_program("debat", settings())
    assert refused.value.hint == "Did you mean 'debate'?"
    with pytest.raises(UnknownProgram) as refused:
        find_named_program("self_consistancy", settings())
    assert refused.value.hint == "Did you mean 'self_consistency'?"


def test_another_version_of_a_lua_program_is_missing(here, install):
    main = install(here / "packages", "debate")
    with pytest.raises(VersionMissing):
        find_named_program(f"{main}:debate", settings(), 2)


# The listing


def test_everything_that_can_be_run_is_listed(here, write, install, points):
    write("everhold.toml", "programs = ['listed_programs']\n")
    write("listed_programs.py", PYTHON.format(name="refund"))
    install(here / "packages", "debate")
    found = load_catalog(settings())
    assert found.problems == ()
    assert [one.name for one in found.entries if one.kind == "strategy"] == sorted(NAMES)
    rest = [(one.name, one.kind, one.summary) for one in found.entries if one.kind != "strategy"]
    assert rest == [("debate", "lua", "Does debate."), ("refund", "python", "Python's own.")]
    assert all(one.cost and one.estimate for one in found.entries if one.kind == "strategy")


def test_what_is_hidden_is_listed_as_such(here, install):
    install(here / "packages", "panel")
    shown = [
        (one.kind, one.hidden) for one in load_catalog(settings()).entries if one.name == "panel"
    ]
    assert shown == [("strategy", True), ("lua", False)]


def test_two_of_one_name_are_a_problem(here, write, install):
    write("everhold.toml", "programs = ['twin_debates']\n")
    write("twin_debates.py", PYTHON.format(name="debate"))
    install(here / "packages", "debate")
    (problem,) = load_catalog(settings()).problems
    assert "several programs have this name" in str(problem)


def test_a_module_that_does_not_load_is_tried_and_told_once(here, write, caplog):
    write("everhold.toml", "programs = ['broken_module']\n")
    write(
        "broken_module.py",
        "with open('tried', 'a') as file: file.write('x')\nraise ValueError('broken on purpose')\n",
    )
    found = load_catalog(settings())
    assert len(found.problems) == 1 and "broken on purpose" in str(found.problems[0])
    assert (here / "tried").read_text() == "x"
    assert [one.name for one in found.entries if not one.hidden] == sorted(NAMES)
    assert caplog.text == ""


def test_listing_runs_no_lua(here, write):
    """A package that would never end, or delete what it finds, is listed by what it says."""
    write(
        "packages/trap/init.lua",
        'while true do end\nreturn { meta = { description = "A trap." } }\n',
    )
    (trap,) = [one for one in load_catalog(settings()).entries if one.kind == "lua"]
    assert trap.summary == "A trap."


def test_folders_that_are_no_packages_are_not_listed(here, write):
    write("packages/empty/readme.txt")
    write("packages/init.lua", "return {}")
    write("packages/.hidden/init.lua", "return {}")
    write("packages/odd name/init.lua", "return {}")
    assert [one.name for one in load_catalog(settings()).entries if one.kind == "lua"] == []


def test_the_newest_version_is_listed(here, write):
    write("everhold.toml", "programs = ['two_versions']\n")
    write(
        "two_versions.py",
        PYTHON.format(name="old").replace("@program", "@program(name='refund', version=1)"),
    )
    with (here / "two_versions.py").open("a") as file:
        file.write(PYTHON.format(name="refund").replace("@program", "@program(version=2)"))
    (refund,) = [
        one for one in load_catalog(settings()).entries if one.name == "refund" and one.version == 2
    ]
    assert not refund.hidden


# What is known of one


def test_the_cost_of_a_call():
    cot = find_named_program("cot", settings())
    assert str(estimate_program(cot, {"task": "x", "steps": 5})) == "2–6 answers in 2–6 rounds"
    assert estimate_program(cot, {"steps": 0}) is None
    assert strategy_of(cot) is not None


def test_nobody_knows_the_cost_of_other_programs():
    @program
    async def plain(ctx, order: str) -> None: ...

    assert estimate_program(plain, {}) is None
    assert (describe_program(plain).summary, describe_program(plain).cost) == ("", "")
    assert summary_of(plain) == ""


def test_folders_survive_the_way_to_another_process():
    folders = PackageFolders(
        (SearchRoot(Path("/a"), "panel"), SearchRoot(Path("/b"))),
        (SearchRoot(Path("/c"), strict=True),),
    )
    assert PackageFolders.read(folders.plain) == folders


# Programs that a runtime knows


async def _one(ctx):
    return 1


def test_a_program_that_was_given_is_found_in_its_version():
    """Another version of it is looked for elsewhere, and is not there."""
    given = everhold.program(version=2)(_one)
    programs = KnownPrograms(None)
    programs.add(given)
    assert programs.find(given.ref, 2) is given
    assert programs.find_newest(given.ref) is given
    with pytest.raises(EverholdError):
        programs.find("absent.py:absent", 1)
    with pytest.raises(EverholdError):
        programs.find_newest("absent.py:absent")
