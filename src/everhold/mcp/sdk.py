"""Loads only the parts of the `mcp` library that a server uses, for a fast start (ADR 0014).

Rules
  1. `import mcp`, before or after, gives the complete library.
  2. Two packages of the library load a client, a second kind of server and the web. They are put
     into `sys.modules` as lazy packages: their own code runs with the first use of a name.
  3. The validators of messages are built with the first message that needs them, and not those of
     all protocol versions at once.
  4. A server on pipes is loaded without the web.
  5. `types` stands for `mcp_types`, which is loaded with the first use of a name: a client
     that needs none of them does not wait for it.
"""

from __future__ import annotations

import builtins
import gc
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from everhold.mcp.protocol import Handler, ProtocolError, complete_result

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel import Server
else:

    class _LazyTypes:
        """The names of `mcp_types`, which is loaded with the first of them."""

        def __getattr__(self, name: str) -> Any:
            with _defer_pydantic_builds():
                return getattr(import_module("mcp_types"), name)

    types = _LazyTypes()

__all__ = [
    "build_server",
    "get_error_class",
    "load_sdk",
    "load_server_class",
    "pause_garbage_collection",
    "raise_protocol_errors",
    "types",
]

_PACKAGES: Final = ("mcp", "mcp.server")
_SERVER: Final = "mcp.server.lowlevel.server"
_lock: Final = threading.RLock()


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Imports without garbage collection, which takes a fifth of the start. Later
    collections leave out what was imported.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load_sdk(*, web: bool) -> None:
    """Load what a server needs, for HTTP (`web`) or for pipes. Loaded modules are kept."""
    with pause_garbage_collection(), _defer_pydantic_builds():
        import_module("mcp_types.methods")
        for name in _PACKAGES:
            if name not in sys.modules and (spec := find_spec(name)) is not None:
                package = sys.modules[name] = module_from_spec(spec)
                package.__class__ = _LazyPackage
                parent, _, child = name.rpartition(".")
                if parent:
                    setattr(sys.modules[parent], child, package)
        load_server_class(web=web)


def load_server_class(*, web: bool) -> type[Server[Any]]:
    """The library's `Server`. Without `web` it serves pipes only, and loads much faster."""
    found: Any = import_module(_SERVER) if web or _SERVER in sys.modules else _load_without_web()
    kind: type[Server[Any]] = found.Server
    return kind


#: The library's parameters of each method that has a handler.
_PARAMS: Final = {
    "tools/list": "PaginatedRequestParams",
    "tools/call": "CallToolRequestParams",
    "prompts/list": "PaginatedRequestParams",
    "prompts/get": "GetPromptRequestParams",
    "resources/list": "PaginatedRequestParams",
    "resources/templates/list": "PaginatedRequestParams",
    "resources/read": "ReadResourceRequestParams",
    "logging/setLevel": "SetLevelRequestParams",
}


def build_server(
    handlers: Mapping[str, Handler], *, version: str, title: str, instructions: str, web: bool
) -> Server[Any]:
    """A server of the library with these handlers."""
    load_sdk(web=web)
    server = load_server_class(web=web)(
        "everhold", version=version, title=title, instructions=instructions
    )
    for method, handler in handlers.items():
        server.add_request_handler(
            method, getattr(types, _PARAMS[method]), _make_library_handler(method, handler)
        )
    return server


def _make_library_handler(method: str, handler: Handler) -> Handler:
    async def handle(context: Any, params: Any) -> Any:
        result = await handler(context, params)
        return (
            complete_result(method, context.session.protocol_version, result)
            if isinstance(result, dict)
            else result
        )

    return handle


async def raise_protocol_errors(
    ctx: ServerRequestContext[Any, Any], call_next: CallNext
) -> HandlerResult:
    """Middleware that turns the errors of our handlers into those of the library."""
    try:
        return await call_next(ctx)
    except ProtocolError as error:
        from mcp.shared.exceptions import MCPError

        raise MCPError(error.code, str(error), error.data) from None


def get_error_class() -> type[Exception]:
    """The library's `MCPError`; without the library, which then raises nothing, our own."""
    module = sys.modules.get("mcp.shared.exceptions")
    kind: type[Exception] = ProtocolError if module is None else module.MCPError
    return kind


@contextmanager
def _defer_pydantic_builds() -> Iterator[None]:
    """Pydantic models and adapters declared inside are built with their first use."""
    from pydantic import BaseModel, TypeAdapter

    rebuild = BaseModel.model_rebuild.__func__  # type: ignore[attr-defined]

    def rebuilt(model: type[BaseModel], /, **how: Any) -> Any:
        return rebuild(model, **how) if how else None  # a call without options only builds early

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


class _LazyPackage(ModuleType):
    """A package whose own code runs when a name is missing for the first time."""

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if type(self) is _LazyPackage:
                self.__class__ = ModuleType  # type: ignore[assignment]
                spec: Any = self.__spec__
                spec.loader.exec_module(self)
        return getattr(self, name)


# ---- a server without the web

#: The name of our copy of the library's module.
_OURS: Final = f"{__name__}.server"
#: The names of modules that only a web server needs.
_WEB: Final = (
    "starlette.",
    "mcp.server.auth.",
    "mcp.server.streamable_http",
    "mcp.server.transport_security",
)


class _Absent:
    """Stands for a class of the web, in code that a server on pipes never runs."""


class _AbsentModule:
    """Stands for a module of the web, and has any name."""

    def __getattr__(self, name: str) -> type[_Absent]:
        return _Absent


def _load_without_web() -> ModuleType:
    """A copy of the library's module with `Server`, without the web; the module itself if that
    fails.
    """
    if _OURS in sys.modules:
        return sys.modules[_OURS]
    try:
        package: Any = find_spec(_SERVER.rpartition(".")[0])
        file: Any = PathFinder.find_spec(_SERVER, package.submodule_search_locations)
        spec: Any = spec_from_file_location(_OURS, file.origin)
        module = sys.modules[_OURS] = module_from_spec(spec)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_without_web}
        spec.loader.exec_module(module)
        return module
    except Exception:  # this version of the library has another structure
        sys.modules.pop(_OURS, None)
        return import_module(_SERVER)


def _import_without_web(name: str, *rest: Any) -> Any:
    return _AbsentModule() if name.startswith(_WEB) else __import__(name, *rest)
