"""Lua packages: the verbs of `everhold pkg`, `everhold hub` and `everhold eval scenario` as
functions, which return what `--json` prints.

They raise errors of `everhold.errors`, and block. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everhold.lazy_exports import make_lazy_exports

if TYPE_CHECKING:
    from everhold.packages.hub.index import hub_reindex as hub_reindex
    from everhold.packages.hub.publish import hub_dist as hub_dist
    from everhold.packages.hub.publish import hub_gendoc as hub_gendoc
    from everhold.packages.hub.search import hub_info as hub_info
    from everhold.packages.hub.search import hub_search as hub_search
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
    from everhold.packages.lua.scenario_files import install_scenarios as install_scenarios
    from everhold.packages.lua.scenario_files import list_scenarios as list_scenarios
    from everhold.packages.lua.scenario_files import show_scenario as show_scenario

_HOMES = {
    "doctor": "packages.lua.doctor",
    "hub_dist": "packages.hub.publish",
    "hub_gendoc": "packages.hub.publish",
    "hub_info": "packages.hub.search",
    "hub_reindex": "packages.hub.index",
    "hub_search": "packages.hub.search",
    "init": "packages.lua.scaffold",
    "install": "packages.lua.install",
    "install_scenarios": "packages.lua.scenario_files",
    "link": "packages.lua.install",
    "list_packages": "packages.lua.listing",
    "list_scenarios": "packages.lua.scenario_files",
    "migrate": "packages.lua.legacy_import",
    "remove": "packages.lua.install",
    "repair": "packages.lua.doctor",
    "scaffold": "packages.lua.scaffold",
    "show_scenario": "packages.lua.scenario_files",
    "unlink": "packages.lua.install",
    "update": "packages.lua.resolve",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = make_lazy_exports(__name__, _HOMES)
