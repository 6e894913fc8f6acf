"""Which tools a model is offered: the agent's, minus hidden ones, plus extra ones and those of tool
sources.

Above `search_above` tools, the model gets only a few and a search tool. Found tools stay offered.

`SourcedTools` keeps the last offer of each tool source of a conversation.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from everhold.agents.added_tools import ReferencedTool, find_missing, make_manifest
from everhold.agents.builtin_tools import BuiltinTool, ToolHost
from everhold.core.codec import JSON
from everhold.core.query import Kind
from everhold.core.tool import Wanted
from everhold.core.tool_catalog import Contribution, LayeredToolRegistry, ToolCatalog
from everhold.core.tool_registry import (
    HOST,
    AddedTool,
    ToolChange,
    ToolManifest,
    ToolRegistry,
    ToolRegistryState,
    encode_tools,
)
from everhold.errors import AnswerFailed, BadArguments, ToolServerFailed
from everhold.hooks import SLOTS
from everhold.ports.context import AgentContext
from everhold.ports.tool import OfferedTool, Tool, ToolSource
from everhold.ports.tool_services import get_services

#: Above this number of tools, the model searches, unless the agent has another limit.
SEARCH_ABOVE: Final = 40
SEARCH_TOOL: Final = "search_tools"
#: The source name of tools that the agent declares.
AGENT: Final = "agent"
_UNKNOWN: Final = "unknown"  # not an option
EVENTS_NOTE: Final = "Events that can trigger something: {}."


class ToolAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The option `tools`: an overlay over the tools of the session, for a turn or until it is
    changed.

    `hidden` are names that are not offered. `extra` are tools that are: extra tools of the agent,
    hidden tools of the session, or tools that the host describes. With `only_extra`, only these are
    offered. `contributions` are added to the prompt. `events` are names of events, or true for
    those of all triggers; the model is informed that they can trigger something.
    """

    hidden: list[str] = []
    extra: list[str | AddedTool] = []
    only_extra: bool = False
    contributions: list[Contribution] = []
    events: list[str] | bool = []

    def texts(self, of_triggers: Sequence[str]) -> list[Contribution]:
        """What is added to the prompt. `of_triggers` are the events of all triggers."""
        names = self.events if isinstance(self.events, list) else of_triggers if self.events else []
        if not names:
            return self.contributions
        told = Contribution("context", EVENTS_NOTE.format(", ".join(names)))
        return [*self.contributions, told]


