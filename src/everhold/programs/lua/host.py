"""Where a Lua program runs: here if the user vouched for it, else in a worker that can be killed.

Text is never trusted: a model may have written it. A package is trusted while all its files are
what they were when the user said so, and as long as it needs no other that is not. Knowing is left
to others: `find` finds a program by reference, `trusted` says whether the user vouched for a
package's folder, or for a file.

Lua writes numbers and dates, orders text and knows letters as the process does. Where an
application has chosen a language with `locale.setlocale`, even 3.5 would be written otherwise, so
that nothing runs here; workers have none.

Which other packages a package needs, read from its text: what runs here must need nothing that
may not run here.

A package that says plainly what it requires is followed; one that computes the name, or forks
programs by name, may need anything. What a text hides from this reading is refused when it is
required (`search_path.py`).
"""

from __future__ import annotations

import locale
import re
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from everhold.core.metrics import Metrics
from everhold.core.query import make_lua_namespace
from everhold.core.session import Birth
from everhold.errors import VersionMissing, WorkerFailed
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.protocol import LuaLimits
from everhold.programs.lua.remote import LuaPoolHolder, RemoteLuaExecution
from everhold.programs.lua.search_path import SearchRoot
from everhold.programs.lua.values import get_namespace_name

# No text is looked at again and again, however it is made: what is never closed goes to the end.
_COMMENT: Final = re.compile(r"--\[(=*+)\[.*?(?:\]\1\]|\Z)|--[^\n]*", re.DOTALL)
_REQUIRE: Final = re.compile(
    r"""\brequire\b(?:\s*+(?:\(\s*+)?(["'])([A-Za-z0-9_-]++)[A-Za-z0-9_./-]*+\1)?"""
)
_BY_NAME: Final = re.compile(r"\balc\s*\.\s*(fork|pipe|eval)\b")
_seen: dict[str, tuple[str, frozenset[str] | None]] = {}  # what packages need, by their fingerprint


class TrustCheck(Protocol):
    """Says by which fingerprint the user vouched for a package; "" if he did not, or if it has
    changed.
    """

    def __call__(self, package: str | Path, /) -> str: ...


def is_fully_trusted(package: str | Path, roots: tuple[str, ...], trusted: TrustCheck) -> bool:
    """Whether a package (a folder or a file), and all that it needs, is trusted."""
    known: set[str] = set()
    waiting = [str(package)]
    while waiting:
        place = waiting.pop()
        if place in known:
            continue
        known.add(place)
        digest = trusted(place)
        needed = _needs(place, digest) if digest else None
        if needed is None:
            return False
        if needed:
            waiting += [
                str(other) for name in needed if (other := _located(name, roots)) is not None
            ]
    return True


def _located(name: str, roots: tuple[str, ...]) -> Path | None:
    for root in map(SearchRoot.of, roots):
        for place in root.places(name):
            if place.package.exists():
                return place.package
        if root.ends(name):
            return None
    return None


def _needs(place: str, digest: str) -> frozenset[str] | None:
    """The first names of all that the files of a package require; None if one does not say."""
    known = _seen.get(place)
    if known is None or known[0] != digest:
        package = Path(place)
        files = package.rglob("*.lua") if package.is_dir() else [package]
        names = {name for file in files if file.is_file() for name in _read(file)}
        known = _seen[place] = digest, None if "" in names else frozenset(names)
    return known[1]


def _read(file: Path) -> list[str]:
    """The first names of all that a file requires; one is "" if it cannot be told."""
    text = _COMMENT.sub("", file.read_text(encoding="utf-8", errors="replace"))
    return [""] if _BY_NAME.search(text) else [match[2] or "" for match in _REQUIRE.finditer(text)]


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
