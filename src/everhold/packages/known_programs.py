"""The programs that a runtime knows: those it was given, and those that its settings lead to."""

from __future__ import annotations

from typing import Any

from everhold.packages.catalog import find_named_program
from everhold.packages.find import find_program
from everhold.packages.settings import Settings


class KnownPrograms:
    """Finds programs by reference. A program that was given is preferred to one on disk."""

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self._given: dict[str, Any] = {}
        self._placed: dict[str, Any] = {}  # Lua programs found again with the settings' folders

    def add(self, program: Any) -> None:
        """Remember a program as each later run of its sessions finds it."""
        self._given[program.ref] = self._place(program)

    def find(self, ref: str, version: int) -> Any:
        """The program of this reference and version; raises `UnknownProgram` and the like."""
        given = self._given.get(ref)
        if given is not None and given.version == version:
            return given
        if self._settings is None:
            return find_program(ref, version)
        return find_named_program(ref, self._settings, version)

    def find_newest(self, ref: str) -> Any:
        """The program of this reference in its newest version."""
        given = self._given.get(ref)
        if given is not None:
            return given
        if self._settings is None:
            return find_program(ref)
        return find_named_program(ref, self._settings)

    def _place(self, program: Any) -> Any:
        """A Lua program that was given without folders, with those of the settings: it may require
        packages from them.
        """
        if self._settings is None or not getattr(program, "is_alone", False):
            return program
        if program.ref not in self._placed:  # once: the search takes as long as a start
            self._placed[program.ref] = find_named_program(
                program.ref, self._settings, program.version
            )
        return self._placed[program.ref]
