"""Which other packages a package needs, read from its text: what runs here must need nothing that may not run here.

A package that says plainly what it requires is followed; one that computes the name, or forks programs by name, may
need anything. What a text hides from this reading is refused when it is required (`reader.py`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from everhold.programs.lua.look import Look, look
from everhold.programs.lua.root import Root

# No text is looked at again and again, however it is made: what is never closed goes to the end.
_COMMENT: Final = re.compile(r"--\[(=*+)\[.*?(?:\]\1\]|\Z)|--[^\n]*", re.DOTALL)
_REQUIRE: Final = re.compile(r"""\brequire\b(?:\s*+(?:\(\s*+)?(["'])([A-Za-z0-9_-]++)[A-Za-z0-9_./-]*+\1)?""")
_BY_NAME: Final = re.compile(r"\balc\s*\.\s*(fork|pipe|eval)\b")
_seen: dict[Path, tuple[Look, frozenset[str] | None]] = {}  # what files need


class Trusted(Protocol):
    """Says whether the user vouched for a package. What the file system says of it is `there`, if it is known."""

    def __call__(self, package: Path, there: os.stat_result | None = None, /) -> bool: ...


def closed(package: Path, roots: tuple[str, ...], trusted: Trusted) -> bool:
    """Whether a package (a folder or a file), and all that it needs, is trusted."""
    known: set[Path] = set()
    waiting = [package]
    while waiting:
        place = waiting.pop()
        if place in known:
            continue
        known.add(place)
        try:
            there = os.stat(place)
        except OSError:
            return False
        if not trusted(place, there):
            return False
        for file, found in _sources(place, there):
            needed = _needs(file, look(found))
            if needed is None:
                return False
            waiting += [other for name in needed if (other := _located(name, roots)) is not None]
    return True


def _located(name: str, roots: tuple[str, ...]) -> Path | None:
    for root in map(Root.of, roots):
        for place in root.places(name):
            if place.package.exists():
                return place.package
        if root.ends(name):
            return None
    return None


def _sources(place: Path, there: os.stat_result) -> Iterator[tuple[Path, os.stat_result]]:
    if not stat.S_ISDIR(there.st_mode):
        return iter([(place, there)])
    return ((file, os.stat(file)) for file in place.rglob("*.lua"))


def _needs(file: Path, seen: Look) -> frozenset[str] | None:
    """The first names of all that a file requires; None if it does not say."""
    known = _seen.get(file)
    if known is None or known[0] != seen:
        text = _COMMENT.sub("", file.read_text(encoding="utf-8", errors="replace"))
        known = _seen[file] = seen, _read(text)
    return known[1]


def _read(text: str) -> frozenset[str] | None:
    if _BY_NAME.search(text):
        return None
    names = [match[2] for match in _REQUIRE.finditer(text)]
    return None if None in names else frozenset(names)
