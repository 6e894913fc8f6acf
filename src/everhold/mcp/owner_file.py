"""Files that only their owner reads, made once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def is_open_to_others(descriptor: int) -> bool:
    """Whether others than its owner may read or change a file; Windows does not say."""
    return os.name == "posix" and bool(os.fstat(descriptor).st_mode & 0o077)


def create_owner_file(file: Path, content: bytes) -> None:
    """Write a file unless it is there; of several processes that make it at once, one does, and it
    is never half there.

    Raises `OSError`.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as target:
            target.write(content)
            target.flush()
            os.fsync(target.fileno())
        try:
            os.link(fresh, file)  # unlike a rename it never replaces what another process made
        except FileExistsError:
            pass
    finally:
        fresh.unlink(missing_ok=True)
