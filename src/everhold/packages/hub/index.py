"""hub_index.json: the packages of a folder, with their metadata.

    {"schema_version": "hub_index/v0", "updated_at": "2026-01-31T10:00:00Z", "packages": [
      {"name": …, "version": …, "description": …, "category": …, "docstring": …,
       "source": {"type": …}, "card_count": 0, "best_card": null}]}

Nothing is run: init.lua is read as text. A folder whose init.lua names no package, such as a
library, is skipped, and the report says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.errors import BadPackage, BadPackageFile
from everhold.packages.lua.atomic_file import read_text_file, write_atomically
from everhold.packages.lua.card_index import PackageCards, load_package_cards
from everhold.packages.lua.fetch import UNKNOWN_SOURCE, dump_source, parse_source
from everhold.packages.lua.folder import is_package, is_package_name
from everhold.packages.lua.installed import load_installed
from everhold.packages.lua.meta import read_docstring, read_meta_fields
from everhold.packages.lua.paths import AlcHome, expand_path, get_alc_home
from everhold.programs.lua.search_path import INIT_FILE

INDEX_FILE: Final = "hub_index.json"
INDEX_SCHEMA: Final = "hub_index/v0"
#: Bytes of an index that are read.
MAX_INDEX_BYTES: Final = 32 * 2**20

#: Told how many of how many are done.
ReportProgress = Callable[[int, int], object]


class IndexedPackage(msgspec.Struct, kw_only=True):
    """One package of an index. `folder` is its folder when the index is made from a folder."""

    name: str
    version: str | None = None
    description: str | None = None
    category: str | None = None
    docstring: str | None = None
    source: dict[str, Any] | str | None = None
    card_count: int = 0
    best_card: dict[str, Any] | None = None


class HubIndex(msgspec.Struct, kw_only=True):
    schema_version: str
    updated_at: str = ""
    packages: list[IndexedPackage] = []


class SkippedFolder(msgspec.Struct, frozen=True):
    folder: str
    reason: str


class BuiltIndex(msgspec.Struct):
    """An index made from a folder, the folder of each package, and what was skipped."""

    index: HubIndex
    folders: dict[str, Path]
    skipped: list[SkippedFolder]


def parse_index(text: str | bytes, where: str) -> HubIndex:
    """An index from its text; raises `BadPackageFile`."""
    try:
        index = msgspec.json.decode(text, type=HubIndex)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadPackageFile(where, f"it is not an index of packages: {error}") from None
    if index.schema_version != INDEX_SCHEMA:
        raise BadPackageFile(
            where, f"its schema_version is '{index.schema_version}' instead of '{INDEX_SCHEMA}'"
        )
    for one in index.packages:
        if not one.name:
            raise BadPackageFile(where, "a package has no name")
        try:
            one.source = dump_source(parse_source(one.source or dump_source(UNKNOWN_SOURCE)))
        except msgspec.ValidationError:
            one.source = dump_source(UNKNOWN_SOURCE)
    return index


def dump_index(index: HubIndex) -> str:
    return json.dumps(msgspec.to_builtins(index), indent=2, ensure_ascii=False) + "\n"


def build_index(
    source_dir: Path | None,
    home: AlcHome,
    progress: ReportProgress | None = None,
    cards: PackageCards | None = None,
) -> BuiltIndex:
    """The index of a folder of packages, or of the installed packages, with their sources and
    cards.
    """
    folder = home.packages if source_dir is None else source_dir
    known = load_installed(home) if source_dir is None else {}
    if source_dir is None and cards is None:
        cards = load_package_cards(home.cards)
    built = BuiltIndex(HubIndex(schema_version=INDEX_SCHEMA, updated_at=_now()), {}, [])
    try:
        places = sorted(place for place in folder.iterdir() if place.name[0] not in "._")
    except OSError:
        places = []  # nothing is installed yet
    places = [place for place in places if is_package(place)]
    for count, place in enumerate(places, start=1):
        _add_package(place, known, None if source_dir is not None else cards, built)
        if progress is not None:
            progress(count, len(places))
    built.index.packages.sort(key=lambda one: one.name)
    return built


def _add_package(
    place: Path, known: dict[str, Any], cards: PackageCards | None, built: BuiltIndex
) -> None:
    """Add a package; with `cards` it is an installed one."""
    one = read_indexed_package(place)
    if one is None:
        built.skipped.append(SkippedFolder(place.name, "its init.lua has no meta with a name"))
        return
    if not is_package_name(one.name):
        built.skipped.append(SkippedFolder(place.name, f"{one.name!r} cannot name a package"))
        return
    if one.name in built.folders:
        other = built.folders[one.name].name
        reason = f"the folder {other} has a package of this name, '{one.name}'"
        built.skipped.append(SkippedFolder(place.name, reason))
        return
    if cards is not None:
        entry = known.get(place.name)
        one.source = dump_source(UNKNOWN_SOURCE if entry is None else entry.source)
        one.card_count = len(cards.of(one.name))
        one.best_card = cards.find_best(one.name)
    built.index.packages.append(one)
    built.folders[one.name] = place


def read_indexed_package(folder: Path) -> IndexedPackage | None:
    """The entry of a package, from the text of its init.lua; None if it names no package."""
    main = folder / INIT_FILE
    meta = read_meta_fields(main)
    if not meta.get("name"):
        return None
    return IndexedPackage(
        name=meta["name"],
        version=meta.get("version") or None,
        description=meta.get("description") or None,
        category=meta.get("category") or None,
        docstring=read_docstring(main) or None,
        source=dump_source(UNKNOWN_SOURCE),
    )


def hub_reindex(
    output_path: str | Path | None = None,
    source_dir: str | Path | None = None,
    *,
    cards: PackageCards | None = None,
    progress: ReportProgress | None = None,
) -> dict[str, Any]:
    """Make the index of a folder of packages, by default of the installed ones with their `cards`
    (by default those in files).

    It is written to `output_path`; an existing file is replaced only if it is an index.
    """
    source = None if source_dir is None else check_source_dir(source_dir)
    target = None if output_path is None else check_index_target(output_path)
    built = build_index(source, get_alc_home(), progress, cards)
    if target is not None:
        keep_index_time(built.index, target)
        write_atomically(target, dump_index(built.index), mode=0o644)
    return report_index(built, output_path, source_dir)


def keep_index_time(index: HubIndex, target: Path) -> None:
    """Give an index the time of the one that it replaces, if their packages are the same."""
    with suppress(BadPackageFile):
        text = read_text_file(target)
        before = None if text is None else parse_index(text, str(target))
        if before is not None and before.packages == index.packages:
            index.updated_at = before.updated_at


def report_index(
    built: BuiltIndex, output_path: str | Path | None, source_dir: str | Path | None
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "package_count": len(built.index.packages),
        "updated_at": built.index.updated_at,
        "output_path": None if output_path is None else str(output_path),
        "source_dir": None if source_dir is None else str(source_dir),
    }
    if built.skipped:
        report["skipped"] = [msgspec.to_builtins(one) for one in built.skipped]
    return report


def check_source_dir(source_dir: str | Path) -> Path:
    """The folder; raises `BadPackage` if it is not one, or if it is itself a package."""
    folder = expand_path(source_dir)
    if not folder.is_dir():
        raise BadPackage(
            f"{source_dir} is not a directory",
            "Give the folder that contains the folders of the packages.",
        )
    if is_package(folder):
        raise BadPackage(
            f"{source_dir} is a package, not a folder of packages",
            f"Give the folder that contains it: {folder.parent}",
        )
    return folder


def check_index_target(output_path: str | Path) -> Path:
    """Where an index is written; raises `BadPackage` if another file is there."""
    target = expand_path(output_path)
    if target.is_dir():
        raise BadPackage(
            f"output_path '{output_path}' is a directory",
            f"Give the file: {Path(output_path) / INDEX_FILE}",
        )
    if target.exists() and not target.is_file():
        raise BadPackage(f"output_path '{output_path}' is not a regular file", "Give another file.")
    text = read_text_file(target)
    if text is not None and text.strip() and '"hub_index/' not in text:
        raise BadPackage(
            f"output_path '{output_path}' already exists and is not an index of packages",
            "Nothing was changed. Choose another file, or delete this one first.",
        )
    return target


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
