"""Finds a program by its reference or its name.

    module:function          myapp.programs:refund
    path/file.py:function    jobs/refund.py:refund, ~/jobs/refund.py:refund
    path/file.lua            a Lua program in a file; path/folder, one in a folder with an init.lua
    name                     refund: of a listed module, an entry point, a Lua package, or a strategy

A session stores a reference and never a bare name, because the meaning of a name may change.

Rules
  1. A program that this process has decorated is not loaded again.
  2. A name is searched in four places: the project (modules of the settings, Lua packages of its
     folders), installed packages (entry points `everhold.programs`, Lua packages of the user), the
     programs of this process, and the strategies of everhold. The first place with the name wins;
     two programs of one name in one place are refused. If a module of the project does not load, no
     installed program replaces it; a strategy does only if the module's text does not contain its
     name.
  3. A program of another version is never used instead.
  4. A file that is not where it was is found by its module name: among the programs of this
     process, then in the project (`/old/shop/desk.py` is `shop/desk.py` or `desk.py` there).
"""  # noqa: E501

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from everhold.core.unknown_names import find_close_name
from everhold.errors import EverholdError, NotAProgram, UnknownProgram, VersionMissing
from everhold.packages import load, strategies
from everhold.packages.load import refuse_while_loading
from everhold.packages.lua.folder import (
    INIT_FILE,
    PackageFolders,
    find_package,
    list_folder_packages,
)
from everhold.packages.source_names import list_file_programs, suggest_file, suggest_programs
from everhold.ports.program import LOCAL, REGISTRY, Program
from everhold.ports.program_identity import find_same_program
from everhold.programs.lua.program import TEXT_REFS, LuaProgram
from everhold.programs.lua.search_path import SearchRoot

__all__ = [
    "ENTRY_POINTS",
    "FoundPrograms",
    "find_program",
    "list_known_programs",
    "refuse_while_loading",
    "remember_load_failures",
]

log = logging.getLogger("everhold")

ENTRY_POINTS: Final = "everhold.programs"
_NOWHERE: Final = PackageFolders()

AnyProgram = Program[Any, Any]

# Modules that failed to load, inside `remember_load_failures`. A context variable, because another
# thread may search at the same time.
_failed: Final[ContextVar[dict[str, EverholdError] | None]] = ContextVar(
    "everhold_failed", default=None
)


class FoundPrograms(msgspec.Struct, frozen=True):
    """The programs that can be found by name, and the errors of modules that do not load."""

    programs: tuple[AnyProgram, ...]
    problems: tuple[EverholdError, ...]


def find_program(
    ref: str,
    version: int | None = None,
    *,
    programs: Sequence[str] = (),
    root: Path | None = None,
    folders: PackageFolders = _NOWHERE,
) -> AnyProgram:
    """The program of a reference or name, in `version` or in its newest version.

    Raises `UnknownProgram`, `NotAProgram` and `VersionMissing`, and `RunsOnImport` if loading the
    module starts a session.
    """
    given = ref
    ref = make_ref_absolute(ref)
    if version is not None and (ref, version) in REGISTRY:
        return REGISTRY[(ref, version)]
    try:
        if (lua := _lua(ref, folders, root)) is not None:
            return _chosen(ref, {lua.version: lua}, version)
        place, colon, name = ref.rpartition(":")
        if not colon:
            return _chosen(ref, _by_name(ref, programs, root, folders), version)
        return _chosen(ref, _registered(ref) or _loaded(ref, place, name, root), version)
    except (UnknownProgram, NotAProgram) as error:
        if given != ref:  # name it as the caller did
            error.args = (str(error).replace(repr(ref), repr(given), 1),)
            error.hint = error.hint.replace(ref, given.rstrip("/"))
            error.name = given
        raise


@contextmanager
def remember_load_failures() -> Iterator[None]:
    """Inside this block, a module that fails to load is tried only once."""
    token = _failed.set({})
    try:
        yield
    finally:
        _failed.reset(token)


def list_known_programs(
    programs: Sequence[str] = (), *, root: Path | None = None, folders: PackageFolders = _NOWHERE
) -> FoundPrograms:
    """Every program of the project and of installed packages that has a name, sorted.

    The result also has the errors of modules that do not load.
    """
    found, problems = _listed([*programs, *(value for _, value in _entry_points())], root)
    found += list_folder_packages(folders.all, folders.all)
    order = sorted(found, key=lambda program: (program.name, program.version, program.ref))
    return FoundPrograms(tuple(order), tuple(problems.values()))


def make_ref_absolute(ref: str, folder: Path | None = None) -> str:
    """The reference, with its path made absolute from `folder` or the current folder."""
    alone = ref.endswith((".py", ".lua")) or (is_path_ref(ref) and ":" not in ref)
    place, colon, name = (ref, "", "") if alone else ref.rpartition(":")
    if not is_path_ref(place):
        return ref
    return f"{((folder or Path.cwd()) / Path(place).expanduser()).resolve()}{colon}{name}"


