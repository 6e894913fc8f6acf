"""Loading the protocol library without what a server does not use, so that a host does not wait for it.

Rules
  1. Whoever says `import mcp`, before or after, gets all of it as ever.
  2. Two packages of the library load a client, a second kind of server and the web. They are put in place as packages,
     and what stands in them themselves comes with its first use.
  3. The validators of a message are built when the first such message comes, and not those of all versions at once.
  4. Of the versions of the protocol, one is loaded when a message of it is looked up for the first time.
  5. A server on pipes is one without the web.
  6. A library that is made differently, so that 4 or 5 cannot be done, is loaded whole.
"""

from __future__ import annotations

import builtins
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_PACKAGES: Final = ("mcp", "mcp.server")
_SERVER: Final = "mcp.server.lowlevel.server"
_METHODS: Final = "mcp_types.methods"
_lock: Final = threading.RLock()
_building: Final = threading.RLock()


def load(*, web: bool) -> None:
    """Load what a server on the web, or one on pipes, needs, as far as nobody has loaded it yet."""
    with _built_later():
        _load_methods()
        for name in _PACKAGES:
            if name not in sys.modules and (spec := find_spec(name)) is not None:
                _put(name, spec)
        server(web=web)


def server(*, web: bool) -> type[Server[Any]]:
    """The library's `Server`; without the web it serves pipes only, and is loaded in a fraction of the time."""
    found: Any = import_module(_SERVER) if web or _SERVER in sys.modules else _without_web()
    kind: type[Server[Any]] = found.Server
    return kind


@contextmanager
def without_collecting() -> Iterator[None]:
    """Load what stays: looking for garbage in it takes a fifth of the start, and later a part of every look."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _built_later() -> Iterator[None]:
    """Models and adapters that are declared meanwhile are built with their first use."""
    from pydantic import BaseModel, TypeAdapter

    rebuild = BaseModel.model_rebuild.__func__  # type: ignore[attr-defined]

    def rebuilt(model: type[BaseModel], /, **how: Any) -> Any:
        return rebuild(model, **how) if how else None  # who says no more than that can wait for it

    later: dict[tuple[Any, str], Any] = {
        (BaseModel, "model_config"): {**BaseModel.model_config, "defer_build": True},
        (BaseModel, "model_rebuild"): classmethod(rebuilt),
        (TypeAdapter, "_defer_build"): True,
    }
    with _building:
        before = {(owner, name): vars(owner)[name] for owner, name in later if name in vars(owner)}
        try:
            for owner, name in before:
                setattr(owner, name, later[owner, name])
            yield
        finally:
            for (owner, name), value in before.items():
                setattr(owner, name, value)


# ---- packages


class _Later(ModuleType):
    """A package whose own contents are loaded when one of its names is missed."""

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if type(self) is _Later:
                self.__class__ = ModuleType  # type: ignore[assignment]
                spec: Any = self.__spec__
                spec.loader.exec_module(self)
        return getattr(self, name)


def _put(name: str, spec: ModuleSpec) -> None:
    package = sys.modules[name] = module_from_spec(spec)
    package.__class__ = _Later
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


# ---- a server without the web

#: The module of our own that is made from the library's.
_OURS: Final = f"{__name__}.server"
#: How modules are called that only a server on the web needs.
_WEB: Final = ("starlette.", "mcp.server.auth.", "mcp.server.streamable_http", "mcp.server.transport_security")


class _Absent:
    """Stands for something of the web, which is named where a server on pipes never comes."""


class _Nothing:
    """Stands for a module of the web."""

    def __getattr__(self, name: str) -> type[_Absent]:
        return _Absent


def _without_web() -> ModuleType:
    """The library's module in which `Server` is, read a second time and for us alone."""
    if _OURS in sys.modules:
        return sys.modules[_OURS]
    try:
        package: Any = find_spec(_SERVER.rpartition(".")[0])
        file: Any = PathFinder.find_spec(_SERVER, package.submodule_search_locations)
        return _read(spec_from_file_location(_OURS, file.origin), _imported)
    except Exception:
        sys.modules.pop(_OURS, None)
        return import_module(_SERVER)


def _imported(name: str, *rest: Any) -> Any:
    return _Nothing() if name.startswith(_WEB) else __import__(name, *rest)


def _read(spec: Any, imported: Callable[..., Any]) -> ModuleType:
    """Load a module whose `import` statements do what we say."""
    module = sys.modules[spec.name] = module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": imported}
    spec.loader.exec_module(module)
    return module


# ---- versions that are loaded later

#: How packages are called that hold the messages of one version each.
_VERSION: Final = "mcp_types._v"


def _load_methods() -> None:
    """Load the tables which say what a message of a method and version is."""
    if _METHODS in sys.modules:
        return
    tables = _Tables()
    try:
        module = _read(find_spec(_METHODS), tables.imported)
        tables.check()
        setattr(import_module("mcp_types"), "methods", module)  # noqa: B010
    except Exception:
        sys.modules.pop(_METHODS, None)
        import_module(_METHODS)


class _Promise:
    """Something of a package that is loaded when somebody wants it."""

    def __init__(self, package: str, name: str) -> None:
        self._package, self._name = package, name

    def kept(self) -> Any:
        if self._package not in sys.modules:
            with without_collecting(), _built_later():
                import_module(self._package)
        return getattr(import_module(self._package), self._name)


class _Rows(Mapping[Any, Any]):
    """A table: who looks at a value gets it, promised or not."""

    def __init__(self, rows: dict[Any, Any]) -> None:
        self._rows = rows

    def __getitem__(self, key: Any) -> Any:
        found = self._rows[key]
        if isinstance(found, _Promise):
            found = self._rows[key] = found.kept()
        return found

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class _Tables:
    """What the module of the tables imports; it sees to it that all that is promised stands in a table."""

    def __init__(self) -> None:
        self._promised = self._in_tables = 0

    def imported(self, name: str, *rest: Any) -> Any:
        if name == "types":
            return SimpleNamespace(**{**vars(types), "MappingProxyType": self._table})
        return _Version(name, self._promise) if name.startswith(_VERSION) else __import__(name, *rest)

    def check(self) -> None:
        if self._promised != self._in_tables:
            raise ImportError(f"{_METHODS} has more than tables")

    def _promise(self, package: str, name: str) -> _Promise:
        self._promised += 1
        return _Promise(package, name)

    def _table(self, rows: dict[Any, Any]) -> Mapping[Any, Any]:
        promised = sum(isinstance(row, _Promise) for row in rows.values())
        self._in_tables += promised
        return MappingProxyType(_Rows(rows) if promised else rows)


class _Version:
    """Stands for the package of a version, and for the package it is in, of which `import … as …` takes it."""

    def __init__(self, package: str, promise: Callable[[str, str], _Promise]) -> None:
        self._package, self._promise = package, promise

    def __getattr__(self, name: str) -> Any:
        return self if self._package.endswith(f".{name}") else self._promise(self._package, name)
