"""The catalog of tools offered to a model: those of a registry, with an overlay; built once.

Rules
  1. Tools of the overlay win. The base is the registry as it is now, also if the overlay is
     unchanged.
  2. An overlay has changed if its providers are other objects or in another order, or if its other
     settings differ.
  3. A failed composition changes nothing.
  4. A catalog is built once per key. The key is: whether the base tools are included, the revision
     of the overlay, the generation of the registry, and the fingerprint of the plugins. The last
     few catalogs are cached; a failed build is not.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from everhold.core.codec import JSON
from everhold.core.tool_registry import ToolManifest, ToolRegistry

#: The number of cached catalogs.
CACHED_CATALOGS: Final = 8
#: The source name of overlay tools.
OVERLAY: Final = "context"
_WORD: Final = re.compile(r"[a-z0-9]+")


class ToolProvider(Protocol):
    """A source of tools."""

    def manifests(self) -> Sequence[ToolManifest]:
        """The tools it has now."""
        ...


class ToolCatalogKey(msgspec.Struct, frozen=True):
    """The key of a cached catalog."""

    include_base: bool
    overlay: int
    generation: int
    plugins: str = ""


class Contribution(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Text that an overlay adds to the prompt; with `tools`, only if one of them is offered."""

    slot: str
    content: str
    title: str = ""
    priority: int = 0
    tools: tuple[str, ...] = ()


class ToolCatalog:
    """The offered tools, and their descriptions; and what an overlay adds to the prompt."""

    def __init__(
        self, tools: Sequence[ToolManifest], contributions: Sequence[Contribution] = ()
    ) -> None:
        self.tools = tuple(tools)
        self.contributions = tuple(contributions)

    @cached_property
    def specs(self) -> list[JSON]:
        """The descriptions for a model."""
        return [tool.spec() for tool in self.tools]

    @cached_property
    def names(self) -> dict[str, ToolManifest]:
        return {tool.name: tool for tool in self.tools}

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the names, independent of their order."""
        return sha256("\0".join(sorted(self.names)).encode()).hexdigest()[:16]

    def found(self, words: str, limit: int = 10) -> list[ToolManifest]:
        """Searches the tools by words, best match first. The result is deterministic."""
        wanted = _WORD.findall(words.lower())
        scored = [(-_score(tool, wanted), place, tool) for place, tool in enumerate(self.tools)]
        return [tool for score, _, tool in sorted(scored, key=lambda one: one[:2]) if score < 0][
            :limit
        ]


class ToolCatalogCache:
    """The most recently used catalogs, by key."""

    def __init__(self, limit: int = CACHED_CATALOGS) -> None:
        self._limit = limit
        self._kept: OrderedDict[ToolCatalogKey, ToolCatalog] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, key: ToolCatalogKey, build: Callable[[], ToolCatalog]) -> ToolCatalog:
        """The catalog of a key; builds it if it is not cached."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = build()
            if len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def clear(self) -> None:
        self._kept.clear()


class LayeredToolRegistry:
    """A registry with an overlay."""

    def __init__(self, sources: Mapping[str, ToolProvider]) -> None:
        self.base = ToolRegistry()
        self.revision = 0  # of the overlay
        self.generation = 0  # of the tools, overlay included
        self._members: list[ToolManifest] = []
        self._sources = dict(sources)
        self._over: tuple[ToolProvider, ...] = ()
        self._contributions: tuple[Contribution, ...] = ()
        self._include_base = True
        self._hidden: frozenset[str] = frozenset()
        self._catalogs = ToolCatalogCache()
        self.refresh()

    @property
    def built(self) -> int:
        """The number of cached catalogs."""
        return len(self._catalogs)

    def refresh(self) -> bool:
        """Reads the sources again. If one fails, or two clash, nothing changes."""
        return self.base.refresh(self._read_sources())

    def add_source(self, name: str, provider: ToolProvider) -> None:
        """Adds a source; it is read by the next `refresh`."""
        self._sources[name] = provider

    def _read_sources(self) -> dict[str, Sequence[ToolManifest]]:
        return {name: source.manifests() for name, source in self._sources.items()}

    def lay_over(
        self,
        providers: Sequence[ToolProvider] = (),
        contributions: Sequence[Contribution] = (),
        *,
        include_base: bool = True,
        hidden: Collection[str] = (),
    ) -> bool:
        """Sets the overlay: its tools, its texts for the prompt, hidden names, and whether the base
        is included. Returns whether it changed.
        """
        over = tuple(providers)
        texts = tuple(contributions)
        away = frozenset(hidden)
        _composed(self.base, over, include_base)  # raises before anything is changed
        known = (self._contributions, self._include_base, self._hidden)
        if (
            len(over) == len(self._over)
            and all(left is right for left, right in zip(over, self._over, strict=True))
            and (texts, include_base, away) == known
        ):
            return False
        self._over = over
        self._contributions = texts
        self._include_base = include_base
        self._hidden = away
        self.revision += 1
        self._catalogs.clear()
        return True

    def catalog(self, plugins: str = "") -> ToolCatalog:
        """The tools offered now."""
        if self._over:
            members = _composed(self.base, self._over, self._include_base).members
        else:
            members = self.base.members if self._include_base else []
        if members != self._members:
            self._members = members
            self.generation = self.generation + 1
        key = ToolCatalogKey(self._include_base, self.revision, self.generation, plugins)
        return self._catalogs.of(key, self._built)

    def _built(self) -> ToolCatalog:
        shown = [tool for tool in self._members if tool.name not in self._hidden]
        return ToolCatalog(shown, self._contributions)


def _composed(base: ToolRegistry, over: Sequence[ToolProvider], include_base: bool) -> ToolRegistry:
    laid = [manifest for provider in over for manifest in provider.manifests()]
    return (base if include_base else ToolRegistry()).over(laid, OVERLAY)


def _score(tool: ToolManifest, wanted: Sequence[str]) -> int:
    name = set(_WORD.findall(tool.name.lower()))
    description = set(_WORD.findall(tool.description.lower()))
    return sum(3 * (word in name) + (word in description) for word in wanted)
