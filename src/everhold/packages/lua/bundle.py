"""What a collection brings besides packages: cards of its packages, and scenarios. What is there
already stays.

<package>/cards/*.toml, *.samples.jsonl   to cards/<package>/ in the home
scenarios/*.lua                           to scenarios/ in the home
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everhold.packages.lua.paths import AlcHome


def import_bundle(folder: Path, packages: dict[str, Path], to: AlcHome) -> dict[str, Any]:
    """Take over what was brought; returns what it was, under the keys of an installation."""
    cards = [
        card
        for name, place in packages.items()
        for card in _cards(place / "cards", to.cards / name)
    ]
    scenarios, failures = _scenarios(folder / "scenarios", to.scenarios)
    told = {
        "cards_installed": cards,
        "scenarios_installed": scenarios,
        "scenarios_failures": failures,
    }
    return {key: value for key, value in told.items() if value}


def list_bundle_folders(folder: Path) -> list[Path]:
    """Folders that are taken over from beside the packages."""
    scenarios = folder / "scenarios"
    return [scenarios] if scenarios.is_dir() and not scenarios.is_symlink() else []


def _cards(source: Path, target: Path) -> Iterator[str]:
    for file in _files(source, "*.toml"):
        if (target / file.name).exists() or not _is_card(file):
            continue
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        samples = file.with_suffix(".samples.jsonl")
        if samples.is_file() and not samples.is_symlink() and not (target / samples.name).exists():
            shutil.copyfile(samples, target / samples.name)
        shutil.copyfile(file, target / file.name)
        yield file.stem


def _is_card(file: Path) -> bool:
    """A file of aliases is none."""
    try:
        return not file.name.startswith("_") and isinstance(
            tomllib.loads(file.read_text("utf-8")), dict
        )
    except (ValueError, OSError):
        return False


def _scenarios(source: Path, target: Path) -> tuple[list[str], list[str]]:
    installed = []
    failures = []
    for file in _files(source, "*.lua"):
        if (target / file.name).exists():
            continue
        try:
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(file, target / file.name)
            installed.append(file.stem)
        except OSError as error:
            failures.append(f"{file.name}: {error.strerror}")
    return installed, failures


def _files(folder: Path, pattern: str) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(file for file in folder.glob(pattern) if file.is_file() and not file.is_symlink())
