"""What of lash, fluers and algocline is covered: the tables of docs/reference/coverage.md.

`tests/data/coverage.toml` has one row for each public function, type, error and constant of the
files that were read, in their order:

    [[row]]
    system = "lash"             # or "fluers", "algocline"
    file = "session_api.rs"
    item = "usage_report"
    kind = "function"           # see KINDS
    everhold = ["AgentSession.usage"]
    shown_by = ["scenario/test_outside_state.py::test_usage"]   # under tests/
    note = "…"                  # optional: how it differs
    reason = "…"                # in place of `shown_by`: why there is nothing to show

Rules, which `find_faults` checks (run by `make check`)
  1. A row has tests or a reason, never both. With a reason it may do without an everhold name.
  2. A test exists and is not skipped. `make test` runs it.
  3. A test goes through the public API: neither its module nor a helper that the module imports
     uses a module of everhold that is not in `PUBLIC`, a name that is not exported there, or an
     attribute with a leading underscore of anything but `self`.
  4. An everhold name exists: `Class.attribute`, `Class.method(parameter=)`, a function, a command.
     Only a reason that begins with "not yet" excuses one that does not.
  5. No item is there twice.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from tools.api import PUBLIC

ROOT = Path(__file__).resolve().parent.parent
DATA = Path("tests/data/coverage.toml")
#: What looks like a module in a text and is none: files.
FILES: Final = ("everhold.db", "everhold.toml")
KINDS: Final = ("function", "type", "field", "constant", "error", "hook", "newer")
#: Fixtures of pytest and everhold; others must be defined beside the test.
FIXTURES: Final = (
    "capfd",
    "caplog",
    "capsys",
    "everhold",
    "monkeypatch",
    "pytestconfig",
    "recwarn",
    "request",
    "tmp_path",
    "tmp_path_factory",
)
#: Marks of tests that `make test` does not run, or not everywhere.
NOT_RUN: Final = ("skip", "skipif", "xfail", "soak", "full")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One item of a system, and what everhold has for it."""

    system: str
    file: str
    item: str
    kind: str
    everhold: list[str] = []
    shown_by: list[str] = []
    note: str = ""
    reason: str = ""

    @property
    def label(self) -> str:
        return f"{self.system} {self.file} {self.item}"


def parse_rows(text: str) -> list[Row]:
    return msgspec.convert(tomllib.loads(text)["row"], list[Row])


@cache
def load_rows(root: Path = ROOT) -> list[Row]:
    return parse_rows((root / DATA).read_text(encoding="utf-8"))


# ---- the check


def find_faults(rows: list[Row], root: Path = ROOT) -> list[str]:
    """What is wrong with the rows, in words."""
    found, seen = [], set[tuple[str, str, str]]()
    for row in rows:
        faults = [*_find_row_faults(row), *_find_name_faults(row)]
        if (row.system, row.file, row.item) in seen:
            faults.append("is there twice")
        seen.add((row.system, row.file, row.item))
        for test in row.shown_by:
            faults += [f"{test} {fault}" for fault in find_test_faults(test, root)]
        found += [f"{row.label}: {fault}" for fault in faults]
    return found


def _find_row_faults(row: Row) -> Iterator[str]:
    if row.kind not in KINDS:
        yield f"{row.kind!r} is not one of {', '.join(KINDS)}"
    if row.shown_by and row.reason.strip():
        yield "has tests and a reason why there are none"
    if not row.shown_by and not row.reason.strip():
        yield "has neither a test nor a reason"
    if row.shown_by and not row.everhold:
        yield "has tests, but no everhold name"
    if len(set(row.shown_by)) < len(row.shown_by):
        yield "names a test twice"


def _find_name_faults(row: Row) -> Iterator[str]:
    if not row.reason.startswith("not yet"):
        yield from (f"there is no {name}" for name in row.everhold if not is_name(name))


@cache
def find_test_faults(test: str, root: Path = ROOT) -> list[str]:
    """Why a test cannot show a row."""
    file, _, name = test.partition("::")
    path = root / "tests" / file
    if not path.is_file():
        return ["does not exist"]
    module = _parse(path)
    function = _find_test(module, name)
    if function is None:
        return ["does not exist"]
    faults = [f"is marked {mark}" for mark in _find_marks(module, function)]
    faults += [f"uses {used}" for used in find_private_uses(path, root)]
    return faults + [f"uses {used}" for used in _find_fixtures(path, module, function, root)]


