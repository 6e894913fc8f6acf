"""The registry of an agent's tools: the source of each tool, and whether it is offered.

Rules
  1. The id of a tool is its identity. The latest manifest of its source is used; its membership
     does not change with that.
  2. A new tool of a source is a member. A tool that its source no longer has is an orphan: it is
     kept but not offered, and has its former membership when the source has it again.
  3. Two sources with the same id or name are refused, and nothing changes.
  4. The generation counts changes. A change of membership must name the current generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from everhold.core.codec import JSON
from everhold.errors import BadArguments, StaleTools, ToolClash

#: The largest generation: numbers in a journal have 64 bits.
MAX_GENERATION: Final = 2**63 - 1


class ToolManifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a tool by its source."""

    id: str
    name: str
    description: str = ""
    input_schema: dict[str, JSON] = {}

    def spec(self) -> dict[str, JSON]:
        """The description for a model."""
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
        }


class RegisteredTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool in the registry. Without a source it is an orphan."""

    manifest: ToolManifest
    source: str | None = None
    member: bool = True


class ToolRegistryState(msgspec.Struct, frozen=True):
    """The stored form of a registry."""

    generation: int
    entries: tuple[RegisteredTool, ...]


class ToolRegistry:
    """Tools by id, in the order of their registration."""

    def __init__(self) -> None:
        self.generation = 0
        self._entries: dict[str, RegisteredTool] = {}
        self._sources: dict[str, tuple[ToolManifest, ...]] = {}

    # ---- reading

    @property
    def members(self) -> list[ToolManifest]:
        """The offered tools."""
        return [
            entry.manifest
            for entry in self._entries.values()
            if entry.member and entry.source is not None
        ]

    @property
    def orphans(self) -> list[str]:
        """The ids of tools whose source does not have them now."""
        return [id for id, entry in self._entries.items() if entry.source is None]

    def source_of(self, id: str) -> str | None:
        entry = self._entries.get(id)
        return None if entry is None else entry.source

    def state(self) -> ToolRegistryState:
        """The registry in its stored form."""
        return ToolRegistryState(self.generation, tuple(self._entries.values()))

    def fork(self) -> ToolRegistry:
        """A copy that changes independently."""
        other = ToolRegistry()
        other.generation = self.generation
        other._entries, other._sources = dict(self._entries), dict(self._sources)
        return other

    # ---- sources

    def refresh(self, sources: Mapping[str, Sequence[ToolManifest]]) -> bool:
        """Updates the tools of some sources, all or nothing; returns whether anything changed."""
        return self._bind(
            {**self._sources, **{name: tuple(found) for name, found in sources.items()}}
        )

    def remove(self, source: str) -> bool:
        """Removes a source: its tools become orphans."""
        if source not in self._sources:
            return False
        return self._bind({name: found for name, found in self._sources.items() if name != source})

    def _bind(self, sources: dict[str, tuple[ToolManifest, ...]]) -> bool:
        found = _merge_sources(sources)
        entries: dict[str, RegisteredTool] = {}
        for id, known in self._entries.items():
            source, manifest = found.pop(id, (None, known.manifest))
            entries[id] = RegisteredTool(manifest, source, known.member)
        entries |= {
            id: RegisteredTool(manifest, source) for id, (source, manifest) in found.items()
        }
        self._sources = sources
        if entries == self._entries:
            return False
        self._take(entries)
        return True

    # ---- membership

    def apply(self, members: Mapping[str, bool], generation: int) -> None:
        """Sets which tools are offered; raises `StaleTools` unless `generation` is the current
        one.
        """
        if generation != self.generation:
            raise StaleTools(generation, self.generation)
        entries = dict(self._entries)
        for id, member in members.items():
            if id not in entries:
                raise BadArguments("tools", f"there is no tool {id!r}")
            entries[id] = msgspec.structs.replace(entries[id], member=member)
        self._take(entries)

    def restore(self, state: ToolRegistryState) -> None:
        """Restores a stored registry with the current sources. If these changed it, its generation
        grows by one.
        """
        kept = {
            entry.manifest.id: msgspec.structs.replace(entry, source=None)
            for entry in state.entries
        }
        if len(kept) != len(state.entries):
            raise BadArguments("tools", "the stored registry has a tool twice")
        found = _merge_sources(self._sources)
        entries: dict[str, RegisteredTool] = {}
        for id, known in kept.items():
            source, manifest = found.pop(id, (None, known.manifest))
            entries[id] = RegisteredTool(manifest, source, known.member)
        entries |= {
            id: RegisteredTool(manifest, source) for id, (source, manifest) in found.items()
        }
        changed = tuple(entries.values()) != state.entries
        self.generation = _next(state.generation) if changed else state.generation
        self._entries = entries

    def _take(self, entries: dict[str, RegisteredTool]) -> None:
        self.generation = _next(self.generation)
        self._entries = entries

    # ---- overlays

    def over(self, overlay: Iterable[ToolManifest], source: str) -> ToolRegistry:
        """A copy of this registry in which the overlay replaces tools of the same id or name."""
        laid = tuple(overlay)
        ids = {one.id for one in laid}
        names = {one.name for one in laid}
        other = self.fork()
        other._sources = {
            name: tuple(one for one in found if one.id not in ids and one.name not in names)
            for name, found in self._sources.items()
        }
        other._entries = {
            id: entry
            for id, entry in self._entries.items()
            if id not in ids and entry.manifest.name not in names
        }
        other.refresh({source: laid})
        return other


def _merge_sources(
    sources: Mapping[str, Sequence[ToolManifest]],
) -> dict[str, tuple[str, ToolManifest]]:
    """The tools of all sources, by id; raises `ToolClash` if two have the same id or name."""
    ids: dict[str, tuple[str, ToolManifest]] = {}
    names: dict[str, str] = {}
    for source, found in sources.items():
        for manifest in found:
            for what, taken in (
                (manifest.id, ids.get(manifest.id, (None,))[0]),
                (manifest.name, names.get(manifest.name)),
            ):
                if taken is not None:
                    raise ToolClash(what, taken, source)
            ids[manifest.id] = (source, manifest)
            names[manifest.name] = source
    return ids


def _next(generation: int) -> int:
    if generation >= MAX_GENERATION:
        raise BadArguments("tools", f"generation {generation} is the last one possible")
    return generation + 1