def is_path_ref(place: str) -> bool:
    return (
        place.endswith((".py", ".lua")) or "/" in place or os.sep in place or place.startswith("~")
    )


# ---- Lua


def _lua(ref: str, folders: PackageFolders, root: Path | None) -> LuaProgram | None:
    """The Lua program of a reference, a file or a folder; None if it is not Lua."""
    place, _, name = ref.rpartition(":")
    if ref in TEXT_REFS:
        return LuaProgram(ref, roots=folders.all)
    if ref.endswith(".lua"):
        return LuaProgram.file(ref, roots=folders.all)
    if place.endswith(".lua"):
        return LuaProgram.found(f"{_find_moved_file(place, root)}:{name}", roots=folders.all)
    if is_path_ref(ref) and (Path(ref) / INIT_FILE).is_file():
        return LuaProgram.package(ref, roots=folders.all)
    return None


# ---- by reference


def _registered(ref: str) -> dict[int, AnyProgram]:
    return {
        version: program for (known_as, version), program in REGISTRY.items() if known_as == ref
    }


def _loaded(ref: str, place: str, name: str, root: Path | None) -> dict[int, AnyProgram]:
    if LOCAL in name:
        hint = "Move it to the top level of its module, so that other processes can load it."
        raise UnknownProgram(ref, "it was defined inside a function", hint)
    if place.endswith(".py") and not Path(place).is_file():
        if known := find_same_program(ref, [known_as for known_as, _ in REGISTRY]):
            return _registered(known)
        place = _find_moved_file(place, root)
    module = _module(ref, place, root)
    found = _registered(ref)
    return found or _versions(_in_module(ref, module, name))


def _find_moved_file(place: str, root: Path | None) -> str:
    """The file of the project with the longest part of this path; the path itself if it exists, or
    there is none. A package is found by the name of its folder at least.
    """
    path = Path(place)
    if path.is_file():
        return place
    parts = path.parts
    least = 2 if path.name in ("__init__.py", INIT_FILE) else 1
    for count in range(len(parts) - 1, least - 1, -1):
        for folder in dict.fromkeys((root or Path.cwd(), Path.cwd())):
            file = folder.joinpath(*parts[-count:])
            if file.is_file():
                return str(file.resolve())
    return place


def _module(ref: str, place: str, root: Path | None) -> ModuleType:
    if not is_path_ref(place):
        return load.load_module(place, ref, root)
    if not place.endswith(".py"):
        raise UnknownProgram(ref, f"{place} is not a .py file")
    return load.load_file(Path(place), ref)


def _in_module(ref: str, module: ModuleType, name: str) -> AnyProgram:
    """The program with this variable name in the module, else the one with this program name."""
    programs = _programs_of(module)
    try:
        thing = reduce(getattr, name.split("."), module)
    except AttributeError:
        for program in programs:
            if program.name == name:
                return program
        where = getattr(module, "__file__", None) or module.__name__
        raise UnknownProgram(
            ref, f"{where} has no {name!r}", _near(name, [one.name for one in programs])
        ) from None
    if not isinstance(thing, Program):
        raise NotAProgram(ref, _description(thing))
    return thing


def _versions(program: AnyProgram) -> dict[int, AnyProgram]:
    return _registered(program.ref) | {program.version: program}


def _chosen(ref: str, found: dict[int, AnyProgram], version: int | None) -> AnyProgram:
    newest = max(found)
    wanted = newest if version is None else version
    if wanted not in found:
        raise VersionMissing(ref, wanted, newest)
    return found[wanted]


# ---- by name


def _by_name(
    name: str, programs: Sequence[str], root: Path | None, folders: PackageFolders
) -> dict[int, AnyProgram]:
    if is_path_ref(name) or "." in name:
        raise _incomplete(name)
    listed, problems = _listed(programs, root)
    if found := _same(name, [*_named(name, listed), *_package(name, folders.own, folders)]):
        return found
    if problems:  # the module that does not load may have the name; do not use an installed one
        return _built_in(name, problems, root)
    points, broken = _of_points(name, root)
    if found := _same(name, [*points, *_package(name, folders.installed, folders)]):
        return found
    here = [
        program
        for program in REGISTRY.values()
        if not program.__module__.startswith(strategies.PACKAGE)
    ]
    if found := _same(name, _named(name, here)):
        return found
    if name in strategies.NAMES:
        return _versions(strategies.strategy(name).program)
    problem = "".join(f"; {one}" for one in broken.values())
    near = [
        one.name
        for one in (*list_known_programs(programs, root=root, folders=folders).programs, *here)
    ]
    raise UnknownProgram(
        name, f"no program has this name{problem}", _near(name, [*near, *strategies.NAMES])
    )


