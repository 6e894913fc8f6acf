"""The registry of an agent's tools: the source of each tool, and whether it is offered.

Rules
  1. The id of a tool is its identity. The latest manifest of its source is used; its membership
     does not change with that.
  2. A new tool of a source is a member. A tool that its source no longer has is an orphan: it is
     kept but not offered, and has its former membership when the source has it again.
  3. Two sources with the same id or name are refused, and nothing changes. Tools of the host take
     the place of tools of the same name; the tool below returns when the host's is removed.
  4. The generation counts changes of the registry. A change by a host that names another
     generation is refused.
  5. A tool that the host hides or removes stays so when its source offers it again, until the host
     restores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.retry import Retry
from everhold.errors import BadArguments, StaleTools, ToolClash

#: The source name of tools that the host adds at run time.
HOST: Final = "host"
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
    removed: bool = False  # by the host; then it is not a member either


class AddedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that the host added to a session: its description, where its code is, and how it
    runs.
    """

    manifest: ToolManifest
    ref: str = ""  # module:name of its code; empty if each process has to provide it
    read_only: bool = False
    rerun: str = "ask"
    timeout: float | None = None
    retries: int = 0  # in older databases, instead of `retry`
    concurrency: int | None = None
    pinned: bool = False
    retry: Retry | None = None
    total_timeout: float | None = None

    @property
    def name(self) -> str:
        return self.manifest.name


class ToolChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change that a host makes to the tools of a session, all or nothing."""

    add: tuple[AddedTool, ...] = ()
    replace: tuple[AddedTool, ...] = ()
    remove: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    restore: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [
            *(one.name for one in (*self.add, *self.replace)),
            *self.remove,
            *self.hide,
            *self.restore,
        ]


class ToolRegistryState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored form of a registry."""

    generation: int
    entries: tuple[RegisteredTool, ...]
    added: tuple[AddedTool, ...] = ()  # the tools of the host, with their code
    missing: dict[str, str] = {}  # tools of the host whose code was not found, and why


def encode_tools(value: msgspec.Struct) -> JSON:
    """A change or state as JSON, in which a journal reads it back."""
    return msgspec.json.decode(msgspec.json.encode(value))


