"""The public import paths: the page lists them, the docs use no other, and what they export is
there, documented and typed.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from everhold.agents import Tool
from everhold.testing import Kit
from tools.api import PUBLIC

from .blocks import blocks

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "everhold"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def public_names() -> dict[str, list[str]]:
    return {path: list(import_module(path).__all__) for path in PUBLIC}


def order(name: str) -> tuple[int, str]:
    """As ruff sorts an `__all__`: constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_the_page_lists_the_public_paths() -> None:
    page = (ROOT / "docs" / "stability.md").read_text()
    section = page.partition("## Public import paths\n")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(everhold[\w.]*)` \|", section, re.MULTILINE)) == PUBLIC


def test_each_list_of_names_is_sorted() -> None:
    """In the order of ruff, or of `sorted`."""
    unsorted = [
        path
        for path, names in public_names().items()
        if names not in (sorted(set(names)), sorted(set(names), key=order))
    ]
    assert unsorted == []


def test_each_public_path_says_what_is_there() -> None:
    assert [path for path in PUBLIC if not (import_module(path).__doc__ or "").strip()] == []


# What is exported


def aliases() -> Iterator[str]:
    """Names of constants and type aliases that have a `#:` comment above them."""
    for file in SOURCE.rglob("*.py"):
        yield from re.findall(r"^#: .*\n(?:#: .*\n)*(\w+)(?:: [^=\n]+)? =", file.read_text(), re.M)


def is_documented(value: object, commented: set[str], name: str) -> bool:
    """A class or function has a docstring of its own; a constant or alias has a `#:` comment."""
    if isinstance(value, type):
        return bool((value.__dict__.get("__doc__") or "").strip())
    if name in commented:
        return True
    if isinstance(value, Tool):
        return bool(value.description)
    return bool(vars(type(value)).get("__doc__") != value.__doc__ and (value.__doc__ or "").strip())


def test_every_public_name_exists_and_is_documented() -> None:
    commented = set(aliases())
    undocumented = [
        f"{path}.{name}"
        for path, names in public_names().items()
        for name in names
        if not is_documented(getattr(import_module(path), name), commented, name)
    ]
    assert undocumented == []


def lazy_packages() -> list[ModuleType]:
    found = [import_module(path) for path in PUBLIC]
    return [module for module in found if hasattr(module, "_HOMES")]


def test_a_type_checker_reads_the_names_that_are_loaded_lazily() -> None:
    """Each lazily loaded name has an import of the same name from the same module, and no other
    name has one.
    """
    assert len(lazy_packages()) >= 6
    for module in lazy_packages():
        assert module.__file__ is not None
        text = Path(module.__file__).read_text()
        typed = re.findall(r"^    from everhold\.([\w.]+) import (\w+) as \2$", text, re.MULTILINE)
        assert {name: home for home, name in typed} == module._HOMES, module.__name__
        assert len(typed) == len(module._HOMES)


def test_every_public_name_is_shown_to_the_type_checkers() -> None:
    """`tests/typing` runs mypy and pyright on a file with all of them."""
    text = (ROOT / "tests" / "typing" / "exports.py").read_text()
    shown = re.findall(r"^    (everhold[\w.]+),$", text, re.MULTILINE)
    names = [f"{path}.{name}" for path, names in public_names().items() for name in names]
    assert sorted(shown) == sorted(names)


def test_a_name_is_the_same_object_everywhere() -> None:
    """A name that several paths export means one thing."""
    seen: dict[str, object] = {}
    for path, names in public_names().items():
        for name in names:
            value = getattr(import_module(path), name)
            assert seen.setdefault(name, value) is value, f"{path}.{name}"