def _incomplete(name: str) -> UnknownProgram:
    """The error for a file or module without the name of a program."""
    if is_path_ref(name) and not Path(name).exists():
        return UnknownProgram(name, f"there is no file {name}", suggest_file(Path(name), ""))
    if is_path_ref(name) and Path(name).is_dir():
        hint = suggest_programs(Path(name), name)
        return UnknownProgram(name, f"it is a folder without {INIT_FILE}", hint)
    file = Path(name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
    hint = suggest_programs(file, name) if file.is_file() else ""
    if file.is_file() and not list_file_programs(file):
        load.load_file(file.resolve(), name)  # raises if it has a mistake
    return UnknownProgram(name, "it is a module, not a program", hint)


def _built_in(
    name: str, problems: dict[str, EverholdError], root: Path | None
) -> dict[int, AnyProgram]:
    """The strategy of this name, unless a module that does not load mentions the name."""
    mention = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    own = [
        problem
        for place, problem in problems.items()
        if mention.search(load.read_source_text(place, root))
    ]
    if own or name not in strategies.NAMES:
        raise _hidden(name, [*own, *problems.values()][0])
    # a listing shows these problems itself
    for problem in problems.values() if _failed.get() is None else ():
        log.warning(
            "an entry of `programs` in everhold.toml does not load: %s [%s]",
            problem,
            problem.code,
        )
    return _versions(strategies.strategy(name).program)


def _hidden(name: str, problem: EverholdError) -> EverholdError:
    """The error for a name that a listed module may have, but the module does not load."""
    if not isinstance(problem, UnknownProgram):
        return problem
    hint = f"Fix {problem.name}, or remove it from `programs` in everhold.toml."
    error = UnknownProgram(
        name, f"a listed module that may have it does not load: {problem.reason}", hint
    )
    error.__cause__ = problem
    error.exception = problem.exception
    return error


def _package(
    name: str, among: Sequence[Path | SearchRoot], folders: PackageFolders
) -> list[AnyProgram]:
    found = find_package(name, among, folders.all)
    return [] if found is None else [found]


def _of_points(name: str, root: Path | None) -> tuple[list[AnyProgram], dict[str, EverholdError]]:
    """The installed programs of this name: an entry point of the name, else a program of it."""
    points = _entry_points()
    if own := [value for point, value in points if point == name and ":" in value]:
        return [find_program(value, root=root) for value in own], {}
    installed, problems = _listed([value for _, value in points], root)
    return _named(name, installed), problems


def _listed(
    places: Iterable[str], root: Path | None
) -> tuple[list[AnyProgram], dict[str, EverholdError]]:
    """The programs of these modules, files and references, and the errors of those that fail."""
    found: list[AnyProgram] = []
    problems: dict[str, EverholdError] = {}
    failed = {} if (seen := _failed.get()) is None else seen
    for place in dict.fromkeys(make_ref_absolute(place, root) for place in places):
        if place in failed:
            problems[place] = failed[place]
            continue
        try:
            named = ":" in place and not place.endswith(".py")
            found += (
                [find_program(place, root=root)]
                if named
                else _programs_of(_module(place, place, root))
            )
        except EverholdError as problem:
            failed[place] = problems[place] = problem
    return _unique(found), problems


def _named(name: str, programs: list[AnyProgram]) -> list[AnyProgram]:
    called = [program for program in programs if program.name == name]
    return called or [program for program in programs if getattr(program, "__name__", None) == name]


def _same(name: str, programs: list[AnyProgram]) -> dict[int, AnyProgram]:
    """The versions of one program; raises `UnknownProgram` for two programs of one name."""
    homes = {program.ref.rpartition(":")[0]: program for program in programs}
    if len(homes) > 1:
        refs = ", ".join(sorted(program.ref for program in homes.values()))
        raise UnknownProgram(
            name, f"several programs have this name: {refs}", "Use one of these references instead."
        )
    found: dict[int, AnyProgram] = {}
    for program in programs:
        found |= _versions(program)
    return found


def _entry_points() -> list[tuple[str, str]]:
    from importlib.metadata import entry_points

    points = entry_points(group=ENTRY_POINTS)
    return [
        (point.name, f"{point.module}:{point.attr}" if point.attr else point.module)
        for point in points
    ]


# ---- words


def _programs_of(module: ModuleType) -> list[AnyProgram]:
    """The programs of a module, with earlier versions whose function name was defined again."""
    held = [thing for thing in vars(module).values() if isinstance(thing, Program)]
    return _unique(
        [
            *held,
            *(program for program in REGISTRY.values() if program.__module__ == module.__name__),
        ]
    )


def _unique(programs: list[AnyProgram]) -> list[AnyProgram]:
    return list({id(program): program for program in programs}.values())


def _near(name: str, among: list[str]) -> str:
    names = sorted(set(among))
    if close := find_close_name(name, names):
        return f"Did you mean {close!r}?"
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"Known names: {shown}." if names else ""


def _description(thing: object) -> str:
    if inspect.iscoroutinefunction(thing):
        return "it is an async function without @everhold.program"
    return (
        "it is a plain function"
        if inspect.isfunction(thing)
        else f"it is a value of type {type(thing).__name__}"
    )
