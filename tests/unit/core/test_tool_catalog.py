"""What a model is offered: overlays, catalogs, and what is remembered of them."""

import pytest

from everhold.core.tool_catalog import (
    Contribution,
    LayeredToolRegistry,
    ToolCatalog,
    ToolCatalogCache,
    ToolCatalogKey,
)
from everhold.core.tool_registry import ToolManifest
from everhold.errors import ToolClash


class Shelf:
    """A source whose tools may change, or fail."""

    def __init__(self, *names):
        self.names = list(names)
        self.broken = False

    def manifests(self):
        if self.broken:
            raise OSError("gone")
        return [ToolManifest(name, name, f"from {id(self)}") for name in self.names]


def names(surface):
    return [tool.name for tool in surface.catalog().tools]


KEY = ToolCatalogKey(True, 0, 0, "p")


def test_a_catalog_is_built_once_for_its_key():
    """Row 21: one build for a key, and another if any of its four parts differs."""
    built = []
    catalogs = ToolCatalogCache(limit=10)
    keys = [
        KEY,
        ToolCatalogKey(False, 0, 0, "p"),
        ToolCatalogKey(True, 1, 0, "p"),
        ToolCatalogKey(True, 0, 1, "p"),
        ToolCatalogKey(True, 0, 0, "q"),
    ]
    for _ in range(2):
        for key in keys:
            catalogs.of(key, lambda: built.append(1) or ToolCatalog([]))
    assert len(built) == 5


def test_only_a_few_catalogs_are_remembered():
    """Row 21, D3: the one that was not used for the longest time is forgotten."""
    catalogs = ToolCatalogCache(limit=2)
    first = catalogs.of(KEY, lambda: ToolCatalog([]))
    catalogs.of(ToolCatalogKey(True, 1, 0), lambda: ToolCatalog([]))
    assert catalogs.of(KEY, lambda: ToolCatalog([])) is first
    catalogs.of(ToolCatalogKey(True, 2, 0), lambda: ToolCatalog([]))
    assert len(catalogs) == 2
    assert catalogs.of(KEY, lambda: ToolCatalog([])) is first
    catalogs.clear()
    assert catalogs.of(KEY, lambda: ToolCatalog([])) is not first


def test_a_build_that_fails_is_not_remembered():
    """Row 21: the next one tries again."""
    catalogs = ToolCatalogCache()

    def fails():
        raise OSError

    with pytest.raises(OSError):
        catalogs.of(KEY, fails)
    assert len(catalogs) == 0
    assert catalogs.of(KEY, lambda: ToolCatalog([])).tools == ()


def test_what_is_told_of_a_catalog_is_put_together_once():
    """Row 21: specs, contributions and fingerprint."""
    told = Contribution("guidance", "told")
    catalog = ToolCatalog([ToolManifest("1", "b", "B"), ToolManifest("2", "a")], [told])
    assert catalog.specs is catalog.specs
    assert catalog.specs[0] == {"name": "b", "description": "B", "input_schema": {}}
    assert (
        catalog.fingerprint
        == ToolCatalog([ToolManifest("3", "a"), ToolManifest("4", "b")]).fingerprint
    )
    assert catalog.fingerprint != ToolCatalog([ToolManifest("3", "a")]).fingerprint
    assert catalog.contributions == (told,)


def test_the_same_overlay_is_no_change_and_the_tools_below_are_heard_anew():
    """Row 22, D2: its revision stays, and what a source below has by now is seen."""
    base, over = Shelf("a"), Shelf("b")
    surface = LayeredToolRegistry({"base": base})
    assert surface.lay_over([over])
    assert (surface.revision, names(surface)) == (1, ["a", "b"])
    base.names.append("c")
    surface.refresh()
    assert not surface.lay_over([over])
    assert (surface.revision, names(surface)) == (1, ["a", "c", "b"])


