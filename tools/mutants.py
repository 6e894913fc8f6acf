"""Makes small changes to the code and checks whether a test fails. A change without a failing test
is a survivor.

    python -m tools.mutants --seed 7 --count 20             # runs twenty of all possible changes, chosen by the seed
    python -m tools.mutants --seed 7 --count 20 --list      # only names them
    python -m tools.mutants --only 'engine/step.py' --count 5

Each mutant is one change of one expression or statement in a copy of the repository; the copy runs
the tests that `SUITES` names for the file, and stops at the first failure. The exit code is 1 if a
mutant survives that tests/data/mutants.toml does not list with a reason.
"""  # noqa: E501

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KNOWN = ROOT / "tests" / "data" / "mutants.toml"
PACKAGE: Final = "src/everhold/"
#: Seconds after which a mutant is stopped; a change that makes tests wait for ever has been
#: noticed.
PATIENCE: Final = 600
_STORE: Final = (
    "tests/unit/stores",
    "tests/conformance/test_stores.py",
    "tests/fault/test_intake.py",
)
_SESSIONS: Final = tuple(
    f"tests/scenario/test_{name}.py"
    for name in (
        "absent",
        "accepted",
        "answers",
        "calls",
        "cancel",
        "children",
        "commits",
        "forks",
        "retry",
        "signals",
    )
)
#: Which files are changed, and the tests that have to notice.
SUITES: Final = {
    "engine/": (
        "tests/unit/engine",
        *_SESSIONS,
        "tests/scenario/test_intake.py",
        "tests/scenario/test_workers.py",
    ),
    "engine/step.py": (
        *_SESSIONS,
        *(f"tests/scenario/test_{name}.py" for name in ("timers", "restart", "intake")),
    ),
    "engine/effects.py": (
        *_SESSIONS,
        "tests/scenario/test_inline.py",
        "tests/scenario/test_adopt.py",
    ),
    "engine/leases.py": (
        "tests/unit/engine/test_leases.py",
        "tests/scenario/test_workers.py",
        "tests/fault/test_workers.py",
    ),
    "core/intake.py": ("tests/unit/core/test_intake.py", "tests/conformance/test_stores.py"),
    "core/lease.py": ("tests/unit/core/test_lease.py", "tests/conformance/test_stores.py"),
    "stores/sqlite/": (
        *_STORE,
        "tests/fault/test_file.py",
        "tests/fault/test_copies.py",
        "tests/fault/test_power.py",
    ),
    "stores/postgres/": (
        "tests/conformance/test_postgres.py",
        "tests/fault/test_intake.py",
        "tests/fault/test_postgres.py",
    ),
}
_SWAPPED: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


class Mutant(NamedTuple):
    """One change: the file, the place in it as offsets, what stands there and what stands there
    instead.
    """

    path: str
    where: str
    line: int
    begin: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """The same as long as the code of this place is, wherever it moves in its file."""
        return (
            f"{self.path.removeprefix(PACKAGE)} {self.where}: {_flat(self.old)} ->"
            f" {_flat(self.new)}"
        )


def _flat(text: str) -> str:
    return " ".join(text.split())


def mutants(root: Path = ROOT) -> list[Mutant]:
    """Every change that can be made, in the order of the files."""
    found: list[Mutant] = []
    for place in SUITES:
        at = root / PACKAGE / place
        for file in sorted(at.glob("*.py")) if place.endswith("/") else [at]:
            source = file.read_text(encoding="utf-8")
            found += _Finder(file.relative_to(root).as_posix(), source).found()
    return found


