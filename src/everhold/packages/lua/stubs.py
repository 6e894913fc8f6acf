"""Types of `alc` for editors of Lua: a file of ours, written into the home for whoever points an
editor at it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from everhold.packages.lua.atomic_file import text_of, write
from everhold.packages.lua.paths import Home

FILE: Final = "alc.d.lua"
SHAPES: Final = "alc_shapes.d.lua"  # of the package alc_shapes, if somebody put it there


@cache
def text() -> str:
    """The types of everything that programs find under `alc`."""
    return files(__package__).joinpath(FILE).read_text("utf-8")


def written(home: Home) -> dict[str, str]:
    """Write the types if they are not there as they are now; returns where types are."""
    file = home.types / FILE
    shapes = home.types / SHAPES
    if text_of(file) != text():
        write(file, text(), mode=0o644)
    told = {"types_path": str(file)}
    return told | ({"alc_shapes_types_path": str(shapes)} if shapes.is_file() else {})
