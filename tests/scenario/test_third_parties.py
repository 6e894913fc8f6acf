"""Packages outside the tree register a store, a model and a plugin by entry point."""

from __future__ import annotations

import importlib
import sys

import pytest

import everhold
from everhold import Agent
from everhold.errors import (
    BadSetting,
    BrokenEntryPoint,
    EntryPointConflict,
    NoMaintenance,
    UnknownPlugin,
)
from everhold.models.registry import make_answerer
from everhold.stores.registry import list_store_schemes

STORE = """
from everhold.stores.memory import MemoryStore

class ShelfStore(MemoryStore):
    def __init__(self, address, durability):
        super().__init__()
        self.where = address
        self.durability = durability
        self.maintenance = None

def open_store(address, *, durability):
    return ShelfStore(address, durability)
"""

MODEL = """
from everhold.models import Answerer

class Parrot(Answerer):
    closed = checked = 0

    def __init__(self, voice):
        self.voice = voice

    async def answer(self, query, session_id):
        return f"{self.voice}: {query.prompt}"

    def check(self):
        Parrot.checked += 1

    async def close(self):
        Parrot.closed += 1
"""

PLUGIN = """
from everhold.hooks import Contribute, Plugin

class Polite(Plugin):
    name = "polite"

    def before_turn(self, moment):
        return Contribute("guidance", "Say please.")
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Write packages into a folder on the search path; they are forgotten afterwards."""
    made = []
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def write(name, registers, module):
        stem = name.replace("-", "_")
        info = site / f"{stem}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = (f"[{group}]\n{value}\n" for group, value in registers.items())
        (info / "entry_points.txt").write_text("\n".join(lines))
        file = site / f"{stem}.py"
        file.write_text(module)
        made.append(file.stem)
        importlib.invalidate_caches()

    yield write
    for module in made:
        sys.modules.pop(module, None)


@everhold.program
async def ask(ctx: everhold.Context, what: str) -> str:
    return await ctx.llm(what)


@everhold.program
async def decide(ctx: everhold.Context) -> bool:
    return await ctx.approval("Go?")


# ---- stores


async def test_a_package_registers_a_store(install):
    """`everhold.open` takes the scheme of an installed package, and passes the level on."""
    install("shelf-store", {"everhold.stores": "shelf = shelf_store:open_store"}, STORE)

    async with everhold.open("shelf://attic", durability="power") as runtime:
        status = await runtime.start(decide(), key="k")
        assert (await runtime.answer(status.queries[0], True)).result is True
        assert (runtime.store.where, runtime.store.durability) == ("shelf://attic", "power")
        assert [info.key for info in await runtime.sessions()] == ["k"]
    assert list_store_schemes() == ["sqlite", "memory", "postgresql", "shelf"]


async def test_a_store_without_maintenance_says_so(install):
    """Sessions run on it; a verb of maintenance is refused with what it needs."""
    install("shelf-store", {"everhold.stores": "shelf = shelf_store:open_store"}, STORE)

    async with everhold.open("shelf://attic") as runtime:
        for verb in (
            runtime.archive.verify,
            runtime.archive.reclaim,
            lambda: runtime.archive.gc(older_than=1),
        ):
            with pytest.raises(NoMaintenance, match="shelf://attic has no maintenance") as refused:
                await verb()
            assert refused.value.code == "no_maintenance"
            assert "sqlite://" in refused.value.hint
    with pytest.raises(NoMaintenance, match="which notifying people needs"):
        everhold.open("shelf://attic", tell=[everhold.notify.ByCommand("true")])


async def test_the_settings_may_name_a_registered_store(install, tmp_path, monkeypatch):
    """`database` in everhold.toml takes what `everhold.open` takes."""
    install("shelf-store", {"everhold.stores": "shelf = shelf_store:open_store"}, STORE)
    (tmp_path / "everhold.toml").write_text('database = "shelf://cellar"\n')
    monkeypatch.chdir(tmp_path)

    async with everhold.open() as runtime:
        assert runtime.store.where == "shelf://cellar"


def test_an_unknown_scheme_names_those_that_are_installed(install):
    """It says how to get others, and which was probably meant."""
    install("shelf-store", {"everhold.stores": "shelf = shelf_store:open_store"}, STORE)

    with pytest.raises(BadSetting) as refused:
        everhold.open("shelv://attic")
    told = str(refused.value)
    assert "known: sqlite://, memory://, postgresql://, shelf://" in told
    assert "did you mean 'shelf'?" in told and "everhold.stores" in told


def test_our_own_schemes_go_first(install):
    """A package cannot take a scheme of everhold's own."""
    install("thief", {"everhold.stores": "memory = thief:steal"}, "def steal(*_, **__): 1 / 0\n")

    assert type(everhold.open("memory://").store).__name__ == "MemoryStore"


