"""What a model is offered: the tools of a registry, with others laid over them, put together once.

Rules
  1. What is laid over wins. The tools below are heard anew each time, also where the overlay is the
     same as before.
  2. An overlay is another one if its providers are other objects, or in another order, or say
     something else.
  3. A composition that fails leaves everything as it was.
  4. A catalog is built once for its key, of four parts: whether the tools below are included, the
     revision of the overlay, the generation of the registry, and the fingerprint of the plugins. A
     few are remembered; a failed build is not.
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

#: Catalogs that are remembered.
REMEMBERED: Final = 8
#: The source of what is laid over a registry.
OVERLAY: Final = "context"
_WORD: Final = re.compile(r"[a-z0-9]+")


class ToolProvider(Protocol):
    """Brings tools."""

    def manifests(self) -> Sequence[ToolManifest]:
        """Those that it has now."""
        ...


class ToolCatalogKey(msgspec.Struct, frozen=True):
    """What a catalog was built for."""

    include_base: bool
    overlay: int
    generation: int
    plugins: str = ""


class ToolCatalog:
    """The tools that are offered, and what is told of them."""

    def __init__(self, tools: Sequence[ToolManifest], contributions: Sequence[str] = ()) -> None:
        self.tools = tuple(tools)
        self.contributions = tuple(contributions)

    @cached_property
    def specs(self) -> list[JSON]:
        """What a model is told."""
        return [tool.spec() for tool in self.tools]

    @cached_property
    def names(self) -> dict[str, ToolManifest]:
        return {tool.name: tool for tool in self.tools}

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same names, whatever their order."""
        return sha256("\0".join(sorted(self.names)).encode()).hexdigest()[:16]

    @cached_property
    def projection(self) -> list[JSON]:
        """The catalog for people and other programs."""
        return [{"id": tool.id, **tool.spec()} for tool in self.tools]

    def found(self, words: str, limit: int = 10) -> list[ToolManifest]:
        """The tools that words speak of, the best first; the same words always find the same."""
        wanted = _WORD.findall(words.lower())
        scored = [(-_score(tool, wanted), place, tool) for place, tool in enumerate(self.tools)]
        return [tool for score, _, tool in sorted(scored, key=lambda one: one[:2]) if score < 0][
            :limit
        ]


class ToolCatalogCache:
    """The last catalogs, by their keys."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._kept: OrderedDict[ToolCatalogKey, ToolCatalog] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, key: ToolCatalogKey, build: Callable[[], ToolCatalog]) -> ToolCatalog:
        """The catalog for a key, built if it is not remembered."""
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
    """A registry with what is laid over it."""

    def __init__(self, sources: Mapping[str, ToolProvider]) -> None:
        self.base = ToolRegistry()
        self.revision = 0  # of the overlay
        self.generation = 0  # of the tools, with what is laid over them
        self._members: list[ToolManifest] = []
        self._sources = dict(sources)
        self._over: tuple[ToolProvider, ...] = ()
        self._contributions: tuple[str, ...] = ()
        self._include_base = True
        self._hidden: frozenset[str] = frozenset()
        self._catalogs = ToolCatalogCache()
        self.refresh()

    @property
    def built(self) -> int:
        """How many catalogs are remembered."""
        return len(self._catalogs)

    def refresh(self) -> bool:
        """Hear what the sources have now. One that fails, or a clash, leaves everything as it
        was.
        """
        return self.base.refresh(self._heard())

    def _heard(self) -> dict[str, Sequence[ToolManifest]]:
        return {name: source.manifests() for name, source in self._sources.items()}

    def lay_over(
        self,
        providers: Sequence[ToolProvider] = (),
        contributions: Sequence[str] = (),
        *,
        include_base: bool = True,
        hidden: Collection[str] = (),
    ) -> bool:
        """Lay tools over those below, hide some by name, or do without those below; returns whether
        it is another.
        """
        over = tuple(providers)
        told = tuple(contributions)
        away = frozenset(hidden)
        base = self.base.fork()
        if include_base:
            base.refresh(self._heard())
        _composed(base, over, include_base)  # raises before anything is changed
        self.base = base
        known = (self._contributions, self._include_base, self._hidden)
        if _same(over, self._over) and (told, include_base, away) == known:
            return False
        self._over = over
        self._contributions = told
        self._include_base = include_base
        self._hidden = away
        self.revision += 1
        self._catalogs.clear()
        return True

    def catalog(self, plugins: str = "") -> ToolCatalog:
        """What is offered now."""
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


def _same(one: Sequence[ToolProvider], other: Sequence[ToolProvider]) -> bool:
    return len(one) == len(other) and all(
        left is right for left, right in zip(one, other, strict=True)
    )


def _score(tool: ToolManifest, wanted: Sequence[str]) -> int:
    name = set(_WORD.findall(tool.name.lower()))
    told = set(_WORD.findall(tool.description.lower()))
    return sum(3 * (word in name) + (word in told) for word in wanted)