#: Functions that take the name of an attribute.
_BY_NAME: Final = ("getattr", "setattr", "delattr", "hasattr")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _find_test(module: ast.Module, name: str) -> _Function | ast.ClassDef | None:
    """A test function, or a test class: all tests of it, also those that it inherits."""
    kinds = _Function if name.startswith("test_") else ast.ClassDef
    found = [node for node in module.body if isinstance(node, kinds) and node.name == name]
    return found[0] if len(found) == 1 and name.lower().startswith("test") else None


def _find_marks(module: ast.Module, function: _Function | ast.ClassDef) -> Iterator[str]:
    """Marks and calls by which a test does not run."""
    marks = [ast.unparse(decorator) for decorator in function.decorator_list]
    marks += [
        ast.unparse(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and "pytestmark" in map(ast.unparse, node.targets)
    ]
    words = set(re.findall(r"\w+", " ".join(re.findall(r"\bmark\.\w+", " ".join(marks)))))
    yield from (mark for mark in NOT_RUN if mark in words)
    for node in [*ast.walk(function), *_walk_top(module)]:
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("pytest.skip", "pytest.xfail", "pytest.importorskip"):
                yield called


def _walk_top(module: ast.Module) -> Iterator[ast.AST]:
    """Nodes that run when a module is imported."""
    for statement in module.body:
        if not isinstance(statement, _Function | ast.ClassDef):
            yield from ast.walk(statement)


def _find_fixtures(
    path: Path, module: ast.Module, function: _Function | ast.ClassDef, root: Path
) -> Iterator[str]:
    """Fixtures that are not known, or whose conftest uses what is private."""
    beside = {node.name for node in module.body if isinstance(node, _Function)}
    given = {
        name
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.parametrize"
        for name in re.findall(r"[a-z_]\w*", ast.unparse(node.args[0]))
    }
    for argument in function.args.args if isinstance(function, _Function) else ():
        if argument.arg not in {*FIXTURES, *beside, *given}:
            yield f"the fixture {argument.arg!r}, which is not defined in its module"


@cache
def find_private_uses(path: Path, root: Path = ROOT) -> list[str]:
    """What a module and the helpers that it imports use of everhold that is not public."""
    found = list(dict.fromkeys(_find_uses(_parse(path), path, root)))
    return found


def _find_uses(module: ast.Module, path: Path, root: Path) -> Iterator[str]:
    for node in ast.walk(module):
        match node:
            case ast.Import():
                for one in node.names:
                    yield from _check_import(one.name, None, root)
            case ast.ImportFrom():
                home = _resolve(node, path, root)
                for one in node.names:
                    yield from _check_import(home, one.name, root)
            case ast.Attribute() if node.attr.startswith("_") and not node.attr.startswith("__"):
                if not _is_named(node.value, "self", "cls"):
                    yield f"the private attribute {node.attr}"
            case ast.Call() if ast.unparse(node.func).rpartition(".")[2] in _BY_NAME:
                for given in node.args:
                    name = given.value if isinstance(given, ast.Constant) else None
                    if isinstance(name, str) and name.startswith("_"):
                        yield f"the private attribute {name}"
            case ast.Constant(value=str(text)):
                yield from _check_text(text)
            case _:
                pass
    yield from _check_chains(module)


def _resolve(node: ast.ImportFrom, path: Path, root: Path) -> str:
    if not node.level:
        return node.module or ""
    parts = path.relative_to(root).parts[: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _check_import(home: str, name: str | None, root: Path) -> Iterator[str]:
    if is_ours(home):
        if not is_public(home, name):
            yield f"everhold's own {home}{'' if name is None else f'.{name}'}"
    elif home.partition(".")[0] in ("tests", "tools"):
        for helper in (f"{home}.{name}", home):
            file = root.joinpath(*helper.split(".")).with_suffix(".py")
            if file.is_file():
                yield from (f"{use} (in {helper})" for use in find_private_uses(file, root))
                return


def _check_text(text: str) -> Iterator[str]:
    """Modules that are imported or patched by name, also by code in a text."""
    for home in re.findall(r"(?m)^\s*(?:from|import) (everhold[\w.]*)", text):
        if home not in PUBLIC:
            yield f"everhold's own {home}"
    if re.fullmatch(r"everhold(?:\.\w+)+", text) and text not in (*FILES, *PUBLIC):
        home, _, name = text.rpartition(".")
        if not is_public(home, name):
            yield f"everhold's own {text}"


def _check_chains(node: ast.AST) -> Iterator[str]:
    """`everhold.core.graph` by attributes, except where `everhold` is an argument: the fixture."""
    if isinstance(node, _Function) and "everhold" in {one.arg for one in node.args.args}:
        return
    if isinstance(node, ast.Attribute) and _is_named(node.value, "everhold"):
        chain = f"everhold.{node.attr}"
        if chain not in PUBLIC and not _exports("everhold", node.attr):
            yield f"everhold's own {chain}"
    for below in ast.iter_child_nodes(node):
        yield from _check_chains(below)


def _is_named(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def is_ours(path: str) -> bool:
    return path.partition(".")[0] == "everhold"


def is_public(path: str, name: str | None) -> bool:
    if name is None:
        return path in PUBLIC
    return f"{path}.{name}" in PUBLIC or (path in PUBLIC and _exports(path, name))


def _exports(path: str, name: str) -> bool:
    return name in import_module(path).__all__


# ---- names


@cache
def is_name(name: str) -> bool:
    """Whether everhold has this: `Class.attribute`, `function(parameter=)`, `everhold verb`."""
    if name.startswith("everhold "):
        return _is_command(name)
    bare, _, parameters = name.partition("(")
    first, *rest = bare.split(".")
    found = _find_export(first)
    if found is None:
        return False
    for attribute in rest:
        if not hasattr(found, attribute):
            return len(rest) == 1 and not parameters and _sets(found, attribute)
        found = getattr(found, attribute)
    wanted = re.findall(r"(\w+)=", parameters)
    return not wanted or set(wanted) <= set(inspect.signature(found).parameters)


def _find_export(name: str) -> Any:
    for path in PUBLIC:
        if _exports(path, name):
            return getattr(import_module(path), name)
    return None


def _sets(owner: Any, attribute: str) -> bool:
    """Whether a class gives its objects an attribute, or its part has it."""
    sets = re.compile(rf"\bself\.{attribute}\b(?:: [^=\n]+)? = ")
    ours = [base for base in owner.__mro__ if is_ours(base.__module__)]
    return any(sets.search(inspect.getsource(base)) for base in ours)


def _is_command(name: str) -> bool:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    words, *options = re.split(r" (?=-)", name)
    section = re.search(rf"(?ms)^#+ {words}$(.*?)(?=^#|\Z)", page)
    return section is not None and all(option in section[1] for option in options)


# ---- the tables


def table(system: str, file: str, rows: list[Row] | None = None) -> str:
    """The table of one file."""
    lines = [f"| in {file} | | everhold | shown by |", "|---|---|---|---|"]
    for row in load_rows() if rows is None else rows:
        if (row.system, row.file) == (system, file):
            shown = "<br>".join(f"`{test}`" for test in row.shown_by) or row.reason
            names = "<br>".join(f"`{name}`" for name in row.everhold)
            words = "<br>".join(filter(None, (names, row.note))) or "none"
            lines.append(f"| <code>{row.item}</code> | {row.kind} | {words} | {shown} |")
    return "\n".join(lines)


def count() -> str:
    """How many rows are shown by a test, and how many have a reason instead."""
    rows = load_rows()
    shown = sum(bool(row.shown_by) for row in rows)
    later = sum(row.reason.startswith("not yet") for row in rows)
    words = f", {later} are not yet there" if later else ""
    other = len(rows) - shown - later
    return (
        f"{len(rows)} rows: {shown} are shown by a test{words}, and {other} have a reason instead."
    )


def tests(rows: list[Row] | None = None) -> Mapping[str, None]:
    """The tests that the table names, as pytest names them, each once and in order."""
    listed = load_rows() if rows is None else rows
    return dict.fromkeys(f"tests/{test}" for row in listed for test in row.shown_by)


def main() -> int:
    faults = find_faults(load_rows())
    for fault in faults:
        print(fault)
    print(f"coverage: {len(faults)} faults" if faults else f"coverage: {count()}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
