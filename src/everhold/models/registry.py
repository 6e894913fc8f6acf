"""Model answerers by name: models of providers, and those that installed packages register.

[project.entry-points."everhold.models"]
mymodel = "my_package.model:make_model"    # called with "x" for llm="mymodel:x"

What `llm=` takes, and the answerer that is made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from everhold.core.query import Query
from everhold.errors import BadSetting
from everhold.models.function import FunctionModel
from everhold.models.provider import Model, is_model_name
from everhold.models.provider.clients import PROVIDER_KEYS
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