# ---- models


async def test_a_package_registers_a_model(install):
    """`llm="name:rest"` is answered by the package's answerer, which is checked and closed."""
    install("parrot", {"everhold.models": "parrot = parrot:Parrot"}, MODEL)

    async with everhold.open("memory://", llm="parrot:Polly") as runtime:
        assert await runtime.run(ask(what="Cracker?")) == "Polly: Cracker?"
    import parrot

    assert (parrot.Parrot.checked, parrot.Parrot.closed) == (1, 1)


async def test_the_settings_may_name_a_registered_model(install, tmp_path, monkeypatch):
    """`llm` in everhold.toml takes what `everhold.open` takes."""
    install("parrot", {"everhold.models": "parrot = parrot:Parrot"}, MODEL)
    (tmp_path / "everhold.toml").write_text('llm = "parrot:Jack"\n')
    monkeypatch.chdir(tmp_path)

    async with everhold.open("memory://") as runtime:
        assert await runtime.run(ask(what="Who?")) == "Jack: Who?"


def test_a_provider_of_our_own_goes_first(install):
    """A package cannot take the name of a provider that everhold knows."""
    install("thief", {"everhold.models": "openai = thief:steal"}, "def steal(*_): 1 / 0\n")

    assert type(make_answerer("openai:gpt-5-mini")).__name__ == "Model"


def test_a_registered_model_is_named_alone(install):
    """Only models of providers are tried one after the other."""
    install("parrot", {"everhold.models": "parrot = parrot:Parrot"}, MODEL)

    with pytest.raises(BadSetting, match="use parrot:a"):
        make_answerer("parrot:a | openai:gpt-5-mini")


def test_a_registered_model_must_be_an_answerer(install):
    """What makes something else is refused with the name of its package."""
    install("wrong", {"everhold.models": "wrong = wrong:make"}, "def make(rest):\n    return 7\n")

    with pytest.raises(BrokenEntryPoint, match="of package 'wrong' made a int"):
        make_answerer("wrong:x")


# ---- plugins


async def test_a_package_registers_a_plugin(install):
    """`Agent(plugins=["name"])` takes the plugin of an installed package."""
    install("manners", {"everhold.plugins": "polite = manners:Polite"}, PLUGIN)
    shown = []

    async def model(query):
        shown.append(query.system)
        return "Yes, please."

    agent = Agent(instructions="Help.", plugins=["polite"], name="polite-agent")
    async with everhold.open("memory://", llm=model) as runtime:
        session = await runtime.session(agent, "s")
        await session.send("Hello.")
    assert "Say please." in shown[0]


def test_a_broken_plugin_stops_nobody_else(install):
    """Only the plugin that is asked for is imported."""
    install("broken", {"everhold.plugins": "broken = broken:Nothing"}, "1 / 0\n")

    assert Agent(plugins=["budget"]).plugins[0].name == "budget"
    with pytest.raises(UnknownPlugin) as refused:
        Agent(plugins=["absent"])
    assert "broken" in refused.value.hint


# ---- what goes wrong

ASKED = {
    "everhold.stores": lambda: everhold.open("bad://x"),
    "everhold.models": lambda: everhold.open("memory://", llm="bad:x"),
    "everhold.plugins": lambda: Agent(plugins=["bad"]),
}


@pytest.mark.parametrize("group", ASKED)
def test_what_cannot_be_imported_names_its_package(install, group):
    """One line, with the package and what it raised."""
    install("bad-one", {group: "bad = bad_one:thing"}, "import no_such_module\n")

    with pytest.raises(BrokenEntryPoint) as refused:
        ASKED[group]()
    assert str(refused.value) == (
        f"entry point 'bad' ({group}) of package 'bad-one' cannot be loaded:"
        " ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert "pip install --upgrade bad-one" in refused.value.hint


@pytest.mark.parametrize("group", ASKED)
def test_a_name_of_two_packages_is_refused(install, group):
    """Neither is taken: the user decides."""
    for name in ("bad-one", "bad-two"):
        install(name, {group: f"bad = {name.replace('-', '_')}:thing"}, "thing = None\n")

    with pytest.raises(EntryPointConflict, match="several packages: bad-one, bad-two"):
        ASKED[group]()


@pytest.mark.parametrize("group", ["everhold.stores", "everhold.models"])
def test_what_cannot_be_called_is_refused(install, group):
    """A factory is a function."""
    install("bad-one", {group: "bad = bad_one:thing"}, "thing = 7\n")

    with pytest.raises(BrokenEntryPoint, match="is not a function that makes"):
        ASKED[group]()
