"""Decides where a Lua program runs: in this process if the user trusts it, else in a worker.

Rules
  1. Text is never trusted: a model may have written it.
  2. A package is trusted while its files are unchanged, and only if all packages that it requires
     are trusted too. These are read from its source. A package that computes a name for `require`,
     or forks programs by name, may need any package, so it is not trusted. A `require` that this
     reading misses is refused when it is called (`search_path.py`).
  3. If the application has chosen a locale, nothing runs in this process: C would write 3.5 as
     "3,5" and order text by the rules of a language. Workers have no locale.
"""

from __future__ import annotations

import locale
import re
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from everhold.core.metrics import Metrics
from everhold.core.query import make_lua_namespace
from everhold.core.session import Birth
from everhold.errors import VersionMissing, WorkerFailed
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.protocol import LuaLimits
from everhold.programs.lua.remote import LuaPoolHolder, RemoteLuaExecution
from everhold.programs.lua.search_path import SearchRoot
from everhold.programs.lua.values import get_namespace_name

# Possessive quantifiers: no text makes these patterns backtrack. An unclosed comment runs to the
# end of the file.
_COMMENT: Final = re.compile(r"--\[(=*+)\[.*?(?:\]\1\]|\Z)|--[^\n]*", re.DOTALL)
_REQUIRE: Final = re.compile(
    r"""\brequire\b(?:\s*+(?:\(\s*+)?(["'])([A-Za-z0-9_-]++)[A-Za-z0-9_./-]*+\1)?"""
)
_BY_NAME: Final = re.compile(r"\balc\s*\.\s*(fork|pipe|eval)\b")
# For each package: its fingerprint, and the names it requires (None: not known).
_requirements: dict[str, tuple[str, frozenset[str] | None]] = {}


class TrustCheck(Protocol):
    """Returns the fingerprint under which the user trusts a package; "" if untrusted or changed."""

    def __call__(self, package: str | Path, /) -> str: ...


def is_fully_trusted(package: str | Path, roots: tuple[str, ...], trusted: TrustCheck) -> bool:
    """Whether a package (a folder or a file), and all packages it requires, are trusted."""
    known: set[str] = set()
    waiting = [str(package)]
    while waiting:
        place = waiting.pop()
        if place in known:
            continue
        known.add(place)
        digest = trusted(place)
        needed = _find_requirements(place, digest) if digest else None
        if needed is None:
            return False
        if needed:
            waiting += [
                str(other) for name in needed if (other := _find_package(name, roots)) is not None
            ]
    return True


def _find_package(name: str, roots: tuple[str, ...]) -> Path | None:
    for root in map(SearchRoot.of, roots):
        for place in root.places(name):
            if place.package.exists():
                return place.package
        if root.ends(name):
            return None
    return None


def _find_requirements(place: str, digest: str) -> frozenset[str] | None:
    """The packages that the files of a package require; None if that cannot be read from them."""
    known = _requirements.get(place)
    if known is None or known[0] != digest:
        package = Path(place)
        files = package.rglob("*.lua") if package.is_dir() else [package]
        names = {name for file in files if file.is_file() for name in _read_requires(file)}
        known = _requirements[place] = digest, None if "" in names else frozenset(names)
    return known[1]


def _read_requires(file: Path) -> list[str]:
    """The packages that a file requires; "" stands for a name that cannot be read."""
    text = _COMMENT.sub("", file.read_text(encoding="utf-8", errors="replace"))
    return [""] if _BY_NAME.search(text) else [match[2] or "" for match in _REQUIRE.finditer(text)]


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
