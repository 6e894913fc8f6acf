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


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    shown = ""


class Installed(msgspec.Struct, frozen=True, tag="installed"):
    shown = "installed"


class Folder(msgspec.Struct, frozen=True, tag="path"):
    path: str

    @property
    def shown(self) -> str:
        return self.path


class Git(msgspec.Struct, frozen=True, tag="git"):
    url: str
    rev: str | None = None

    @property
    def shown(self) -> str:
        return self.url


class Bundled(msgspec.Struct, frozen=True, tag="bundled"):
    collection: str | None = None

    @property
    def shown(self) -> str:
        return f"bundled:{self.collection}" if self.collection else "bundled"


Source = Unknown | Installed | Folder | Git | Bundled

UNKNOWN: Final = Unknown()
INSTALLED: Final = Installed()


def source(value: Any) -> Source:
    """The source that a value of a file means; raises `msgspec.ValidationError` if it means
    none.
    """
    if isinstance(value, str):
        return _old(value)
    found: Source = msgspec.convert(value, Source)
    return found


def plain(of: Source) -> dict[str, Any]:
    """A source as it stands in a file."""
    told: dict[str, Any] = msgspec.to_builtins(of)
    return told


def kind(of: Source) -> str:
    """Its type, as files name it."""
    return str(plain(of)["type"])


def _old(text: str) -> Source:
    if not text:
        return UNKNOWN
    if text == "bundled":
        return Bundled()
    return INSTALLED if text.startswith("/") else Git(text)
