"""Searches the packages of all indexes and those that are installed, and shows one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.core.unknown_names import find_close_name
from everhold.errors import BadPackage
from everhold.packages.hub.index import (
    IndexedPackage,
    ReportProgress,
    read_indexed_package,
)
from everhold.packages.hub.sources import fetch_indexes
from everhold.packages.lua.card_index import PackageCards, load_package_cards
from everhold.packages.lua.fetch import UNKNOWN_SOURCE, dump_source
from everhold.packages.lua.folder import check_package_name, is_package, is_package_name
from everhold.packages.lua.installed import InstalledPackage, load_installed
from everhold.packages.lua.listing import Row, get_everhold_packages, select_rows
from everhold.packages.lua.paths import AlcHome, get_alc_home

SEARCH_SUMMARY: Final = (
    "name",
    "version",
    "description",
    "category",
    "installed",
    "docstring_matched",
)
SEARCH_FULL: Final = (*SEARCH_SUMMARY, "source", "card_count", "best_card", "docstring")
DEFAULT_LIMIT: Final = 50
DEFAULT_SORT: Final = "-installed,name"


def hub_search(
    query: str | None = None,
    *,
    category: str | None = None,
    installed_only: bool = False,
    limit: int | None = DEFAULT_LIMIT,
    sort: str = DEFAULT_SORT,
    filter: Any = None,
    fields: Sequence[str] | None = None,
    verbose: str | None = None,
    offline: bool = False,
    cards: PackageCards | None = None,
    progress: ReportProgress | None = None,
) -> dict[str, Any]:
    """The packages whose name, description, category or docstring contains `query`.

    It fetches indexes from the network, unless `offline` is true or they were fetched within the
    last hour. `total` counts the packages before `limit`. `cards` are by default those in files.
    """
    home = get_alc_home()
    cards = load_package_cards(home.cards) if cards is None else cards
    wanted = {
        **({"category": category} if category is not None else {}),
        **({"installed": True} if installed_only else {}),
        **(filter if isinstance(filter, dict) else {}),
    }
    select_rows([], summary=SEARCH_SUMMARY, full=SEARCH_FULL, sort=sort, verbose=verbose)
    installed = find_installed(home)
    found = fetch_indexes(home, offline=offline, progress=progress)
    rows = [
        row
        for row in _merge(found.packages, installed, cards)
        if _matches(row, (query or "").strip().lower())
    ]
    matching = select_rows(
        rows,
        summary=SEARCH_SUMMARY,
        full=SEARCH_FULL,
        limit=0,
        sort=sort,
        filter=wanted,
        verbose="full",
    )
    report: dict[str, Any] = {
        "results": select_rows(
            matching,
            summary=SEARCH_SUMMARY,
            full=SEARCH_FULL,
            limit=limit,
            sort=sort,
            fields=fields,
            verbose=verbose,
        ),
        "total": len(matching),
        "sources": found.addresses,
    }
    return report | ({"warnings": found.warnings} if found.warnings else {})


def hub_info(
    pkg: str,
    *,
    offline: bool = False,
    cards: PackageCards | None = None,
    evals: int | None = None,
    progress: ReportProgress | None = None,
) -> dict[str, Any]:
    """A package with its cards, their aliases, and counts; raises `BadPackage` if it is unknown.

    `cards` and the number of `evals` are by default those of files.
    """
    check_package_name(pkg)
    home = get_alc_home()
    cards = load_package_cards(home.cards) if cards is None else cards
    installed = find_installed(home)
    found = fetch_indexes(home, offline=offline, progress=progress)
    rows = {row["name"]: row for row in _merge(found.packages, installed, cards)}
    row = rows.get(pkg)
    if row is None:
        raise BadPackage(
            f"Package '{pkg}' not found in any index, nor among the installed packages",
            _hint_unknown(pkg, list(rows), found.warnings),
        )
    warnings = [*found.warnings, *(f"card {problem}" for problem in cards.problems)]
    best = cards.find_best(pkg)
    stored_evals = _count_evals(home, pkg, warnings)
    report: dict[str, Any] = {
        "pkg": {
            "name": pkg,
            **{key: row[key] or "" for key in ("version", "description", "category")},
            "source": row["source"],
            "installed": row["installed"],
        },
        "cards": cards.of(pkg),
        "aliases": [one for one in cards.aliases if one.get("pkg") == pkg],
        "stats": {
            "card_count": len(cards.of(pkg)),
            "eval_count": stored_evals if evals is None else evals,
            "best_pass_rate": None if best is None else best["pass_rate"],
        },
    }
    return report | ({"warnings": warnings} if warnings else {})


def _hint_unknown(pkg: str, names: list[str], warnings: list[str]) -> str:
    if close := find_close_name(pkg, names):
        return f"Did you mean '{close}'?"
    if warnings:
        return f"Not all indexes could be read: {warnings[-1]}"
    return f"Search for it: everhold hub search {pkg}"


# ---- installed packages


def find_installed(home: AlcHome) -> dict[str, tuple[Path, InstalledPackage | None]]:
    """The folder of each installed package, by the name by which programs require it."""
    known = load_installed(home)
    found: dict[str, tuple[Path, InstalledPackage | None]] = {
        name: (home.packages / name, entry) for name, entry in known.items()
    }
    for folder in (home.packages, get_everhold_packages()[0]):
        try:
            places = sorted(folder.iterdir())
        except OSError:
            continue
        for place in places:
            if is_package_name(place.name) and is_package(place):
                found.setdefault(place.name, (place, known.get(place.name)))
    return {name: one for name, one in found.items() if is_package(one[0])}


def _merge(
    indexed: list[IndexedPackage],
    installed: dict[str, tuple[Path, InstalledPackage | None]],
    cards: PackageCards,
) -> Iterator[Row]:
    """A row for each package: those of the indexes, then those that are only installed."""
    named = {one.name for one in indexed}
    for one in indexed:
        local = installed.get(one.name)
        if local is not None and not one.docstring:
            own = read_indexed_package(local[0])
            one.docstring = own.docstring if own is not None else None
        count = len(cards.of(one.name)) if local is not None else 0
        yield _row(one, local is not None) | {"card_count": max(one.card_count, count)}
    for name, (folder, entry) in installed.items():
        if name in named:
            continue
        read = read_indexed_package(folder) or IndexedPackage(name=name)
        read.name = name
        read.version = read.version or (entry.version if entry is not None else None)
        read.source = dump_source(UNKNOWN_SOURCE if entry is None else entry.source)
        read.card_count = len(cards.of(name))
        read.best_card = cards.find_best(name)
        yield _row(read, True)


def _row(one: IndexedPackage, is_installed: bool) -> Row:
    row: Row = msgspec.to_builtins(one)
    return row | {"installed": is_installed, "docstring": one.docstring or ""}


def _matches(row: Row, query: str) -> bool:
    """Whether a row has the query; notes in it if only the docstring has it."""
    if not query:
        return True
    if any(query in (row[key] or "").lower() for key in ("name", "description", "category")):
        return True
    if query in row["docstring"].lower():
        row["docstring_matched"] = True
        return True
    return False


# ---- evaluations


def _count_evals(home: AlcHome, pkg: str, warnings: list[str]) -> int:
    """How many evaluations of this package are in the home, by their .meta.json, else whole."""
    count = 0
    try:
        files = {file.name: file for file in sorted(home.evals.glob("*.json"))}
    except OSError:
        return 0
    for name, file in files.items():
        if name.startswith("compare_"):
            continue
        if not name.endswith(".meta.json") and f"{name[:-5]}.meta.json" in files:
            continue
        try:
            read = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            warnings.append(f"evaluation {file} cannot be read: {error}")
            continue
        count += isinstance(read, dict) and read.get("strategy") == pkg
    return count
