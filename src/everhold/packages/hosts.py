"""Every way of writing programs behind one host: a session's reference says which one is meant.

Python programs run here. Lua programs run here if the user trusts their package, else in a process that can be killed;
what they need is loaded with the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everhold.core.metrics import Metrics
from everhold.core.session import Birth
from everhold.ports.program import Execution
from everhold.programs.python import PythonHost

if TYPE_CHECKING:
    from everhold.programs.lua.host import LuaHost


class Hosts:
    """Begins lives of programs, whatever they are written in. `find` finds one by reference and version."""

    def __init__(self, find: Callable[[str, int], Any]) -> None:
        self._find = find
        self._python = PythonHost(find)
        self._lua: LuaHost | None = None

    def begin(self, birth: Birth, meter: Metrics) -> Execution:
        if not is_lua(birth.program):
            return self._python.begin(birth, meter)
        if self._lua is None:
            from everhold.packages.trust import trusted
            from everhold.programs.lua.host import LuaHost

            self._lua = LuaHost(self._find, trusted)
        return self._lua.begin(birth, meter)

    async def close(self) -> None:
        """End the processes that were started for programs."""
        if self._lua is not None:
            await self._lua.close()
            self._lua = None


def is_lua(ref: str) -> bool:
    """Whether a reference means a Lua program: a text, a package or a file."""
    place = ref.rpartition(":")[0]
    return place == "lua" or place.endswith(".lua")
