"""Graders: each gives the output of a program a score from 0 to 1.

Exact, Contains, StartsWith, Regex     compare text with what the case expects
JsonValid, JsonSchema                  check that the output is JSON, and of which form
Number                                 compares a number, within a tolerance
NotEmpty                               wants any text
Judge                                  asks a model; the question is one of the eval's session
Custom                                 calls a Python function

Rules
  1. In a file, a grader is its name (`"exact"`) or a table: `{type = "exact", ignore_case = true}`.
  2. The text graders accept one text or a list of them: one match is enough.
  3. `grade` of the built-in checks has no I/O, no clock and no dice, because it runs in a program.
     `Judge` and `Custom` are asked by the eval (`evaluation.py`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, ClassVar, Final

import msgspec

from everhold.core.codec import JSON, dumps, loads
from everhold.core.jsonschema import check_schema, validate_value
from everhold.errors import AnswerRefused, BadGrader, BadSchema, BadValue, UnknownGrader
from everhold.ports.program import make_program_reference

#: Characters of an output or an expected value that a reason quotes.
QUOTED_CHARS: Final = 80
_NUMBER: Final = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class Output(msgspec.Struct, frozen=True):
    """What a program returned for one case: the text that graders read, and the whole value."""

    text: str
    value: JSON = None


class Grade(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict of one grader on one output. With an `error`, the grader could not decide."""

    grader: str
    score: float
    weight: float = 1.0
    reason: str = ""
    error: str = ""


class Grader(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
):
    """What all graders have: the weight of their score in that of the case."""

    #: Names under which files and other tools know the same check.
    aliases: ClassVar[tuple[str, ...]] = ()

    weight: float = 1.0

    def __post_init__(self) -> None:
        weight: Any = self.weight
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not isfinite(weight) or weight <= 0:
            raise BadGrader(self.name, f"weight must be a number above 0, not {weight!r}")
        self.check()

    @property
    def name(self) -> str:
        """Its name in files and reports."""
        return str(self.__struct_config__.tag)

    def check(self) -> None:
        """Raises `BadGrader` if its settings cannot work."""

    def find_misfit(self, expected: JSON) -> str:
        """Why this grader cannot decide about a case that expects this; empty if it can."""
        return ""

    def grade(self, output: Output, expected: JSON) -> Grade:
        """The verdict on an output. Only built-in checks have one; others are asked."""
        reason = self.find_fault(output, expected)
        return Grade(self.name, 0.0 if reason else 1.0, self.weight, reason)

    def find_fault(self, output: Output, expected: JSON) -> str:
        """Why the output does not pass; empty if it does. `find_misfit` found nothing before."""
        raise NotImplementedError


# ---- text


class _TextGrader(Grader, frozen=True, kw_only=True):
    """Compares text with the expected texts."""

    ignore_case: bool = False

    def _normalize(self, text: str) -> str:
        return text.strip().casefold() if self.ignore_case else text.strip()

    def _wanted(self, expected: JSON) -> list[str]:
        texts = expected if isinstance(expected, list) else [expected]
        return [self._normalize(one if isinstance(one, str) else dumps(one)) for one in texts]

    def find_misfit(self, expected: JSON) -> str:
        return "" if expected not in (None, []) else "the case says nothing about what is expected"

    def find_fault(self, output: Output, expected: JSON) -> str:
        text = self._normalize(output.text)
        if any(self._fits(text, wanted) for wanted in self._wanted(expected)):
            return ""
        return f"expected {self._relation}{quote_value(expected)}, got {quote_value(output.text)}"

    _relation: ClassVar[str] = ""

    def _fits(self, text: str, wanted: str) -> bool:
        raise NotImplementedError


class Exact(_TextGrader, frozen=True, kw_only=True, tag="exact"):
    """The output is the expected text, apart from space around it."""

    aliases = ("exact_match",)

    def _fits(self, text: str, wanted: str) -> bool:
        return text == wanted


class Contains(_TextGrader, frozen=True, kw_only=True, tag="contains"):
    """The output contains the expected text."""

    _relation = "a text with "

    def _fits(self, text: str, wanted: str) -> bool:
        return wanted in text


class StartsWith(_TextGrader, frozen=True, kw_only=True, tag="starts_with"):
    """The output begins with the expected text."""

    _relation = "a text that begins with "

    def _fits(self, text: str, wanted: str) -> bool:
        return text.startswith(wanted)


