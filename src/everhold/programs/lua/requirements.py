"""What a Lua package requires, read from its source, and what keeps it out of this process.

Rules
  1. Comments and strings are not code: a `require` in them counts for nothing.
  2. `spec/` and `tests/` of a package are left out, because no run loads them. If one does all the
     same, `search_path.py` refuses what is not trusted when it is required.
  3. A package that computes a name for `require`, or runs programs by name, may need any package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec

from everhold.programs.lua.search_path import SearchRoot

# Possessive quantifiers: no text makes this pattern backtrack. What is not closed runs to the end
# of the file, or of the line.
_TOKEN: Final = re.compile(
    r"""
    --\[(?P<comment>=*+)\[.*?(?:\](?P=comment)\]|\Z) | --[^\n]*+
    | \[(?P<level>=*+)\[.*?(?:\](?P=level)\]|\Z)
    | "(?:[^"\\\n]|\\.)*+"? | '(?:[^'\\\n]|\\.)*+'?
    | \brequire\b(?P<requires>(?:\s*+(?:\(\s*+)?(?P<quote>["'])
        (?P<name>[A-Za-z0-9_-]++)[A-Za-z0-9_./-]*+(?P=quote))?)
    | \balc\s*+\.\s*+(?P<verb>fork|pipe|eval)\b
    """,
    re.DOTALL | re.VERBOSE,
)
NOT_TRUSTED: Final = "it is not trusted, or has changed since"
#: Folders of a package that no run loads.
_TEST_FOLDERS: Final = frozenset({"spec", "tests"})
# For each package: its fingerprint, and what it requires.
_known: dict[str, tuple[str, Requirements]] = {}


class TrustCheck(Protocol):
    """Returns the fingerprint under which the user trusts a package; "" if untrusted or changed."""

    def __call__(self, package: str | Path, /) -> str: ...


class Requirements(msgspec.Struct, frozen=True):
    """The names of the packages that a package requires; or why they are not known."""

    names: frozenset[str] = frozenset()
    unknown: str = ""


class TrustGap(msgspec.Struct, frozen=True):
    """A package that keeps a program out of this process, and why."""

    package: Path
    reason: str
    may_be_trusted: bool  # whether trusting it is what is missing


def is_fully_trusted(package: str | Path, roots: tuple[str, ...], trusted: TrustCheck) -> bool:
    """Whether a package (a folder or a file), and all packages it requires, are trusted."""
    return next(find_trust_gaps(package, roots, trusted), None) is None


def find_trust_gaps(
    package: str | Path, roots: tuple[str, ...], trusted: TrustCheck
) -> Iterator[TrustGap]:
    """What keeps a package (a folder or a file) from running in this process: itself, or packages
    that it requires.
    """
    seen: set[str] = set()
    waiting = [str(package)]
    while waiting:
        place = waiting.pop(0)
        if place in seen:
            continue
        seen.add(place)
        digest = trusted(place)
        if not digest:
            yield TrustGap(Path(place), NOT_TRUSTED, True)
        needed = _read_requirements(place, digest)
        if needed.unknown:
            yield TrustGap(Path(place), needed.unknown, False)
        waiting += [
            str(other)
            for name in sorted(needed.names)
            if (other := _find_package(name, roots)) is not None
        ]


def _find_package(name: str, roots: tuple[str, ...]) -> Path | None:
    for root in map(SearchRoot.of, roots):
        for place in root.places(name):
            if place.package.exists():
                return place.package
        if root.ends(name):
            return None
    return None


def _read_requirements(place: str, digest: str) -> Requirements:
    """What the files of a package require; stored for a trusted one."""
    known = _known.get(place)
    if known is not None and digest and known[0] == digest:
        return known[1]
    package = Path(place)
    names: set[str] = set()
    unknown = ""
    for file in sorted(package.rglob("*.lua")) if package.is_dir() else [package]:
        inside = file.relative_to(package).parts
        if not file.is_file() or (len(inside) > 1 and inside[0] in _TEST_FOLDERS):
            continue
        required, problem = read_requires(file)
        names.update(required)
        unknown = unknown or (problem and f"{file.name} {problem}")
    found = Requirements(frozenset(names), unknown)
    if digest:
        _known[place] = digest, found
    return found


def read_requires(file: Path) -> tuple[list[str], str]:
    """The packages that a file requires; and what it does that may need any other package."""
    text = file.read_text(encoding="utf-8", errors="replace")
    names: list[str] = []
    problem = ""
    for match in _TOKEN.finditer(text):
        if match["verb"]:
            problem = problem or f"runs programs by name (alc.{match['verb']})"
        elif match["name"]:
            names.append(match["name"])
        elif match["requires"] is not None:
            problem = problem or "uses require without a plain name"
    return names, problem
