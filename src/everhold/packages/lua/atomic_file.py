"""Atomic writes and locks for files that several processes share.

A write creates a new file beside the old one, syncs it, and renames it into place.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from everhold.errors import BadPackageFile, StoreBusy
from everhold.portability import CLOSE_ON_EXEC, lock_file

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC
#: Seconds to wait for a lock before `StoreBusy` is raised.
PATIENCE: Final = 30.0
_PAUSE: Final = 0.02


def read_text_file(path: Path) -> str | None:
    """The text of a file; None if it does not exist. Raises `BadPackageFile`."""
    try:
        if not path.is_file() and path.exists():  # reading a pipe would never end
            raise BadPackageFile(str(path), "it is not a regular file")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise BadPackageFile(str(path), "it is not UTF-8 text") from None
    except OSError as error:
        raise BadPackageFile(str(path), f"it cannot be read: {error.strerror}") from None


def parse_json_file(path: Path, text: str) -> Any:
    """The JSON in the text of a file; raises `BadPackageFile`."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadPackageFile(str(path), f"it is not JSON: {error}") from None
    except RecursionError:
        raise BadPackageFile(str(path), "it is nested too deeply") from None


def write_atomically(path: Path, text: str, *, mode: int = 0o600, sync: bool = True) -> None:
    """Replace the content of a file, whole or not at all. An existing file keeps its mode.

    Without `sync`, a power failure may leave an empty file: for content that can be made again.
    """
    write_together({path: text}, mode=mode, sync=sync)


def write_together(files: Mapping[Path, str], *, mode: int = 0o600, sync: bool = True) -> None:
    """Replace the content of files, in order, each as `write_atomically` does.

    All are written beside the old ones before the first is replaced, so a full disk changes none.
    """
    fresh: dict[str, str] = {}
    path = ""
    try:
        for given, text in files.items():
            path, kept = _find_target(str(given), mode)
            folder, name = os.path.split(path)
            written = os.path.join(folder, f".{name}.{uuid4().hex[:8]}.tmp")
            _write_new(written, text.encode(), kept, sync, fresh, path)
        while fresh:
            path = next(iter(fresh))
            os.replace(fresh[path], path)
            del fresh[path]
    except OSError as error:
        raise _unwritable(Path(path), error) from None
    finally:
        for written in fresh.values():
            with suppress(OSError):
                os.unlink(written)


def _find_target(path: str, mode: int) -> tuple[str, int]:
    """The file to replace, which a symlink names, and its mode, else `mode`."""
    try:
        found = os.lstat(path).st_mode
        if stat.S_ISLNK(found):
            path = os.path.realpath(path)
            found = os.stat(path).st_mode
    except OSError:
        return path, mode  # the file does not exist yet, or its folder is not a folder
    if not stat.S_ISREG(found):  # a rename would replace a device or a pipe, such as /dev/null
        raise BadPackageFile(path, "it is not a regular file", "Give another file.")
    return path, found & 0o777


def _write_new(
    path: str, text: bytes, mode: int, sync: bool, fresh: dict[str, str], target: str
) -> None:
    """Write a new file, which is in `fresh` as soon as it exists."""
    try:
        file = os.open(path, _NEW, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        file = os.open(path, _NEW, mode)
    fresh[target] = path
    with open(file, "wb") as out:
        out.write(text)
        if sync:
            out.flush()
            os.fsync(file)


def _unwritable(path: Path, error: OSError) -> BadPackageFile:
    hint = (
        f"Nothing was changed. Make {path.parent} a folder that you can write to, then try again."
    )
    return BadPackageFile(str(path), f"it cannot be written: {error.strerror}", hint)


@contextmanager
def hold_file_lock(path: Path, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold a lock between processes; raises `StoreBusy` if another holds it for `patience`
    seconds.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | CLOSE_ON_EXEC, 0o600)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        _acquire(lock, path, patience)
        yield
    finally:
        os.close(lock)


def _acquire(lock: int, path: Path, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        try:
            return lock_file(lock)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise StoreBusy(str(path), patience) from None
            time.sleep(_PAUSE)
