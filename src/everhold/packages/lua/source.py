"""Where a package came from, as installed.json and alc.lock say it.

    {"type": "git", "url": …, "rev": …}    fetched; `rev` is the commit, null in old files
    {"type": "path", "path": …}            copied from a folder (installed.json), or used where it is (alc.lock)
    {"type": "installed"}                  installed, and nobody wrote down from where
    {"type": "bundled", "collection": …}   came with algocline
    {"type": "unknown"}

Old files have a bare text in its place. It is understood, and written back in the new form.
"""  # noqa: E501

from __future__ import annotations

from typing import Any, Final

import msgspec


class UnknownSource(msgspec.Struct, frozen=True, tag="unknown"):
    shown = ""


class InstalledSource(msgspec.Struct, frozen=True, tag="installed"):
    shown = "installed"


class FolderSource(msgspec.Struct, frozen=True, tag="path"):
    path: str

    @property
    def shown(self) -> str:
        return self.path


class GitSource(msgspec.Struct, frozen=True, tag="git"):
    url: str
    rev: str | None = None

    @property
    def shown(self) -> str:
        return self.url


class BundledSource(msgspec.Struct, frozen=True, tag="bundled"):
    collection: str | None = None

    @property
    def shown(self) -> str:
        return f"bundled:{self.collection}" if self.collection else "bundled"


PackageSource = UnknownSource | InstalledSource | FolderSource | GitSource | BundledSource

UNKNOWN_SOURCE: Final = UnknownSource()
INSTALLED_SOURCE: Final = InstalledSource()


def parse_source(value: Any) -> PackageSource:
    """The source that a value of a file means; raises `msgspec.ValidationError` if it means
    none.
    """
    if isinstance(value, str):
        return _old(value)
    found: PackageSource = msgspec.convert(value, PackageSource)
    return found


def dump_source(of: PackageSource) -> dict[str, Any]:
    """A source as it stands in a file."""
    told: dict[str, Any] = msgspec.to_builtins(of)
    return told


def get_source_type(of: PackageSource) -> str:
    """Its type, as files name it."""
    return str(dump_source(of)["type"])


def _old(text: str) -> PackageSource:
    if not text:
        return UNKNOWN_SOURCE
    if text == "bundled":
        return BundledSource()
    return INSTALLED_SOURCE if text.startswith("/") else GitSource(text)
