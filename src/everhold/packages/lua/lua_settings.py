"""The table `[lua]` of the settings: what Lua programs share with Python programs, and how large
packages may be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from everhold.errors import BadSetting
from everhold.packages.settings import Settings

LUA_KEYS: Final = ("shares", "max_package")
#: Bytes of an installation above which the user is asked.
DEFAULT_MAX_PACKAGE: Final = 20 * 10**6

_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMG]?B)")
_UNITS: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_NO_NAMES: Final = ("/", "\\", "..", "\0")


class LuaOptions(msgspec.Struct, frozen=True):
    """What the table says."""

    shares: frozenset[str] = frozenset()  # namespaces of durable values that both languages use
    max_package: int = DEFAULT_MAX_PACKAGE


def read_lua_options(found: Settings | None) -> LuaOptions:
    """What the settings say; raises `BadSetting`."""
    if found is None or not found.lua:
        return LuaOptions()
    where = f"lua in {found.source.get('lua', '')}"
    for key in found.lua:
        if key not in LUA_KEYS:
            raise BadSetting(where, f"there is no {key!r}; there are {', '.join(LUA_KEYS)}")
    largest = found.lua.get("max_package", DEFAULT_MAX_PACKAGE)
    return LuaOptions(_shares(found.lua, where), parse_size(largest, f"max_package of {where}"))


def parse_size(given: Any, name: str) -> int:
    """A number of bytes, or text such as "500kB", "20MB" or "1GB"; raises `BadSetting`."""
    if isinstance(given, str) and (found := _SIZE.fullmatch(given.strip())):
        return int(float(found[1]) * _UNITS[found[2]])
    if type(given) is not int or given < 0:
        raise BadSetting(name, f"{given!r} is not a size; say 500kB, 20MB or 1GB")
    return given


def format_size(size: int) -> str:
    """A size for people."""
    for unit in ("GB", "MB", "kB"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.1f} {unit}"
    return f"{size} B"


def _shares(table: Mapping[str, Any], where: str) -> frozenset[str]:
    names = table.get("shares", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadSetting(f"shares of {where}", f"it should be a list of strings, got {names!r}")
    for name in names:
        if not name or any(part in name for part in _NO_NAMES):
            raise BadSetting(f"shares of {where}", f"{name!r} is not the name of a namespace")
    return frozenset(names)
