"""Which references mean one program: a module, its source file, and that file run as a script.

    desk:desk    /home/ana/shop/desk.py:desk    shop/desk.py:desk    python desk.py

Sessions keep the reference with which they were started, so that each can be loaded by it. Two
references are compared here when they differ.

Rules
  1. References with different names are different programs.
  2. Two places are the same if they have the same source file; links are resolved. Modules are
     searched on `sys.path` and in the current folder; no code runs.
  3. A file that does not exist here was moved, or is on another machine. Then the end of its path
     has to be the module name of the other place: `/old/shop/desk.py` is `desk` and `shop.desk`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

#: Pairs of references whose comparison is remembered.
_REMEMBERED: Final = 4096


def is_same_program(one: str, other: str) -> bool:
    """Whether two references mean one program."""
    return one == other or _is_same(one, other, tuple(sys.path), _get_current_folder())


def find_same_program(ref: str, among: Collection[str]) -> str | None:
    """The reference among these that means the same program; None if there is none."""
    if ref in among:
        return ref
    return next((one for one in among if is_same_program(ref, one)), None)


def list_program_aliases(ref: str) -> tuple[str, ...]:
    """The reference, and the others under which this process would find its program.

    A name without a module is returned alone.
    """
    place, colon, name = ref.rpartition(":")
    file = find_source_file(place) if colon else None
    if file is None or file.suffix != ".py":
        return (ref,)
    modules = [module for module in list_module_names(file) if find_source_file(module) == file]
    return tuple(dict.fromkeys([ref, f"{file}:{name}", *(f"{one}:{name}" for one in modules)]))


def list_filter_programs(program: str | None) -> tuple[str, ...]:
    """The references that a filter by this program has to find; empty for None."""
    return () if program is None else list_program_aliases(program)


def match_programs(names: Collection[str], known: Collection[str]) -> list[str]:
    """The stored references that these names mean; a name without a colon is that after it."""
    return [ref for ref in known if ref in names or ref.rpartition(":")[2] in names]


def find_source_file(place: str) -> Path | None:
    """The source file of a module name or path; None if it is not here. No code runs."""
    if _is_path(place):
        path = Path(place)
        return path.resolve() if path.is_file() else None
    loaded = sys.modules.get(place)
    if loaded is not None and place != "__main__":
        file = getattr(loaded, "__file__", None)
        return None if file is None else Path(file).resolve()
    return _search_module(place)


def get_natural_module_name(path: Path) -> str:
    """The name by which an import finds this file from the folder above its packages."""
    inner = path.parent if path.name == "__init__.py" else path.with_suffix("")
    names = [inner.name]
    folder = inner.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


def is_module_of_path(module: str, path: str) -> bool:
    """Whether the end of a path is this module: `shop.desk` of `/old/shop/desk.py`."""
    file = Path(path)
    parts = file.parent.parts if file.name == "__init__.py" else file.with_suffix("").parts
    wanted = tuple(module.split("."))
    return parts[-len(wanted) :] == wanted


@lru_cache(_REMEMBERED)
def _is_same(one: str, other: str, search: tuple[str, ...], folder: str) -> bool:
    # `search` and `folder` are only there so that a result is forgotten when they change
    place, _, name = one.rpartition(":")
    other_place, _, other_name = other.rpartition(":")
    if name != other_name or not place or not other_place:
        return False
    file, other_file = find_source_file(place), find_source_file(other_place)
    if file is not None and other_file is not None:
        return file == other_file
    if file is None and other_file is None:
        return _is_moved(place, other_place) or _is_moved(other_place, place)
    missing, found = (place, other_file) if file is None else (other_place, file)
    assert found is not None
    if not _is_path(missing):
        return is_module_of_path(missing, str(found))
    return any(is_module_of_path(module, missing) for module in list_module_names(found))


def _is_moved(module: str, path: str) -> bool:
    return _is_path(path) and not _is_path(module) and is_module_of_path(module, path)


def list_module_names(file: Path) -> Iterator[str]:
    """The names under which an import may find a file: from the folder above its packages, from
    those of `sys.path`, and from the current folder.
    """
    yield get_natural_module_name(file)
    for folder in (*sys.path, _get_current_folder()):
        base = Path(folder or _get_current_folder()).resolve()
        if base in file.parents:
            inner = file.parent if file.name == "__init__.py" else file.with_suffix("")
            parts = inner.relative_to(base).parts
            if all(part.isidentifier() for part in parts):
                yield ".".join(parts)


def _search_module(name: str) -> Path | None:
    """The source file of a module that is not imported. Looks at files only: no import hook and no
    package runs.
    """
    *packages, last = name.split(".")
    if not all(part.isidentifier() for part in (*packages, last)):
        return None
    current = _get_current_folder()
    folders = [Path(folder or current) for folder in (*sys.path, current)]
    for package in packages:
        inside = [folder / package for folder in folders]
        regular = [folder for folder in inside if (folder / "__init__.py").is_file()]
        folders = regular[:1] or [folder for folder in inside if folder.is_dir()]
    for folder in folders:
        for file in (folder / last / "__init__.py", folder / f"{last}.py"):
            if file.is_file():
                return file.resolve()
    return None


def _is_path(place: str) -> bool:
    return "/" in place or "\\" in place or place.endswith((".py", ".lua"))


def _get_current_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was deleted
        return ""