class Regex(Grader, frozen=True, tag="regex"):
    """A regular expression is found in the output: `pattern`, or what the case expects."""

    pattern: str | None = None
    ignore_case: bool = False

    def check(self) -> None:
        if self.pattern is not None:
            self._compile(None)

    def find_misfit(self, expected: JSON) -> str:
        try:
            self._compile(expected)
        except BadGrader as error:
            return error.reason
        return ""

    def find_fault(self, output: Output, expected: JSON) -> str:
        patterns = self._compile(expected)
        if any(pattern.search(output.text) for pattern in patterns):
            return ""
        shown = " or ".join(repr(pattern.pattern) for pattern in patterns)
        return f"nothing in {quote_value(output.text)} matches {shown}"

    def _compile(self, expected: JSON) -> list[re.Pattern[str]]:
        given: Any = expected if self.pattern is None else self.pattern
        flags = re.IGNORECASE if self.ignore_case else 0
        patterns = []
        for pattern in given if isinstance(given, list) and given else [given]:
            if not isinstance(pattern, str):
                raise BadGrader(self.name, f"{quote_value(pattern)} is not a pattern")
            try:
                patterns.append(re.compile(pattern, flags))
            except re.error as error:
                raise BadGrader(
                    self.name, f"{pattern!r} is not a regular expression: {error}"
                ) from None
        return patterns


class NotEmpty(Grader, frozen=True, kw_only=True, tag="not_empty"):
    """The output is not empty."""

    def find_fault(self, output: Output, expected: JSON) -> str:
        return "" if output.text.strip() else "the output is empty"


# ---- JSON and numbers


class JsonValid(Grader, frozen=True, kw_only=True, tag="json_valid"):
    """The output is JSON."""

    def find_fault(self, output: Output, expected: JSON) -> str:
        return _read_json(output)[1]


class JsonSchema(Grader, frozen=True, tag="json_schema"):
    """The output is JSON that a JSON Schema accepts: `schema`, or what the case expects."""

    schema: dict[str, Any] | None = None

    def check(self) -> None:
        if self.schema is not None:
            _check_schema(self.schema)

    def find_misfit(self, expected: JSON) -> str:
        try:
            _check_schema(expected if self.schema is None else self.schema)
        except BadGrader as error:
            return error.reason
        return ""

    def find_fault(self, output: Output, expected: JSON) -> str:
        schema: Any = expected if self.schema is None else self.schema
        value, fault = _read_json(output)
        if fault:
            return fault
        try:
            validate_value(value, schema, "output")
        except AnswerRefused as refused:
            return f"{refused.path} should be {refused.expected}, got {refused.got}"
        return ""