class ManifestProvider:
    """Provides the manifests of some tools."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._manifests: list[ToolManifest] = []
        self.put(tools)

    def put(self, tools: Sequence[Tool]) -> None:
        """Replace the tools."""
        self._manifests = [make_manifest(one) for one in tools]

    def manifests(self) -> Sequence[ToolManifest]:
        return self._manifests


class ToolSelection:
    """The tools that are offered now."""

    def __init__(
        self, tools: Sequence[Tool], extra: Sequence[Tool] = (), many: int = SEARCH_ABOVE
    ) -> None:
        self._own = {one.name: one for one in tools}
        self._extra = {one.name: (one, ManifestProvider([one])) for one in extra}
        self._overlaid: dict[str, Tool] = {}  # the tools of the overlay
        self._many = many
        self._sourced: dict[str, dict[str, Tool]] = {}  # tools of sources
        self._of_host: dict[str, ReferencedTool] = {}
        self._providers: dict[str, ManifestProvider] = {}
        self._surface = LayeredToolRegistry({AGENT: ManifestProvider(tools)})
        self._missing: dict[str, str] | None = None
        self._stale = False  # whether the registry has to be bound to the sources again
        self._adopted: JSON = None  # the registry as it was last taken over
        self._recorded: tuple[ToolRegistryState, JSON] | None = None
        self._events: list[str] = []  # of all triggers, if the option wants them
        self._given: JSON = None  # the current option
        self._plugins = ""  # the fingerprint of the plugins
        self._now = self._surface.catalog()
        self._found: dict[str, None] = {}
        self._search = SearchTool(self)

    # ---- the registry of the session

    @property
    def registry(self) -> ToolRegistry:
        return self._surface.base

    @property
    def declared(self) -> list[Tool]:
        """The tools and extra tools of the agent."""
        return [*self._own.values(), *(one for one, _ in self._extra.values())]

    def also(
        self, sources: Mapping[str, Sequence[Tool]], missing: dict[str, str] | None = None
    ) -> None:
        """Replace the tools of sources; `renew` or `adopt` follows. The agent's own tools win over
        tools of the same name, and earlier sources over later ones.

        `missing` has the tools of the host whose code was not found.
        """
        taken = set(self._own)
        for name, tools in sources.items():
            fresh = [one for one in tools if one.name not in taken]
            taken |= {one.name for one in fresh}
            self._sourced[name] = {one.name: one for one in fresh}
            if name not in self._providers:
                self._providers[name] = ManifestProvider()
                self._surface.add_source(name, self._providers[name])
            self._providers[name].put(fresh)
        self._missing = missing
        self._stale = True

    def change(self, change: ToolChange, generation: int | None, option: JSON) -> None:
        """Make a change of the host; see `ToolRegistry.change`. It is refused, too, if the option
        `tools` names a tool that would be gone.
        """
        before = self.registry.state()
        self.registry.change(change, generation)
        self._rebuild()
        try:
            self.access(option, self._plugins)
        except BadArguments:
            self.registry.adopt(before)
            self._rebuild()
            raise

    def restore(self, state: ToolRegistryState) -> None:
        """Take over the registry of another conversation. The generation never decreases: a host
        that saw an earlier one is refused.
        """
        before = self.registry.state()
        self.registry.restore(state)
        now = self.registry
        if (before.entries, before.added) != (now.state().entries, now.state().added):
            now.generation = max(now.generation, before.generation + 1)
        self._rebuild()

    def recorded(self) -> JSON:
        """The registry as the journal records it; None if it never had a tool."""
        state = self.registry.state()
        if self._recorded is None or self._recorded[0] != state:
            self._recorded = (state, encode_tools(state) if state.generation else None)
        return self._recorded[1]

    def adopt(self, recorded: JSON) -> None:
        """Take over the registry as it is recorded."""
        self._stale = True
        if recorded is not self._adopted:
            self._adopted = recorded
            self.registry.adopt(msgspec.convert(recorded, ToolRegistryState))
            self._rebuild()

    def renew(self) -> None:
        """Bind the registry to the current tools of the agent and its sources."""
        if self._stale:
            self._stale = False
            self._adopted = None
            self._surface.refresh()
            self.registry.refresh({}, self._missing)
            self._missing = None
            self._rebuild()

    def _rebuild(self) -> None:
        self._of_host = {name: self._referenced(one) for name, one in self.registry.added.items()}
        if any(name not in self._extra for name in self._overlaid):
            self._given = _UNKNOWN  # the overlay has tools of the session
        self._now = self._surface.catalog(self._plugins)

    def _referenced(self, added: AddedTool) -> ReferencedTool:
        return ReferencedTool(added, lambda: self.declared)

    # ---- the overlay

    def know_events(self, names: list[str]) -> None:
        """Take over the events of all triggers, for an option with `events: true`."""
        if names != self._events:
            self._events = names
            self._given = _UNKNOWN

    def access(self, given: JSON, plugins: str = "") -> None:
        """Apply the option `tools` and the fingerprint of the plugins.

        Raises `BadArguments` for an invalid option, and then changes nothing.
        """
        # the usual case: nothing has changed
        if (given, plugins) == (self._given, self._plugins):
            return
        wanted = parse_tool_access(given)
        laid = [found for one in wanted.extra if (found := self._overlay(one)) is not None]
        self._surface.lay_over(
            [provider for _, provider in laid],
            wanted.texts(self._events),
            include_base=not wanted.only_extra,
            hidden=wanted.hidden,
        )
        self._overlaid = {tool.name: tool for tool, _ in laid}
        self._given = given
        self._plugins = plugins
        self._now = self._surface.catalog(plugins)

    def _overlay(self, one: str | AddedTool) -> tuple[Tool, ManifestProvider] | None:
        """A tool of the overlay; None for an orphan of the session."""
        if isinstance(one, AddedTool):
            tool: Tool | None = self._referenced(one)
        elif one in self._extra:
            return self._extra[one]
        else:
            tool = self._of_session(one)
            if tool is None and self.registry.entry(one) is None:
                known = ", ".join(sorted(self._extra)) or "none"
                raise BadArguments(
                    "tools", f"there is no extra tool {one!r}; the extra tools are: {known}"
                )
        return None if tool is None else (tool, ManifestProvider([tool]))

    def _of_session(self, name: str) -> Tool | None:
        """A tool of the registry, also if it is not offered."""
        entry = self.registry.entry(name)
        if entry is None or entry.source is None:
            return None
        if entry.source == HOST:
            return self._of_host.get(name)
        if entry.source == AGENT:
            return self._own.get(name)
        return self._sourced.get(entry.source, {}).get(name)

    @property
    def catalog(self) -> ToolCatalog:
        """All tools that may be called."""
        return self._now

    @property
    def searched(self) -> bool:
        return len(self.catalog.tools) > self._many

    @property
    def specs(self) -> list[JSON]:
        """The tool specs that the model gets."""
        if not self.searched:
            return list(self.catalog.specs)
        names = self.catalog.names
        pinned = [name for name in names if (one := self.tool(name)) is not None and one.pinned]
        listed = [names[name] for name in dict.fromkeys([*pinned, *self._found]) if name in names]
        return [self._search.spec(), *(one.spec() for one in listed)]

    def tool(self, name: str) -> Tool | None:
        """The offered tool of that name, or None."""
        if name in self.catalog.names:
            return self._overlaid.get(name) or self._of_session(name)
        return self._search if name == SEARCH_TOOL and self.searched else None

    @property
    def names(self) -> list[str]:
        """The tool names that the model got."""
        return sorted(str(spec["name"]) for spec in self.specs)

    def find(self, words: str) -> list[ToolManifest]:
        """Search the catalog. Found tools are offered from now on; the oldest are dropped above the
        limit.
        """
        found = self.catalog.found(words)
        for one in found:
            self._found.pop(one.name, None)
            self._found[one.name] = None
        for name in list(self._found)[: -max(self._many, len(found))]:
            del self._found[name]
        return found


class SearchTool(BuiltinTool):
    """Searches the catalog."""

    def __init__(self, offer: ToolSelection) -> None:
        words = {"type": "string", "description": "what the tool should do"}
        schema = {
            "type": "object",
            "properties": {"words": words},
            "required": ["words"],
            "additionalProperties": False,
        }
        super().__init__(
            SEARCH_TOOL,
            "Find tools that are not listed here. Those found can be called next.",
            schema,
        )
        self._offer = offer

    async def held(self, box: ToolHost, wanted: Wanted) -> tuple[int | None, JSON]:
        found = self._offer.find(str(wanted.input["words"]))
        listed: Any = [{"name": one.name, "description": one.description} for one in found]
        return None, listed or "No tool was found. Try other words."


def parse_tool_access(given: JSON) -> ToolAccess:
    """Parse the option `tools`; raises `BadArguments`."""
    try:
        found = msgspec.convert({} if given is None else given, ToolAccess)
    except msgspec.ValidationError as error:
        raise BadArguments("tools", str(error)) from None
    for one in found.contributions:
        if one.slot not in SLOTS:
            raise BadArguments(
                "tools", f"there is no slot {one.slot!r}; the slots are: {', '.join(SLOTS)}"
            )
    return found


def collect_sources(given: Sequence[Any]) -> tuple[ToolSource, ...]:
    """The tool sources among the given tools. Raises `BadArguments` for two of one name."""
    found = tuple(one for one in given if not isinstance(one, Tool) and isinstance(one, ToolSource))
    names = [source.name for source in found]
    for name in names:
        if names.count(name) > 1:
            raise BadArguments("tools", f"two tool sources have the name {name!r}")
        if name in (AGENT, HOST):
            raise BadArguments("tools", f"a tool source may not have the name {name!r}")
    return found


class SourcedTools:
    """The tools that sources offered to one conversation."""

    def __init__(self, ctx: AgentContext, sources: Sequence[ToolSource]) -> None:
        self._ctx = ctx
        self._sources = {source.name: source for source in sources}
        self._digests: dict[str, str] = {}
        self._tools: dict[str, list[Tool]] = {}

    async def refresh(self) -> list[str]:
        """Ask all sources concurrently, and return the errors. A source that fails keeps its last
        offer.
        """
        names: list[str] = self._ctx.fact("sources", list(self._sources), [])
        if not names:
            return []
        found = await asyncio.gather(*(self._one(name) for name in names))
        return [words for words in found if words is not None]

    @property
    def tools(self) -> dict[str, list[Tool]]:
        """The last offers of the sources."""
        return self._tools

    async def _one(self, name: str) -> str | None:
        source = self._sources.get(name)
        effect = functools.partial(_offered, source, name, self._digests.get(name, ""))
        try:
            _, said = await self._ctx.put(Kind.CALL, effect, name=f"tools:{name}")
        except AnswerFailed as error:
            return error.message
        if "offers" in said:  # otherwise the offer is unchanged
            offers = msgspec.convert(said["offers"], list[OfferedTool])
            self._digests[name] = said["digest"]
            self._tools[name] = [] if source is None else [source.tool(offer) for offer in offers]
        return None


async def ask_events(ctx: AgentContext) -> list[str]:
    """The events of all triggers; recorded."""

    async def look() -> JSON:
        return {"events": await get_services("the events").events()}

    _, said = await ctx.put(Kind.CALL, look, name="tools:events")
    events: list[str] = said["events"]
    return events


async def ask_missing(
    ctx: AgentContext, added: Sequence[AddedTool], declared: Sequence[Tool]
) -> dict[str, str]:
    """The tools of the host whose code this process does not find, and why; recorded."""
    session_id = ctx.session_id

    async def look() -> JSON:
        return {"missing": find_missing(session_id, added, declared)}

    _, said = await ctx.put(Kind.CALL, look, name=f"tools:{HOST}")
    missing: dict[str, str] = said["missing"]
    return missing


async def _offered(source: ToolSource | None, name: str, known: str) -> JSON:
    """The offer of a source, inside the effect: only its digest if that is unchanged."""
    if source is None:
        raise ToolServerFailed(name, "the agent no longer has this tool source")
    offers = msgspec.to_builtins(await source.offered())
    digest = sha256(msgspec.json.encode(offers, order="deterministic")).hexdigest()[:32]
    return {"digest": digest} if digest == known else {"digest": digest, "offers": offers}