class ToolRegistry:
    """Tools by id, in the order of their registration."""

    def __init__(self) -> None:
        self.generation = 0
        self.added: dict[str, AddedTool] = {}  # the tools of the host, by name
        self.missing: dict[str, str] = {}
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

    def entry(self, name: str) -> RegisteredTool | None:
        """The tool of this name."""
        found = self._entries.get(name)  # most ids are names
        if found is not None and found.manifest.name == name:
            return found
        return next((one for one in self._entries.values() if one.manifest.name == name), None)

    def state(self) -> ToolRegistryState:
        """The registry in its stored form."""
        return ToolRegistryState(
            self.generation,
            tuple(self._entries.values()),
            tuple(self.added.values()),
            dict(self.missing),
        )

    def fork(self) -> ToolRegistry:
        """A copy that changes independently."""
        other = ToolRegistry()
        other.generation = self.generation
        other.added = dict(self.added)
        other.missing = dict(self.missing)
        other._entries = dict(self._entries)
        other._sources = dict(self._sources)
        return other

    # ---- sources

    def refresh(
        self,
        sources: Mapping[str, Sequence[ToolManifest]],
        missing: Mapping[str, str] | None = None,
    ) -> bool:
        """Updates the tools of some sources, all or nothing; returns whether anything changed.

        `missing` has the tools of the host whose code was not found, and why.
        """
        given = {**self._sources, **{name: tuple(found) for name, found in sources.items()}}
        gone = self.missing if missing is None else dict(missing)
        entries = self._bound(self._entries, given, self.added, gone)
        self._sources = given
        self.missing = gone
        return self._take(entries)

    def _bound(
        self,
        known: Mapping[str, RegisteredTool],
        sources: Mapping[str, tuple[ToolManifest, ...]],
        added: Mapping[str, AddedTool],
        missing: Mapping[str, str],
    ) -> dict[str, RegisteredTool]:
        """The entries, with the sources' tools and those of the host."""
        of_host = tuple(one.manifest for one in added.values() if one.name not in missing)
        found = _merge_sources(
            {
                **({HOST: of_host} if of_host else {}),
                **{
                    name: [one for one in tools if one.name not in added and one.id not in added]
                    for name, tools in sources.items()
                },
            }
        )
        entries: dict[str, RegisteredTool] = {}
        for id, entry in known.items():
            source, manifest = found.pop(id, (None, entry.manifest))
            entries[id] = RegisteredTool(manifest, source, entry.member, entry.removed)
        return entries | {
            id: RegisteredTool(manifest, source) for id, (source, manifest) in found.items()
        }

    def _take(self, entries: dict[str, RegisteredTool]) -> bool:
        if entries == self._entries:
            return False
        self.generation = _next(self.generation)
        self._entries = entries
        return True

    # ---- changes by the host

    def change(self, change: ToolChange, generation: int | None = None) -> bool:
        """Makes a change, all or nothing; returns whether it changed anything.

        Raises `StaleTools` if `generation` is not the current one, `ToolClash` for an added tool
        whose name is taken, and `BadArguments` for an unknown tool.
        """
        if generation is not None and generation != self.generation:
            raise StaleTools(generation, self.generation)
        for name in change.names:
            if change.names.count(name) > 1:
                raise BadArguments("tools", f"the change names {name!r} twice")
        entries = dict(self._entries)
        added = dict(self.added)
        offered = {one.name for tools in self._sources.values() for one in tools}
        for tool in change.add:
            known = self.entry(tool.name)
            if tool.name in added or (known is not None and known.source is not None):
                taken_by = HOST if known is None else known.source or HOST
                raise ToolClash(tool.name, taken_by, HOST)
            added[tool.name] = tool
        for tool in change.replace:
            self._known(tool.name)
            added[tool.name] = tool
        for tool in (*change.add, *change.replace):
            known = self.entry(tool.name)
            if known is not None and known.manifest.id != tool.manifest.id:
                del entries[known.manifest.id]
            entries[tool.manifest.id] = RegisteredTool(tool.manifest)
        for name in change.remove:
            id = self._known(name).manifest.id
            added.pop(name, None)
            entries[id] = msgspec.structs.replace(entries[id], member=False, removed=True)
            if name not in offered:
                del entries[id]
        for name in change.hide:
            id = self._known(name).manifest.id
            entries[id] = msgspec.structs.replace(entries[id], member=False)
        for name in change.restore:
            id = self._known(name).manifest.id
            if name in offered:
                added.pop(name, None)
            entries[id] = msgspec.structs.replace(entries[id], member=True, removed=False)
        fresh = {one.name for one in (*change.add, *change.replace)}
        missing = {
            name: why for name, why in self.missing.items() if name in added and name not in fresh
        }
        entries = self._bound(entries, self._sources, added, missing)
        changed = added != self.added
        self.added = added
        self.missing = missing
        if self._take(entries):
            return True
        if changed:  # the code of a tool, but not its description
            self.generation = _next(self.generation)
        return changed

    def _known(self, name: str) -> RegisteredTool:
        found = self.entry(name)
        if found is None:
            names = ", ".join(sorted(one.manifest.name for one in self._entries.values()))
            raise BadArguments("tools", f"there is no tool {name!r}; the tools are: {names or '-'}")
        return found

    # ---- stored registries

    def adopt(self, state: ToolRegistryState) -> None:
        """Takes over a recorded registry exactly as it is."""
        entries = {entry.manifest.id: entry for entry in state.entries}
        if len(entries) != len(state.entries):
            raise BadArguments("tools", "the stored registry has a tool twice")
        self.generation = state.generation
        self.added = {one.name: one for one in state.added}
        self.missing = dict(state.missing)
        self._entries = entries

    def restore(self, state: ToolRegistryState) -> None:
        """Restores a stored registry with the current sources. If these changed it, its generation
        grows by one.
        """
        found = ToolRegistry()
        found.adopt(state)
        found.refresh(self._sources)
        self.adopt(found.state())

    # ---- overlays

    def over(self, overlay: Iterable[ToolManifest], source: str) -> ToolRegistry:
        """A copy of this registry in which the overlay replaces tools of the same id or name."""
        laid = tuple(overlay)
        ids = {one.id for one in laid}
        names = {one.name for one in laid}
        other = self.fork()
        other.added = {name: one for name, one in self.added.items() if name not in names}
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
