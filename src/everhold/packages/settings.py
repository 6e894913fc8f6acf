"""Reads the settings: the database, the programs, and the tables of other parts.

Every front and `everhold.open` use the same rule:

    database       the argument, else EVERHOLD_DATABASE_URL, else the settings file, else the user's data folder
    programs       the settings file: modules and files with programs
    packages_path  the settings file; alc.toml and the ALC_ variables add folders (`packages/lua/`)
    llm            the settings file: the default model
    max_input      the settings file: the largest input of a conversation
    answer_with    the settings file: the command that answers questions
    on_unavailable the settings file: whether a question that no model here can answer waits or fails
    tell           the settings file: notifications (`notify/`)
    retention      the settings file: how long finished sessions are kept (`archive/retention.py`)
    worker         the settings file: concurrency and limits of a worker (`movers/workers.py`)
    lua            the settings file: limits and shared namespaces of Lua programs, and the size of packages

The settings file is the nearest `everhold.toml`, or `pyproject.toml` with a table
`[tool.everhold]`, in the current folder or above it. Paths in it are relative to its folder; other
paths are relative to the current folder.

Only `prepare_data_folder` writes anything.
"""  # noqa: E501

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.core.intake import MAX_INPUT_BYTES
from everhold.core.schema import fits_type
from everhold.core.unknown_names import find_close_name
from everhold.errors import BadSetting, StoreUnavailable
from everhold.packages.find import make_ref_absolute
from everhold.packages.lua.folder import PackageFolders
from everhold.packages.lua.limits import (
    LIMIT_KEYS,
    LIMIT_TABLES,
    LimitTables,
    read_limit_tables,
)
from everhold.programs.lua.search_path import SCENARIOS_ROOT, SearchRoot
from everhold.stores.address import (
    MALFORMED,
    SUFFIXES,
    hide_password,
    may_hold_secret,
    split_address,
)
from everhold.stores.registry import find_store_factory

DATABASE_VARIABLE: Final = "EVERHOLD_DATABASE_URL"
SETTINGS_FILE: Final = "everhold.toml"
_PROJECT: Final = "pyproject.toml"
SETTING_KEYS: Final = (
    "database",
    "programs",
    "packages_path",
    "llm",
    "answer_with",
    "max_input",
    "on_unavailable",
    "tell",
    "retention",
    "worker",
    "lua",
)
LIST_KEYS: Final = ("programs", "packages_path")  # settings that are lists of strings
# the folder of Lua packages in a project, and in the user's data folder
PACKAGES_FOLDER: Final = "packages"
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
DEFAULT_SOURCE: Final = "the user's data folder"
_ELSEWHERE: Final = f"Name another database with --database or {DATABASE_VARIABLE}."
#: Variables that decide where the user's data folder is.
_PLACES: Final = ("LOCALAPPDATA",) if os.name == "nt" else ("HOME", "XDG_DATA_HOME")


