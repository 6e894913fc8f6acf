"""By what a change of a file is seen without reading it: what the file system says of it."""

from __future__ import annotations

import os
from typing import Final

FileFingerprint = tuple[int, ...]

#: Nanoseconds in which a file may change twice and look the same: so fresh a one is not remembered.
TICK: Final = 100_000_000

#: How many paths are remembered.
_MANY: Final = 1000
_followed: dict[str, tuple[FileFingerprint, str]] = {}


def make_file_fingerprint(found: os.stat_result) -> FileFingerprint:
    """What a file looks like. The last number cannot be chosen by anybody."""
    return (
        found.st_dev,
        found.st_ino,
        found.st_mode,
        found.st_uid,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


def resolve_cached_path(path: str, seen: FileFingerprint) -> str:
    """Where a path really leads. It is followed again if what is there is another, or has
    changed.
    """
    known = _followed.get(path)
    if known is None or known[0] != seen:
        if len(_followed) >= _MANY:
            _followed.clear()
        known = _followed[path] = seen, os.path.realpath(path)
    return known[1]


def is_settled(seen: FileFingerprint, now: int) -> bool:
    """Whether the file had changed long enough ago that every change from now on is seen."""
    return now - seen[-1] > TICK
