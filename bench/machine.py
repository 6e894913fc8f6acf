"""The machine of the figures: the facts that affect them, without its name."""

import os
import platform
import sqlite3
import sysconfig
from pathlib import Path


def describe(data: Path) -> dict[str, str]:
    """Describe the machine; `data` is the folder of the databases."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "system": f"{platform.system()}, {platform.machine()}",
        "file system": _file_system(data),
        "python": f"{platform.python_implementation()} {platform.python_version()}, {_build()}",
        "sqlite": sqlite3.sqlite_version,
    }


def load() -> float:
    """Processes that ran or waited to, averaged over the last minute."""
    return os.getloadavg()[0]


def _build() -> str:
    """How this Python was compiled: the optimizations that make one build faster than another."""
    options = sysconfig.get_config_var("CONFIG_ARGS")
    if not options:
        return "its build is not known"
    profiled = "with PGO" if "--enable-optimizations" in options else "without PGO"
    return f"{profiled}, {'with LTO' if '--with-lto' in options else 'without LTO'}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(data: Path) -> str:
    """The type of the file system that holds the databases: on one in memory an fsync would cost
    nothing.
    """
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    place = data.resolve()
    holding = [(len(at), kind) for _, at, kind, *_ in mounts if place.is_relative_to(at)]
    return max(holding)[1] if holding else "unknown"
