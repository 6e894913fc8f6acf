"""Lua programs have durable values of their own: no name and no argument leads to those of Python
or of others.
"""

import pytest

import everhold
from everhold.engine.live_session import rebuild_session
from everhold.errors import BadSetting
from everhold.packages.lua.trust import trust_package
from everhold.packages.settings import settings
from everhold.programs.lua.execution import LuaExecution
from everhold.programs.lua.program import LuaProgram
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.process  # what is not trusted runs in a process of its own

TAKES = """local before = alc.state.get("secret")
alc.state.set("secret", "forged")
return {before or "nothing", alc.state.keys()}
"""
PACKAGE = "return {run = function(ctx) " + TAKES.replace("return", "do return", 1) + " end end}"
NAMES = ["vault", "default"]


@everhold.program
async def keep(ctx: everhold.Context) -> None:
    for name in NAMES:
        await ctx.state(name).set("secret", f"{name}-1234")


@everhold.program
async def look(ctx: everhold.Context) -> list[str]:
    return [await ctx.state(name).get("secret") for name in NAMES]


@pytest.fixture(params=["text", "package", "trusted"])
def takes(request, tmp_path, monkeypatch):
    """A call of Lua that reads and overwrites a value: text of a model, a package, and one that the
    user trusts.
    """
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if request.param == "text":
        return lambda **ctx: LuaProgram.text(TAKES, ctx)
    home = tmp_path / "packages" / "taker"
    home.mkdir(parents=True)
    (home / "init.lua").write_text(PACKAGE)
    if request.param == "trusted":
        trust_package(home)
    return LuaProgram.package(home)


def opened(tmp_path, shares=None):
    """A runtime as settings with these shares open it."""
    if shares is not None:
        (tmp_path / "everhold.toml").write_text(f"[lua]\nshares = {shares!r}\n")
    found = settings(f"sqlite:///{tmp_path}/app.db", start=tmp_path, env={})
    return Runtime(SQLiteStore(tmp_path / "app.db"), found=found, llm=None)


async def test_lua_neither_reads_nor_changes_values_of_python_programs(takes, tmp_path):
    """By default, by a name that the caller gives, and by names that try to leave what is Lua's."""
    async with opened(tmp_path) as runtime:
        await runtime.run(keep())
        read = [await runtime.run(call) for call in (takes(), takes(_ns="vault"))]
        for name in ("../vault", "lua/../vault", "/vault", "lua/vault"):
            with pytest.raises(everhold.Failed, match="Invalid namespace"):
                await runtime.run(takes(_ns=name))
        assert await runtime.run(look()) == ["vault-1234", "default-1234"]
    assert read == [["nothing", ["secret"]]] * 2


async def test_lua_sees_under_one_name_what_lua_wrote(takes, tmp_path):
    """Sessions share a name of theirs, and two names are apart."""
    async with opened(tmp_path) as runtime:
        assert [(await runtime.run(takes(_ns=name)))[0] for name in ("one", "one", "other")] == [
            *("nothing", "forged", "nothing")
        ]


async def test_settings_share_names_with_lua(takes, tmp_path):
    """A shared name means the same values in both languages; others stay apart."""
    async with opened(tmp_path, shares=["vault"]) as runtime:
        await runtime.run(keep())
        assert (await runtime.run(takes(_ns="vault")))[0] == "vault-1234"
        assert (await runtime.run(takes()))[0] == "nothing"
        assert await runtime.run(look()) == ["forged", "default-1234"]


async def test_lua_cannot_name_what_a_child_of_another_session_keeps(tmp_path):
    """The space of a fork's child has a name that can be guessed; it is not reached by it."""
    home = tmp_path / "packages" / "child"
    home.mkdir(parents=True)
    (home / "init.lua").write_text(
        "return {run = function() alc.state.set('secret', 'mine') alc.llm('?') return"
        " alc.state.get('secret') end}"
    )
    forks = LuaProgram.text("return alc.fork({'child'}, {})[1].result", roots=[home.parent])
    async with opened(tmp_path) as runtime:
        one = await runtime.start(forks)
        space = f"fork-{one.session_id}-0.0"
        assert await runtime.store.keys(space) == ["secret"]
        assert (await runtime.run(LuaProgram.text(TAKES, {"_ns": space})))[0] == "nothing"
        assert (await runtime.answer(one.session_id, "x")).result == "mine"


@pytest.mark.parametrize("place", ["here", "worker"])
async def test_a_session_that_used_shared_values_before_still_replays(place, tmp_path, monkeypatch):
    """As one of an everhold without spaces: its answers stand, and no question counts as
    reworded.
    """
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    home = tmp_path / "packages" / "counts"
    home.mkdir(parents=True)
    (home / "init.lua").write_text(
        "return {run = function() local n = alc.state.incr('n') alc.llm('?') return {n,"
        " alc.state.incr('n')} end}"
    )
    if place == "here":
        trust_package(home)
    async with opened(tmp_path, shares=["default"]) as runtime:
        one = await runtime.start(LuaProgram.package(home)())
        assert await runtime.store.value("default", "n") == ([1], 1)
    async with opened(tmp_path, shares=[]) as runtime:
        assert [line.verdict for line in (await runtime.archive.check()).checked] == ["ok"]
        live = await rebuild_session(await runtime.store.load(one.session_id), runtime.engine.host)
        assert isinstance(live.execution, LuaExecution) == (place == "here")
        live.drop()
        assert (await runtime.answer(one.session_id, "x")).result == [1.0, 1.0]
        assert await runtime.store.value("default", "n") == ([1], 1)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("shares = 'vault'", "list of strings"),
        ("shares = [1]", "list of strings"),
        ("shares = ['a/b']", "'a/b' is not a valid namespace"),
        ("shares = ['']", "'' is not a valid namespace"),
        ("share = ['a']", "unknown key 'share'; there are shares"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table, words, tmp_path):
    (tmp_path / "everhold.toml").write_text(f"[lua]\n{table}\n")
    with pytest.raises(BadSetting, match=words):
        opened(tmp_path)
