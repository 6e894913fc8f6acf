"""Everything that can be done with Lua packages: plain functions of plain values, which return what
is told as JSON.

They raise errors of `errors.py`, block while they work, and hold locks for a moment only; fetching
from a repository takes up to a minute.
"""

from everhold.packages.lua.doctor import doctor, repair
from everhold.packages.lua.install import install
from everhold.packages.lua.link import link, unlink
from everhold.packages.lua.listing import list_packages
from everhold.packages.lua.project_files import init, migrate, update
from everhold.packages.lua.remove import remove
from everhold.packages.lua.scaffold import scaffold

__all__ = [
    "doctor",
    "init",
    "install",
    "link",
    "list_packages",
    "migrate",
    "remove",
    "repair",
    "scaffold",
    "unlink",
    "update",
]
