"""Scenarios: named lists of cases with the graders that score them, from Python, TOML or JSON.

    name = "capitals"
    graders = ["contains"]

    [[cases]]
    id = "france"
    input = "What is the capital of France?"
    expected = "Paris"

Rules
  1. A scenario is checked when it is made: an eval never begins with one that cannot work.
  2. Cases have unique ids. A case without one gets its position: `case-1`, `case-2` …
  3. A case passes if its score, the weighted mean of its grades, reaches `pass_score`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, dumps, loads, to_plain
from everhold.errors import BadGrader, BadScenario, BadValue, EverholdError, UnknownGrader
from everhold.evals.graders import Exact, Grader, find_near, read_grader
from everhold.evals.report import INLINE
from everhold.packages.find import is_path_ref
from everhold.packages.load import load_file, load_module
from everhold.packages.lua.scenario_files import SUFFIX, list_scenarios

#: The longest name of a scenario. Sessions have it in their titles.
MAX_NAME_CHARS: Final = 500
_FILE_KINDS: Final = (".toml", ".json", ".py")


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """One case: an input, what is expected of the output, and tags to group by.

    `expected` is one value or a list of which any is right, as its graders read it. With `graders`,
    the case has its own in place of those of the scenario.
    """

    input: JSON
    expected: JSON = None
    id: str = ""
    tags: Sequence[str] = ()
    graders: Sequence[Any] = ()


class Scenario(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named list of cases, and the graders of those that have none of their own.

    Cases may be `Case`s, dicts, or pairs of input and expected output. Raises `BadScenario`,
    `BadGrader` or `UnknownGrader`.
    """

    name: str
    cases: Sequence[Any]
    graders: Sequence[Any] = (Exact(),)
    pass_score: float = 1.0
    description: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise BadScenario(str(self.name)[:20], "its name is not a text")
        if not self.name.strip():
            raise BadScenario(self.name, "its name is empty")
        if len(self.name) > MAX_NAME_CHARS:
            reason = (
                f"its name has {len(self.name)} characters; at most {MAX_NAME_CHARS} are allowed"
            )
            raise BadScenario(f"{self.name[:20]}…", reason)
        graders = _read_graders(self.graders, self.name, "")
        if not graders:
            raise BadScenario(self.name, "it has no graders")
        score: Any = self.pass_score
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 < score <= 1:
            raise BadScenario(self.name, f"pass_score must be above 0 and at most 1, not {score!r}")
        if isinstance(self.cases, str | Mapping) or not isinstance(self.cases, Sequence):
            raise BadScenario(self.name, "its cases are not a list")
        if not self.cases:
            raise BadScenario(self.name, "it has no cases", "Add at least one case with an input.")
        cases = tuple(self._read_case(n, one) for n, one in enumerate(self.cases, 1))
        ids = [case.id for case in cases]
        if doubled := sorted({id for id in ids if ids.count(id) > 1}):
            shown = ", ".join(map(repr, doubled[:5]))
            reason = f"several cases have the id {shown}"
            raise BadScenario(self.name, reason, "Give each case an id of its own.")
        msgspec.structs.force_setattr(self, "graders", graders)
        msgspec.structs.force_setattr(self, "cases", cases)
        for case in cases:
            for grader in case.graders or graders:
                if misfit := grader.find_misfit(case.expected):
                    raise BadScenario(
                        self.name, f"case {case.id!r}: grader {grader.name}: {misfit}"
                    )

    def graders_of(self, case: Case) -> Sequence[Grader]:
        """The graders that score a case."""
        return case.graders or self.graders

    def to_plain(self) -> dict[str, JSON]:
        """The scenario as JSON, from which `read_scenario` makes it again."""
        plain: dict[str, JSON] = loads(dumps(self))  # lists, where the scenario has tuples
        return plain

    def _read_case(self, n: int, given: Any) -> Case:
        where = f"case {n}"
        if isinstance(given, Case):
            case = given
        elif isinstance(given, Mapping):
            case = _convert(Case, given, self.name, where)
        elif isinstance(given, tuple | list) and len(given) == 2:
            case = Case(given[0], given[1])
        else:
            raise BadScenario(self.name, f"{where} is neither a table nor a pair")
        if case.input is None or case.input == "":
            raise BadScenario(self.name, f"{where} has no input")
        if not isinstance(case.id, str) or any(not isinstance(tag, str) for tag in case.tags):
            raise BadScenario(self.name, f"{where}: its id and its tags must be text")
        try:
            case_input = to_plain(case.input, "input")
            expected = to_plain(case.expected, "expected")
        except BadValue as error:
            raise BadScenario(self.name, f"{where}: {error}") from None
        graders = _read_graders(case.graders, self.name, where)
        return Case(case_input, expected, case.id or f"case-{n}", tuple(case.tags), graders)


def read_scenario(given: object, name: str = INLINE) -> Scenario:
    """A scenario from a `Scenario`, or from plain data such as that of a file.

    `name` is that of data without one. Raises `BadScenario`, `BadGrader` or `UnknownGrader`.
    """
    if isinstance(given, Scenario):
        return given
    if not isinstance(given, Mapping):
        raise BadScenario(name, f"it is a {type(given).__name__}, not a table with cases")
    data = {"name": name, **given}
    if isinstance(data["name"], str) and data["name"]:
        name = data["name"]
    if "cases" not in data:
        raise BadScenario(name, "it has no cases", "Add a list `cases`, each with an input.")
    unknown = sorted(set(data) - set(Scenario.__struct_fields__))
    if unknown:
        raise _unknown_field(name, "it", unknown[0], Scenario)
    return Scenario(**data)


