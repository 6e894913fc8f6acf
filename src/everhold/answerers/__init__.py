"""Those who answer now. A query that nobody here answers stays open: it is parked.

`AnswerFailed`, or whatever its function raised, is an answer that the program sees. `NotAllowed` and
`BadSetting` are none: the query was not for this answerer, or it cannot work here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everhold.answerers.command import Command
from everhold.answerers.function import Function
from everhold.answerers.real import refuse_in_tests
from everhold.answerers.script import Script
from everhold.core.errors import BadSetting, MissingExtra
from everhold.core.query import Query
from everhold.ports.program import Answerer

__all__ = ["Command", "Function", "Script", "Spec", "answerer"]

#: What `llm=` takes.
Spec = Answerer | Callable[[Query], Any] | Mapping[Any, Any] | Sequence[Any] | str | None

_MODEL = re.compile(r"[a-z][\w-]*:\S+")
_TAKES = "it takes an async function of a query, everhold.Command(…), a list or dict of answers, or None"


def answerer(spec: Spec) -> Answerer | None:
    """The answerer that is meant; None parks. Raises `BadSetting`, or `MissingExtra` for a model's name."""
    match spec:
        case None:
            return None
        case str():
            if _MODEL.fullmatch(spec):
                refuse_in_tests(repr(spec))
                raise MissingExtra("models", f"the model {spec!r}")
            raise BadSetting("llm", f"{spec!r} is no model; a command is everhold.Command({spec!r})")
        case list() | dict() | tuple():
            return Script(spec)
        case type():
            raise BadSetting("llm", f"{spec.__name__} is a class; {_TAKES}")
    if hasattr(spec, "answer"):
        return spec
    if callable(spec):
        return Function(spec)
    raise BadSetting("llm", f"{_TAKES}, not {type(spec).__name__}")
