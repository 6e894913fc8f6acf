"""The tools of one conversation that come from outside: what was offered last, turn by turn."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import Kind
from everhold.errors import AnswerFailed, BadArguments, ToolServerFailed
from everhold.ports.agent import AgentContext
from everhold.ports.tool import Tool
from everhold.ports.tool_source import OfferedTool, ToolSource


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
