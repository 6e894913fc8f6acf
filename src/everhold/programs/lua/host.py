"""Decides where a Lua program runs: in this process if the user trusts it, else in a worker.

Rules
  1. Text is never trusted: a model may have written it.
  2. A package is trusted while its files are unchanged, and only if all packages that it requires
     are trusted too. These are read from its source (`requirements.py`). A `require` that this
     reading misses is refused when it is called (`search_path.py`). If the settings give it more
     CPU time than one may use in this process, it runs in a worker all the same.
  3. If the application has chosen a locale, nothing runs in this process: C would write 3.5 as
     "3,5" and order text by the rules of a language. Workers have no locale.
"""

from __future__ import annotations

import locale
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Final

import msgspec

from everhold.core.metrics import Metrics
from everhold.core.query import make_lua_namespace
from everhold.core.session import Birth
from everhold.errors import VersionMissing, WorkerFailed
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.protocol import LuaLimits
from everhold.programs.lua.remote import LuaPoolHolder, RemoteLuaExecution
from everhold.programs.lua.requirements import TrustCheck, find_trust_gaps, is_fully_trusted
from everhold.programs.lua.values import get_namespace_name

#: Names of the C locale: decimal points, English days, text ordered by bytes.
_PLAIN: Final = frozenset({"C", "POSIX", "C.UTF-8", "C.utf8"})
_CHOSEN: Final = (locale.LC_NUMERIC, locale.LC_COLLATE, locale.LC_TIME)


class LuaHost:
    def __init__(
        self,
        find: Callable[[str, int], Any],
        trusted: TrustCheck,
        *,
        limits: LuaLimits | None = None,
        choose_limits: Callable[[LuaProgram], LuaLimits] | None = None,
        shares: Collection[str] = (),
        **pool: Any,
    ) -> None:
        """`limits` are those of the workers; `choose_limits` has other ones for a program."""
        self._find = find
        self._trusted = trusted
        self._choose_limits = choose_limits
        self._shares = shares  # namespaces that Lua and Python programs share
        self._home = LuaPoolHolder(limits, **pool)
        self.closed = False

    def begin(
        self, birth: Birth, meter: Metrics, find: Callable[[str, int], Any] | None = None
    ) -> Any:
        """Make an execution of the session's program; `find` replaces the host's own finder."""
        program: LuaProgram = (find or self._find)(birth.program, birth.version)
        if program.version != birth.version:
            raise VersionMissing(program.name, birth.version, program.version)
        space = make_lua_namespace(get_namespace_name(program.ctx(birth.args)), self._shares)
        limits = self._choose_limits(program) if self._choose_limits else self._home.limits
        if (
            program.is_text
            or is_too_long_here(limits)
            or not _is_plain(locale.setlocale(locale.LC_ALL))
            or not is_fully_trusted(program.home, program.roots, self._trusted)
        ):
            if self.closed:
                raise WorkerFailed("the runtime was closed")
            return RemoteLuaExecution(program, birth, meter, self._home, space, limits)
        from everhold.programs.lua.execution import LuaExecution
        from everhold.programs.lua.vm import DEFAULT_CPU_SECONDS, REPLAY_CPU_SECONDS

        # A limit above that of this process would let a program block all others for as long.
        here = msgspec.structs.replace(limits, cpu=DEFAULT_CPU_SECONDS)
        again = max(REPLAY_CPU_SECONDS, limits.replay)
        return LuaExecution(
            program, birth, meter, limits=here, again=again, allowed=self._trusted, space=space
        )

    async def close(self) -> None:
        """End the workers. No others are started, because nothing would end them."""
        self.closed = True
        await self._home.close()


def explain_place(program: LuaProgram, limits: LuaLimits, trusted: TrustCheck) -> list[str]:
    """Why a program runs in a worker; empty if it runs in this process."""
    if program.is_text:
        return ["texts always run in a worker"]
    reasons = [
        f"{gap.package.name}: {gap.reason}"
        for gap in find_trust_gaps(program.home, program.roots, trusted)
    ]
    if is_too_long_here(limits):
        reasons.append(
            f"[{limits.setting}] or [lua] of the settings give it {limits.cpu:g} s of CPU time;"
            " more than 1 s would block this process"
        )
    if not _is_plain(locale.setlocale(locale.LC_ALL)):
        reasons.append("this process has the locale of a language")
    return reasons


def is_too_long_here(limits: LuaLimits) -> bool:
    """Whether the user gave a program more CPU time than one may use in this process."""
    from everhold.programs.lua.vm import DEFAULT_CPU_SECONDS

    return limits.chosen and limits.cpu > DEFAULT_CPU_SECONDS


@lru_cache(maxsize=8)
def _is_plain(_now: str) -> bool:
    """Whether this process has the C locale, or one that Lua cannot notice."""
    # LC_CTYPE may come from the environment. In UTF-8 no single byte above 127 is a letter, so
    # Lua's %a and upper() behave as in the C locale.
    letters = locale.setlocale(locale.LC_CTYPE)
    if letters not in _PLAIN and not letters.lower().endswith(("utf-8", "utf8")):
        return False
    return _PLAIN.issuperset(map(locale.setlocale, _CHOSEN))
