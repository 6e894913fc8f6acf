"""Loads the module of a program, by its name or from its file.

Rules
  1. A file is loaded once per process: under its module name if it was imported before, else
     under a name made from its path, which a later import finds too. Changes are seen by the
     next process.
  2. The programs of a file have the reference `<absolute path>:<function>`, as when the file runs
     as a script.
  3. A failed load leaves nothing behind: no module, no program, no folder on `sys.path`.
  4. Code that is loaded to find a program cannot start a session: see `refuse_while_loading`.
  5. Loading blocks the event loop, as an import of the author's own would: many libraries cannot be
     imported in another thread. A load of more than `SLOW` seconds is logged while it runs.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Final

from everhold.errors import (
    DuplicateProgram,
    EverholdError,
    NotAProgram,
    RunsOnImport,
    UnknownProgram,
)
from everhold.packages.source_names import suggest_file, suggest_module
from everhold.ports.exception_reader import describe_exception
from everhold.ports.program import (
    REGISTRY,
    Program,
    is_raised_by_code,
    refuse_same_reference,
    register_program,
)
from everhold.ports.program_identity import find_source_file, list_module_names

log = logging.getLogger("everhold")

#: Seconds after which a load is logged.
SLOW: Final = 3.0
_WAITING: Final = (
    "loading %s takes long and blocks this process: move connecting, reading and computing"
    " into functions"
)
_GUARD: Final = "Put the code that runs something under `if __name__ == '__main__':`."
_NESTED: Final = re.compile(
    r"from a running event loop|loop is already running|another loop is running"
)
_lock: Final = threading.RLock()  # one file at a time may change sys.path
#: The modules that were loaded from a file, by its path.
_by_file: Final[dict[Path, ModuleType]] = {}


class _Loading:
    """One load that is running, and whether it tried to start a session."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.over = False
        self.refused = False


# A context variable, because another thread may start sessions during a load.
_now: Final[ContextVar[_Loading | None]] = ContextVar("everhold_loading", default=None)


def refuse_while_loading() -> None:
    """Raise `RunsOnImport` if the caller is code that is being loaded to find a program."""
    loading = _now.get()
    if loading is not None and not loading.over:
        loading.refused = True
        raise RunsOnImport(loading.what)


def load_module(name: str, ref: str, root: Path | None = None) -> ModuleType:
    """Import a module, from the environment, from `root` or from the current folder."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise UnknownProgram(ref, f"{name!r} is neither a module name nor a .py file")
    if name == "__main__":
        raise UnknownProgram(
            ref,
            "it was defined at a prompt or in a notebook of another process",
            "Move the program into a file and start it from there.",
        )
    with _guard_load(ref, name, name):
        _reach(name.partition(".")[0], root)
        main = sys.modules.get("__main__")
        file = _file(main)
        if file is not None and name not in sys.modules and find_source_file(name) == file:
            assert main is not None
            return main
        is_new = name not in sys.modules
        module = importlib.import_module(name)
        if is_new:
            _refuse_same_references(module)
        return module


def load_file(path: Path, ref: str) -> ModuleType:
    """Load a file as a module. The running script is not loaded again."""
    main = sys.modules.get("__main__")
    if main is not None and _file(main) == path:
        return main
    if not path.is_file():
        hint = suggest_file(path, ref.rpartition(":")[2])
        raise UnknownProgram(ref, f"there is no file {path}", hint)
    with _lock:
        # servers look a program up by name with each call: a file that was loaded is found at once
        before = _by_file.get(path)
        if before is not None and sys.modules.get(before.__name__) is before:
            return before
        name, folders = _identity(path)
        for known in (name, *list_module_names(path)):
            if known in sys.modules and _file(sys.modules[known]) == path:
                return sys.modules[known]
        with _guard_load(ref, str(path), name), _on_path(folders):
            _refuse_namesakes(path, ref)
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None  # the name ends in .py
            loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
            _by_file[path] = loaded
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
            spec.loader.exec_module(loaded)
            _refuse_same_references(loaded)
        _adopt(loaded, path)
        return loaded


def _refuse_same_references(module: ModuleType) -> None:
    for thing in list(vars(module).values()):
        if isinstance(thing, Program) and thing.__module__ == module.__name__:
            refuse_same_reference(thing)


class _LoadedFiles(importlib.abc.MetaPathFinder):
    """Lets an import find the module that was loaded from the same file, so that no second copy of
    its programs and globals exists.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        stem = name.rpartition(".")[2]
        if target is not None or all(file.stem != stem for file in _by_file):
            return None  # `target` is a module that is reloaded: its code runs again
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is None or found.origin is None:
            return None
        module = _by_file.get(Path(found.origin).resolve())
        if module is None:
            return None
        return importlib.machinery.ModuleSpec(name, _LoadedModule(module), origin=found.origin)


