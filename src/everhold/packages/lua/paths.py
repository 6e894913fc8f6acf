"""The folders and environment variables of algocline.

    ALC_HOME                  the home folder; default: ~/.algocline if it exists, else everhold's data folder
    ALC_PACKAGES_PATH         more folders of packages, separated by `:`
    ALC_PROJECT_ROOT          the project, if no argument names one
    ALC_PKG_STRICT            1 or true: links out of a folder of packages are refused
    ALC_LOG_DIR               the folder of transcripts; default: logs/ in the home, else the first writable folder
    ALC_LOG_LEVEL             off: no transcripts
    ALC_PROMPT_PREVIEW_CHARS  characters of a prompt in a preview; default: 200
    ALC_CARD_SINKS            folders that get a copy of every card, as file:// addresses separated by `|`
    ALC_SHAPE_CHECK           1: packages check what they take and return; recorded when a session starts

This module creates and writes nothing.
"""  # noqa: E501

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from everhold.errors import BadPackage, BadSetting
from everhold.packages import settings

DEFAULT_HOME: Final = "~/.algocline"
DEFAULT_PREVIEW_CHARS: Final = 200
PROJECT_FILE: Final = "alc.toml"

MAX_VERSION_CHARS: Final = 100

_NOT_IN_NAMES: Final = re.compile(r"[/\\\0]")
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|\0")

Env = Mapping[str, str]


class AlcHome(msgspec.Struct, frozen=True):
    """The home folder: files of the user, not of a project."""

    root: Path

    @property
    def packages(self) -> Path:
        return self.root / "packages"

    @property
    def cards(self) -> Path:
        return self.root / "cards"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def evals(self) -> Path:
        return self.root / "evals"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def scenarios(self) -> Path:
        return self.root / "scenarios"

    @property
    def types(self) -> Path:
        return self.root / "types"

    @property
    def installed(self) -> Path:
        return self.root / "installed.json"

    def pinned(self, name: str, version: str) -> Path:
        """The folder of a copy that projects pin, by version or revision."""
        if not is_version(version):
            raise BadPackage(
                f"{version[:MAX_VERSION_CHARS]!r} is not a version of '{name}'",
                "A version has no slashes, and at most 100 characters.",
            )
        return self.packages / f"{name}@{version}"


def is_version(text: str) -> bool:
    """Whether a version or revision can be part of the name of a folder."""
    return not _NOT_IN_NAMES.search(text) and 0 < len(text) <= MAX_VERSION_CHARS


def get_alc_home(env: Env | None = None) -> AlcHome:
    """The home folder; it may not exist yet."""
    named = _of(env).get("ALC_HOME")
    if named:
        return AlcHome(Path(named).expanduser().absolute())
    usual = os.path.expanduser(DEFAULT_HOME)
    return AlcHome(Path(usual) if os.path.isdir(usual) else settings.get_data_folder())


def read_packages_path(env: Env | None = None) -> tuple[Path, ...]:
    """The folders of ALC_PACKAGES_PATH, also those that do not exist yet."""
    folders = _of(env).get("ALC_PACKAGES_PATH", "").split(os.pathsep)
    return tuple(Path(folder).expanduser().absolute() for folder in folders if folder)


def list_unheeded_variables(env: Env | None = None) -> list[str]:
    """One sentence for each part of a variable that is set and has no effect here."""
    return [f"ALC_CARD_SINKS: {problem}" for problem in read_card_sinks(env)[1]]


def read_card_sinks(env: Env | None = None) -> tuple[dict[str, Path], list[str]]:
    """The folders of ALC_CARD_SINKS by their address, and why other parts of it have no effect."""
    sinks: dict[str, Path] = {}
    problems = []
    for word in filter(None, map(str.strip, _of(env).get("ALC_CARD_SINKS", "").split("|"))):
        path = parse_file_address(word)
        if path is None:
            problems.append(f"{word!r} is not a sink; give file:///folder, with % for other bytes")
        elif (address := f"file://{quote(str(path))}") in sinks:
            problems.append(f"{word!r} is named twice")
        else:
            sinks[address] = path
    return sinks, problems


