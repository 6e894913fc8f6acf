"""Where a Lua program runs: here if the user vouched for it, else in a worker that can be killed.

Text is never trusted: a model may have written it. A package is trusted while all its files are
what they were when the user said so, and as long as it needs no other that is not. Knowing is left
to others: `find` finds a program by reference, `trusted` says whether the user vouched for a
package's folder, or for a file.

Lua writes numbers and dates, orders text and knows letters as the process does. Where an
application has chosen a language with `locale.setlocale`, even 3.5 would be written otherwise, so
that nothing runs here; workers have none.
"""

from __future__ import annotations

import locale
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Final

from everhold.core.metrics import Metrics
from everhold.core.query import make_lua_namespace
from everhold.core.session import Birth
from everhold.errors import VersionMissing, WorkerFailed
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.protocol import LuaLimits
from everhold.programs.lua.remote import LuaPoolHolder, RemoteLuaExecution
from everhold.programs.lua.requires import TrustCheck, is_fully_trusted
from everhold.programs.lua.value_namespace import get_namespace_name

#: Names of the locale in which numbers have a point, days are English, and text is ordered by its
#: bytes.
_PLAIN: Final = frozenset({"C", "POSIX", "C.UTF-8", "C.utf8"})
_CHOSEN: Final = (locale.LC_NUMERIC, locale.LC_COLLATE, locale.LC_TIME)


class LuaHost:
    def __init__(
        self,
        find: Callable[[str, int], Any],
        trusted: TrustCheck,
        *,
        limits: LuaLimits | None = None,
        shares: Collection[str] = (),
        **pool: Any,
    ) -> None:
        self._find = find
        self._trusted = trusted
        self._shares = shares  # names of durable values that Lua and Python programs have in common
        self._home = LuaPoolHolder(limits, **pool)
        self.closed = False

    def begin(
        self, birth: Birth, meter: Metrics, find: Callable[[str, int], Any] | None = None
    ) -> Any:
        """A life of this session's program; `find` finds it, where this session has a finder of its
        own.
        """
        program: LuaProgram = (find or self._find)(birth.program, birth.version)
        if program.version != birth.version:
            raise VersionMissing(program.name, birth.version, program.version)
        space = make_lua_namespace(get_namespace_name(program.ctx(birth.args)), self._shares)
        if not self._may_run_here(program):
            if self.closed:
                raise WorkerFailed("the runtime was closed")
            return RemoteLuaExecution(program, birth, meter, self._home, space)
        from everhold.programs.lua.execution import LuaExecution

        memory = self._home.limits.memory
        return LuaExecution(
            program, birth, meter, memory=memory, allowed=self._trusted, space=space
        )

    def _may_run_here(self, program: LuaProgram) -> bool:
        if program.is_text or not _is_plain(locale.setlocale(locale.LC_ALL)):
            return False
        return is_fully_trusted(program.home, program.roots, self._trusted)

    async def close(self) -> None:
        """End the workers. There will be no others: nobody is left who would end those."""
        self.closed = True
        await self._home.close()


@lru_cache(maxsize=8)
def _is_plain(_now: str) -> bool:
    """Whether Lua in this process is Lua as it is everywhere, with what is chosen now."""
    # chosen by the environment, too; in UTF-8 a byte is no letter
    letters = locale.setlocale(locale.LC_CTYPE)
    if letters not in _PLAIN and not letters.lower().endswith(("utf-8", "utf8")):
        return False
    return _PLAIN.issuperset(map(locale.setlocale, _CHOSEN))