_FINDER: Final = _LoadedFiles()


class _LoadedModule(importlib.abc.Loader):
    """Loads a module by returning the one that exists."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass


def find_place(module: ModuleType) -> str:
    """Where another process loads a module from: its name, or the file of a script; empty for a
    prompt or notebook.
    """
    path = _file(module)
    if module.__name__ == "__main__":
        return "" if path is None else str(path)
    if path is not None and path.suffix == ".py" and _identity(path)[0] == module.__name__:
        return str(path)
    return module.__name__


def read_source_text(place: str, root: Path | None = None) -> str:
    """The source text of a file, module or reference, without loading it; empty if not found."""
    if not place.endswith(".py"):
        place = place.partition(":")[0]
    if not place.endswith(".py"):
        inner = place.replace(".", "/")
        folders = [*([] if root is None else [root]), Path.cwd(), *map(Path, sys.path)]
        files = [
            folder / one for folder in folders for one in (f"{inner}.py", f"{inner}/__init__.py")
        ]
    else:
        files = [Path(place)]
    for one in files:
        try:
            return one.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return ""


def _identity(path: Path) -> tuple[str, list[str]]:
    """The module name of a file, and the folders for its imports: its own, and its package's."""
    packages: list[str] = []
    root = path.parent
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        packages.insert(0, root.name)
        root = root.parent
    stem = re.sub(r"\W", "_", path.stem) + "_" + sha256(str(path).encode()).hexdigest()[:12]
    return ".".join([*packages, stem]), list(dict.fromkeys([str(root), str(path.parent)]))


def _adopt(loaded: ModuleType, path: Path) -> None:
    """Register the programs of a file under its path instead of its module name."""
    known = [
        (key, program) for key, program in REGISTRY.items() if program.__module__ == loaded.__name__
    ]
    for key, program in known:
        del REGISTRY[key]
        program.ref = f"{path}:{program.qualname}"
        register_program(program)
    for name, value in list(vars(loaded).items()):
        if (
            isinstance(value, Program)
            and value.__module__ == loaded.__name__
            and not value.is_named
        ):
            value.ref = f"{path}:{name}"
            register_program(value)


# ---- where imports look


@contextmanager
def _on_path(folders: list[str]) -> Iterator[None]:
    """Put folders first on `sys.path` while a file loads, then last, for imports in functions."""
    sys.path[:0] = folders
    importlib.invalidate_caches()
    loaded = False
    try:
        yield
        loaded = True
    finally:
        for folder in folders:
            if folder in sys.path:
                sys.path.remove(folder)
            if loaded and folder not in sys.path:
                sys.path.append(folder)


def _reach(top: str, root: Path | None) -> None:
    importlib.invalidate_caches()
    if top in sys.modules or importlib.util.find_spec(top) is not None:
        return
    for folder in (root or Path.cwd(), Path.cwd()):
        if (folder / top).is_dir() or (folder / f"{top}.py").is_file():
            sys.path.append(str(folder.resolve()))
            return