class _Finder(ast.NodeVisitor):
    """Collects the changes of one file."""

    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._source = source
        starts = [0]
        for line in source.encode().splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts, self._bytes = starts, source.encode()
        self._where: list[str] = []
        self._found: list[Mutant] = []

    def found(self) -> list[Mutant]:
        self.visit(ast.parse(self._source))
        return self._found

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._where.append(node.name)
        for statement in node.body:  # not the annotations, nor the decorators
            self.visit(statement)
        self._where.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._where.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._where.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):  # a docstring
            return
        if self._where:
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._where and all(
            isinstance(one, ast.Attribute | ast.Subscript) for one in node.targets
        ):
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "pass")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._add(node.test, f"not ({self._text(node.test)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        joint = " or " if isinstance(node.op, ast.And) else " and "
        self._add(node, "(" + joint.join(f"({self._text(one)})" for one in node.values) + ")")
        for one in node.values:
            rest = [other for other in node.values if other is not one]
            kept = " and " if isinstance(node.op, ast.And) else " or "
            self._add(node, "(" + kept.join(f"({self._text(other)})" for other in rest) + ")")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left = self._text(node.left)
            right = self._text(node.comparators[0])
            self._add(node, f"({left} {_SWAPPED[type(node.ops[0])]} {right})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, str(node.value + 1))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Left alone: what is in it has no place of its own before Python 3.12."""

    def _text(self, node: ast.expr | ast.stmt) -> str:
        begin, end = self._span(node)
        return self._bytes[begin:end].decode()

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = self._starts[node.lineno - 1] + node.col_offset
        return begin, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _add(self, node: ast.expr | ast.stmt, new: str) -> None:
        begin, end = self._span(node)
        old = self._bytes[begin:end].decode()
        self._found.append(
            Mutant(self._path, ".".join(self._where), node.lineno, begin, end, old, new)
        )


def mutated(source: bytes, one: Mutant) -> bytes:
    """The source with this change made. What it stood between is kept, so that lines keep their
    numbers.
    """
    return source[: one.begin] + one.new.encode() + source[one.end :]


def suite(path: str) -> tuple[str, ...]:
    """The tests that have to notice a change of a file."""
    return next(
        tests for place, tests in SUITES.items() if path.removeprefix(PACKAGE).startswith(place)
    )


def known() -> dict[str, str]:
    """Survivors that are listed: name → reason."""
    rows = tomllib.loads(KNOWN.read_text(encoding="utf-8")).get("survivor", [])
    return {row["name"]: row["why"] for row in rows}


def copied(target: Path) -> None:
    """A copy of what is in the working tree, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def passes(folder: Path, tests: tuple[str, ...]) -> bool:
    """Whether these tests pass in a copy; those that do not end in their time have failed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
    ]
    process = subprocess.Popen(
        [*command, "--timeout", "120", *tests],
        cwd=folder,
        env=_env(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False
    # an error: the change breaks what every test imports
    if process.returncode in (0, 1) or b"error" in told:
        return process.returncode == 0
    raise SystemExit(f"the tests did not run:\n{told.decode()[-2000:]}")


def sound(folder: Path, chosen: list[Mutant]) -> None:
    """Ends this program unless the copy is what is tested, and the tests pass in it before anything
    is changed.
    """
    asked = [sys.executable, "-c", "import everhold; print(everhold.__file__)"]
    found = subprocess.run(
        asked, cwd=folder, env=_env(folder), capture_output=True, text=True, check=True
    ).stdout
    if not found.startswith(str(folder)):
        raise SystemExit(f"the tests would test {found.strip()}, not the copy in {folder}")
    for tests in dict.fromkeys(suite(one.path) for one in chosen):
        if not passes(folder, tests):
            raise SystemExit(f"these tests fail before anything is changed: {' '.join(tests)}")


def _env(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def tried(folder: Path, chosen: list[Mutant]) -> Iterator[tuple[Mutant, bool, float]]:
    """Each mutant, whether it survives, and how long that took."""
    for one in chosen:
        file = folder / one.path
        began = time.monotonic()
        source = file.read_bytes()
        file.write_bytes(mutated(source, one))
        try:
            yield one, passes(folder, suite(one.path)), time.monotonic() - began
        finally:
            file.write_bytes(source)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="which mutants are chosen")
    parser.add_argument("--count", type=int, default=20, help="how many")
    parser.add_argument(
        "--skip", type=int, default=0, help="leave out the first ones of the choice"
    )
    parser.add_argument("--only", default="", help="a part of the path")
    parser.add_argument("--list", action="store_true", help="name them and run nothing")
    given = parser.parse_args()
    every = [one for one in mutants() if given.only in one.path]
    dice = random.Random(given.seed)
    dice.shuffle(every)
    chosen = every[given.skip : given.skip + given.count]
    print(
        f"{len(every)} mutants are possible, {len(chosen)} are chosen by seed {given.seed}",
        flush=True,
    )
    if given.list:
        for one in chosen:
            print(f"{one.path}:{one.line} {one.name}")
        return 0
    reasons = known()
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copied(Path(place))
        sound(Path(place), chosen)
        for one, survives, took in tried(Path(place), chosen):
            told = (
                "killed"
                if not survives
                else "survived, as is known"
                if one.name in reasons
                else "SURVIVED"
            )
            survivors += told == "SURVIVED"
            print(f"{told}: {one.path}:{one.line} {one.name} ({took:.0f} s)", flush=True)
    print(f"{len(chosen)} mutants, {survivors} survivors without a reason")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