@pytest.mark.parametrize("path", [module.__name__ for module in lazy_packages()])
def test_an_unknown_name_of_a_public_package_is_an_attribute_error(path: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{path}' has no attribute 'Workflow'"):
        _ = import_module(path).Workflow
    assert set(import_module(path).__all__) <= set(dir(import_module(path)))


# What the docs use


def imports(code: str) -> Iterator[tuple[str, str | None]]:
    """The imports of everhold in some code: a path, and the name that is imported from it."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((one.name, None) for one in node.names if is_ours(one.name))
        elif isinstance(node, ast.ImportFrom) and is_ours(node.module or ""):
            yield from ((node.module or "", one.name) for one in node.names)


def is_ours(path: str) -> bool:
    return path.partition(".")[0] == "everhold"


def is_public(path: str, name: str | None) -> bool:
    if name is None or f"{path}.{name}" in PUBLIC:
        return path in PUBLIC
    return path in PUBLIC and name in import_module(path).__all__


def documented_code() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = page.read_text()
        for block in blocks(text):
            if block.language == "python":
                yield page.name, block.text
        for written in re.findall(r"<!-- \[\[\[cog\n(.*?)\]\]\] -->", text, re.DOTALL):
            yield page.name, written
    for file in EXAMPLES:
        yield file.name, file.read_text()


def test_the_docs_import_from_public_paths_only() -> None:
    found = [(place, *one) for place, code in documented_code() for one in imports(code)]
    assert len(found) > 100
    assert [one for one in found if not is_public(one[1], one[2])] == []


def test_docstrings_import_from_public_paths_only() -> None:
    found = [
        (file.relative_to(SOURCE).as_posix(), path, name)
        for file in sorted(SOURCE.rglob("*.py"))
        for path, names in re.findall(
            r"^ *from (everhold[\w.]*) import ([\w, ]+)$", docstrings(file), re.MULTILINE
        )
        for name in re.split(r", *", names)
    ]
    assert len(found) > 3
    assert [one for one in found if not is_public(one[1], one[2])] == []


def docstrings(file: Path) -> str:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)]
    return "\n".join(ast.get_docstring(node) or "" for node in nodes)


#: Not paths: files, entry points, loggers.
OTHER = {
    "everhold.db",
    "everhold.plugins",
    "everhold.program",
    "everhold.programs",
    "everhold.toml",
}


def can_be_reached(said: str) -> bool:
    """A public path, a name of one, its attribute, or a verb of the fixture `everhold`."""
    path = next(path for path in sorted(PUBLIC, reverse=True) if f"{said}.".startswith(f"{path}."))
    name, *attributes = said.removeprefix(path).strip(".").split(".")
    if not name or (path == "everhold" and not attributes and hasattr(Kit, name)):
        return True
    if name not in import_module(path).__all__:
        return False
    found = getattr(import_module(path), name)
    return all(hasattr(found, attribute) for attribute in attributes)


def test_names_with_a_path_in_the_docs_are_public() -> None:
    """`everhold.stores.JsonFiles` in a sentence can be imported from there."""
    wrong = []
    for page in PAGES:
        if "adr" in page.parts or page.name == "CONTRIBUTING.md":
            continue
        prose = re.sub(r"```.*?```|<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
        named = set(re.findall(r"`(everhold(?:\.\w+)+)(?:\(.*?\))?`", prose)) - OTHER
        wrong += [(page.name, said) for said in sorted(named) if not can_be_reached(said)]
    assert wrong == []


def test_what_the_docs_name_is_exported() -> None:
    """A class of ours in backticks has a public path, unless the page is about the source."""
    classes = {
        node.name
        for file in SOURCE.rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    exported = {name for names in public_names().values() for name in names}
    about_the_source = {"architecture.md", "how-sessions-are-moved.md", "CONTRIBUTING.md"}
    missing = set()
    for page in PAGES:
        if {"adr", "api"} & set(page.parts) or page.name in about_the_source:
            continue
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for code in re.findall(r"`([^`\n]+)`", prose):
            named = set(re.findall(r"(?<![\w./\"$-])[A-Z]\w+", code))
            missing |= {(page.name, name) for name in named & classes - exported}
    assert sorted(missing) == []


# What an import costs


def test_importing_a_public_package_loads_no_other_module() -> None:
    """Of those that load lazily: a module is read when one of its names is used."""
    lazy = [module.__name__ for module in lazy_packages()]
    code = (
        f"import sys, {', '.join(lazy)}; print(*sorted(m for m in sys.modules if 'everhold' in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted([*lazy, "everhold.lazy_exports"])