def _refuse_namesakes(path: Path, ref: str) -> None:
    """Refuse a file that imports a module of its folder, if another of that name is loaded."""
    import ast

    tree = ast.parse(path.read_bytes(), str(path))
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    names += [
        node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level
    ]
    for top in dict.fromkeys(name.partition(".")[0] for name in names):
        theirs = _file(sys.modules.get(top))
        ours = next(
            (
                f
                for f in (path.parent / f"{top}.py", path.parent / top / "__init__.py")
                if f.is_file()
            ),
            None,
        )
        if theirs and ours and ours.resolve() != theirs and top not in sys.stdlib_module_names:
            raise UnknownProgram(
                ref,
                f"it imports {top!r} from its folder, but this process has loaded {theirs} as"
                f" {top!r}",
                f"Rename one of them, or put {path.name} and {top} into a package.",
            )


def _file(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if name else None


# ---- what can go wrong


@contextmanager
def _guard_load(ref: str, what: str, name: str) -> Iterator[None]:
    """Run code of a user: a failure raises one typed error and leaves nothing behind."""
    loading = _Loading(what)
    before = set(REGISTRY)
    token = _now.set(loading)
    try:
        with nullcontext() if name in sys.modules else _log_slow_load(what):
            yield
        if loading.refused:  # the code has caught the error
            raise RunsOnImport(what)
    except (Exception, SystemExit) as error:
        _undo_load(name, before)
        problem = RunsOnImport(what) if loading.refused else _describe_failure(ref, what, error)
        if type(problem) is type(error):
            raise
        problem.exception = describe_exception(error)
        raise problem from error
    except BaseException as error:
        _undo_load(name, before)
        if isinstance(error, KeyboardInterrupt) and is_raised_by_code(error):
            raise _describe_failure(ref, what, error) from error
        raise
    finally:
        loading.over = True
        _now.reset(token)


@contextmanager
def _log_slow_load(what: str) -> Iterator[None]:
    """Log a load that takes long. It may never end."""
    timer = threading.Timer(SLOW, log.warning, (_WAITING, what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _undo_load(name: str, before: set[tuple[str, int]]) -> None:
    undone = sys.modules.pop(name, None)
    for file in [file for file, module in _by_file.items() if module is undone]:
        del _by_file[file]
    for key in set(REGISTRY) - before:
        if REGISTRY[key].__module__ not in sys.modules:
            del REGISTRY[key]


def _describe_failure(ref: str, what: str, error: BaseException) -> EverholdError:
    match error:
        case RunsOnImport() | NotAProgram() | UnknownProgram() | DuplicateProgram():
            return error
        case ModuleNotFoundError() if error.name and f"{what}.".startswith(f"{error.name}."):
            near = suggest_module(error.name, ref.rpartition(":")[2], Path.cwd())
            hint = near or (
                "Run it in the module's folder, install the module, or use path/file.py:function."
            )
            return UnknownProgram(ref, f"there is no module {error.name!r}", hint)
        case ModuleNotFoundError() if error.name:
            hint = "Install it into the environment of everhold."
            return UnknownProgram(
                ref, f"{what} needs {error.name!r}, which is not installed here", hint
            )
        case SyntaxError():
            return UnknownProgram(
                ref, f"{error.msg} ({error.filename}, line {error.lineno})", "Fix the file."
            )
        case SystemExit():
            return UnknownProgram(
                ref, f"{what} calls exit({error.code!r}) when it is loaded", _GUARD
            )
        case RuntimeError() if _NESTED.search(str(error)):
            _close_unstarted(error)
            return RunsOnImport(what)
    hint = "Fix the module, then try again."
    return UnknownProgram(
        ref, f"loading {what} raised {type(error).__name__}: {error}{_place(error)}", hint
    )


def _place(error: BaseException) -> str:
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")
    ]
    last = frames[-1]
    return "" if last.filename == __file__ else f" ({last.filename}, line {last.lineno})"


def _close_unstarted(error: BaseException) -> None:
    """Close coroutines that were never awaited, to avoid a warning.

    `asyncio.run(main())` raised before it awaited `main()`.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in list(frame.f_locals.values()):
            if (
                inspect.iscoroutine(value)
                and inspect.getcoroutinestate(value) == inspect.CORO_CREATED
            ):
                value.close()
