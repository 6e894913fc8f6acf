"""The limits of Lua programs, from the table [lua] of the settings.

    [lua]                   cpu, memory, replay: of every package and file
    [lua.code]              the same, of texts, which a model may have written
    [lua.packages.NAME]     the same, of one package or file

What a table does not set comes from [lua], then from the defaults. [lua.code] takes nothing from
[lua].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.errors import BadSetting

if TYPE_CHECKING:
    from everhold.programs.lua.program import LuaProgram
    from everhold.programs.lua.protocol import LuaLimits

#: Seconds of CPU time of one advance of a package in a worker. Simulations need some; a text of a
#: model has `LuaLimits.cpu`.
PACKAGE_CPU_SECONDS: Final = 20.0
LIMIT_KEYS: Final = ("cpu", "memory", "replay")
LIMIT_TABLES: Final = ("code", "packages")
#: A worker is killed at this multiple of the limit that is measured inside.
_OUTSIDE: Final = 1.5
_LEAST_MEMORY: Final = 8 * 10**6
_MOST_MEMORY: Final = 4 * 10**9
_MOST_SECONDS: Final = 3600.0
#: The address space of a worker, as a multiple of the memory of a program.
_SPACE_FACTOR: Final = 3


class LimitTable(msgspec.Struct, frozen=True):
    """The limits that one table sets; None where it sets none."""

    cpu: float | None = None
    memory: int | None = None
    replay: float | None = None

    def over(self, other: LimitTable) -> LimitTable:
        """These limits, with those of another table where there is none."""
        return LimitTable(
            other.cpu if self.cpu is None else self.cpu,
            other.memory if self.memory is None else self.memory,
            other.replay if self.replay is None else self.replay,
        )


class LimitTables(msgspec.Struct, frozen=True):
    """All limits in the settings."""

    every: LimitTable = LimitTable()
    code: LimitTable = LimitTable()
    packages: Mapping[str, LimitTable] = {}

    def choose(self, program: LuaProgram) -> LuaLimits:
        """The limits of a program. An eval, which runs packages, has those of a package `eval`."""
        from everhold.programs.lua.program import TEXT_REF

        if program.ref == TEXT_REF:
            return _make_limits(self.code, "lua.code", None)
        own = self.packages.get(program.name)
        table = self.every if own is None else own.over(self.every)
        return _make_limits(table, f"lua.packages.{program.name}", PACKAGE_CPU_SECONDS)

    def base(self) -> LuaLimits:
        """The limits of a worker process, with the address space that its programs may need."""
        from everhold.programs.lua.protocol import LuaLimits

        tables = (self.every, self.code, *self.packages.values())
        largest = max((table.memory or 0 for table in tables), default=0)
        defaults = LuaLimits()
        space = max(defaults.space, largest * _SPACE_FACTOR)
        return msgspec.structs.replace(defaults, space=space, setting="lua.code")


def _make_limits(table: LimitTable, setting: str, cpu: float | None) -> LuaLimits:
    from everhold.programs.lua.protocol import LuaLimits

    limits = LuaLimits(setting=setting, chosen=table.cpu is not None)
    seconds = table.cpu or cpu or limits.cpu
    replay = table.replay or 0.0
    return msgspec.structs.replace(
        limits,
        cpu=seconds,
        wall=max(seconds, replay) * _OUTSIDE,
        memory=table.memory or limits.memory,
        replay=replay,
    )


def read_limit_tables(table: Mapping[str, Any], where: str) -> LimitTables:
    """Read the limits of the table [lua]; raises `BadSetting`."""
    packages = table.get("packages", {})
    if not isinstance(packages, dict):
        raise BadSetting(f"packages of {where}", "it should be tables, [lua.packages.NAME]")
    return LimitTables(
        _read_table({key: table[key] for key in LIMIT_KEYS if key in table}, where),
        _read_table(table.get("code", {}), f"code of {where}"),
        {
            name: _read_table(limits, f"packages.{name} of {where}")
            for name, limits in packages.items()
        },
    )


def _read_table(given: Any, where: str) -> LimitTable:
    from everhold.packages.settings import parse_duration, parse_size

    if not isinstance(given, dict):
        raise BadSetting(where, f"it should be a table with {', '.join(LIMIT_KEYS)}")
    for key in given:
        if key not in LIMIT_KEYS:
            raise BadSetting(where, f"unknown key {key!r}; there are {', '.join(LIMIT_KEYS)}")
    seconds = {}
    for key in ("cpu", "replay"):
        name = f"{key} of {where}"
        seconds[key] = parse_duration(given[key], name) if key in given else None
        if key in given and not 0 < (seconds[key] or 0) <= _MOST_SECONDS:
            raise BadSetting(name, f"it must be more than 0 and at most {_MOST_SECONDS:g} s")
    memory = parse_size(given["memory"], f"memory of {where}") if "memory" in given else None
    if memory is not None and not _LEAST_MEMORY <= memory <= _MOST_MEMORY:
        raise BadSetting(f"memory of {where}", "it must be between 8MB and 4GB")
    return LimitTable(seconds["cpu"], memory, seconds["replay"])
