"""Finds the tests that compare wall time with a limit.

A busy machine stretches every wait, so such a comparison fails without a defect. A test counts what
happened or measures CPU time instead. Three forms pass:

* a guard against a hang, which waits for at least GUARD seconds;
* a look that waits for no time at all (`timeout=0`);
* a line that says why the machine's speed cannot fail it, in a comment there or above: `# clock:
  …`.

A comment that no comparison needs is an error too. `--list` prints every line that has one.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SEARCHED: Final = ("tests", "src/everhold/testing")
#: Holds examples of what is found.
EXAMPLES: Final = ROOT / "tests" / "docs" / "test_clocks.py"
#: The shortest wait that is a guard against a hang, in seconds.
GUARD: Final = 10
CLOCKS: Final = frozenset(
    {"time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns"}
)
#: Calls that end after a number of seconds: the name, and which argument is the number if it has no
#: keyword.
WAITS: Final = {
    "timeout": 0,
    "wait_for": 1,
    "wait": 0,
    "join": 0,
    "result": 0,
    "run": None,
    "check_call": None,
    "check_output": None,
    "communicate": None,
    "get": None,
    "put": None,
    "acquire": None,
    "select": 3,
}
#: Modules whose functions of those names are meant.
MODULES: Final = frozenset({"asyncio", "subprocess", "select", "concurrent.futures"})
_REASON = re.compile(r"#\s*clock:\s*(\S.*)")
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Found(NamedTuple):
    """One comparison with the wall clock: its first and last line, what is wrong, and its reason if
    it has one.
    """

    path: str
    line: int
    end: int
    text: str
    reason: str = ""


def searched() -> list[Path]:
    files = [path for room in SEARCHED for path in sorted((ROOT / room).rglob("*.py"))]
    return [path for path in files if path != EXAMPLES]


def found(source: str, path: str = "") -> tuple[list[Found], list[str]]:
    """Every comparison in a module that is no guard against a hang; and the reasons that belong to
    none.
    """
    lines = source.splitlines()
    reasons = {
        number: match[1] for number, line in enumerate(lines, 1) if (match := _REASON.search(line))
    }
    all_of_it: list[Found] = []
    used: set[int] = set()
    for one in sorted(set(_in_module(ast.parse(source), path, 0))):
        beside = [number for number in range(one.line, one.end + 1) if number in reasons]
        above = one.line - 1
        while not beside and 0 < above <= len(lines) and lines[above - 1].strip().startswith("#"):
            beside = [above] if above in reasons else []
            above -= 1
        used |= set(beside)
        all_of_it.append(one._replace(reason=reasons[beside[0]] if beside else ""))
    stale = [
        f"{path}:{number}: no comparison needs this reason: {reasons[number]}"
        for number in sorted(reasons)
    ]
    return all_of_it, [
        line for line, number in zip(stale, sorted(reasons), strict=True) if number not in used
    ]


def _in_module(tree: ast.Module, path: str, offset: int) -> Iterator[Found]:
    module = _Module(tree)
    for node in ast.walk(tree):
        said = ""
        if isinstance(node, ast.Compare):
            said = module.compared(node)
        elif isinstance(node, ast.Call):
            said = module.waits(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _in_script(node.value, path, offset + node.lineno - 1)
        if said:
            yield Found(path, node.lineno + offset, (node.end_lineno or node.lineno) + offset, said)  # type: ignore[attr-defined]


def _in_script(text: str, path: str, offset: int) -> Iterator[Found]:
    """A text that is Python code itself, as it is for a process that a test starts."""
    if "import" not in text or "\n" not in text:
        return
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return
    yield from _in_module(tree, path, offset)


class _Module:
    """The names of one module that hold readings of the clock, or numbers."""

    def __init__(self, tree: ast.Module) -> None:
        self.imported = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        self.numbers = _constants(tree)
        for name, (module, original) in self.imported.items():
            if original.isupper() and (value := _constant(module, original)) is not None:
                self.numbers.setdefault(name, value)
        self.owner: dict[ast.AST, ast.AST] = {}
        self._own(tree, tree)
        #: By function: names that hold a reading, and what they were set to. Attributes (".name")
        #: are the module's.
        self.read: dict[ast.AST, dict[str, list[ast.expr]]] = {}
        self.module = tree
        self.returning: set[str] = set()
        before = -1
        while before != (before := sum(map(len, self.read.values())) + len(self.returning)):
            for node in ast.walk(tree):
                self._follow(node)

    def _own(self, node: ast.AST, owner: ast.AST) -> None:
        """Assign the nodes to their function; nested functions belong to the outer one."""
        for child in ast.iter_child_nodes(node):
            is_first = isinstance(child, _Function) and isinstance(owner, ast.Module)
            self.owner[child] = child if is_first else owner
            self._own(child, self.owner[child])

    def _follow(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._set(node, target, value)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
            ):
                self._set(node, target, value)
            case ast.AugAssign(target=target, value=value):
                self._set(node, target, value)
            case ast.Call(
                func=ast.Attribute(value=target, attr="append" | "add" | "extend"), args=[value]
            ):
                self._set(node, target, value)
            case ast.Return(value=ast.expr() as value) if self.is_reading(value):
                function = self.owner[node]
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    self.returning.add(function.name)

    def _set(self, node: ast.AST, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._set(node, one, its)
            return
        if not self.is_reading(value):
            return
        while isinstance(target, ast.Subscript | ast.Starred):
            target = target.value
        if isinstance(target, ast.Tuple | ast.List):
            for one in target.elts:
                self._set(node, one, value)
        elif (known := self._known(target, self.owner[node])) is not None and value not in known:
            known.append(value)

    def _known(self, target: ast.expr, owner: ast.AST) -> list[ast.expr] | None:
        match target:
            case ast.Name(name):
                return self.read.setdefault(owner, {}).setdefault(name, [])
            case ast.Attribute(attr=name):
                return self.read.setdefault(self.module, {}).setdefault(f".{name}", [])
        return None

    def is_reading(self, node: ast.AST) -> bool:
        """Whether the clock is read in an expression, or a name that holds what was read."""
        if isinstance(node, ast.Lambda):
            return False
        return self._is_reading(node) or any(map(self.is_reading, ast.iter_child_nodes(node)))

    def _is_reading(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Attribute(value=loop, attr="time")):
                return "loop" in ast.unparse(loop)
            case ast.Call(func=ast.Attribute(value=moment, attr="now" | "utcnow")):
                return ast.unparse(moment).endswith("datetime")
            case ast.Call(func=ast.Name(name)) if name in self.returning:
                return True
            case ast.Attribute(value=ast.Name("time"), attr=name) if name in CLOCKS:
                return True
            case ast.Name(name) if self.imported.get(name, ("",))[0] == "time":
                return self.imported[name][1] in CLOCKS
            case ast.Name() | ast.Attribute():
                return bool(self._values(node))
        return False

    def _values(self, node: ast.expr) -> list[ast.expr]:
        """What a name or an attribute was set to, if that is a reading."""
        match node:
            case ast.Name(name):
                return self.read.get(self.owner.get(node, node), {}).get(name, [])
            case ast.Attribute(attr=name):
                return self.read.get(self.module, {}).get(f".{name}", [])
        return []

    def compared(self, node: ast.Compare) -> str:
        """What is wrong with a comparison; nothing if it is a guard, or compares no reading."""
        ordered = ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq | ast.NotEq
        sides = [node.left, *node.comparators]
        if not any(isinstance(op, ordered) for op in node.ops) or not any(
            map(self.is_reading, sides)
        ):
            return ""
        limits = [number for side in sides for number in self._limits(side, set())]
        if any(number >= GUARD for number in limits):
            return ""
        return f"compares the wall clock: {ast.unparse(node)}"

    def _limits(self, node: ast.expr, seen: set[str]) -> Iterator[float]:
        """The numbers of seconds that an expression adds or subtracts, also where its names were
        set.
        """
        if (number := self.number(node)) is not None:
            yield number
        elif isinstance(node, ast.BinOp):
            yield from self._limits(node.left, seen)
            yield from self._limits(node.right, seen)
        elif isinstance(node, ast.Tuple):
            for one in node.elts:
                yield from self._limits(one, seen)
        elif (name := ast.unparse(node)) not in seen:
            for value in self._values(node):
                yield from self._limits(value, seen | {name})

    def waits(self, node: ast.Call) -> str:
        """What is wrong with a call that waits; nothing if it waits long enough, or for ever."""
        match node.func:
            case ast.Attribute(value=base, attr=name) if name in WAITS:
                is_module = ast.unparse(base) in MODULES
            case ast.Name(name) if name in WAITS and self.imported.get(name, ("",))[0] in MODULES:
                is_module = True
            case _:
                return ""
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        place = WAITS[name]
        if (
            name in ("timeout", "wait_for", "select", "run", "check_call", "check_output")
            and not is_module
        ):
            return ""
        if name == "wait" and is_module:
            place = None  # asyncio.wait(tasks, timeout=…)
        limit = keywords.get("timeout")
        if limit is None and place is not None and len(node.args) > place:
            limit = node.args[place]
            if name in ("join", "wait", "result") and self.number(limit) is None:
                return ""  # a text is joined, or something else is waited for
        if limit is None or (isinstance(limit, ast.Constant) and limit.value is None):
            return ""
        number = self.number(limit)
        if number is None:
            return f"waits for a time that cannot be read here: {ast.unparse(node)}"
        return (
            "" if number == 0 or number >= GUARD else f"waits for {number:g} s: {ast.unparse(node)}"
        )

    def number(self, node: ast.expr) -> float | None:
        """The number that an expression is, as far as it can be read."""
        match node:
            case ast.Constant(value=int() | float() as value):
                return float(value)
            case ast.Name(name) if name in self.numbers:
                return self.numbers[name]
            case ast.Name(name):
                default = _default(self.owner.get(node), name)
                return None if default is None else self.number(default)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                one = self.number(left)
                other = self.number(right)
                return None if one is None or other is None else one * other
        return None


def _default(function: ast.AST | None, name: str) -> ast.expr | None:
    """The default of a parameter."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    args = function.args
    placed = [*args.posonlyargs, *args.args]
    pairs: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(reversed(placed), reversed(args.defaults), strict=False),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]
    return next((value for parameter, value in pairs if parameter.arg == name), None)


