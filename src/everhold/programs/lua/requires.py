"""Which other packages a package needs, read from its text: what runs here must need nothing that
may not run here.

A package that says plainly what it requires is followed; one that computes the name, or forks
programs by name, may need anything. What a text hides from this reading is refused when it is
required (`module_reader.py`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Protocol

from everhold.programs.lua.search_path import SearchRoot

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