class Settings(msgspec.Struct, frozen=True):
    """The settings, and where each of them was found."""

    database: str  # a full address: sqlite:////abs/olute.db, memory://, postgresql://…
    root: Path  # the folder of the settings file, else the current one
    # for each setting that is set: the argument, the variable, a file or the default
    source: Mapping[str, str]
    programs: tuple[str, ...] = ()
    llm: str | None = None
    answer_with: str | None = None
    on_unavailable: str | None = None
    packages_path: tuple[Path, ...] = ()
    start: Path | None = None  # the folder where the search for the settings file began
    tell: tuple[Mapping[str, Any], ...] = ()
    retention: Mapping[str, Any] = {}
    worker: Mapping[str, Any] = {}
    lua: Mapping[str, Any] = {}
    max_input: int = MAX_INPUT_BYTES  # bytes of one input of a conversation

    @property
    def folders(self) -> PackageFolders:
        """The folders that are searched for Lua packages now, also those that do not exist yet.

        Raises `BadPackageFile` for an unreadable alc.lock or alc.local.toml of the project.
        """
        from everhold.packages.lua.paths import get_alc_home, is_strict
        from everhold.packages.lua.project import find_package_roots

        found = find_package_roots(start=self.start)
        strict = is_strict()
        here = [
            SearchRoot(folder, strict=strict)
            for folder in (*self.packages_path, self.root / PACKAGES_FOLDER)
        ]
        ours = SearchRoot(get_data_folder() / PACKAGES_FOLDER, strict=strict)
        # the last one: a package of that name, in any folder, comes before it
        scenarios = SearchRoot(get_alc_home().scenarios, SCENARIOS_ROOT, strict)
        return PackageFolders(
            (*found.pinned, *here, *found.path),
            tuple(dict.fromkeys((found.home, ours, scenarios))),
        )

    @property
    def scheme(self) -> str:
        return self.database.partition("://")[0]

    @property
    def path(self) -> Path | None:
        """The file of an SQLite database."""
        return Path(self.database.removeprefix("sqlite:///")) if self.scheme == "sqlite" else None

    @property
    def shown(self) -> str:
        """The address without its password, for output and logs."""
        return hide_password(self.database)

    @property
    def command_database(self) -> str:
        """The address that commands in this folder need to use the database; empty if they find it
        by default.
        """
        if self.source.get("database") != "argument":
            return ""
        found = settings(start=self.start)
        return "" if found.database == self.database else self.shown


