"""Scenarios in Lua, in the folder `scenarios/` of algocline's home: one file each.

Rules
  1. Files are used where they lie. Reading changes nothing, and runs nothing.
  2. A file that cannot be read is listed with the reason.
  3. Installing copies files. A file that is there is never overwritten.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.errors import BadPackage, BadScenario, UnknownScenario
from everhold.packages.lua.fetch import fetch_packages
from everhold.packages.lua.paths import get_alc_home

SUFFIX: Final = ".lua"
#: The folder of scenarios in a collection, and in the home.
SCENARIOS_FOLDER: Final = "scenarios"
#: The largest scenario, in bytes.
MAX_SCENARIO_BYTES: Final = 4 * 2**20


class CopiedScenarios(msgspec.Struct):
    """What became of files that were to be copied, by name."""

    installed: list[str] = []
    skipped: list[str] = []
    failures: list[str] = []


def list_scenarios() -> dict[str, Any]:
    """The scenarios by name, and the files that cannot be read."""
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    for file in _list_files(get_alc_home().scenarios):
        try:
            size = len(_read(file).encode())
        except BadScenario as error:
            failures.append(f"{file.name}: {error.reason}")
            continue
        rows.append({"name": file.stem, "path": str(file), "size_bytes": size})
    return {"scenarios": rows, "failures": failures}


def show_scenario(name: str) -> dict[str, Any]:
    """A scenario with its text; raises `UnknownScenario` or `BadScenario`."""
    file = find_scenario_file(name)
    return {"name": name, "path": str(file), "content": _read(file)}


def find_scenario_file(name: str) -> Path:
    """The file of a scenario in the home; raises `UnknownScenario`."""
    files = {file.stem: file for file in _list_files(get_alc_home().scenarios)}
    if name not in files:
        near = get_close_matches(name, list(files), 1)
        raise UnknownScenario(name, f"Did you mean {near[0]!r}?" if near else "")
    return files[name]


def read_scenario_file(path: Path) -> str:
    """The text of a scenario anywhere; raises `BadScenario`."""
    return _read(path)


def install_scenarios(url: str) -> dict[str, Any]:
    """Copy scenarios from a folder or a git repository to the home; raises `BadPackage`.

    A repository has them in `scenarios/`, or at its top; a folder at its top, or in `scenarios/`.
    """
    with fetch_packages(url) as fetched:
        top, inner = fetched.folder, fetched.folder / SCENARIOS_FOLDER
        places = (top, inner) if fetched.is_local else (inner, top)
        files = next((found for place in places if (found := list_lua_files(place))), [])
        if not files:
            raise BadPackage(
                f"No scenarios found in {url}",
                "A scenario is a .lua file in this folder, or in its folder scenarios/.",
            )
        return msgspec.to_builtins(copy_scenarios(files, get_alc_home().scenarios))  # type: ignore[no-any-return]  # a dict


def copy_scenarios(files: Iterable[Path], to: Path) -> CopiedScenarios:
    """Copy files of scenarios that the folder does not have."""
    done = CopiedScenarios()
    for file in files:
        target = to / file.name
        if target.exists() or target.is_symlink():
            done.skipped.append(file.stem)
            continue
        try:
            _read(file)
            to.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        except BadScenario as error:
            done.failures.append(f"{file.name}: {error.reason}")
        except OSError as error:
            done.failures.append(f"{file.name}: {error.strerror}")
        else:
            done.installed.append(file.stem)
    return done


def list_lua_files(folder: Path) -> list[Path]:
    """The Lua files at the top of a folder that is not a link, without links."""
    if folder.is_symlink():
        return []
    return [file for file in _list_files(folder) if file.is_file() and not file.is_symlink()]


def _list_files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.glob(f"*{SUFFIX}") if not file.name.startswith("."))
    except OSError:
        return []


def _read(file: Path) -> str:
    try:
        if not file.is_file() and file.exists():
            raise BadScenario(file.stem, "it is not a regular file")
        with file.open("rb") as opened:
            text = opened.read(MAX_SCENARIO_BYTES + 1)
        if len(text) > MAX_SCENARIO_BYTES:
            raise BadScenario(file.stem, f"it has more than {MAX_SCENARIO_BYTES} bytes")
        return text.decode()
    except OSError as error:
        raise BadScenario(file.stem, f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadScenario(file.stem, "it is not UTF-8 text") from None
