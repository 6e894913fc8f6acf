"""Tools that a host adds to a session at run time: how they are stored, and where their code is.

Rules
  1. The journal has the description of such a tool and the reference of its code, `module:name` or
     `file.py:name`. Only an object made by `@tool` or `Tool` is loaded by reference.
  2. The code is looked for in this order: what this process provided for the session, the
     reference, the tools of the agent by name.
  3. A tool whose code is not found is an orphan: it is not offered until its code is there. A call
     that was made before has an error as its result (`unknown_tool`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from everhold.agents.builtin_tools import BuiltinTool
from everhold.core.query import Rerun
from everhold.core.retry import convert_older_retries
from everhold.core.tool_registry import AddedTool, ToolManifest, encode_tools
from everhold.errors import BadArguments, EverholdError, UnknownTool
from everhold.packages.load import find_place, load_file, load_module
from everhold.ports.tool import Tool, collect_tools

#: Tools that this process provided, by session and name. They are not stored.
_PROVIDED: dict[tuple[str, str], Tool] = {}


def make_manifest(tool: Tool) -> ToolManifest:
    """The description of a tool in a registry."""
    spec: Any = tool.spec()
    return ToolManifest(spec["name"], spec["name"], spec["description"], spec["input_schema"])


def describe_tools(given: Sequence[Any], declared: Sequence[Tool]) -> list[tuple[AddedTool, Tool]]:
    """What is stored of each tool, and the tool. Text names a tool of the agent, or is a reference.

    Raises `BadArguments` for what is not a tool, and `UnknownTool`.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadArguments("tools", f"give a list of tools, not {given!r:.100}")
    found: list[tuple[AddedTool, Tool]] = []
    for one in given:
        if isinstance(one, str):
            found.append(_named(one, declared))
        else:
            found += [(_describe(tool, find_ref(tool)), tool) for tool in collect_tools([one])]
    for _, tool in found:
        if isinstance(tool, BuiltinTool):
            raise BadArguments(
                "tools", f"{tool.name!r} belongs to an agent; it cannot be added to a session"
            )
    return found


def _named(name: str, declared: Sequence[Tool]) -> tuple[AddedTool, Tool]:
    for tool in declared:
        if tool.name == name:
            return _describe(tool, find_ref(tool)), tool
    tool = load_tool(name)
    return _describe(tool, name), tool


def _describe(tool: Tool, ref: str) -> AddedTool:
    return AddedTool(
        make_manifest(tool),
        ref,
        tool.read_only,
        str(tool.rerun.value),
        tool.timeout,
        concurrency=tool.concurrency,
        pinned=tool.pinned,
        retry=tool.retry,
        total_timeout=tool.total_timeout,
    )


def find_ref(tool: Tool) -> str:
    """The reference of a tool that is a variable of its module; empty for any other."""
    module = sys.modules.get(str(getattr(tool.function, "__module__", "")))
    if module is None:
        return ""
    names = [name for name, value in vars(module).items() if value is tool]
    place = find_place(module)
    return f"{place}:{names[0]}" if names and place else ""


def load_tool(ref: str) -> Tool:
    """The tool of a reference; raises `UnknownTool`."""
    place, colon, name = ref.rpartition(":")
    if not colon or not place:
        raise UnknownTool(ref, "it is neither a tool of the agent nor a reference module:name")
    try:
        module = load_file(Path(place), ref) if place.endswith(".py") else load_module(place, ref)
        found = reduce(getattr, name.split("."), module)
    except AttributeError:
        raise UnknownTool(ref, f"{place} has no {name!r}") from None
    except (EverholdError, OSError, ImportError) as error:
        raise UnknownTool(ref, str(error)) from error
    if not isinstance(found, Tool):
        raise UnknownTool(ref, f"{ref} is not a tool made with @tool")
    return found


# ---- the code in this process


def provide_tool(session_id: str, tool: Tool, *, again: bool = True) -> None:
    """Provide the code of a tool of a session, for as long as this process lives. Unless `again`,
    code that was provided before stays.
    """
    if again or (session_id, tool.name) not in _PROVIDED:
        _PROVIDED[session_id, tool.name] = tool


def share_tools(session_id: str, fork: str) -> None:
    """Provide a fork with what was provided for its session."""
    for (known, _), tool in [*_PROVIDED.items()]:
        if known == session_id:
            provide_tool(fork, tool)


def withdraw_tools(session_id: str, names: Iterable[str]) -> None:
    for name in names:
        _PROVIDED.pop((session_id, name), None)


def find_code(session_id: str, added: AddedTool, declared: Sequence[Tool]) -> Tool:
    """The code of a tool; raises `UnknownTool`."""
    provided = _PROVIDED.get((session_id, added.name))
    if provided is not None:
        return provided
    known = next((one for one in declared if one.name == added.name), None)
    if not added.ref:
        if known is not None:
            return known
        raise UnknownTool(added.name, "its code was given by another process, without a reference")
    try:
        return load_tool(added.ref)
    except UnknownTool:
        if known is not None:
            return known
        raise


def find_missing(
    session_id: str, added: Sequence[AddedTool], declared: Sequence[Tool]
) -> dict[str, str]:
    """The tools whose code is not found, and why."""
    missing: dict[str, str] = {}
    for one in added:
        try:
            find_code(session_id, one, declared)
        except UnknownTool as error:
            missing[one.name] = str(error)
    return missing


class ReferencedTool(Tool):
    """A tool as it is recorded; its code is found when it runs."""

    def __init__(self, added: AddedTool, declared: Callable[[], Sequence[Tool]]) -> None:
        super().__init__(
            _nothing,
            name=added.name,
            description=added.manifest.description or " ",
            read_only=added.read_only,
            rerun=Rerun(added.rerun),
            retry=added.retry or convert_older_retries(added.retries),
            timeout=added.timeout,
            total_timeout=added.total_timeout,
            concurrency=added.concurrency,
            pinned=added.pinned,
        )
        self.description = added.manifest.description
        self.schema = added.manifest.input_schema
        self._added = added
        self._declared = declared

    def find_code(self, session_id: str) -> Tool:
        """The tool to run; raises `UnknownTool`."""
        return find_code(session_id, self._added, self._declared())


def _nothing() -> None:
    """Never called: the code is found by reference."""


def describe_option(given: Any, declared: Sequence[Tool], session_id: str) -> Any:
    """The option `tools` with its tools described, as the journal stores it. Text that is not a
    reference names a tool.
    """
    if not isinstance(given, Mapping) or not isinstance(given.get("extra"), list | tuple):
        return given
    extra: list[Any] = []
    for one in given["extra"]:
        if isinstance(one, Mapping) or (isinstance(one, str) and ":" not in one):
            extra.append(one)
            continue
        for added, tool in describe_tools([one], declared):
            if not added.ref:
                provide_tool(session_id, tool)
            extra.append(encode_tools(added))
    return {**given, "extra": extra}