def settings(
    database: str | os.PathLike[str] | None = None,
    *,
    start: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings; raises `BadSetting`, which names the setting and its file."""
    try:
        folder = Path(start or Path.cwd()).resolve()
    except FileNotFoundError:
        raise BadSetting("current folder", "it was deleted; change to another") from None
    variable = (os.environ if env is None else env).get(DATABASE_VARIABLE)
    file, table = _nearest(folder)
    root = file.parent if file else folder
    source = {key: str(file) for key in table}
    if database is not None:
        url = resolve_database_address(database, folder, "database")
        source["database"] = "argument"
    elif variable:
        url = resolve_database_address(variable, folder, DATABASE_VARIABLE)
        source["database"] = DATABASE_VARIABLE
    elif "database" in table:
        url = resolve_database_address(table["database"], root, f"database in {file}")
    else:
        url = f"sqlite:///{get_data_folder() / 'everhold.db'}"
        source["database"] = DEFAULT_SOURCE
    programs = tuple(make_ref_absolute(place, root) for place in table.get("programs", ()))
    path = tuple(
        (root / Path(place).expanduser()).resolve() for place in table.get("packages_path", ())
    )
    return Settings(
        database=url,
        root=root,
        source=source,
        programs=programs,
        llm=table.get("llm"),
        answer_with=table.get("answer_with"),
        on_unavailable=table.get("on_unavailable"),
        packages_path=path,
        start=folder,
        tell=tuple(table.get("tell", ())),
        retention=table.get("retention", {}),
        worker=table.get("worker", {}),
        lua=table.get("lua", {}),
        max_input=parse_size(table.get("max_input", MAX_INPUT_BYTES), f"max_input in {file}"),
    )


class WatchedSettings:
    """The settings of one folder, read again when a settings file has changed."""

    def __init__(self, found: Settings, database: str | os.PathLike[str] | None) -> None:
        self._found = found
        self._database = database
        start = found.start or found.root
        self._files = [
            str(place / name)
            for place in (start, *start.parents)
            for name in (SETTINGS_FILE, _PROJECT)
        ]
        self._seen = [_file_stamp(file) for file in self._files]

    def settings(self) -> Settings:
        """The current settings; raises `BadSetting`."""
        seen = [_file_stamp(file) for file in self._files]
        if seen != self._seen:
            self._found = settings(self._database, start=self._found.start)
            self._seen = seen
        return self._found


def _file_stamp(file: str) -> tuple[int, int, int] | None:
    """A value that changes with the file; None if it does not exist."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def get_data_folder() -> Path:
    """The user's data folder; it may not exist yet."""
    return _home(*map(os.environ.get, _PLACES))


@lru_cache(maxsize=8)
def _home(*_places: str | None) -> Path:
    from platformdirs import user_data_path

    return user_data_path("everhold", appauthor=False)


def prepare_data_folder(found: Settings) -> None:
    """Create the user's data folder, private to the user, if the database is there."""
    if found.source.get("database") == DEFAULT_SOURCE:
        try:
            get_data_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(
                str(get_data_folder()), error.strerror or str(error), _ELSEWHERE
            ) from None


# ---- addresses


def resolve_database_address(
    given: str | os.PathLike[str], folder: Path, name: str = "database"
) -> str:
    """The full address of a database: an absolute file, memory:// or postgresql://….

    The address of a store of an installed package is returned unchanged.
    """
    if isinstance(given, os.PathLike):
        return _sqlite(os.fspath(given), folder, name)
    if not isinstance(given, str):
        raise BadSetting(name, f"it should be a string or a path, got {type(given).__name__}")
    scheme, mark, rest = given.partition("://")
    if not mark:
        if given == ":memory:":
            raise BadSetting(name, "use memory:// for a database in memory")
        if given.startswith(("postgres:", "postgresql:")):
            raise BadSetting(name, MALFORMED)
        if not given.endswith(SUFFIXES):
            known = "sqlite:///file, postgresql://host/name, memory://, or a path that ends in .db"
            shown = "it" if may_hold_secret(given) else repr(given)
            raise BadSetting(name, f"{shown} is not an address; use {known}")
        return _sqlite(given, folder, name)
    match scheme:
        case "sqlite":
            return _sqlite(_after_third_slash(rest, name), folder, name)
        case "memory":
            if rest:
                raise BadSetting(name, "memory:// takes nothing after it")
            return given
        case "postgresql" | "postgres":
            if split_address(given) is None:
                raise BadSetting(name, MALFORMED)
            return f"postgresql://{rest}"
    if may_hold_secret(scheme):
        raise BadSetting(name, MALFORMED)
    find_store_factory(scheme, name)  # raises for a scheme that no installed package knows
    return given


def _after_third_slash(rest: str, name: str) -> str:
    if not rest.startswith("/"):
        file = "file.db" if may_hold_secret(rest) else rest
        meant = f"sqlite:///{file}" if rest else "memory://, or sqlite:///file.db"
        raise BadSetting(name, f"sqlite:// takes three slashes and a path; did you mean {meant}?")
    return rest[1:]


def _sqlite(path: str, folder: Path, name: str) -> str:
    if path in ("", ":memory:"):
        raise BadSetting(name, "it names no file; use memory:// for a database in memory")
    if "?" in path or "\0" in path:
        shown = "it" if may_hold_secret(path) else repr(path)
        raise BadSetting(name, f"{shown} is not a path; an SQLite address takes no options")
    return f"sqlite:///{(folder / Path(path).expanduser()).resolve()}"


# ---- the settings file


def _nearest(start: Path) -> tuple[Path | None, dict[str, Any]]:
    for folder in (start, *start.parents):
        file = folder / SETTINGS_FILE
        if file.is_file():
            return file, _checked(_read(file), file)
        project = folder / _PROJECT
        if project.is_file():
            tool = _read(project).get("tool", {})
            if "everhold" in tool:
                return project, _checked(tool["everhold"], project)
    return None, {}


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return _parsed(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(str(file), f"it is not TOML: {error}") from None
    except UnicodeDecodeError:
        raise BadSetting(str(file), "it is not UTF-8 text") from None
    except OSError as error:
        raise BadSetting(str(file), f"it cannot be read: {error.strerror}") from None


@lru_cache(maxsize=8)
def _parsed(text: str) -> dict[str, Any]:
    # parsing takes longer than opening a runtime, so an unchanged text is parsed once
    import tomllib

    return tomllib.loads(text)


def _checked(table: Any, file: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise BadSetting(f"everhold in {file}", "it should be a table, [tool.everhold]")
    for key, value in table.items():
        if key not in SETTING_KEYS:
            more = (
                "; in this file, settings are at the top level"
                if key == "tool"
                else _near(key, SETTING_KEYS)
            )
            raise BadSetting(f"{key} in {file}", f"unknown setting{more}")
        wanted, fits = _wanted(key)
        if not fits(value):
            got = type(value).__name__ if key == "database" else repr(value)
            raise BadSetting(f"{key} in {file}", f"it should be {wanted}, got {got}")
    return table


def _wanted(key: str) -> tuple[str, Callable[[Any], bool]]:
    """What a setting should be, as text and as a check."""
    match key:
        case "tell":
            return "a list of tables, [[tell]]", lambda value: _all(value, dict)
        case "retention" | "worker" | "lua":
            return f"a table, [{key}]", lambda value: isinstance(value, dict)
        case "max_input":
            return "a size, such as 500kB", lambda value: isinstance(value, str | int)
        case _ if key in LIST_KEYS:
            return "a list of strings", lambda value: _all(value, str)
    return "a string", lambda value: isinstance(value, str)


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(one, kind) for one in value)


def parse_duration(given: str | float, name: str) -> float:
    """Seconds, from a number or a number with a unit: "90s", "15m", "12h", "30d", "2w"."""
    number, unit = (
        (given[:-1], given[-1]) if isinstance(given, str) and given[-1:] in UNITS else (given, "s")
    )
    try:
        found = float(number) * UNITS[unit]
    except (TypeError, ValueError):
        found = -1.0
    if isinstance(given, bool) or not 0 <= found < float("inf"):
        raise BadSetting(name, f"{given!r} is not a duration; use 90s, 15m, 12h, 30d or 2w")
    return found


def _near(word: str, words: tuple[str, ...]) -> str:
    close = find_close_name(word, words)
    return f"; did you mean {close!r}?" if close else ""


# ---- the table [lua]

LUA_KEYS: Final = ("shares", "max_package", *LIMIT_KEYS, *LIMIT_TABLES)
#: Bytes of an installation above which the user has to agree.
DEFAULT_MAX_PACKAGE: Final = 20 * 10**6

_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMG]?B)")
_SIZE_UNITS: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_NO_NAMES: Final = ("/", "\\", "..", "\0")


