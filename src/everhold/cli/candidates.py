"""Names that a word on the command line may mean: for shell completion, and for suggestions.

Rules
  1. Python files are parsed, never imported: nothing of the user's runs.
  2. A completion makes at most one short read of an SQLite file, and none of another database. It
     creates nothing and raises nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from click.shell_completion import CompletionItem

from everhold.packages.source_names import (
    MAX_FILES,
    MAX_LISTED,
    list_file_programs,
    list_python_files,
    suggest_programs,
)

if TYPE_CHECKING:
    import click

    from everhold.packages.settings import Settings

#: Sessions that are offered, and sessions whose labels or programs are read.
MAX_SESSIONS: Final = 50
MAX_ROWS: Final = 500

_SESSIONS: Final = (
    "SELECT session_id, key, state, program FROM sessions_v"
    " WHERE substr(key, 1, ?) = ? OR substr(session_id, 1, ?) = ?"
    f" ORDER BY created_at DESC, session_id DESC LIMIT {MAX_SESSIONS}"
)
_LABELS: Final = f"SELECT labels FROM sessions_v ORDER BY created_at DESC LIMIT {MAX_ROWS}"
_PROGRAMS: Final = f"SELECT program FROM sessions_v ORDER BY created_at DESC LIMIT {MAX_ROWS}"

Completer = Callable[["click.Context", "click.Parameter", str], list[CompletionItem[str]]]


# ---- programs in files


def suggest_reference(name: str, folder: Path) -> str:
    """A hint for a name that is not a program: it may be a file here, or a program in one."""
    file = name.removesuffix(".py") + ".py"
    if (folder / file).is_file():
        return f"{file} is a file. {suggest_programs(folder / file, file)}"
    for lua in (f"{name}.lua", f"./{name}"):
        if (folder / lua).is_file() or (folder / lua / "init.lua").is_file():
            return f"Did you mean {lua}?"
    for path in list_python_files(folder):
        if name in list_file_programs(path):
            return f"Did you mean {path.name}:{name}?"
    return ""


def list_programs_here() -> str:
    """The programs in the files of the current folder, as the end of a hint."""
    found = [
        f"{file.name}:{one}"
        for file in list_python_files(Path.cwd())
        for one in list_file_programs(file)
    ]
    return f" In this folder: {', '.join(found[:MAX_LISTED])}." if found else ""


# ---- completion


def complete_sessions(
    context: click.Context, parameter: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """`@last`, and sessions, newest first: by key if the word begins one, else by id."""
    items = [CompletionItem("@last", help="the newest session")] if "@last".startswith(word) else []
    for session_id, key, state, program in _read(context, _SESSIONS, *[len(word), word] * 2):
        name = key if key is not None and key.startswith(word) else session_id
        items.append(CompletionItem(name, help=f"{state}, {os.path.basename(program)}"))
    return _drop_unprintable(items)


def complete_labels(
    context: click.Context, parameter: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """`NAME=VALUE` as sessions of the database have it."""
    import json

    found: set[str] = set()
    for (text,) in _read(context, _LABELS):
        found |= {f"{name}={value}" for name, value in json.loads(text).items()}
    return _items(found, word)


def complete_programs(
    context: click.Context, parameter: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Programs: names from the settings, strategies, and files of this folder."""
    from everhold.packages.strategies import NAMES

    return _items({*_list_references(context, agents_only=False), *NAMES}, word)


def complete_run(
    context: click.Context, parameter: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """The PROGRAM of `everhold run`, which is a session after `-c`."""
    complete = complete_sessions if context.params.get("resumes") else complete_programs
    return complete(context, parameter, word)


def complete_agents(
    context: click.Context, parameter: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """What `everhold chat` takes."""
    return _items(_list_references(context, agents_only=True), word)


def complete_recorded_programs(
    context: click.Context, parameter: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Programs of the sessions in the database, for `--program`."""
    found = {program for (program,) in _read(context, _PROGRAMS)}
    here = f"{Path.cwd()}{os.sep}"
    return _items({program.removeprefix(here) for program in found}, word)


def complete_states(
    context: click.Context, parameter: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    from everhold.core.session import SessionState

    return _items((state.value for state in SessionState), word)


def complete_kinds(
    context: click.Context, parameter: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    from everhold.core.query import Kind

    return _items((kind.value for kind in Kind), word)


def complete_files(
    context: click.Context, parameter: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Lets the shell complete a file."""
    return [CompletionItem(word, type="file")]


def complete_folders(
    context: click.Context, parameter: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Lets the shell complete a folder."""
    return [CompletionItem(word, type="dir")]


def _list_references(context: click.Context, *, agents_only: bool) -> set[str]:
    found: set[str] = set()
    here = Path.cwd()
    for path in list_python_files(here):
        names = list_file_programs(path, agents_only=agents_only)
        found |= {f"{path.name}:{name}" for name in names}
    if not agents_only:
        found |= {path.name for path in sorted(here.glob("*.lua"))[:MAX_FILES]}
    with suppress(Exception):
        settings = _load_settings(context)
        for place in settings.programs:
            file = place if place.endswith(".py") else f"{place.replace('.', '/')}.py"
            found |= {*list_file_programs(settings.root / file, agents_only=agents_only)}
    return found


def _load_settings(context: click.Context) -> Settings:
    from everhold.packages.settings import settings

    return settings(context.params.get("database"))


def _read(context: click.Context, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Rows of the database that the command would use; none if that fails, is slow or is not a
    file.
    """
    with suppress(Exception):
        path = _load_settings(context).path
        if path is not None and path.is_file():
            from everhold.stores.sqlite.database import read_view

            return read_view(path, sql, *values)
    return []


def _items(words: Iterable[str], word: str) -> list[CompletionItem[str]]:
    found = sorted({one for one in words if one.startswith(word)})
    return _drop_unprintable([CompletionItem(one) for one in found])


def _drop_unprintable(items: list[CompletionItem[str]]) -> list[CompletionItem[str]]:
    """Without names that a line of a shell cannot hold."""
    return [item for item in items if item.value.isprintable()]
