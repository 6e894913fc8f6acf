"""The schema of a function's parameters, with descriptions from annotations and docstrings.

Docstrings are read in three styles: Google (`Args:`), NumPy (`Parameters` underlined) and Sphinx
(`:param name:`). A description in an annotation, as in `Annotated[str, "the city"]`, takes
precedence.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Final
from weakref import WeakKeyDictionary

from everhold.core.codec import JSON
from everhold.core.schema import encode_value_as, schema_of
from everhold.errors import BadArguments, BadValue, EverholdError

_PLAIN: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
#: No two adjacent parts match blanks: a long line would be split in every possible way (quadratic).
_SPHINX: Final = re.compile(r"^:(?:param|parameter|arg|argument|key)\s([^:]*):\s*(.*)$")
_LAST: Final = re.compile(r"^\*{0,2}(\w+)$")
_GOOGLE: Final = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\)\s*)?:\s*(.*)$")
_NUMPY: Final = re.compile(r"^\*{0,2}(\w+)\s*(?::.*)?$")
#: Cache of resolved return types: resolving takes longer than the rest of a step.
_RETURNED: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
_BEGINS: Final = frozenset({"args:", "arguments:", "parameters:", "params:"})


def resolve_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters and of the result; raises `BadArguments`."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise BadArguments(
            "tool", f"the annotations of {function.__qualname__} cannot be read: {error}"
        ) from None


def get_return_type(function: Callable[..., Any]) -> Any:
    """The return type; None if it is missing or cannot be resolved."""
    try:
        return _RETURNED[function]
    except (KeyError, TypeError):  # not cached, or not hashable
        pass
    try:
        found = typing.get_type_hints(function).get("return")
    except Exception:  # an annotation that only a type checker can resolve
        return None
    with suppress(TypeError):
        _RETURNED[function] = found
    return found


def get_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters, all of which can be passed by name; raises `BadArguments` for others."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise BadArguments("tool", f"{function!r} is not a function with a signature") from None
    if found and found[0].name == "self" and found[0].annotation is inspect.Parameter.empty:
        del found[0]  # a method, before it is bound
    for one in found:
        if one.kind not in _PLAIN:
            raise BadArguments(
                "tool", f"{name} has the parameter {one}, which cannot be passed by name"
            )
    return found


def build_parameter_schema(
    function: Callable[..., Any], leave: str | None = None
) -> dict[str, JSON]:
    """The schema of the parameters, without the parameter `leave`."""
    hints = resolve_hints(function)
    told = split_docstring(inspect.getdoc(function) or "")[1]
    properties: dict[str, JSON] = {}
    required: list[JSON] = []
    shared: dict[str, JSON] = {}
    for one in get_parameters(function):
        if one.name == leave:
            continue
        part = dict(_part(function, one.name, hints.get(one.name, Any)))
        _share(function, shared, part.pop("$defs", {}))
        words = _annotated(hints.get(one.name)) or told.get(one.name)
        if words and "description" not in part:
            part["description"] = words
        if one.default is inspect.Parameter.empty:
            required.append(one.name)
        else:
            _default(part, one.default, hints.get(one.name))
        properties[one.name] = part
    found: dict[str, JSON] = {"type": "object", "properties": properties, "required": required}
    found["additionalProperties"] = False
    return {**found, "$defs": shared} if shared else found


def split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring without its parameter descriptions, and those descriptions by name."""
    rest: list[str] = []
    told: dict[str, list[str]] = {}
    lines = doc.expandtabs().splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        if sphinx := _sphinx(line.strip()):
            index = _more(lines, index + 1, _indent(line), told.setdefault(sphinx[0], [sphinx[1]]))
        elif line.strip().lower() in _BEGINS:
            index = _section(lines, index + 1, _indent(line), _GOOGLE, told)
        elif line.strip().lower() in ("parameters", "args") and _underlined(lines, index + 1):
            index = _section(lines, index + 2, _indent(line) - 1, _NUMPY, told)
        else:
            rest.append(line)
            index += 1
    kept = re.sub(r"\n{3,}", "\n\n", "\n".join(rest)).strip()
    return kept, {name: " ".join(" ".join(words).split()) for name, words in told.items()}


def _sphinx(line: str) -> tuple[str, str] | None:
    """The parameter of a line (the last word before its colon), and its description."""
    found = _SPHINX.match(line)
    words = found[1].split() if found else ()
    name = _LAST.match(words[-1]) if words else None
    return (name[1], found[2]) if found and name else None


def _section(
    lines: list[str], index: int, outside: int, form: re.Pattern[str], told: dict[str, list[str]]
) -> int:
    """Read the entries of a section up to a line outside it; returns the index of that line."""
    inner: int | None = None
    while index < len(lines):
        line = lines[index]
        if not line.strip():
            index += 1
            continue
        if _indent(line) <= outside or _underlined(lines, index + 1):
            break
        inner = _indent(line) if inner is None else inner
        entry = form.match(line.strip()) if _indent(line) == inner else None
        if entry is None:
            break
        words = told.setdefault(entry[1], [entry[2]] if form.groups > 1 else [])
        index = _more(lines, index + 1, inner, words)
    return index


def _more(lines: list[str], index: int, outside: int, words: list[str]) -> int:
    while index < len(lines) and lines[index].strip() and _indent(lines[index]) > outside:
        words.append(lines[index])
        index += 1
    return index


def _underlined(lines: list[str], index: int) -> bool:
    return (
        index < len(lines) and len(lines[index].strip()) > 2 and not lines[index].strip().strip("-")
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _part(function: Callable[..., Any], name: str, hint: Any) -> dict[str, JSON]:
    if hint is Any or hint is object:
        return {}
    try:
        return schema_of(hint)
    except EverholdError as error:
        raise BadArguments("tool", f"{function.__qualname__}({name}): {error}") from None


def _share(function: Callable[..., Any], shared: dict[str, JSON], more: dict[str, JSON]) -> None:
    for name, part in more.items():
        if shared.setdefault(name, part) != part:
            raise BadArguments(
                "tool", f"{function.__qualname__} has two types with the name {name}"
            )


def _annotated(hint: Any) -> str | None:
    if typing.get_origin(hint) is not Annotated:
        return None
    for extra in hint.__metadata__:
        words = extra if isinstance(extra, str) else getattr(extra, "description", None)
        if isinstance(words, str):
            return words
    return None


def _default(part: dict[str, JSON], default: Any, hint: Any) -> None:
    try:
        part["default"] = encode_value_as(default, hint, "the default")
    except (BadValue, EverholdError):
        part.pop("default", None)  # the default cannot be JSON; the function still uses it