def parse_file_address(word: str) -> Path | None:
    """The absolute path of a file:// address; None if it is not one."""
    if not word.startswith("file:///") or _BAD_PERCENT.search(word):
        return None
    try:
        path = unquote(word.removeprefix("file://"), errors="strict")
    except UnicodeDecodeError:
        return None
    return None if "\0" in path else Path(path)


def expand_path(given: str | Path, start: Path | None = None) -> Path:
    """The absolute path that a user names, relative to `start` or to the current folder.

    Raises `BadPackage` if it cannot be a path.
    """
    here = start or Path.cwd()  # the error of a folder that was deleted is not about the path
    try:
        path = (here / Path(given).expanduser()).absolute()
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return path
    except (OSError, RuntimeError, ValueError) as error:  # too long, ~ of no user, a NUL byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadPackage(
            f"{str(given)[:200]!r} is not a path: {reason}", "Give an existing or a new path."
        ) from None
    return path


def is_strict(env: Env | None = None) -> bool:
    return _of(env).get("ALC_PKG_STRICT", "").lower() in ("1", "true")


def read_preview_chars(env: Env | None = None) -> int:
    """Characters of a prompt that a preview shows."""
    chars = _of(env).get("ALC_PROMPT_PREVIEW_CHARS", "")
    return int(chars) if chars.isascii() and chars.isdigit() else DEFAULT_PREVIEW_CHARS


def is_log_enabled(env: Env | None = None) -> bool:
    return _of(env).get("ALC_LOG_LEVEL", "").lower() != "off"


def log_dir(env: Env | None = None) -> tuple[Path | None, str]:
    """The first folder for transcripts that is writable or can be made, and what named it."""
    for folder, source in _log_dirs(_of(env)):
        if _is_writable(folder):
            return folder, source
    return None, "none"


def _log_dirs(env: Env) -> Iterator[tuple[Path, str]]:
    if named := env.get("ALC_LOG_DIR"):
        yield Path(named).expanduser().absolute(), "ALC_LOG_DIR"
    yield get_alc_home(env).logs, "home"
    state = env.get("XDG_STATE_HOME")
    yield (
        (Path(state) if state else Path("~/.local/state").expanduser()) / "algocline" / "logs",
        "state_dir",
    )
    yield Path.cwd() / "algocline-logs", "cwd"


def _is_writable(folder: Path) -> bool:
    if os.path.isdir(folder):
        return os.access(folder, os.W_OK | os.X_OK)
    nearest = next((place for place in (folder, *folder.parents) if place.exists()), None)
    return nearest is not None and nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


# ---- the project


def find_project_root(
    given: str | Path | None = None, *, start: Path | None = None, env: Env | None = None
) -> Path | None:
    """The project's folder: `given`, else ALC_PROJECT_ROOT, else the nearest one with an
    alc.toml.
    """
    if given is not None:
        folder = expand_path(given)
        if not folder.is_dir():
            raise BadPackage(
                f"{folder} is not a directory, so it is no project",
                "Give the folder that contains alc.toml.",
            )
        return folder.resolve()
    if named := _of(env).get("ALC_PROJECT_ROOT"):
        folder = Path(named).expanduser().absolute()
        if not folder.is_dir():
            raise BadSetting("ALC_PROJECT_ROOT", f"folder {folder} does not exist")
        return folder.resolve()
    place = os.path.realpath(start) if start else os.getcwd()
    while not os.path.isfile(os.path.join(place, PROJECT_FILE)):
        above = os.path.dirname(place)
        if above == place:
            return None
        place = above
    return Path(place)


def _of(env: Env | None) -> Env:
    return os.environ if env is None else env