def _constants(tree: ast.Module) -> dict[str, float]:
    numbers = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(
                    targets=[ast.Name(name)], value=ast.Constant(value=int() | float() as value)
                )
                | ast.AnnAssign(
                    target=ast.Name(name), value=ast.Constant(value=int() | float() as value)
                )
            ):
                numbers[name] = float(value)
    return numbers


@cache
def _constants_of(file: Path) -> Mapping[str, float]:
    return _constants(ast.parse(file.read_text(encoding="utf-8")))


def _constant(module: str, name: str) -> float | None:
    """A number of another module of ours."""
    for room in (ROOT, ROOT / "src"):
        file = room / Path(*module.split(".")).with_suffix(".py")
        if file.is_file():
            return _constants_of(file).get(name)
    return None


def main(arguments: list[str]) -> int:
    listed = []
    errors = []
    for path in searched():
        here, stale = found(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
        listed += [one for one in here if one.reason]
        errors += [f"{one.path}:{one.line}: {one.text}" for one in here if not one.reason] + stale
    if "--list" in arguments:
        for one in listed:
            print(f"{one.path}:{one.line}: {one.text}\n    {one.reason}")
    for line in errors:
        print(f"clock error: {line}")
    if not errors:
        print(f"clocks: {len(listed)} comparisons with the wall clock, each with its reason")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
