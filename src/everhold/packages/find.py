"""Finding a program by what people and stored sessions call it.

    module:function          myapp.programs:refund
    path/file.py:function    jobs/refund.py:refund, ~/jobs/refund.py:refund
    path/file.lua            a Lua program in a file; path/folder, one in a folder with an init.lua
    name                     refund: of a listed module, an entry point, a Lua package, or a strategy

A session stores where its program is, never a bare name: what a name means may change.

Rules
  1. What this process has decorated already is not loaded again.
  2. A name is looked up in four places: the project (modules of the settings, Lua packages of its
     folders), what is installed (entry points `everhold.programs`, Lua packages of the user), the
     programs of this process, and the strategies that come with everhold. The first place that has
     it wins; two of one name there are refused. Where something of the project does not load,
     nothing installed is taken in its place, and a strategy only if what does not load says its
     name nowhere.
  3. Another version is never taken in place of the one asked for.
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

from everhold.errors import EverholdError, NotAProgram, UnknownProgram, VersionMissing
from everhold.packages import load, strategies
from everhold.packages.load import refuse_while_loading
from everhold.packages.lua.folder import (
    INIT_FILE,
    PackageFolders,
    find_package,
    list_folder_packages,
)
from everhold.ports.program import REGISTRY, Program
from everhold.programs.lua.program import TEXT_REF, LuaProgram
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

# What did not load, while `remember_load_failures` is in force; a context variable, for another
# thread may look for itself.
_failed: Final[ContextVar[dict[str, EverholdError] | None]] = ContextVar(
    "everhold_failed", default=None
)


class FoundPrograms(msgspec.Struct, frozen=True):
    """What can be found by name, and what kept the rest from being found."""

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
    """The program of this reference in this version, or in its newest one.

    Raises `UnknownProgram`, `NotAProgram`, `VersionMissing`; `RunsOnImport` if loading it starts a
    session.
    """
    ref = make_ref_absolute(ref)
    if version is not None and (ref, version) in REGISTRY:
        return REGISTRY[(ref, version)]
    if (lua := _lua(ref, folders)) is not None:
        return _chosen(ref, {lua.version: lua}, version)
    place, colon, name = ref.rpartition(":")
    if not colon:
        return _chosen(ref, _by_name(ref, programs, root, folders), version)
    return _chosen(ref, _registered(ref) or _loaded(ref, place, name, root), version)


@contextmanager
def remember_load_failures() -> Iterator[None]:
    """However many names are looked up, whatever does not load is tried once."""
    token = _failed.set({})
    try:
        yield
    finally:
        _failed.reset(token)


def list_known_programs(
    programs: Sequence[str] = (), *, root: Path | None = None, folders: PackageFolders = _NOWHERE
) -> FoundPrograms:
    """Every program that people here wrote or installed and that can be found by name, sorted.

    A module that does not load is among the problems.
    """
    found, problems = _listed([*programs, *(value for _, value in _entry_points())], root)
    found += list_folder_packages(folders.all, folders.all)
    order = sorted(found, key=lambda program: (program.name, program.version, program.ref))
    return FoundPrograms(tuple(order), tuple(problems.values()))


def make_ref_absolute(ref: str, folder: Path | None = None) -> str:
    """The reference with its path, if it has one, made absolute from `folder` or the current
    one.
    """
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


def _lua(ref: str, folders: PackageFolders) -> LuaProgram | None:
    """The Lua program that a reference, a file or a folder means; None for what is not Lua."""
    place = ref.rpartition(":")[0]
    if ref == TEXT_REF:
        return LuaProgram(TEXT_REF, roots=folders.all)
    if ref.endswith(".lua"):
        return LuaProgram.file(ref, roots=folders.all)
    if place.endswith(".lua"):
        return LuaProgram.found(ref, roots=folders.all)
    if is_path_ref(ref) and (Path(ref) / INIT_FILE).is_file():
        return LuaProgram.package(ref, roots=folders.all)
    return None


# ---- by reference


def _registered(ref: str) -> dict[int, AnyProgram]:
    return {
        version: program for (known_as, version), program in REGISTRY.items() if known_as == ref
    }


def _loaded(ref: str, place: str, name: str, root: Path | None) -> dict[int, AnyProgram]:
    if "<locals>" in name:
        hint = "Move it to the top of its module, so that other processes can load it."
        raise UnknownProgram(ref, "it was defined inside a function", hint)
    module = _module(ref, place, root)
    found = _registered(ref)
    return found or _versions(_in_module(ref, module, name))


def _module(ref: str, place: str, root: Path | None) -> ModuleType:
    if not is_path_ref(place):
        return load.load_module(place, ref, root)
    if not place.endswith(".py"):
        raise UnknownProgram(ref, f"{place} is not a file that ends in .py")
    return load.load_file(Path(place), ref)


def _in_module(ref: str, module: ModuleType, name: str) -> AnyProgram:
    """A program that the module holds under this name, or one that itself has this name."""
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
        raise _half(name)
    listed, problems = _listed(programs, root)
    if found := _same(name, [*_named(name, listed), *_package(name, folders.own, folders)]):
        return found
    if problems:  # rather than take what an installed package has under this name
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
        name, f"nothing here has this name{problem}", _near(name, [*near, *strategies.NAMES])
    )


def _half(name: str) -> UnknownProgram:
    """The refusal of a place where a program may be, without the program's name."""
    if is_path_ref(name) and not Path(name).exists():
        return UnknownProgram(name, f"there is no file {name}")
    if is_path_ref(name) and Path(name).is_dir():
        return UnknownProgram(
            name, f"it is a folder without {INIT_FILE}", f"Name a file in it: {name}/FILE.py:NAME"
        )
    return UnknownProgram(
        name, "it names a module, not a program in it", f"Add the function: {name}:NAME"
    )


