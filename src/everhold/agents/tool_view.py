"""The tools of a conversation, for user interfaces: each with its source, and whether a model is
offered it.

It is built from the journal and the options of the current frame. The code of the tools is not
needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from everhold.agents.agent import Agent
from everhold.agents.tool_selection import (
    SEARCH_ABOVE,
    SEARCH_TOOL,
    ToolAccess,
    ToolSelection,
    parse_tool_access,
)
from everhold.core.codec import JSON
from everhold.core.tool_catalog import OVERLAY, ToolCatalog
from everhold.core.tool_registry import RegisteredTool, ToolManifest, ToolRegistryState
from everhold.ports.tool import Tool

#: The source name of the extra tools of an agent.
EXTRA: Final = "extra"


class ToolState(StrEnum):
    """Whether a model is offered a tool."""

    OFFERED = "offered"
    HIDDEN = "hidden"  # by the host, or by the option `tools`
    REMOVED = "removed"  # by the host; `restore` brings it back
    ORPHAN = "orphan"  # its source does not offer it, or its code is missing
    EXTRA = "extra"  # offered where the option `tools` names it


class ToolInfo(msgspec.Struct, frozen=True):
    """One tool of a conversation."""

    name: str
    description: str
    input_schema: dict[str, JSON]
    output_schema: dict[str, JSON] | None  # None if unknown
    source: str | None  # agent, host, extra, context (the overlay), or a tool source
    state: ToolState
    why: str = ""  # why it is not offered, or how it is found
    ref: str | None = None  # where the code of a tool of the host is

    @property
    def offered(self) -> bool:
        """Whether the model sees it now."""
        return self.state is ToolState.OFFERED


class ToolSourceInfo(msgspec.Struct, frozen=True):
    """A source of tools, and how many it has."""

    name: str
    tools: int


class ToolsView(msgspec.Struct, frozen=True):
    """The tools of a conversation. `generation` counts the changes of the tools; pass it to
    `change_tools`.
    """

    session_id: str
    generation: int
    fingerprint: str  # of the offered names
    tools: list[ToolInfo]
    sources: list[ToolSourceInfo]
    orphans: list[str]
    overlay: ToolAccess  # the option `tools` of the current frame

    @property
    def names(self) -> list[str]:
        """The names of the offered tools."""
        return [one.name for one in self.tools if one.offered]

    def tool(self, name: str) -> ToolInfo | None:
        """The tool of this name. An offered one comes first."""
        found = [one for one in self.tools if one.name == name]
        return next((one for one in found if one.offered), found[0] if found else None)

    def json(self) -> bytes:
        """The view as JSON."""
        return msgspec.json.encode(self)


def read_registry(recorded: JSON, agent: Agent | None) -> ToolRegistryState:
    """The registry of a conversation: as recorded, or as the first turn will record it."""
    if recorded is not None:
        return msgspec.convert(recorded, ToolRegistryState)
    return ToolSelection(() if agent is None else agent.tools).registry.state()


def build_tools_view(
    session_id: str, agent: Agent | None, state: ToolRegistryState, options: dict[str, JSON]
) -> ToolsView:
    """The view of a registry with the options of a frame."""
    overlay = parse_tool_access(options.get("tools"))
    declared: Sequence[Tool] = () if agent is None else (*agent.tools, *agent.extra_tools)
    tools = [_registered(one, state, overlay, declared) for one in state.entries]
    tools += _extra(state, overlay, () if agent is None else agent.extra_tools)
    offered = [one for one in tools if one.offered]
    if len(offered) > (SEARCH_ABOVE if agent is None else agent.search_above):
        tools = [_searched(one, declared) if one.offered else one for one in tools]
    counted: dict[str, int] = {}
    for one in tools:
        if one.source is not None:
            counted[one.source] = counted.get(one.source, 0) + 1
    return ToolsView(
        session_id=session_id,
        generation=state.generation,
        fingerprint=ToolCatalog([ToolManifest(one.name, one.name) for one in offered]).fingerprint,
        tools=tools,
        sources=[ToolSourceInfo(name, count) for name, count in counted.items()],
        orphans=[one.name for one in tools if one.state is ToolState.ORPHAN],
        overlay=overlay,
    )


def _registered(
    entry: RegisteredTool, state: ToolRegistryState, overlay: ToolAccess, declared: Sequence[Tool]
) -> ToolInfo:
    name = entry.manifest.name
    added = next((one for one in state.added if one.name == name), None)
    laid = [one if isinstance(one, str) else one.name for one in overlay.extra]
    now, why = _state(entry, state, overlay, laid)
    output = None if added is not None else _output_schema(name, declared)
    return _info(
        entry.manifest, output, entry.source, now, why, None if added is None else added.ref
    )


def _state(
    entry: RegisteredTool, state: ToolRegistryState, overlay: ToolAccess, laid: Sequence[str]
) -> tuple[ToolState, str]:
    name = entry.manifest.name
    if entry.source is None:
        known = state.missing.get(name)
        return ToolState.ORPHAN, known or "its source does not offer it now"
    if name in overlay.hidden:
        return ToolState.HIDDEN, "the option `tools` hides it"
    if name in laid:
        if any(not isinstance(one, str) and one.name == name for one in overlay.extra):
            return ToolState.HIDDEN, "the option `tools` has another tool of this name"
        return ToolState.OFFERED, ""
    if entry.removed:
        return ToolState.REMOVED, "the host removed it"
    if not entry.member:
        return ToolState.HIDDEN, "the host hides it"
    if overlay.only_extra:
        return ToolState.HIDDEN, "the option `tools` offers only extra tools"
    return ToolState.OFFERED, ""


def _extra(state: ToolRegistryState, overlay: ToolAccess, extra: Sequence[Tool]) -> list[ToolInfo]:
    """The extra tools of the agent, and the tools of the overlay."""
    found: list[ToolInfo] = []
    for tool in extra:
        spec: Any = tool.spec()
        manifest = ToolManifest(tool.name, tool.name, spec["description"], spec["input_schema"])
        now, why = ToolState.EXTRA, "the option `tools` does not name it"
        if tool.name in overlay.extra:
            hidden = tool.name in overlay.hidden
            now = ToolState.HIDDEN if hidden else ToolState.OFFERED
            why = "the option `tools` hides it" if hidden else ""
        found.append(_info(manifest, tool.output_schema, EXTRA, now, why))
    for one in overlay.extra:
        if not isinstance(one, str) and one.name not in overlay.hidden:
            found.append(_info(one.manifest, None, OVERLAY, ToolState.OFFERED, "", one.ref))
    return found


def _searched(one: ToolInfo, declared: Sequence[Tool]) -> ToolInfo:
    if any(tool.name == one.name and tool.pinned for tool in declared):
        return one
    return msgspec.structs.replace(one, why=f"the model finds it with {SEARCH_TOOL}")


def _info(
    manifest: ToolManifest,
    output: dict[str, JSON] | None,
    source: str | None,
    state: ToolState,
    why: str,
    ref: str | None = None,
) -> ToolInfo:
    return ToolInfo(
        manifest.name,
        manifest.description,
        manifest.input_schema,
        output,
        source,
        state,
        why,
        ref,
    )


def _output_schema(name: str, declared: Sequence[Tool]) -> dict[str, JSON] | None:
    return next((one.output_schema for one in declared if one.name == name), None)
