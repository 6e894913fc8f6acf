"""Lua packages: the verbs of `everhold pkg` as plain functions, which return what `--json` prints.

They raise errors of `everhold.errors` and block while they work. Names are loaded when they are
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everhold.lazy_exports import make_lazy_exports

if TYPE_CHECKING:
    from everhold.packages.lua.api import doctor as doctor
    from everhold.packages.lua.api import init as init
    from everhold.packages.lua.api import install as install
    from everhold.packages.lua.api import link as link
    from everhold.packages.lua.api import list_packages as list_packages
    from everhold.packages.lua.api import migrate as migrate
    from everhold.packages.lua.api import remove as remove
    from everhold.packages.lua.api import repair as repair
    from everhold.packages.lua.api import scaffold as scaffold
    from everhold.packages.lua.api import unlink as unlink
    from everhold.packages.lua.api import update as update

_HOMES = {
    "doctor": "packages.lua.api",
    "init": "packages.lua.api",
    "install": "packages.lua.api",
    "link": "packages.lua.api",
    "list_packages": "packages.lua.api",
    "migrate": "packages.lua.api",
    "remove": "packages.lua.api",
    "repair": "packages.lua.api",
    "scaffold": "packages.lua.api",
    "unlink": "packages.lua.api",
    "update": "packages.lua.api",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = make_lazy_exports(__name__, _HOMES)
