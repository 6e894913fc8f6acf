"""One pretty-printed `<uuid>.json` per session, in one directory.

Rules
  1. Only a UUID becomes a file name. No other text is used in a path.
  2. A file is written under a temporary name, synced, then renamed over the old one; then the
     directory is synced. A reader sees the old session or the new one, also after a power cut.
  3. A crash leaves only files that do not end in `.json`, so they are never listed.
  4. Directories that we create are 0700, files 0600.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

import msgspec

from everhold.core.codec import JSON
from everhold.stores.envelope.errors import FileFailed, SerializeFailed
from everhold.stores.envelope.format import parse_session_id as checked


class JsonFiles:
    """An adapter over a directory, for any number of processes; the last save of a session wins."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    async def save_session(self, session_id: str, data: JSON) -> None:
        path = self._path(session_id)
        text = _pretty(session_id, data)
        await asyncio.to_thread(_replace, path, text)

    async def load_session(self, session_id: str) -> JSON | None:
        return await asyncio.to_thread(_load, self._path(session_id))

    async def list_sessions(self) -> list[str]:
        return await asyncio.to_thread(_names, self.directory)

    async def delete_session(self, session_id: str) -> bool:
        return await asyncio.to_thread(_delete, self._path(session_id))

    def _path(self, session_id: str) -> Path:
        return self.directory / f"{checked(session_id)}.json"


def _pretty(session_id: str, data: JSON) -> bytes:
    try:
        text = json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializeFailed(session_id, str(error)) from None
    return msgspec.json.format(text, indent=2)


def _replace(path: Path, text: bytes) -> None:
    try:
        _make(path.parent)
    except OSError as error:
        raise FileFailed("create session directory", path.parent, str(error)) from None
    try:
        handle, temporary = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=".tmp", dir=path.parent
        )
    except OSError as error:
        raise FileFailed("write session temp file in", path.parent, str(error)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise FileFailed("replace session file", path, str(error)) from None


def _load(path: Path) -> JSON | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileFailed("read session file", path, str(error)) from None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileFailed("parse session file", path, str(error)) from None


def _names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            found = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileFailed("read session directory", directory, str(error)) from None
    return sorted(
        name.removesuffix(".json") for name in found if name.endswith(".json") and _is_text(name)
    )


def _is_text(name: str) -> bool:
    return name.encode(errors="ignore").decode() == name


def _delete(path: Path) -> bool:
    try:
        path.unlink()
        _sync(path.parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FileFailed("delete session file", path, str(error)) from None
    return True


def _make(directory: Path) -> None:
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir(0o700, exist_ok=True)
        _sync(directory.parent)


def _sync(directory: Path) -> None:
    if os.name == "nt":  # a directory that cannot be opened cannot be synced either
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
