"""Which tools a model is offered: the agent's, minus hidden ones, plus extra ones and those of tool
sources.

Above `search_above` tools, the model gets only a few and a search tool. Found tools stay offered.

`SourcedTools` keeps the last offer of each tool source of a conversation.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from everhold.agents.builtin_tools import BuiltinTool, ToolHost
from everhold.core.codec import JSON
from everhold.core.query import Kind
from everhold.core.tool import Wanted
from everhold.core.tool_catalog import LayeredToolRegistry, ToolCatalog
from everhold.core.tool_registry import ToolManifest
from everhold.errors import AnswerFailed, BadArguments, ToolServerFailed
from everhold.ports.context import AgentContext
from everhold.ports.tool import OfferedTool, Tool, ToolSource

#: Above this number of tools, the model searches, unless the agent has another limit.
SEARCH_ABOVE: Final = 40
SEARCH_TOOL: Final = "search_tools"


class ToolAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The option `tools`: names to hide, and names of the agent's extra tools to add.

    With `only_extra`, only extra tools are offered.
    """

    hidden: list[str] = []
    extra: list[str] = []
    only_extra: bool = False


class ManifestProvider:
    """Provides the manifests of some tools."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._manifests: list[ToolManifest] = []
        self.put(tools)

    def put(self, tools: Sequence[Tool]) -> None:
        """Replace the tools."""
        specs: list[Any] = [one.spec() for one in tools]
        self._manifests = [
            ToolManifest(one["name"], one["name"], one["description"], one["input_schema"])
            for one in specs
        ]

    def manifests(self) -> Sequence[ToolManifest]:
        return self._manifests


class ToolSelection:
    """The tools that are offered now."""

    def __init__(
        self, tools: Sequence[Tool], extra: Sequence[Tool] = (), many: int = SEARCH_ABOVE
    ) -> None:
        self._tools = {one.name: one for one in tools}
        self._extra = {one.name: (one, ManifestProvider([one])) for one in extra}
        self._added: list[str] = []  # names of the offered extra tools
        self._pinned = [one.name for one in (*tools, *extra) if one.pinned]
        self._many = many
        self._own = dict(self._tools)
        self._sources = ManifestProvider()
        self._surface = LayeredToolRegistry(
            {"agent": ManifestProvider(tools), "sources": self._sources}
        )
        self._given: JSON = None  # the current option
        self._plugins = ""  # the fingerprint of the plugins
        self._now = self._surface.catalog()
        self._found: dict[str, None] = {}
        self._search = SearchTool(self)

    def also(self, tools: Sequence[Tool]) -> None:
        """Replace the tools of sources. The agent's own tools win over tools of the same name."""
        brought = {one.name: one for one in tools if one.name not in self._own}
        self._tools = {**self._own, **brought}
        self._sources.put(list(brought.values()))
        self._surface.refresh()
        self._now = self._surface.catalog(self._plugins)

    def access(self, given: JSON, plugins: str = "") -> None:
        """Apply the option `tools` and the fingerprint of the plugins.

        Raises `BadArguments` for an invalid option, and then changes nothing.
        """
        # the usual case: nothing has changed
        if (given, plugins) == (self._given, self._plugins):
            return
        wanted = parse_tool_access(given)
        unknown = [name for name in wanted.extra if name not in self._extra]
        if unknown:
            known = ", ".join(sorted(self._extra)) or "none"
            raise BadArguments(
                "tools", f"there is no extra tool {unknown[0]!r}; the extra tools are: {known}"
            )
        self._surface.lay_over(
            [self._extra[name][1] for name in wanted.extra],
            include_base=not wanted.only_extra,
            hidden=wanted.hidden,
        )
        self._added = wanted.extra
        self._given = given
        self._plugins = plugins
        self._now = self._surface.catalog(plugins)

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
        listed = [
            names[name] for name in dict.fromkeys([*self._pinned, *self._found]) if name in names
        ]
        return [self._search.spec(), *(one.spec() for one in listed)]

    def tool(self, name: str) -> Tool | None:
        """The offered tool of that name, or None."""
        if name in self.catalog.names:
            return self._extra[name][0] if name in self._added else self._tools[name]
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
        return msgspec.convert({} if given is None else given, ToolAccess)
    except msgspec.ValidationError as error:
        raise BadArguments("tools", str(error)) from None


def collect_sources(given: Sequence[Any]) -> tuple[ToolSource, ...]:
    """The tool sources among the given tools. Raises `BadArguments` for two of one name."""
    found = tuple(one for one in given if not isinstance(one, Tool) and isinstance(one, ToolSource))
    names = [source.name for source in found]
    for name in names:
        if names.count(name) > 1:
            raise BadArguments("tools", f"two tool sources have the name {name!r}")
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
    def tools(self) -> list[Tool]:
        """The tools of all sources. Of two of one name, the first wins."""
        found: dict[str, Tool] = {}
        for one in (tool for tools in self._tools.values() for tool in tools):
            found.setdefault(one.name, one)
        return list(found.values())

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


async def _offered(source: ToolSource | None, name: str, known: str) -> JSON:
    """The offer of a source, inside the effect: only its digest if that is unchanged."""
    if source is None:
        raise ToolServerFailed(name, "the agent no longer has this tool source")
    offers = msgspec.to_builtins(await source.offered())
    digest = sha256(msgspec.json.encode(offers, order="deterministic")).hexdigest()[:32]
    return {"digest": digest} if digest == known else {"digest": digest, "offers": offers}