class Number(Grader, frozen=True, tag="number"):
    """The output is the expected number, within a tolerance.

    `tolerance` is absolute, and `relative` a part of the expected number; the larger one holds. In
    a text with several numbers, the last one counts.
    """

    tolerance: float = 0.0
    relative: float = 0.0

    def check(self) -> None:
        for name in ("tolerance", "relative"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise BadGrader(self.name, f"{name} must be a number of 0 or more, not {value!r}")

    def find_misfit(self, expected: JSON) -> str:
        if find_number(expected) is not None:
            return ""
        return f"the case expects {quote_value(expected)}, which is not a number"

    def find_fault(self, output: Output, expected: JSON) -> str:
        wanted = find_number(expected) or 0.0
        found = find_number(output.value if _is_number(output.value) else output.text)
        if found is None:
            return f"there is no number in {quote_value(output.text)}"
        # a part in 10^12 more, so that 0.1 + 0.2 is 0.3
        room = max(self.tolerance, self.relative * abs(wanted), abs(wanted) * 1e-12)
        if abs(found - wanted) <= room:
            return ""
        more = f" (within {max(self.tolerance, self.relative * abs(wanted)):g})"
        exact = not (self.tolerance or self.relative)
        return f"expected {wanted:g}{'' if exact else more}, got {found:g}"


# ---- graders that are asked


class Judge(Grader, frozen=True, tag="judge"):
    """A model decides whether the output meets a criterion.

    With a `scale`, it gives points from 0 to that number, else it says pass or fail. The question
    is answered like every other one; `model` names who answers it.
    """

    criterion: str
    scale: int = 0
    model: str = ""
    max_tokens: int = 1024

    def check(self) -> None:
        if not isinstance(self.criterion, str) or not self.criterion.strip():
            raise BadGrader(self.name, "criterion is empty; say what a good output is")
        if type(self.scale) is not int or self.scale < 0 or self.scale == 1:
            raise BadGrader(self.name, f"scale must be 0, or 2 and more, not {self.scale!r}")


class Custom(Grader, frozen=True, tag="custom"):
    """A Python function decides.

    It takes the output as text and the case (a dict with `id`, `input`, `expected`, `tags`,
    `value`). It returns a score from 0 to 1, a bool, or a pair of score and reason. `function` is
    the function, or its reference: "checks.py:polite".
    """

    function: str

    def __post_init__(self) -> None:
        given: Any = self.function
        if callable(given):
            msgspec.structs.force_setattr(self, "function", _make_reference(given))
        super().__post_init__()

    def check(self) -> None:
        place, colon, function = str(self.function).rpartition(":")
        if not colon or not place or not function:
            reason = f"{self.function!r} is not a function; write FILE.py:FUNCTION"
            raise BadGrader(self.name, reason)

    @property
    def name(self) -> str:
        return self.function.rpartition(":")[2]


#: Functions that this process has passed to `Custom`, by reference.
FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {}


def _make_reference(function: Callable[..., Any]) -> str:
    """The reference of a function, by which every process can load it."""
    named = getattr(function, "__qualname__", "")
    if not inspect.isfunction(function) or "<" in named:
        shown = named or repr(function)
        raise BadGrader(
            "custom",
            f"{shown} cannot be loaded by another process",
            "Write a function at the top level of a module.",
        )
    ref = make_program_reference(function)
    FUNCTIONS[ref] = function
    return ref


# ---- reading graders

GRADERS: Final[dict[str, type[Grader]]] = {
    kind.__struct_config__.tag: kind  # type: ignore[misc]  # all tags here are text
    for kind in (
        Exact,
        Contains,
        StartsWith,
        Regex,
        JsonValid,
        JsonSchema,
        Number,
        NotEmpty,
        Judge,
        Custom,
    )
}
_ALIASES: Final = {alias: name for name, kind in GRADERS.items() for alias in kind.aliases}


def read_grader(given: object) -> Grader:
    """A grader from its name, a table or a `Grader`; raises `UnknownGrader` or `BadGrader`."""
    if isinstance(given, Grader):
        return given
    if isinstance(given, str):
        given = {"type": given}
    if not isinstance(given, Mapping):
        raise BadGrader(quote_value(given), "write the name of a grader, or a table with a `type`")
    table = dict(given)
    name = table.pop("type", None)
    if not isinstance(name, str):
        raise BadGrader(quote_value(given), "it has no `type`, the name of a grader")
    kind = GRADERS.get(_ALIASES.get(name, name))
    if kind is None:
        raise UnknownGrader(name, find_near(name, GRADERS), sorted(GRADERS))
    if kind is Custom and callable(table.get("function")):
        return Custom(**table)
    try:
        return msgspec.convert({"type": kind.__struct_config__.tag, **table}, kind)
    except msgspec.ValidationError as error:
        raise BadGrader(name, str(error)) from None


# ---- values and words


def find_near(name: str, known: Iterable[str]) -> str:
    """The known name that is most like this one; empty if none is."""
    from difflib import get_close_matches  # imported here: most processes never need it

    return next(iter(get_close_matches(name, list(known), 1)), "")


def find_number(value: JSON) -> float | None:
    """A number, or the last number in a text; None if there is none."""
    if _is_number(value):
        return float(value)
    if not isinstance(value, str):
        return None
    found = _NUMBER.findall(value)
    return float(found[-1].rstrip(",").replace(",", "")) if found else None


def quote_value(value: JSON) -> str:
    """A value on one line, cut."""
    shown = repr(value) if isinstance(value, str) else _show(value)
    return shown if len(shown) <= QUOTED_CHARS else f"{shown[: QUOTED_CHARS - 1]}…"


def _show(value: object) -> str:
    try:
        return dumps(value)
    except TypeError:
        return repr(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_json(output: Output) -> tuple[JSON, str]:
    """The output as JSON, and why it is not."""
    if not isinstance(output.value, str) and output.value is not None:
        return output.value, ""
    try:
        return loads(output.text), ""
    except BadValue as error:
        return None, f"{quote_value(output.text)} is {error.reason}"


def _check_schema(schema: object) -> None:
    if not isinstance(schema, dict):
        raise BadGrader("json_schema", f"{quote_value(schema)} is not a JSON Schema")
    try:
        check_schema(schema)
    except BadSchema as error:
        raise BadGrader("json_schema", str(error)) from None
