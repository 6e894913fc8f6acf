"""The runtime behind the tools.

Rules
  1. The server starts whatever is wrong with the database: opening is tried again with every call,
     and a call that cannot be served says why. So does one whose database was taken away meanwhile:
     nobody would find its session.
  2. The host's model answers `llm` questions. Only if the person who starts the server says so, an
     answerer of this process does.
  3. A model names a program by what can be found by name here. It cannot make this process load a
     Python file.
  4. A model names a Lua file only inside the project or a package folder; links and `..` are
     resolved first. The project is the folder of the settings file, else the one in which the
     server was started.
  5. The database is the one that was opened. Programs are looked up by the settings as they are
     now: what is listed while the server runs is found.
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

#: Bytes of Lua that a call may bring.
MAX_CODE_BYTES: Final = 1_000_000
#: A path was resolved before it is opened: a link put in its place since is refused, and a FIFO
#: blocks nobody.
_AS_RESOLVED: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
#: What to do about a setting: no other call would help.
CONFIG_ERROR_HINT: Final = (
    "No call mends this: tell the user to correct it where it is said, which is everhold.toml, a"
    " variable, or the"
    " command by which the host starts this server."
)


class ParkedAnswerer(Answerer):
    """Answers nothing: every question waits for the host."""

    kinds = frozenset()

    async def answer(self, query: Query, session_id: str) -> Any:
        raise NotAllowed(f"{query.id} waits for the host", "Answer it with the tool `answer`.")


class RuntimeHolder:
    """An open runtime, or the reason why there is none."""

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
        self._place: DatabaseFile | None = None  # where the file is that was opened
        self._opening = asyncio.Lock()

    async def runtime(self) -> Runtime:
        """The open runtime; raises what keeps it from being opened."""
        if self._runtime is None:
            async with self._opening:
                if self._runtime is None:
                    self._runtime = await self._opened()
        elif self._place is not None:
            self._place.check()
        return self._runtime

    async def _opened(self) -> Runtime:
        with _blaming():
            self._found = found = settings(self._database)
            self._watched = WatchedSettings(found, self._database)
            runtime = open(self._database, llm=self._llm, observers=self._observers)
        try:
            opened = await runtime.__aenter__()
            self._place = None if found.path is None else DatabaseFile(found.path)
            return opened
        except EverholdError:
            raise
        except Exception as error:  # whatever a broken file or folder brings about
            raise StoreUnavailable(found.shown, f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        runtime = self._runtime
        self._runtime = None
        if runtime is not None:
            await runtime.close()

    @property
    def database(self) -> str:
        """The full address of the database."""
        return (self._found or self._now()).database

    @property
    def parked(self) -> bool:
        """Whether `llm` questions wait for the host."""
        return isinstance(self._llm, ParkedAnswerer)

    @property
    def option(self) -> str:
        """What a person adds to a command so that it reads this database; empty where it does
        anyway.
        """
        found = self._found
        if found is None or found.source.get("database") == DEFAULT_SOURCE:
            return ""
        return f" -d {shlex.quote(str(found.path or found.shown))}"

    # ---- programs

    def program(self, name: str) -> Any:
        """The program that a model means: by its name, or by a reference that the catalog lists."""
        found = self._now()
        if (":" in name or is_path_ref(name)) and name not in {
            entry.ref for entry in load_catalog(found).entries
        }:
            how = (
                "The tool `strategies` lists the names. To add a program, list it under"
                " `programs` in everhold.toml."
            )
            if name.endswith(".lua"):
                how = "Code in a Lua file is run with code_file instead of program."
            raise NotAllowed(
                f"{name!r} is not a name: over MCP a program is started by its name", how
            )
        return find_named_program(name, found)

    def catalog(self) -> ProgramCatalog:
        """Every program that can be started by name, and what keeps others from being listed."""
        return load_catalog(self._now())

    def code(self, text: str | None, file: str | None, ctx: dict[str, Any]) -> Call[Any]:
        """A call of a Lua program given as text, or in a file that holds one."""
        code = self._text(file) if file is not None else text or ""
        if len(code.encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
            raise BadRequest("run", f"the code is longer than {MAX_CODE_BYTES} bytes")
        return LuaProgram.text(code, ctx, roots=self.folders.all)

    def _text(self, file: str) -> str:
        try:
            return self.text(file)
        except OSError as error:
            raise BadRequest(
                "run", f"code_file {file!r} cannot be read: {error.strerror}"
            ) from None
        except NotAllowed as error:
            raise NotAllowed(f"code_file {file!r} was not read: {error}", error.hint) from None

    def text(self, file: str) -> str:
        """The text of a Lua file; raises `OSError` with the reason, or `NotAllowed` for one outside
        of the project.
        """
        found = self._now()
        try:
            path = Path(file).expanduser().resolve()
        # a NUL, a loop of links, or a user whose home nobody knows
        except (ValueError, RuntimeError):
            raise OSError(errno.EINVAL, "it is not a path") from None
        if not any(path.is_relative_to(folder) for folder in _readable(found)):
            raise NotAllowed(
                f"it is outside of the project ({found.root}) and of the package folders",
                "Move the file into the project, or give its text as `code`.",
            )
        return _read(path)

    @property
    def folders(self) -> PackageFolders:
        """Where Lua packages are looked for now."""
        return self._now().folders

    def _now(self) -> Settings:
        """The settings as they are now, of the folder in which the server was started."""
        with _blaming():
            return settings(self._database) if self._watched is None else self._watched.settings()


@contextmanager
def _blaming() -> Iterator[None]:
    """A setting that is wrong is no fault of the call."""
    try:
        yield
    except BadSetting as error:
        error.hint = error.hint or CONFIG_ERROR_HINT
        raise


def _readable(found: Settings) -> Iterator[Path]:
    """Folders from which a model may name Lua files. The root of the disk, where some hosts start
    us, is not one.
    """
    for folder in (found.root, *(SearchRoot.of(root).folder for root in found.folders.all)):
        path = folder.expanduser().resolve()
        if path.parent != path:
            yield path


def _read(path: Path) -> str:
    """The text of a Lua file whose path is resolved; raises `OSError`."""
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