class LuaOptions(msgspec.Struct, frozen=True):
    """The options of the table [lua]."""

    shares: frozenset[str] = frozenset()  # namespaces of durable values that both languages use
    max_package: int = DEFAULT_MAX_PACKAGE
    limits: LimitTables = LimitTables()


def read_lua_options(found: Settings | None) -> LuaOptions:
    """The options of the table [lua]; raises `BadSetting`."""
    if found is None or not found.lua:
        return LuaOptions()
    where = f"lua in {found.source.get('lua', '')}"
    for key in found.lua:
        if key not in LUA_KEYS:
            raise BadSetting(where, f"unknown key {key!r}; there are {', '.join(LUA_KEYS)}")
    largest = found.lua.get("max_package", DEFAULT_MAX_PACKAGE)
    names = found.lua.get("shares", [])
    if not fits_type(names, list[str]):
        raise BadSetting(f"shares of {where}", f"it must be a list of strings, got {names!r}")
    for name in names:
        if not name or any(part in name for part in _NO_NAMES):
            raise BadSetting(f"shares of {where}", f"{name!r} is not a valid namespace")
    size = parse_size(largest, f"max_package of {where}")
    return LuaOptions(frozenset(names), size, read_limit_tables(found.lua, where))


def parse_size(given: Any, name: str) -> int:
    """Bytes, from a number or a string such as "500kB", "20MB" or "1GB"; raises `BadSetting`."""
    if isinstance(given, str) and (found := _SIZE.fullmatch(given.strip())):
        return int(float(found[1]) * _SIZE_UNITS[found[2]])
    if type(given) is not int or given < 0:
        raise BadSetting(name, f"{given!r} is not a size; use 500kB, 20MB or 1GB")
    return given


def format_size(size: int) -> str:
    """A size as text for people."""
    for unit in ("GB", "MB", "kB"):
        if size >= _SIZE_UNITS[unit]:
            return f"{size / _SIZE_UNITS[unit]:.1f} {unit}"
    return f"{size} B"
