"""Makes the answerer for a value of `llm=`: a model name, a function, a script, an answerer.

A name is provider:name, or a name that an installed package registers:

    [project.entry-points."everhold.models"]
    mymodel = "my_package.model:make_model"    # called with "x" for llm="mymodel:x"
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from everhold.core.query import MODEL_KINDS, Query, refuse_other_kinds
from everhold.errors import BadSetting
from everhold.models.provider import Model
from everhold.models.provider_access import PROVIDER_KEYS, is_model_name
from everhold.models.script import ScriptModel
from everhold.models.test_guard import refuse_in_tests
from everhold.ports.answerer import Answerer
from everhold.ports.entry_points import MODELS, load_entry_point
from everhold.ports.stream import Delta, DeltaKind, publish_delta
from everhold.shell_command import quote_word


class FunctionModel(Answerer):
    """A function as a model: it gets the query and returns the value, or `Answer(value, usage)`.

    An exception is an answer too: the program sees it. A plain function runs in a thread, so that
    a slow client library does not block the event loop; a thread cannot be interrupted. An async
    generator yields the answer in pieces of text, which are streamed; if it yields anything else,
    such as tool calls, that is the whole answer.
    """

    kinds = MODEL_KINDS

    def __init__(self, function: Callable[[Query], Any]) -> None:
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            raise BadSetting("llm", f"{function!r} must take one query: {error}") from None
        except ValueError:  # some builtins have no signature
            pass
        self._function = function
        call = getattr(function, "__call__", None)  # noqa: B004  an instance may have an async one
        self._is_async = any(
            inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
            for one in (function, call)
        )

    def __repr__(self) -> str:
        return f"FunctionModel({getattr(self._function, '__qualname__', self._function)})"

    async def answer(self, query: Query, session_id: str) -> Any:
        refuse_other_kinds(self.kinds, query)
        if self._is_async:
            answer = self._function(query)
        else:
            answer = await asyncio.to_thread(self._function, query)
        if inspect.isasyncgen(answer):
            return await _stream(answer, session_id, query.id)
        return await answer if inspect.isawaitable(answer) else answer


async def _stream(pieces: AsyncGenerator[object, Any], session_id: str, query_id: str) -> object:
    """Publish the text that a function yields, and return its answer."""
    text: list[str] = []
    async with aclosing(pieces):
        async for piece in pieces:
            if not isinstance(piece, str):
                return piece
            text.append(piece)
            publish_delta(session_id, query_id, Delta(DeltaKind.TEXT, piece))
    publish_delta(session_id, query_id, Delta(DeltaKind.END))
    return "".join(text)


_ALTERNATIVES: Final = "|"


def create_model(spec: str, *, always: bool = False, setting: str = "llm") -> Answerer:
    """Make the model of a name, provider:name; raises `BadSetting`.

    With `always`, a provider's model answers every query, even one that names another model.
    """
    registered = _find_registered(spec.strip(), setting)
    if registered is not None:
        return registered
    if not is_model_name(spec):
        command = f"everhold.CommandModel({spec!r})"
        if setting == "--model":
            command = f"--answer-with {quote_word(spec)}"
        raise BadSetting(
            setting, f"{spec!r} is not a model name (provider:name); for a command, use {command}"
        )
    refuse_in_tests(repr(spec))
    return Model(spec, always=always)


def _find_registered(spec: str, setting: str) -> Answerer | None:
    """Make the answerer that an installed package registers; None if no package has the name."""
    name, colon, rest = spec.partition(":")
    if not colon or name in PROVIDER_KEYS or not name.replace("-", "_").isidentifier():
        return None
    found = load_entry_point(MODELS, name)
    if found is None:
        return None
    if _ALTERNATIVES in rest:
        raise BadSetting(
            setting,
            f"{name} comes from the package {found.distribution!r} and cannot be combined with '|';"
            f" use {name}:{rest.partition(_ALTERNATIVES)[0].strip()}",
        )
    refuse_in_tests(repr(spec))
    if not callable(found.value):
        raise found.refuse("is not a function that makes an answerer")
    made = found.value(rest)
    if not isinstance(made, Answerer):
        raise found.refuse(f"made a {type(made).__name__}, not an everhold.models.Answerer")
    return made


#: The values that `llm=` accepts.
AnswererSpec = Answerer | Callable[[Query], Any] | Mapping[Any, Any] | Sequence[Any] | str | None

_ACCEPTED = (
    "accepted are provider:name, an async function of a query, everhold.CommandModel(…), a list or"
    " dict of answers, an everhold.models.Answerer, or None"
)


def make_answerer(spec: AnswererSpec) -> Answerer | None:
    """Make the answerer for a value of `llm=`; None leaves queries open. Raises `BadSetting`."""
    match spec:
        case None:
            return None
        case str():
            return create_model(spec)
        case list() | dict() | tuple():
            return ScriptModel(spec)
        case type():
            raise BadSetting("llm", f"{spec.__name__} is a class; {_ACCEPTED}")
    if isinstance(spec, Answerer):
        return spec
    if callable(spec):
        return FunctionModel(spec)
    raise BadSetting("llm", f"{_ACCEPTED}; got {type(spec).__name__}")
