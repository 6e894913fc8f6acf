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
    fresh: dict[Path, Path] = {}
    path = Path()
    try:
        for given, text in files.items():
            path = given.resolve()  # write through a symlink instead of replacing it
            fresh[path] = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
            _write_new(fresh[path], text, _find_mode(path, mode), sync)
        for path, written in fresh.items():
            written.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        for written in fresh.values():
            with suppress(OSError):
                written.unlink()


def _find_mode(path: Path, mode: int) -> int:
    """The mode of an existing file, else `mode`."""
    try:
        found = path.stat().st_mode
    except OSError:
        return mode  # the file does not exist yet, or its folder is not a folder
    if not stat.S_ISREG(found):  # a rename would replace a device or a pipe, such as /dev/null
        raise BadPackageFile(str(path), "it is not a regular file", "Give another file.")
    return found & 0o777


def _write_new(path: Path, text: str, mode: int, sync: bool) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(file, "w", encoding="utf-8") as target:
        target.write(text)
        target.flush()
        if sync:
            os.fsync(target.fileno())


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
