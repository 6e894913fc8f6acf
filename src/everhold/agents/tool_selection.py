"""Which tools a model is offered: all of an agent's, without those that are hidden, with those that
are added.

Where there are many, the model is told of a few and of a tool that finds the others. What it found
stays offered.

The tools of one conversation that come from outside: what was offered last, turn by turn.
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

#: More tools than this are searched, unless the agent says otherwise.
SEARCH_ABOVE: Final = 40
SEARCH_TOOL: Final = "search_tools"


class ToolAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The option `tools`: names that are hidden, and names of the agent's extra tools that are
    added.

    With `only_extra` nothing but the extra tools is offered.
    """

    hidden: list[str] = []
    extra: list[str] = []
    only_extra: bool = False


class ManifestProvider:
    """Brings some tools."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._manifests: list[ToolManifest] = []
        self.put(tools)

    def put(self, tools: Sequence[Tool]) -> None:
        """Bring these, in the place of those before."""
        specs: list[Any] = [one.spec() for one in tools]
        self._manifests = [
            ToolManifest(one["name"], one["name"], one["description"], one["input_schema"])
            for one in specs
        ]

    def manifests(self) -> Sequence[ToolManifest]:
        return self._manifests


class ToolSelection:
    """What is offered now."""

    def __init__(
        self, tools: Sequence[Tool], extra: Sequence[Tool] = (), many: int = SEARCH_ABOVE
    ) -> None:
        self._tools = {one.name: one for one in tools}
        self._extra = {one.name: (one, ManifestProvider([one])) for one in extra}
        self._added: list[str] = []  # names of the extra tools that are offered
        self._pinned = [one.name for one in (*tools, *extra) if one.pinned]
        self._many = many
        self._own = dict(self._tools)
        self._sources = ManifestProvider()
        self._surface = LayeredToolRegistry(
            {"agent": ManifestProvider(tools), "sources": self._sources}
        )
        self._given: JSON = None  # the option that holds now
        self._plugins = ""  # the fingerprint of the plugins
        self._now = self._surface.catalog()
        self._found: dict[str, None] = {}
        self._search = SearchTool(self)

    def also(self, tools: Sequence[Tool]) -> None:
        """Offer what sources bring, in the place of what they brought before; the agent's own names
        stay its own.
        """
        brought = {one.name: one for one in tools if one.name not in self._own}
        self._tools = {**self._own, **brought}
        self._sources.put(list(brought.values()))
        self._surface.refresh()
        self._now = self._surface.catalog(self._plugins)

    def access(self, given: JSON, plugins: str = "") -> None:
        """Take the option `tools` into account, and the fingerprint of the plugins.

        Raises `BadArguments` for what is no such option, and changes nothing.
        """
        # as nearly always: nothing is put together again
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
        """All that may be called."""
        return self._now

    @property
    def searched(self) -> bool:
        return len(self.catalog.tools) > self._many

    @property
    def specs(self) -> list[JSON]:
        """What the model is told."""
        if not self.searched:
            return list(self.catalog.specs)
        names = self.catalog.names
        told = [
            names[name] for name in dict.fromkeys([*self._pinned, *self._found]) if name in names
        ]
        return [self._search.spec(), *(one.spec() for one in told)]

    def tool(self, name: str) -> Tool | None:
        """The tool of that name, if it is offered."""
        if name in self.catalog.names:
            return self._extra[name][0] if name in self._added else self._tools[name]
        return self._search if name == SEARCH_TOOL and self.searched else None

    @property
    def names(self) -> list[str]:
        """The names that the model was told."""
        return sorted(str(spec["name"]) for spec in self.specs)

    def find(self, words: str) -> list[ToolManifest]:
        """Look for tools; what is found is offered from now on, and of much that was found the
        latest.
        """
        found = self.catalog.found(words)
        for one in found:
            self._found.pop(one.name, None)
            self._found[one.name] = None
        for name in list(self._found)[: -max(self._many, len(found))]:
            del self._found[name]
        return found


class SearchTool(BuiltinTool):
    """Finds tools among many."""

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
        told: Any = [{"name": one.name, "description": one.description} for one in found]
        return None, told or "No tool was found. Use other words."


def parse_tool_access(given: JSON) -> ToolAccess:
    """The option `tools` as it was given; raises `BadArguments`."""
    try:
        return msgspec.convert({} if given is None else given, ToolAccess)
    except msgspec.ValidationError as error:
        raise BadArguments("tools", str(error)) from None


def collect_sources(given: Sequence[Any]) -> tuple[ToolSource, ...]:
    """The sources among what an agent is given as tools; two of one name are refused."""
    found = tuple(one for one in given if not isinstance(one, Tool) and isinstance(one, ToolSource))
    names = [source.name for source in found]
    for name in names:
        if names.count(name) > 1:
            raise BadArguments("tools", f"there are two sources of the name {name!r}")
    return found


class SourcedTools:
    """What the sources of an agent have offered to one conversation."""

    def __init__(self, ctx: AgentContext, sources: Sequence[ToolSource]) -> None:
        self._ctx = ctx
        self._sources = {source.name: source for source in sources}
        self._digests: dict[str, str] = {}
        self._tools: dict[str, list[Tool]] = {}

    async def refresh(self) -> list[str]:
        """Ask them all, side by side; returns what went wrong. Whoever cannot be reached keeps what
        he offered.
        """
        names: list[str] = self._ctx.fact("sources", list(self._sources), [])
        if not names:
            return []
        found = await asyncio.gather(*(self._one(name) for name in names))
        return [words for words in found if words is not None]

    @property
    def tools(self) -> list[Tool]:
        """What they offer; of two of one name, the first."""
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
        if "offers" in said:  # else what he offers is what it was
            offers = msgspec.convert(said["offers"], list[OfferedTool])
            self._digests[name] = said["digest"]
            self._tools[name] = [] if source is None else [source.tool(offer) for offer in offers]
        return None


async def _offered(source: ToolSource | None, name: str, known: str) -> JSON:
    """What is offered, in the effect; only its digest if that is known."""
    if source is None:
        raise ToolServerFailed(name, "the agent has no such source any more")
    offers = msgspec.to_builtins(await source.offered())
    digest = sha256(msgspec.json.encode(offers, order="deterministic")).hexdigest()[:32]
    return {"digest": digest} if digest == known else {"digest": digest, "offers": offers}
