"""Every way of writing programs behind one host: a session's reference says which one is meant.

Python programs run here. Lua programs run here if the user trusts their package, else in a process
that can be killed; what they need is loaded with the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from everhold.core.metrics import Metrics
from everhold.core.session import Birth
from everhold.ports.program import Execution
from everhold.programs.python.execution import PythonHost

if TYPE_CHECKING:
    from everhold.programs.lua.host import LuaHost


#: The entry of a session's metadata that names the project whose packages it finds.
PROJECT_KEY: Final = "project_root"


class ProgramHosts:
    """Begins lives of programs, whatever they are written in. `find` finds one by reference and
    version.

    `shares` names the durable values that Lua programs have in common with Python programs.
    """

    def __init__(self, find: Callable[[str, int], Any], shares: Collection[str] = ()) -> None:
        self._find = find
        self._shares = shares
        self._python = PythonHost(find)
        self._lua: LuaHost | None = None

    def begin(self, birth: Birth, meter: Metrics) -> Execution:
        if not is_lua_ref(birth.program):
            return self._python.begin(birth, meter)
        project = birth.metadata.get(PROJECT_KEY)
        find = self._find if project is None else partial(_of_project, self._find, project)
        if self._lua is None:
            from everhold.packages.lua.trust import get_marks_file, get_trusted_fingerprint
            from everhold.programs.lua.host import LuaHost

            self._lua = LuaHost(
                self._find,
                partial(get_trusted_fingerprint, marked=get_marks_file()),
                shares=self._shares,
            )
        execution: Execution = self._lua.begin(birth, meter, find)
        return execution

    def open(self) -> None:
        """Be used, also again."""
        if self._lua is not None and self._lua.closed:
            self._lua = None

    async def close(self) -> None:
        """End the processes that were started for programs; whoever still wants one is refused."""
        if self._lua is not None:
            await self._lua.close()


def _of_project(find: Callable[[str, int], Any], project: str, ref: str, version: int) -> Any:
    """A Lua program that finds what it requires as its session's project says, wherever this
    process was started.
    """
    from everhold.packages.lua.project import find_package_roots
    from everhold.programs.lua.program import LuaProgram

    return LuaProgram.found(
        ref, roots=(*find_package_roots(project).all, *find(ref, version).roots)
    )


def is_lua_ref(ref: str) -> bool:
    """Whether a reference means a Lua program: a text, a package or a file."""
    place = ref.rpartition(":")[0]
    return place == "lua" or place.endswith(".lua")
