"""The runtime behind the tools, opened when the first call can open it.

Rules
  1. The server starts even if the database cannot be opened. Each call tries again, and a call that
     cannot be served says why. A call also fails if the database file was removed or replaced,
     because its session would be lost.
  2. The host's model answers `llm` questions. A model of this process answers them only if the
     person who starts the server configured it.
  3. A model names a program by a name that the settings list. It cannot make this process load a
     Python file.
  4. A model names a Lua file only inside the project or a package folder. Links and `..` are
     resolved first. The project is the folder of the settings file; without one, the folder in
     which the server was started.
  5. The database stays the one that was opened first. Programs are looked up in the settings as
     they are now, so a program that is added while the server runs is found.
"""

from __future__ import annotations

import asyncio
import builtins
import errno
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from everhold.core.observer import Observer
from everhold.core.query import Query
from everhold.errors import BadRequest, BadSetting, EverholdError, NotAllowed, StoreUnavailable
from everhold.models import AnswererSpec
from everhold.packages.catalog import ProgramCatalog, find_named_program, load_catalog
from everhold.packages.find import is_path_ref
from everhold.packages.lua.folder import PackageFolders
from everhold.packages.settings import DEFAULT_SOURCE, Settings, WatchedSettings, settings
from everhold.ports.answerer import Answerer
from everhold.ports.program import Call
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.search_path import SearchRoot
from everhold.runtime import Runtime, open
from everhold.stores.sqlite.database import DatabaseFile

#: Bytes of Lua code in a call.
MAX_CODE_BYTES: Final = 1_000_000
#: Flags to open a path that was resolved before: a link put in its place since then is refused, and
#: opening a FIFO does not block.
_AS_RESOLVED: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
#: The hint of a wrong setting.
CONFIG_ERROR_HINT: Final = (
    "Configuration error; retrying will not help. Ask the user to fix it in everhold.toml, the"
    " environment, or the host's server command."
)


class ParkedAnswerer(Answerer):
    """Answers nothing, so that every question waits for the host."""

    kinds = frozenset()

    async def answer(self, query: Query, session_id: str) -> Any:
        raise NotAllowed(f"{query.id} waits for an answer of the host", "Call the tool `answer`.")


