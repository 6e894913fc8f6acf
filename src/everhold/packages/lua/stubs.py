"""Types of `alc` for editors of Lua: a file of ours, written into the home for whoever points an
editor at it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from everhold.packages.lua.atomic_file import read_text_file, write_atomically
from everhold.packages.lua.paths import AlcHome

STUBS_FILE: Final = "alc.d.lua"
SHAPES_FILE: Final = "alc_shapes.d.lua"  # of the package alc_shapes, if somebody put it there


@cache
def load_stubs() -> str:
    """The types of everything that programs find under `alc`."""
    return files(__package__).joinpath(STUBS_FILE).read_text("utf-8")


def write_stubs(home: AlcHome) -> dict[str, str]:
    """Write the types if they are not there as they are now; returns where types are."""
    file = home.types / STUBS_FILE
    shapes = home.types / SHAPES_FILE
    if read_text_file(file) != load_stubs():
        write_atomically(file, load_stubs(), mode=0o644)
    told = {"types_path": str(file)}
    return told | ({"alc_shapes_types_path": str(shapes)} if shapes.is_file() else {})
