"""Installs, lists and removes Python packages with entry points of the group `everhold.programs`.

pip installs them into the environment of everhold. Installing a package runs its build code, and
its programs run in this process. So a Python package is only installed if the user asks for one.

Rules
  1. Listing and checking read the metadata of a distribution and import nothing.
  2. Only a distribution with programs is removed.
"""

from __future__ import annotations

import csv
import importlib
import json
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

from everhold.errors import BadPackage
from everhold.packages.find import ENTRY_POINTS
from everhold.packages.lua.fetch import hide_credentials, normalize_git_url

#: Seconds that pip may take.
LIMIT: Final = 600.0


def list_distributions() -> list[dict[str, Any]]:
    """The distributions with programs, sorted by name."""
    return sorted((_plain(one) for one in _with_programs()), key=lambda row: str(row["name"]))


def check_distributions() -> list[dict[str, Any]]:
    """The distributions with missing files."""
    found = [
        {"name": one.name, "kind": "files_missing", "missing": _missing(one)}
        for one in _with_programs()
    ]
    return [row for row in found if row["missing"]]


def install_distribution(
    source: str, *, rev: str | None = None, linked: bool = False
) -> dict[str, Any]:
    """Install or update a folder, a git repository, or a name of the package index.

    With `linked`, a folder is used in place.
    """
    before = {str(row["name"]): row for row in list_distributions()}
    folder = Path(source).expanduser()
    is_folder = folder.is_dir()
    if is_folder and not any((folder / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise BadPackage(
            f"No pyproject.toml in {folder.absolute()}", "Give the folder of a Python package."
        )
    if linked and not is_folder:
        raise BadPackage(f"{source} is not a directory", "Only a folder can be used in place.")
    wanted = str(folder.resolve()) if is_folder else _requirement(source, rev)
    _pip("install", "--upgrade", *(["--editable"] if linked else []), wanted)
    after = {str(row["name"]): row for row in list_distributions()}
    report: dict[str, Any] = {
        "installed": sorted(after.keys() - before.keys()),
        "updated": sorted(
            name for name in after.keys() & before.keys() if after[name] != before[name]
        ),
        "environment": sys.prefix,
        "programs": {
            name: row["programs"] for name, row in after.items() if row != before.get(name)
        },
    }
    if not report["programs"]:
        report["note"] = f"No new programs: the package has no entry point in {ENTRY_POINTS}."
    return report


def remove_distribution(name: str) -> dict[str, Any]:
    """Uninstall a distribution with programs."""
    meant = next(
        (one.name for one in _with_programs() if _normalize(one.name) == _normalize(name)), None
    )
    if meant is None:
        raise BadPackage(f"No Python package '{name}' with programs is installed")
    _pip("uninstall", "--yes", meant)
    return {"removed": meant, "environment": sys.prefix}


def _requirement(source: str, rev: str | None) -> str:
    if "/" not in source and not source.startswith("git@"):
        if source.startswith("-") or not source.isprintable() or rev is not None:
            raise BadPackage(
                f"Not the name of a package: {source!r}",
                "Give NAME, NAME==VERSION, a folder or a git URL.",
            )
        return source
    url = normalize_git_url(source)
    if url.startswith("git@"):
        host, _, path = url.partition(":")
        url = f"ssh://{host}/{path}"
    if rev is not None and (not rev.isprintable() or rev.startswith("-") or "@" in rev):
        raise BadPackage(f"Not a revision: {rev!r}", "Give a tag, a branch or a commit.")
    return f"git+{url}{'' if rev is None else f'@{rev}'}"


def _pip(*words: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
        *words,
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        raise BadPackage(
            f"pip timed out after {LIMIT:.0f} s", "Run it by hand: python -m pip install …"
        ) from None
    importlib.invalidate_caches()
    if done.returncode:
        errors = [
            line for line in hide_credentials(done.stderr).splitlines() if "error" in line.lower()
        ]
        reason = errors[-1] if errors else hide_credentials(done.stderr).strip()[-500:]
        raise BadPackage(
            f"pip failed: {reason}", f"See its whole output: {' '.join(command[:3])} {words[0]} …"
        )


# ---- metadata


def _with_programs() -> list[Distribution]:
    """The distributions with programs; of two with one name, the one that is imported."""
    found: dict[str, Distribution] = {}
    for one in distributions():
        if _programs(one):
            found.setdefault(one.name, one)
    return list(found.values())


def _programs(one: Distribution) -> dict[str, str]:
    return {point.name: point.value for point in one.entry_points if point.group == ENTRY_POINTS}


def _plain(one: Distribution) -> dict[str, Any]:
    row: dict[str, Any] = {"name": one.name, "version": one.version, "programs": _programs(one)}
    try:
        direct = json.loads(one.read_text("direct_url.json") or "{}")
    except ValueError:
        direct = {}
    if "url" in direct:
        row["source"] = hide_credentials(str(direct["url"]))
        row["linked"] = bool(direct.get("dir_info", {}).get("editable"))
    if commit := direct.get("vcs_info", {}).get("commit_id"):
        row["rev"] = commit
    return row


def _missing(one: Distribution) -> list[str]:
    """The missing files of its RECORD. (`Distribution.files` omits them from Python 3.12 on.)"""
    names = [row[0] for row in csv.reader((one.read_text("RECORD") or "").splitlines()) if row]
    return [
        name
        for name in names
        if not name.endswith(".pyc") and not Path(str(one.locate_file(name))).exists()
    ]


def _normalize(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
