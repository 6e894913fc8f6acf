"""What `llm=` takes, and the answerer that is made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everhold.core.query import Query
from everhold.errors import BadSetting
from everhold.models.function import FunctionModel
from everhold.models.provider import Model, is_model_name
from everhold.models.script import ScriptModel
from everhold.models.test_guard import refuse_in_tests
from everhold.ports.program import Answerer

#: What `llm=` takes.
AnswererSpec = Answerer | Callable[[Query], Any] | Mapping[Any, Any] | Sequence[Any] | str | None

_TAKES = (
    "it takes provider:name, an async function of a query, everhold.CommandModel(…), a list or"
    " dict of answers, or None"
)


def make_answerer(spec: AnswererSpec) -> Answerer | None:
    """The answerer that is meant; None parks. Raises `BadSetting`."""
    match spec:
        case None:
            return None
        case str():
            if is_model_name(spec):
                refuse_in_tests(repr(spec))
                return Model(spec)
            raise BadSetting(
                "llm",
                f"{spec!r} is no model, which is provider:name; a command is"
                f" everhold.CommandModel({spec!r})",
            )
        case list() | dict() | tuple():
            return ScriptModel(spec)
        case type():
            raise BadSetting("llm", f"{spec.__name__} is a class; {_TAKES}")
    if hasattr(spec, "answer"):
        return spec
    if callable(spec):
        return FunctionModel(spec)
    raise BadSetting("llm", f"{_TAKES}, not {type(spec).__name__}")
