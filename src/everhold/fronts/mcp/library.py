"""Loading the protocol library without what a server does not use, so that a host does not wait for it.

`import mcp` loads a client, a second kind of server and the web beside what we need, and builds the validators of all
messages of all versions of the protocol. So its two packages are put in place as packages, and what stands in them
themselves comes with its first use: whoever says `from mcp import Client` gets it as ever. And a message's validator is
built when the first such message comes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

_PACKAGES: Final = ("mcp", "mcp.server")
_lock: Final = threading.RLock()


def load() -> None:
    """Load it, as far as nobody has loaded it yet."""
    with _built_later():
        import_module("mcp_types.methods")
    for name in _PACKAGES:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            _put(name, spec)


@contextmanager
def _built_later() -> Iterator[None]:
    """Models that are declared meanwhile are built with their first use."""
    from pydantic import BaseModel, ConfigDict

    before = BaseModel.model_config
    BaseModel.model_config = ConfigDict(**{**before, "defer_build": True})
    try:
        yield
    finally:
        BaseModel.model_config = before


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