def _built_in(
    name: str, problems: dict[str, EverholdError], root: Path | None
) -> dict[int, AnyProgram]:
    """The strategy of this name, where nothing that does not load may have it too."""
    says = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    own = [
        problem
        for place, problem in problems.items()
        if says.search(load.read_source_text(place, root))
    ]
    if own or name not in strategies.NAMES:
        raise _hidden(name, [*own, *problems.values()][0])
    # who lists them all tells it too
    for problem in problems.values() if _failed.get() is None else ():
        log.warning(
            "something under `programs` in everhold.toml does not load: %s [%s]",
            problem,
            problem.code,
        )
    return _versions(strategies.strategy(name).program)


def _hidden(name: str, problem: EverholdError) -> EverholdError:
    """The refusal of a name that something listed may have, if only it could be loaded."""
    if not isinstance(problem, UnknownProgram):
        return problem
    hint = f"Mend {problem.name}, or take it out of `programs` in everhold.toml."
    error = UnknownProgram(
        name, f"what is listed here may have it, and does not load: {problem.reason}", hint
    )
    error.__cause__ = problem
    return error


def _package(
    name: str, among: Sequence[Path | SearchRoot], folders: PackageFolders
) -> list[AnyProgram]:
    found = find_package(name, among, folders.all)
    return [] if found is None else [found]


def _of_points(name: str, root: Path | None) -> tuple[list[AnyProgram], dict[str, EverholdError]]:
    """The programs of this name that installed packages have: under an entry point of this name,
    else by their own.
    """
    points = _entry_points()
    if own := [value for point, value in points if point == name and ":" in value]:
        return [find_program(value, root=root) for value in own], {}
    installed, problems = _listed([value for _, value in points], root)
    return _named(name, installed), problems


def _listed(
    places: Iterable[str], root: Path | None
) -> tuple[list[AnyProgram], dict[str, EverholdError]]:
    """The programs of these modules, files and references, each once; and which of them do not
    load.
    """
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
    """The versions of one program; two programs under one name are refused."""
    homes = {program.ref.rpartition(":")[0]: program for program in programs}
    if len(homes) > 1:
        refs = ", ".join(sorted(program.ref for program in homes.values()))
        raise UnknownProgram(
            name, f"several have this name: {refs}", "Say which one: name it as it stands there."
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
    """Those it holds, and earlier versions that were defined under the same function name."""
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
    from difflib import get_close_matches

    names = sorted(set(among))
    if close := get_close_matches(name, names, 1):
        return f"Did you mean {close[0]!r}?"
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"There is: {shown}." if names else ""


def _description(thing: object) -> str:
    if inspect.iscoroutinefunction(thing):
        return "it is an async function without @everhold.program"
    return (
        "it is a plain function"
        if inspect.isfunction(thing)
        else f"it is a value of type {type(thing).__name__}"
    )