def test_an_overlay_is_known_by_its_objects():
    """Row 22: equal is not the same; order, contributions and the flag count too."""
    one, other = Shelf("b"), Shelf("b")
    told = Contribution("guidance", "told")
    surface = LayeredToolRegistry({"base": Shelf("a")})
    changes = [
        surface.lay_over([one]),
        surface.lay_over([one]),
        surface.lay_over([other]),
        surface.lay_over([other], [told]),
        surface.lay_over([other], [told]),
        surface.lay_over([other], [told], include_base=False),
        surface.lay_over([other], [told], include_base=False, hidden=["b"]),
        surface.lay_over(),
    ]
    assert changes == [True, False, True, True, False, True, True, True]
    assert surface.revision == 6


def test_what_is_laid_over_wins_and_the_rest_may_be_left_out():
    """Row 22: the overlay replaces by name; hidden tools are simply absent."""
    surface = LayeredToolRegistry({"base": Shelf("a", "b")})
    over = Shelf("b", "c")
    surface.lay_over([over])
    assert {
        tool.name: tool.description == f"from {id(over)}" for tool in surface.catalog().tools
    } == {
        "a": False,
        "b": True,
        "c": True,
    }
    surface.lay_over([over], include_base=False)
    assert names(surface) == ["b", "c"]
    surface.lay_over([], include_base=False)
    assert names(surface) == []
    surface.lay_over(hidden=["a"])
    assert names(surface) == ["b"]


@pytest.mark.parametrize("what", ["clash", "overlay"])
def test_a_composition_that_fails_leaves_everything(what):
    """Row 22: the old registry, the old overlay, the old catalog."""
    base, over = Shelf("a"), Shelf("b")
    surface = LayeredToolRegistry({"base": base})
    surface.lay_over([over])
    before = surface.catalog()
    broken = Shelf("x", "x") if what == "clash" else Shelf("x")
    broken.broken = what == "overlay"
    with pytest.raises((ToolClash, OSError)):
        surface.lay_over([broken])
    assert surface.catalog() is before
    assert surface.revision == 1


def test_a_refresh_that_fails_keeps_the_old_tools():
    """Row 21: and the catalog of them."""
    base = Shelf("a")
    surface = LayeredToolRegistry({"base": base})
    before = surface.catalog()
    base.broken = True
    with pytest.raises(OSError):
        surface.refresh()
    assert surface.catalog() is before
    base.broken, base.names = False, ["a", "b"]
    assert surface.refresh()
    assert names(surface) == ["a", "b"]


def test_tools_that_come_and_go_are_forgotten():
    """D3: a source that changes all the time costs a few catalogs."""
    base = Shelf("a")
    surface = LayeredToolRegistry({"base": base})
    for n in range(100):
        base.names = [f"tool-{n}"]
        surface.refresh()
        surface.catalog("p")
    assert surface.built == 8


def test_an_overlay_whose_tools_change_is_seen():
    over = Shelf("b")
    surface = LayeredToolRegistry({"base": Shelf("a")})
    surface.lay_over([over])
    assert names(surface) == ["a", "b"]
    over.names = ["c"]
    assert names(surface) == ["a", "c"]


def test_tools_are_found_by_words():
    """Words of the name count more; the same words find the same, in the same order."""
    catalog = ToolCatalog(
        [
            ToolManifest("1", "send_mail", "Send a letter."),
            ToolManifest("2", "read_mail", "Read what came."),
            ToolManifest("3", "weather", "Tell of rain, by mail if need be."),
        ]
    )
    assert [one.name for one in catalog.found("read MAIL!")] == [
        "read_mail",
        "send_mail",
        "weather",
    ]
    assert [one.name for one in catalog.found("mail", limit=1)] == ["send_mail"]
    assert catalog.found("a plane") == [catalog.tools[0]]
    assert catalog.found("") == []


def test_a_source_that_is_added_is_read_by_the_next_refresh():
    """Under a name that is taken, it replaces the source of that name."""
    surface = LayeredToolRegistry({"base": Shelf("a")})
    surface.add_source("more", Shelf("b"))
    assert names(surface) == ["a"]
    assert surface.refresh()
    assert names(surface) == ["a", "b"]
    surface.add_source("more", Shelf("c"))
    assert surface.refresh()
    assert names(surface) == ["a", "c"]
