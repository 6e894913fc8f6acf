"""Atomic writes and locks for files that several processes share.

A write creates a new file beside the old one, syncs it, and renames it into place.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from everhold.errors import BadPackageFile, StoreBusy
from everhold.portability import CLOSE_ON_EXEC, lock_file

#: Seconds to wait for a lock before `StoreBusy` is raised.
PATIENCE: Final = 30.0
_PAUSE: Final = 0.02


def read_text_file(path: Path) -> str | None:
    """The text of a file; None if it does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise BadPackageFile(str(path), "it is not UTF-8 text") from None
    except OSError as error:
        raise BadPackageFile(str(path), f"it cannot be read: {error.strerror}") from None


def write_atomically(path: Path, text: str, *, mode: int = 0o600, sync: bool = True) -> None:
    """Replace the content of a file, whole or not at all. An existing file keeps its mode.

    Without `sync`, a power failure may leave an empty file: for content that can be made again.
    """
    path = path.resolve()  # write through a symlink instead of replacing it
    fresh = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        found = path.stat().st_mode
    except OSError:
        pass  # the file does not exist yet, or its folder is not a folder
    else:
        if not stat.S_ISREG(found):  # a rename would replace a device or a pipe, such as /dev/null
            raise BadPackageFile(str(path), "it is not a regular file", "Give another file.")
        mode = found & 0o777
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8"
        ) as target:
            target.write(text)
            target.flush()
            if sync:
                os.fsync(target.fileno())
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise _unwritable(path, error) from None


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
