"""A session is started by a name and goes on by its place, whatever the name means by then."""

import pytest

import everhold
from everhold.core.status import Finished, Paused
from everhold.packages.catalog import find_named_program
from everhold.packages.settings import PACKAGES_FOLDER, get_data_folder, settings
from everhold.ports.program import REGISTRY

pytestmark = pytest.mark.process

DEBATE = """
local words = require("words")
local M = { meta = { name = "debate", description = "Debates." } }
function M.run(ctx)
  ctx.result = words.loud(alc.llm("What about " .. ctx.task .. "?"))
  return ctx
end
return M
"""
WORDS = "return { loud = function(text) return text:upper() end }\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a Lua package that needs another, which the user has installed."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home" / "share"))
    monkeypatch.delenv("EVERHOLD_DATABASE_URL", raising=False)
    loaded = (str(tmp_path.parent), "everhold.cli.", "everhold.mcp.")
    # what other tests have loaded
    for key in [key for key in REGISTRY if key[0].startswith(loaded)]:
        monkeypatch.delitem(REGISTRY, key)
    root = tmp_path / "project"
    root.mkdir()
    (root / "everhold.toml").write_text("database = 'app.db'\npackages_path = ['lua']\n")
    monkeypatch.chdir(root)
    put(root / "lua", "debate", DEBATE)
    put(get_data_folder() / PACKAGES_FOLDER, "words", WORDS)
    return root


def put(folder, name, text):
    (folder / name).mkdir(parents=True)
    (folder / name / "init.lua").write_text(text)


async def test_a_lua_package_is_started_by_name_and_goes_on_in_another_process(project):
    async with everhold.open() as runtime:
        status = await runtime.start(find_named_program("debate", settings())(task="tea"))
        assert isinstance(status, Paused) and status.queries[0].prompt == "What about tea?"
    async with everhold.open() as runtime:  # as another process would, by the stored reference
        status = await runtime.answer(status.session_id, "yes")
        status = await runtime.wait(status.session_id, 60)
    assert isinstance(status, Finished) and status.result["result"] == "YES"


async def test_a_session_goes_on_with_what_its_name_meant_when_it_was_started(project):
    """A package that takes the name afterwards is for new sessions."""
    async with everhold.open() as runtime:
        begun = await runtime.start(find_named_program("panel", settings())(task="tea"))
    put(project / "packages", "panel", "return { run = function(ctx) return 'another' end }")
    async with everhold.open() as runtime:
        status = begun
        while isinstance(status, Paused):
            status = await runtime.answer_many(
                begun.session_id, {one.id: "ANSWER: tea" for one in status.queries}
            )
        other = await runtime.run(find_named_program("panel", settings())(task="tea"), wait=60)
    assert (status.result["answer"], other) == ("tea", "another")


async def test_a_package_is_found_that_was_installed_while_the_runtime_was_open(project):
    async with everhold.open() as runtime:
        put(
            get_data_folder() / PACKAGES_FOLDER,
            "later",
            "return { run = function(ctx) return ctx.task end }",
        )
        assert (
            await runtime.run(find_named_program("later", settings())(task="tea"), wait=60) == "tea"
        )


async def test_paused_sessions_of_named_programs_are_checked_in_a_fresh_process(project):
    """The process that checks looks for packages where this one does."""
    async with everhold.open() as runtime:
        for name in ("cot", "debate"):
            await runtime.start(find_named_program(name, settings())(task="tea"))
        report = await runtime.archive.check()
    assert [one.verdict for one in report.checked] == ["ok", "ok"]
