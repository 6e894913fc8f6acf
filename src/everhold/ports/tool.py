"""Tools: what an agent may do. `@tool` makes one of a typed function."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, overload

from everhold.core.codec import JSON
from everhold.core.errors import BadArguments
from everhold.core.query import Rerun
from everhold.core.schema import schema_of


class Tool:
    """A function that a model may call."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        rerun: str | None = None,
        timeout: float | None = None,
        retries: int = 0,
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.description = (description or inspect.getdoc(function) or "").strip()
        self.read_only = read_only
        self.rerun = Rerun(rerun) if rerun is not None else Rerun.SAFE if read_only else Rerun.ASK
        self.timeout = timeout
        self.retries = retries
        self.schema = _schema(function)

    def spec(self) -> dict[str, JSON]:
        """What a model is told of it."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema}


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    rerun: str | None = None,
    timeout: float | None = None,
    retries: int = 0,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a typed function into a tool. One that only reads says `read_only=True` and may be run again."""
    if function is None:
        return lambda given: Tool(given, **options)
    return Tool(function, **options)


def tools_of(given: Sequence[Any]) -> tuple[Tool, ...]:
    """Tools and plain functions, as tools; two of one name are refused."""
    tools = tuple(one if isinstance(one, Tool) else Tool(one) for one in given)
    names = [one.name for one in tools]
    for name in names:
        if names.count(name) > 1:
            raise BadArguments("tools", f"there are two of the name {name!r}")
    return tools


def _schema(function: Callable[..., Any]) -> dict[str, JSON]:
    hints = typing.get_type_hints(function, include_extras=True)
    properties: dict[str, JSON] = {}
    required: list[JSON] = []
    for name, parameter in inspect.signature(function).parameters.items():
        properties[name] = schema_of(hints[name]) if name in hints else {}
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
