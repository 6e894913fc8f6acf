"""The tool that changes code to see whether a test notices."""

import ast
import random
from pathlib import Path

from tools import mutants


def test_each_change_is_another_valid_program() -> None:
    """Every mutant stands where it says; a hundred of them, by chance, parse and differ from the
    file as it was.
    """
    every = mutants.mutants()
    for one in every:
        source = (mutants.ROOT / one.path).read_bytes()
        assert source[one.begin : one.end].decode() == one.old != one.new
    for one in random.sample(every, 100):
        source = (mutants.ROOT / one.path).read_bytes()
        assert ast.dump(ast.parse(mutants.mutated(source, one))) != ast.dump(ast.parse(source)), (
            one.name
        )
    assert len({one.path for one in every}) > 30


def test_the_tests_of_each_file_are_there() -> None:
    """A suite that names a file that was moved would notice nothing."""
    named = {Path(test) for tests in mutants.SUITES.values() for test in tests}
    assert [test for test in named if not (mutants.ROOT / test).exists()] == []


def test_survivors_are_listed_as_long_as_they_are_there() -> None:
    """Each survivor of tests/data/mutants.toml is a change that can be made now, and has a
    reason.
    """
    possible = {one.name for one in mutants.mutants()}
    assert [name for name, why in mutants.known().items() if name not in possible or not why] == []


def test_kinds_of_changes(tmp_path: Path, monkeypatch) -> None:
    """Comparisons, conditions, joints, constants and statements are changed; docstrings and
    annotations are not.
    """
    folder = tmp_path / mutants.PACKAGE / "engine"
    folder.mkdir(parents=True)
    lines = [
        '"""Docs."""',
        "x: int = 1",
        "def f(a: int = 3) -> bool:",
        '    """Docs."""',
        "    a.b = True",
    ]
    (folder / "m.py").write_text("\n".join([*lines, "    if a < 2 and not a:", "        g(a)", ""]))
    monkeypatch.setattr(mutants, "SUITES", {"engine/": ()})
    assert [one.name.removeprefix("engine/m.py ") for one in mutants.mutants(tmp_path)] == [
        ": 1 -> 2",
        "f: a.b = True -> pass",
        "f: True -> False",
        "f: a < 2 and not a -> not (a < 2 and not a)",
        "f: a < 2 and not a -> ((a < 2) or (not a))",
        "f: a < 2 and not a -> ((not a))",
        "f: a < 2 and not a -> ((a < 2))",
        "f: a < 2 -> (a <= 2)",
        "f: 2 -> 3",
        "f: not a -> (a)",
        "f: g(a) -> pass",
    ]
