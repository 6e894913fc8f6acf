"""One host for all programs: the reference of a session decides between Python and Lua.

Python programs run in this process. Lua programs run in this process if the user trusts their
package, otherwise in a worker process. The Lua host is imported with the first Lua program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from everhold.core.metrics import Metrics
from everhold.core.retry import Retry
from everhold.core.session import Birth
from everhold.packages.settings import LuaOptions
from everhold.ports.program import Execution
from everhold.programs.python.execution import PythonHost

if TYPE_CHECKING:
    from everhold.programs.lua.host import LuaHost


#: The entry of a session's metadata that names the project whose packages it finds.
PROJECT_KEY: Final = "project_root"


class ProgramHosts:
    """Begins executions of Python and Lua programs.

    `find` finds a program by reference and version. `options` are those of Lua programs, `retry` is
    the default policy of the runtime.
    """

    def __init__(
        self,
        find: Callable[[str, int], Any],
        options: LuaOptions | None = None,
        retry: Retry | None = None,
    ) -> None:
        self._find = find
        self._options = options or LuaOptions()
        self._python = PythonHost(find, retry)
        self._lua: LuaHost | None = None

    def begin(self, birth: Birth, meter: Metrics) -> Execution:
        if not is_lua_ref(birth.program):
            return self._python.begin(birth, meter)
        project = birth.metadata.get(PROJECT_KEY)
        find = self._find if project is None else partial(_find_in_project, self._find, project)
        if self._lua is None:
            from everhold.packages.lua.trust import get_marks_file, get_trusted_fingerprint
            from everhold.programs.lua.host import LuaHost

            self._lua = LuaHost(
                self._find,
                partial(get_trusted_fingerprint, marked=get_marks_file()),
                limits=self._options.limits.base(),
                choose_limits=self._options.limits.choose,
                shares=self._options.shares,
            )
        execution: Execution = self._lua.begin(birth, meter, find)
        return execution

    def open(self) -> None:
        """Open the host, also again after `close`."""
        if self._lua is not None and self._lua.closed:
            self._lua = None

    async def close(self) -> None:
        """End the worker processes; later executions of Lua programs are refused."""
        if self._lua is not None:
            await self._lua.close()


def _find_in_project(find: Callable[[str, int], Any], project: str, ref: str, version: int) -> Any:
    """A Lua program with the search order of its session's project, not of this process's
    folder.
    """
    from everhold.packages.lua.project import find_package_roots
    from everhold.programs.lua.program import LuaProgram

    program = find(ref, version)
    return LuaProgram.found(program.ref, roots=(*find_package_roots(project).all, *program.roots))


def is_lua_ref(ref: str) -> bool:
    """Whether a reference names a Lua program: a text, a package or a file."""
    place = ref.rpartition(":")[0]
    return place == "lua" or place.endswith(".lua")
