"""What `llm=` takes, and the answerer that is made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everhold.core.query import Query
from everhold.errors import BadSetting
from everhold.models.function import FunctionModel
from everhold.models.registry import create_model
from everhold.models.script import ScriptModel
from everhold.ports.answerer import Answerer

#: What `llm=` takes.
AnswererSpec = Answerer | Callable[[Query], Any] | Mapping[Any, Any] | Sequence[Any] | str | None

_TAKES = (
    "it takes provider:name, an async function of a query, everhold.CommandModel(…), a list or"
    " dict of answers, an everhold.models.Answerer, or None"
)


def make_answerer(spec: AnswererSpec) -> Answerer | None:
    """The answerer that is meant; None parks. Raises `BadSetting`."""
    match spec:
        case None:
            return None
        case str():
            return create_model(spec)
        case list() | dict() | tuple():
            return ScriptModel(spec)
        case type():
            raise BadSetting("llm", f"{spec.__name__} is a class; {_TAKES}")
    if isinstance(spec, Answerer):
        return spec
    if callable(spec):
        return FunctionModel(spec)
    raise BadSetting("llm", f"{_TAKES}, not {type(spec).__name__}")
