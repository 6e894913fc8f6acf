"""Model answerers by name: models of providers, and those that installed packages register.

[project.entry-points."everhold.models"]
mymodel = "my_package.model:make_model"    # called with "x" for llm="mymodel:x"

What `llm=` takes, and the answerer that is made from it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from everhold.core.query import MODEL_KINDS, Query, refuse_other_kinds
from everhold.errors import BadSetting
from everhold.models.provider import Model
from everhold.models.provider_access import PROVIDER_KEYS, is_model_name
from everhold.models.script import ScriptModel
from everhold.models.test_guard import refuse_in_tests
from everhold.ports.answerer import Answerer
from everhold.ports.entry_points import MODELS, load_entry_point

_BETWEEN: Final = "|"


def create_model(spec: str, *, always: bool = False, setting: str = "llm") -> Answerer:
    """The model that a name means, which is provider:name. Raises `BadSetting`.

    With `always`, a provider's model is asked whatever a query names.
    """
    registered = _find_registered(spec.strip(), setting)
    if registered is not None:
        return registered
    if not is_model_name(spec):
        raise BadSetting(
            setting,
            f"{spec!r} is no model, which is provider:name; a command is"
            f" everhold.CommandModel({spec!r})",
        )
    refuse_in_tests(repr(spec))
    return Model(spec, always=always)


def _find_registered(spec: str, setting: str) -> Answerer | None:
    """The answerer of an installed package; None if no package registers the name."""
    name, colon, rest = spec.partition(":")
    if not colon or name in PROVIDER_KEYS or not name.replace("-", "_").isidentifier():
        return None
    found = load_entry_point(MODELS, name)
    if found is None:
        return None
    if _BETWEEN in rest:
        raise BadSetting(
            setting,
            f"{name} comes from the package {found.distribution!r}, and is named alone:"
            f" {name}:{rest.partition(_BETWEEN)[0].strip()}",
        )
    refuse_in_tests(repr(spec))
    if not callable(found.value):
        raise found.refuse("is not a function that makes an answerer")
    made = found.value(rest)
    if not isinstance(made, Answerer):
        raise found.refuse(f"made a {type(made).__name__}, not an everhold.models.Answerer")
    return made


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


class FunctionModel(Answerer):
    """Asks a function of the query, which may be async."""

    kinds = MODEL_KINDS

    def __init__(self, function: Callable[[Query], Any]) -> None:
        _refuse_misfit(function)
        self._function = function
        call = getattr(function, "__call__", None)  # noqa: B004  an object may have an async one
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def __repr__(self) -> str:
        return f"FunctionModel({getattr(self._function, '__qualname__', self._function)})"

    async def answer(self, query: Query, session_id: str) -> Any:
        refuse_other_kinds(self.kinds, query)
        if self._is_async:
            return await self._function(query)
        said = await asyncio.to_thread(self._function, query)
        return await said if inspect.isawaitable(said) else said


def _refuse_misfit(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise BadSetting("llm", f"{function!r} should take one query: {error}") from None
    except ValueError:  # a builtin that does not tell
        pass
