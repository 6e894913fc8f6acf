"""Files that are read by several and written whole: a new one beside it, made durable, then put in
its place.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from everhold.errors import BadPackageFile, StoreBusy

#: Seconds after which one who waits for a lock gives up.
PATIENCE: Final = 30.0
_PAUSE: Final = 0.02


def read_text_file(path: Path) -> str | None:
    """What is in a file; None if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise BadPackageFile(str(path), "it is not UTF-8 text") from None
    except OSError as error:
        raise BadPackageFile(str(path), f"it cannot be read: {error.strerror}") from None


def write_atomically(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Put a text into a file, whole or not at all; a file that is there keeps its rights, and a
    link its place.
    """
    path = path.resolve()
    fresh = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        pass  # there is none yet, or there can be none
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8"
        ) as target:
            target.write(text)
            target.flush()
            os.fsync(target.fileno())
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> BadPackageFile:
    hint = (
        f"Nothing was changed. See to it that {path.parent} is a folder that you may write"
        " to, then try again."
    )
    return BadPackageFile(str(path), f"it cannot be written: {error.strerror}", hint)


@contextmanager
def hold_file_lock(path: Path, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold a lock that processes share; raises `StoreBusy` if somebody keeps it for too long."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        _take(lock, path, patience)
        yield
    finally:
        os.close(lock)


def _take(lock: int, path: Path, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise StoreBusy(str(path), patience) from None
            time.sleep(_PAUSE)
