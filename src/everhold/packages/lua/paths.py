"""Where algocline's files are, and what its environment variables say.

    ALC_HOME                  the folder of everything; else ~/.algocline if it is there, else everhold's data folder
    ALC_PACKAGES_PATH         more folders of packages, with `:` between them
    ALC_PROJECT_ROOT          the project, if nobody says which
    ALC_PKG_STRICT            1 or true: no link leads out of a folder of packages
    ALC_LOG_DIR               where transcripts are written; else logs/ in the home, else where there is room
    ALC_LOG_LEVEL             off: no transcripts
    ALC_PROMPT_PREVIEW_CHARS  letters of a prompt in a preview, 200 if it says nothing

`UNHEEDED_VARIABLES` has those that say nothing here. Nothing is made or written here.
"""  # noqa: E501

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from everhold.errors import BadPackage, BadSetting
from everhold.packages import settings

DEFAULT_HOME: Final = Path("~/.algocline")
DEFAULT_PREVIEW_CHARS: Final = 200
PROJECT_FILE: Final = "alc.toml"

#: Variables that say nothing here, and why.
UNHEEDED_VARIABLES: Final = {
    "ALC_CARD_SINKS": (
        "cards are in the database, and mirrored to no folder; `everhold export"
        " --values` writes them"
    ),
    "ALC_SHAPE_CHECK": "programs see no variables, so that each of their lives is the same",
}

Env = Mapping[str, str]


class AlcHome(msgspec.Struct, frozen=True):
    """The folder in which everything is that belongs to the user and not to a project."""

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
        """The copy of a package that projects pin to this version or revision."""
        return self.packages / f"{name}@{version}"


def get_alc_home(env: Env | None = None) -> AlcHome:
    """The user's folder; it need not exist."""
    said = _of(env).get("ALC_HOME")
    if said:
        return AlcHome(Path(said).expanduser().absolute())
    usual = DEFAULT_HOME.expanduser()
    return AlcHome(usual if usual.is_dir() else settings.get_data_folder())


def read_packages_path(env: Env | None = None) -> tuple[Path, ...]:
    """The folders of ALC_PACKAGES_PATH; one that is not there yet counts, too."""
    said = _of(env).get("ALC_PACKAGES_PATH", "")
    return tuple(Path(part).expanduser().absolute() for part in said.split(os.pathsep) if part)


def list_unheeded_variables(env: Env | None = None) -> list[str]:
    """What is set and does nothing here, each with its reason."""
    return [
        f"{name} says nothing here: {why}"
        for name, why in UNHEEDED_VARIABLES.items()
        if _of(env).get(name)
    ]


def is_strict(env: Env | None = None) -> bool:
    return _of(env).get("ALC_PKG_STRICT", "").lower() in ("1", "true")


def read_preview_chars(env: Env | None = None) -> int:
    """How many letters of a prompt a preview shows."""
    said = _of(env).get("ALC_PROMPT_PREVIEW_CHARS", "")
    return int(said) if said.isascii() and said.isdigit() else DEFAULT_PREVIEW_CHARS


def is_log_enabled(env: Env | None = None) -> bool:
    return _of(env).get("ALC_LOG_LEVEL", "").lower() != "off"


def log_dir(env: Env | None = None) -> tuple[Path | None, str]:
    """Where transcripts go, and what says so: the first folder that can be written, or be made."""
    for folder, source in _log_dirs(_of(env)):
        if _is_writable(folder):
            return folder, source
    return None, "none"


def _log_dirs(env: Env) -> Iterator[tuple[Path, str]]:
    if said := env.get("ALC_LOG_DIR"):
        yield Path(said).expanduser().absolute(), "ALC_LOG_DIR"
    yield get_alc_home(env).logs, "home"
    state = env.get("XDG_STATE_HOME")
    yield (
        (Path(state) if state else Path("~/.local/state").expanduser()) / "algocline" / "logs",
        "state_dir",
    )
    yield Path.cwd() / "algocline-logs", "cwd"


def _is_writable(folder: Path) -> bool:
    there = next((place for place in (folder, *folder.parents) if place.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


# ---- the project


def find_project_root(
    given: str | Path | None = None, *, start: Path | None = None, env: Env | None = None
) -> Path | None:
    """The project's folder: the one that was named, else ALC_PROJECT_ROOT, else the nearest with an
    alc.toml.
    """
    if given is not None:
        folder = Path(given).expanduser().absolute()
        if not folder.is_dir():
            raise BadPackage(
                f"Project root is not a directory: {folder}",
                "Name the folder that has the alc.toml.",
            )
        return folder.resolve()
    if said := _of(env).get("ALC_PROJECT_ROOT"):
        folder = Path(said).expanduser().absolute()
        if not folder.is_dir():
            raise BadSetting("ALC_PROJECT_ROOT", f"there is no folder {folder}")
        return folder.resolve()
    begin = (start or Path.cwd()).resolve()
    return next(
        (folder for folder in (begin, *begin.parents) if (folder / PROJECT_FILE).is_file()), None
    )


def _of(env: Env | None) -> Env:
    return os.environ if env is None else env