class RuntimeHolder:
    """Opens the runtime, and keeps it open."""

    def __init__(
        self,
        database: str | None = None,
        *,
        llm: AnswererSpec = None,
        observer: Observer | None = None,
    ) -> None:
        self._database = database
        self._llm = ParkedAnswerer() if llm is None else llm
        self._observers = () if observer is None else (observer,)
        self._runtime: Runtime | None = None
        self._found: Settings | None = None
        self._watched: WatchedSettings | None = None
        self._file: DatabaseFile | None = None  # the file that was opened
        self._opening = asyncio.Lock()

    async def runtime(self) -> Runtime:
        """The open runtime; raises the error that prevents opening it."""
        if self._runtime is None:
            async with self._opening:
                if self._runtime is None:
                    self._runtime = await self._open()
        elif self._file is not None:
            self._file.check()
        return self._runtime

    async def _open(self) -> Runtime:
        with _configuration_errors():
            self._found = found = settings(self._database)
            self._watched = WatchedSettings(found, self._database)
            runtime = open(self._database, llm=self._llm, observers=self._observers)
        try:
            opened = await runtime.__aenter__()
            opened.database_option = self.option
            self._file = None if found.path is None else DatabaseFile(found.path)
            return opened
        except EverholdError:
            raise
        except Exception as error:  # a broken file or folder can cause anything
            raise StoreUnavailable(found.shown, f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        runtime = self._runtime
        self._runtime = None
        if runtime is not None:
            await runtime.close()

    @property
    def database(self) -> str:
        """The full URL of the database."""
        return (self._found or self._load_settings()).database

    @property
    def parked(self) -> bool:
        """Whether the host answers `llm` questions."""
        return isinstance(self._llm, ParkedAnswerer)

    @property
    def option(self) -> str:
        """The option by which a command reads this database; empty if it is the default one."""
        found = self._found
        if found is None or found.source.get("database") == DEFAULT_SOURCE:
            return ""
        return f" -d {shlex.quote(str(found.path or found.shown))}"

    # ---- programs

    def program(self, name: str) -> Any:
        """A program by its name, or by a reference that the catalog lists."""
        found = self._load_settings()
        if (":" in name or is_path_ref(name)) and name not in {
            entry.ref for entry in load_catalog(found).entries
        }:
            hint = (
                "The tool `strategies` lists the names. To add a program, list it under"
                " `programs` in everhold.toml."
            )
            if name.endswith(".lua"):
                hint = "To run a Lua file, use code_file instead of program."
            raise NotAllowed(
                f"{name!r} is not the name of a program; over MCP, programs are started by name",
                hint,
            )
        return find_named_program(name, found)

    def catalog(self) -> ProgramCatalog:
        """All programs that can be started by name, and the problems of others."""
        return load_catalog(self._load_settings())

    def code(self, text: str | None, file: str | None, ctx: dict[str, Any]) -> Call[Any]:
        """A call of a Lua program, from its text or from a file."""
        code = self._read_code_file(file) if file is not None else text or ""
        if len(code.encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
            raise BadRequest("run", f"the code is longer than the limit of {MAX_CODE_BYTES} bytes")
        return LuaProgram.text(code, ctx, roots=self.folders.all)

    def _read_code_file(self, file: str) -> str:
        try:
            return self.read_lua_file(file)
        except OSError as error:
            raise BadRequest(
                "run", f"code_file {file!r} cannot be read: {error.strerror}"
            ) from None
        except NotAllowed as error:
            raise NotAllowed(f"code_file {file!r} was not read: {error}", error.hint) from None

    def read_lua_file(self, file: str) -> str:
        """The text of a Lua file.

        Raises `NotAllowed` if it is outside the project, and `OSError` if it cannot be read.
        """
        found = self._load_settings()
        try:
            path = Path(file).expanduser().resolve()
        # a NUL byte, a loop of links, or an unknown user in ~user
        except (ValueError, RuntimeError):
            raise OSError(errno.EINVAL, "it is not a path") from None
        if not any(path.is_relative_to(folder) for folder in _list_readable_folders(found)):
            raise NotAllowed(
                f"it is outside the project ({found.root}) and the package folders",
                "Move the file into the project, or pass its text as `code`.",
            )
        if path.suffix != ".lua":
            raise OSError(errno.EINVAL, "it is not a .lua file")
        with builtins.open(os.open(path, os.O_RDONLY | _AS_RESOLVED), "rb") as lua:
            if not stat.S_ISREG(os.fstat(lua.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            code = lua.read(MAX_CODE_BYTES + 1)
        if len(code) > MAX_CODE_BYTES:
            raise OSError(errno.EFBIG, f"it is longer than {MAX_CODE_BYTES} bytes")
        try:
            return code.decode()
        except UnicodeDecodeError:
            raise OSError(errno.EINVAL, "it is not UTF-8 text") from None

    @property
    def folders(self) -> PackageFolders:
        """The folders of Lua packages, by the current settings."""
        return self._load_settings().folders

    def _load_settings(self) -> Settings:
        """The current settings of the folder in which the server was started."""
        with _configuration_errors():
            return settings(self._database) if self._watched is None else self._watched.settings()


@contextmanager
def _configuration_errors() -> Iterator[None]:
    """Add a hint to errors of settings: the call is correct, and retrying it does not help."""
    try:
        yield
    except BadSetting as error:
        error.hint = error.hint or CONFIG_ERROR_HINT
        raise


def _list_readable_folders(found: Settings) -> Iterator[Path]:
    """The folders from which a model may run Lua files. The root of the disk is left out, because
    some hosts start the server there.
    """
    for folder in (found.root, *(SearchRoot.of(root).folder for root in found.folders.all)):
        path = folder.expanduser().resolve()
        if path.parent != path:
            yield path
