"""Loading the protocol library without what a server does not use, so that a host does not wait for
it (ADR 0014).

Rules
  1. Whoever says `import mcp`, before or after, gets all of it as ever.
  2. Two packages of the library load a client, a second kind of server and the web. They are put in
     place as packages, and what stands in them themselves comes with its first use.
  3. The validators of a message are built when the first such message comes, and not those of all
     versions at once.
  4. A server on pipes is one without the web.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_PACKAGES: Final = ("mcp", "mcp.server")
_SERVER: Final = "mcp.server.lowlevel.server"
_lock: Final = threading.RLock()


def load_sdk(*, web: bool) -> None:
    """Load what a server on the web, or one on pipes, needs, as far as nobody has loaded it yet."""
    with _built_later():
        import_module("mcp_types.methods")
        for name in _PACKAGES:
            if name not in sys.modules and (spec := find_spec(name)) is not None:
                _put(name, spec)
        load_server_class(web=web)


def load_server_class(*, web: bool) -> type[Server[Any]]:
    """The library's `Server`; without the web it serves pipes only, and is loaded in a fraction of
    the time.
    """
    found: Any = import_module(_SERVER) if web or _SERVER in sys.modules else _without_web()
    kind: type[Server[Any]] = found.Server
    return kind


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
_WEB: Final = (
    "starlette.",
    "mcp.server.auth.",
    "mcp.server.streamable_http",
    "mcp.server.transport_security",
)


class _Absent:
    """Stands for something of the web, which is named where a server on pipes never comes."""


class _Nothing:
    """Stands for a module of the web."""

    def __getattr__(self, name: str) -> type[_Absent]:
        return _Absent


def _without_web() -> ModuleType:
    """The library's module in which `Server` is, read a second time and for us alone; or itself, if
    that cannot be.
    """
    if _OURS in sys.modules:
        return sys.modules[_OURS]
    try:
        return _read_again()
    except Exception:  # this version of the library is made differently
        sys.modules.pop(_OURS, None)
        return import_module(_SERVER)


def _read_again() -> ModuleType:
    package: Any = find_spec(_SERVER.rpartition(".")[0])
    file: Any = PathFinder.find_spec(_SERVER, package.submodule_search_locations)
    spec: Any = spec_from_file_location(_OURS, file.origin)
    module = sys.modules[_OURS] = module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _imported}
    spec.loader.exec_module(module)
    return module


def _imported(name: str, *rest: Any) -> Any:
    return _Nothing() if name.startswith(_WEB) else __import__(name, *rest)