def load_scenario(source: str | PathLike[str]) -> Scenario:
    """Load a scenario from a .toml or .json file, or from Python ("checks.py:capitals").

    A Python file without a name must hold exactly one scenario.
    """
    text = str(source)
    place, colon, variable = text.rpartition(":")
    if colon and place.endswith(".py"):
        return _load_from_python(text, place, variable)
    path = Path(text).expanduser()
    if path.suffix == ".py":
        return _load_from_python(text, text, "")
    if path.suffix in (".toml", ".json"):
        return read_scenario(_read_file(path), path.stem)
    if colon and place and not is_path_ref(place) and not path.exists():
        return _load_from_python(text, place, variable)
    reason = "there is no such file" if not path.exists() else "it is not a scenario file"
    near = find_near(path.name, [one.name for one in _neighbours(path)])
    hint = f"Did you mean {str(path.parent / near)!r}?" if near else ""
    raise BadScenario(text, reason, hint or _describe_kinds(text))


def _describe_kinds(text: str) -> str:
    in_lua = [one["name"] for one in list_scenarios()["scenarios"]]
    if near := find_near(text, in_lua):
        return f"Did you mean {near!r}?"
    kinds = f"A scenario is a file: {', '.join((*_FILE_KINDS, SUFFIX))}"
    return f"{kinds}; or the name of an installed one: {', '.join(in_lua)}" if in_lua else kinds


def _read_file(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = find_near(path.name, [one.name for one in _neighbours(path)])
        hint = f"Did you mean {str(path.parent / near)!r}?" if near else ""
        raise BadScenario(str(path), "there is no such file", hint) from None
    except OSError as error:
        raise BadScenario(str(path), f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadScenario(str(path), "it is not UTF-8 text") from None
    try:
        return _parse_toml(path, text) if path.suffix == ".toml" else loads(text)
    except BadValue as error:
        raise BadScenario(str(path), f"it is {error.reason}") from None


def _parse_toml(path: Path, text: str) -> Any:
    import tomllib  # imported here: most processes never need it

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadScenario(str(path), f"it is not TOML: {error}") from None


def _neighbours(path: Path) -> list[Path]:
    try:
        return [one for one in path.parent.iterdir() if one.suffix in _FILE_KINDS]
    except OSError:
        return []


def _load_from_python(ref: str, place: str, variable: str) -> Scenario:
    try:
        if place.endswith(".py"):
            module = load_file(Path(place).expanduser().resolve(), ref)
        else:
            module = load_module(place, ref)
    except EverholdError as error:
        raise BadScenario(ref, str(getattr(error, "reason", error)), error.hint) from error
    held = {name: one for name, one in vars(module).items() if isinstance(one, Scenario)}
    if not variable:
        if len(held) == 1:
            return next(iter(held.values()))
        shown = f"Name one: {place}:{next(iter(held))}" if held else ""
        raise BadScenario(ref, f"it holds {len(held)} scenarios", shown)
    found = getattr(module, variable, None)
    if isinstance(found, Scenario | Mapping):
        return read_scenario(found, variable)
    near = find_near(variable, held)
    hint = f"Did you mean {near!r}?" if near else f"It has: {', '.join(held)}" if held else ""
    raise BadScenario(ref, f"{place} has no scenario {variable!r}", hint)


def _read_graders(given: Any, name: str, where: str) -> tuple[Grader, ...]:
    """The graders of a case, or of the scenario if `where` is empty."""
    if isinstance(given, str | Mapping | Grader):
        given = [given]
    if not isinstance(given, Sequence):
        raise BadScenario(name, f"{where}{': ' if where else ''}its graders are not a list")
    place = f"scenario {name!r}{', ' if where else ''}{where}: "
    try:
        return tuple(read_grader(one) for one in given)
    except UnknownGrader as error:
        raise UnknownGrader(error.name, error.near, error.known, place=place) from None
    except BadGrader as error:
        raise BadGrader(error.name, error.reason, error.hint, place=place) from None


def _convert(kind: type[Case], given: Mapping[str, Any], name: str, where: str) -> Case:
    """A case from a table. `name` is another word for `id`, as algocline writes it."""
    data = dict(given)
    if "name" in data and "id" not in data:
        data["id"] = data.pop("name")
    unknown = sorted(set(data) - set(kind.__struct_fields__))
    if unknown:
        raise _unknown_field(name, where, unknown[0], kind)
    if "input" not in data:
        raise BadScenario(name, f"{where} has no input")
    tags = data.get("tags", ())
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise BadScenario(name, f"{where}: its tags are not a list")
    return kind(**data)


def _unknown_field(name: str, where: str, field: str, kind: Any) -> BadScenario:
    near = find_near(str(field), kind.__struct_fields__)
    hint = f"Did you mean {near!r}?" if near else f"Known: {', '.join(kind.__struct_fields__)}"
    return BadScenario(name, f"{where} has an unknown field {field!r}", hint)
