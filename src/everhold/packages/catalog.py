"""Lists the programs that `run NAME` can start, with a summary and an estimate of the cost.

The order of precedence is that of `find.py`. A program that is hidden by another of the same name
is listed too; its reference starts it. Listing runs no Lua, and imports only Python modules that
the settings or an entry point name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from everhold.core.codec import JSON
from everhold.errors import BadArguments, EverholdError
from everhold.packages import strategies
from everhold.packages.find import (
    find_program,
    is_path_ref,
    list_known_programs,
    remember_load_failures,
)
from everhold.packages.lua.folder import PackageFolders
from everhold.packages.lua.meta import read_package_meta
from everhold.packages.program_hosts import is_lua_ref
from everhold.packages.settings import Settings
from everhold.packages.strategies.metadata import Estimate, Strategy
from everhold.ports.program import Program, refuse_same_reference
from everhold.ports.program_identity import find_same_program
from everhold.programs.lua.program import LuaProgram

ProgramKind = Literal["strategy", "python", "lua"]
AnyProgram = Program[Any, Any]


class ProgramEntry(msgspec.Struct, frozen=True):
    """One program that can be started by name."""

    name: str
    kind: ProgramKind
    ref: str  # stored in sessions; starts the program even if its name is hidden
    version: int
    summary: str
    cost: str = ""  # in words; empty if unknown
    estimate: Estimate | None = None  # with default arguments
    category: str = ""
    hidden: bool = False  # whether another program has its name and precedence


class ProgramCatalog(msgspec.Struct, frozen=True):
    """The programs that can be started by name, sorted, and the errors of those that do not
    load.
    """

    entries: tuple[ProgramEntry, ...]
    problems: tuple[EverholdError, ...]


def load_catalog(found: Settings) -> ProgramCatalog:
    """The programs of these settings, of installed packages and of everhold."""
    with remember_load_failures():
        theirs = list_known_programs(found.programs, root=found.root, folders=found.folders)
        problems = list(theirs.problems)
        # sorted by version
        newest = {(program.name, program.ref): program for program in theirs.programs}
        offered = [*newest.values(), *(one.program for one in strategies.strategies())]
        broken = {str(problem) for problem in problems}
        meant: dict[str, str | None] = {}
        for name in dict.fromkeys(program.name for program in offered):
            try:
                meant[name] = find_named_program(name, found).ref
            except EverholdError as problem:
                # the name is ambiguous, or a module that may have it does not load
                meant[name] = None
                problems += [problem] if str(problem.__cause__ or problem) not in broken else []
        entries = [
            describe_program(program, hidden=meant[program.name] not in (program.ref, None))
            for program in offered
        ]
        order = sorted(
            entries, key=lambda one: (one.kind != "strategy", one.name, one.hidden, one.ref)
        )
        return ProgramCatalog(tuple(order), tuple(problems))


def find_named_program(name: str, found: Settings, version: int | None = None) -> AnyProgram:
    """The program of this name or reference, by the rule of `find.py` and these settings."""
    place, colon, _ = name.rpartition(":")
    is_python = colon and (place.endswith(".py") or not (is_path_ref(place) or is_lua_ref(name)))
    folders = (
        PackageFolders() if is_python else found.folders
    )  # reading the folders touches the disk each time
    return find_program(name, version, programs=found.programs, root=found.root, folders=folders)


def describe_program(program: AnyProgram, *, hidden: bool = False) -> ProgramEntry:
    """The entry of a program, without running it."""
    about = strategy_of(program)
    if about is not None:
        words = about.summary
        cost = about.estimate()
        return ProgramEntry(
            program.name,
            "strategy",
            program.ref,
            program.version,
            words,
            about.formula,
            cost,
            hidden=hidden,
        )
    if isinstance(program, LuaProgram):
        meta = read_package_meta(program.main) if program.main is not None else None
        summary, category = (meta.description, meta.category) if meta else ("", "")
        return ProgramEntry(
            program.name,
            "lua",
            program.ref,
            program.version,
            summary,
            category=category,
            hidden=hidden,
        )
    return ProgramEntry(
        program.name, "python", program.ref, program.version, summary_of(program), hidden=hidden
    )


def summary_of(program: AnyProgram) -> str:
    """The first sentence of its documentation."""
    return inspect.cleandoc(program.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def strategy_of(program: AnyProgram) -> Strategy | None:
    """The metadata of a strategy; None for other programs."""
    place, _, name = program.ref.rpartition(":")
    return strategies.strategy(name) if place == f"{strategies.PACKAGE}.{name}" else None


def estimate_program(
    program: AnyProgram, args: Mapping[str, JSON] | None = None
) -> Estimate | None:
    """The cost of a session of this program; None if it is unknown or the arguments are invalid."""
    about = strategy_of(program)
    try:
        return None if about is None else about.estimate(args)
    except BadArguments:
        return None


class KnownPrograms:
    """Finds the programs of a runtime by reference. Given programs come before those on disk."""

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self._given: dict[str, Any] = {}
        self._placed: dict[
            str, Any
        ] = {}  # Lua programs, found again with the folders of the settings

    def add(self, program: Any) -> None:
        """Add a program that was given to the runtime. Raises `DuplicateProgram`."""
        if self._given.get(program.ref) is not program:
            refuse_same_reference(program)
        self._given[program.ref] = self._place(program)

    def find(self, ref: str, version: int) -> Any:
        """The program of this reference and version; raises as `find_program` does."""
        given = self._find_given(ref)
        if given is not None and given.version == version:
            return given
        if self._settings is None:
            return find_program(ref, version)
        return find_named_program(ref, self._settings, version)

    def find_newest(self, ref: str) -> Any:
        """The program of this reference in its newest version."""
        given = self._find_given(ref)
        if given is not None:
            return given
        if self._settings is None:
            return find_program(ref)
        return find_named_program(ref, self._settings)

    def _find_given(self, ref: str) -> Any:
        same = find_same_program(ref, self._given)
        return None if same is None else self._given[same]

    def _place(self, program: Any) -> Any:
        """Give a Lua program without folders those of the settings, for what it requires."""
        if self._settings is None or not getattr(program, "is_alone", False):
            return program
        if program.ref not in self._placed:  # once: the search takes as long as a start
            self._placed[program.ref] = find_named_program(
                program.ref, self._settings, program.version
            )
        return self._placed[program.ref]
