"""Lua packages: the verbs of `everhold pkg` as functions, which return what `--json` prints.

They raise errors of `everhold.errors`, and block. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everhold.lazy_exports import make_lazy_exports

if TYPE_CHECKING:
    from everhold.packages.lua.doctor import doctor as doctor
    from everhold.packages.lua.doctor import repair as repair
    from everhold.packages.lua.install import install as install
    from everhold.packages.lua.install import link as link
    from everhold.packages.lua.install import remove as remove
    from everhold.packages.lua.install import unlink as unlink
    from everhold.packages.lua.legacy_import import migrate as migrate
    from everhold.packages.lua.listing import list_packages as list_packages
    from everhold.packages.lua.resolve import update as update
    from everhold.packages.lua.scaffold import init as init
    from everhold.packages.lua.scaffold import scaffold as scaffold

_HOMES = {
    "doctor": "packages.lua.doctor",
    "init": "packages.lua.scaffold",
    "install": "packages.lua.install",
    "link": "packages.lua.install",
    "list_packages": "packages.lua.listing",
    "migrate": "packages.lua.legacy_import",
    "remove": "packages.lua.install",
    "repair": "packages.lua.doctor",
    "scaffold": "packages.lua.scaffold",
    "unlink": "packages.lua.install",
    "update": "packages.lua.resolve",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = make_lazy_exports(__name__, _HOMES)
