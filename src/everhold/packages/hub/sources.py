"""Where indexes of packages are, and what they say.

    [hub] collection_url   of config.toml in the home: an index of all packages
    hub_registries.json    repositories from which packages or cards were installed
    installed.json         the same, of earlier installations
    BUILTIN_SOURCES        unless config.toml says `builtin_sources = false` in [hub]

Rules
  1. An index is a .json file at an http or https address, or on this machine (a path, or file://…).
     The one of a GitHub repository is hub_index.json of its branch main. Other repositories have
     none.
  2. An index of the network is kept in hub_cache/ for an hour. Without the network, or with
     `offline = true` in [hub], an older copy is used, and a warning says so.
  3. Indexes are fetched at the same time, each within 30 seconds. What fails is a warning. The
     first package of a name wins.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from everhold.errors import BadPackageFile, EverholdError
from everhold.packages.hub.index import (
    INDEX_FILE,
    MAX_INDEX_BYTES,
    HubIndex,
    IndexedPackage,
    ReportProgress,
    dump_index,
    parse_index,
)
from everhold.packages.lua.atomic_file import hold_file_lock, read_text_file, write_atomically
from everhold.packages.lua.fetch import GitSource
from everhold.packages.lua.folder import is_package_name
from everhold.packages.lua.installed import load_installed
from everhold.packages.lua.paths import AlcHome
from everhold.packages.toml import BadToml, parse_toml

#: Collections that everybody's search includes.
BUILTIN_SOURCES: Final = ("https://github.com/ynishi/algocline-bundled-packages",)
REGISTRIES_FILE: Final = "hub_registries.json"
CACHE_FOLDER: Final = "hub_cache"
CONFIG_FILE: Final = "config.toml"
#: Seconds for which a fetched index is used again, and seconds that a fetch may take.
CACHE_SECONDS: Final = 3600.0
FETCH_SECONDS: Final = 30.0

_MOST_AT_ONCE: Final = 8
_SECRET: Final = re.compile(r"(?<=://)[^/@]*@")


class Registry(msgspec.Struct):
    """One entry of hub_registries.json."""

    source: str
    origin: str = ""
    added_at: str = ""


class _Registries(msgspec.Struct):
    registries: list[Registry] = []


class HubConfig(msgspec.Struct):
    """The table [hub] of config.toml in the home."""

    collection_url: str = ""
    builtin_sources: bool = True
    offline: bool = False


class FetchedIndexes(msgspec.Struct):
    """The packages of all indexes, the addresses, and what went wrong."""

    packages: list[IndexedPackage]
    addresses: list[str]
    warnings: list[str]


# ---- registries


def load_registries(home: AlcHome) -> list[Registry]:
    """The entries of hub_registries.json; raises `BadPackageFile`."""
    file = home.root / REGISTRIES_FILE
    text = read_text_file(file)
    if text is None:
        return []
    try:
        return msgspec.json.decode(text, type=_Registries).registries
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadPackageFile(str(file), f"it is not a list of registries: {error}") from None


def register_source(home: AlcHome, source: str, origin: str) -> bool:
    """Add a repository to hub_registries.json; returns whether it is new.

    `origin` is "pkg_install" or "card_install". Folders are not added, because they are on this
    machine only. A user name or a token in the address is left out.
    """
    source = _SECRET.sub("", source).rstrip("/")
    if not source or source[0] in "/.~":
        return False
    file = home.root / REGISTRIES_FILE
    with hold_file_lock(file.with_name(f"{REGISTRIES_FILE}.lock")):
        known = load_registries(home)
        if any(one.source.rstrip("/") == source for one in known):
            return False
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        known.append(Registry(source, origin, now))
        entries = msgspec.to_builtins(_Registries(known))
        write_atomically(file, json.dumps(entries, indent=2, ensure_ascii=False) + "\n")
    return True


# ---- addresses


def load_config(home: AlcHome) -> HubConfig:
    """[hub] of config.toml; raises `BadPackageFile`."""
    file = home.root / CONFIG_FILE
    text = read_text_file(file)
    if text is None:
        return HubConfig()
    try:
        return msgspec.convert(parse_toml(text).get("hub", {}), HubConfig)
    except (BadToml, msgspec.ValidationError) as error:
        raise BadPackageFile(str(file), f"[hub] cannot be read: {error}") from None


def get_index_address(source: str) -> str | None:
    """The address of the index of a repository; None if it has none that we know."""
    source = source.rstrip("/")
    if not source.endswith(".json"):
        source = source.removesuffix(".git")
    host, _, path = source.removeprefix("https://").removeprefix("http://").partition("/")
    parts = path.split("/")
    if host in ("github.com", "www.github.com") and len(parts) >= 2 and all(parts[:2]):
        owner, name = parts[:2]
        return f"https://raw.githubusercontent.com/{owner}/{name}/main/{INDEX_FILE}"
    if source.endswith(".json"):
        return source
    folder = _local_path(source)
    if folder is not None and (folder / INDEX_FILE).is_file():
        return str(folder / INDEX_FILE)
    return None


def find_addresses(home: AlcHome, config: HubConfig) -> list[str]:
    """The addresses of all indexes, each once: the collection first, then in alphabetical order."""
    sources = {one.source for one in load_registries(home)}
    sources |= {
        entry.source.url
        for entry in load_installed(home).values()
        if isinstance(entry.source, GitSource)
    }
    if config.builtin_sources:
        sources |= set(BUILTIN_SOURCES)
    found = sorted({at for source in sources if (at := get_index_address(source)) is not None})
    first = config.collection_url.strip()
    first = (get_index_address(first) or first) if first else ""
    return [first, *(at for at in found if at != first)] if first else found


def _local_path(address: str) -> Path | None:
    """The path of a file:// address or of a plain path."""
    if address.startswith("file://"):
        parts = urlsplit(address)
        return Path(unquote(parts.path)) if parts.netloc in ("", "localhost") else None
    return Path(address).expanduser() if address[:1] in ("/", "~") else None


# ---- fetching


def fetch_indexes(
    home: AlcHome, *, offline: bool = False, progress: ReportProgress | None = None
) -> FetchedIndexes:
    """The packages of all indexes; with `offline`, nothing is fetched from the network."""
    warnings: list[str] = []
    try:
        config = load_config(home)
    except BadPackageFile as error:
        warnings.append(str(error))
        config = HubConfig()
    addresses = find_addresses(home, config)
    offline = offline or config.offline
    packages: dict[str, IndexedPackage] = {}
    count = 0
    with ThreadPoolExecutor(max_workers=_MOST_AT_ONCE) as pool:
        fetched = pool.map(lambda address: _load_index(home, address, offline), addresses)
        for done, (index, said) in enumerate(fetched, start=1):
            warnings += said
            if index is not None:
                count += 1
                for one in index.packages:
                    if is_package_name(one.name):
                        packages.setdefault(one.name, one)
                    else:
                        warnings.append(f"{addresses[done - 1]}: {one.name[:80]!r} is no package")
            if progress is not None:
                progress(done, len(addresses))
    if addresses and not count and not offline:
        warnings.insert(0, "no index could be read: only installed packages are shown")
    return FetchedIndexes(list(packages.values()), addresses, warnings)


def _load_index(home: AlcHome, address: str, offline: bool) -> tuple[HubIndex | None, list[str]]:
    """The index at an address, and warnings; None if there is no copy of it either."""
    path = _local_path(address)
    if path is not None:
        try:
            text = read_text_file(path)
            if text is None:
                return None, [f"there is no index {path}"]
            return parse_index(text, str(path)), []
        except EverholdError as error:
            return None, [str(error)]
    copy, age, warnings = _load_copy(home, address)
    if copy is not None and 0 <= age < CACHE_SECONDS:
        return copy, warnings
    if offline:
        reason = f"offline: {address} was not fetched"
    else:
        try:
            index = parse_index(fetch_bytes(address), address)
            return index, [*warnings, *_save_copy(home, address, index)]
        except (EverholdError, OSError, ValueError) as error:
            reason = f"{address} could not be fetched: {_explain(error)}"
    if copy is None:
        return None, [*warnings, reason]
    return copy, [*warnings, f"{reason}; a copy that is {_format_age(age)} old is used"]


def fetch_bytes(address: str, seconds: float = FETCH_SECONDS) -> bytes:
    """The content of an http or https address; raises `OSError` or `ValueError`."""
    from urllib.request import (
        HTTPDefaultErrorHandler,
        HTTPErrorProcessor,
        HTTPHandler,
        HTTPRedirectHandler,
        HTTPSHandler,
        OpenerDirector,
        ProxyHandler,
        Request,
    )

    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError("the address is not http, https, file or a path")
    opener = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(),
        HTTPRedirectHandler(),
        HTTPDefaultErrorHandler(),
        HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    until = time.monotonic() + seconds
    found = bytearray()
    request = Request(address, headers={"User-Agent": "everhold"})
    response = opener.open(request, timeout=seconds)
    if response is None:  # a redirect to another scheme
        raise ValueError("it leads to an address that is not http or https")
    with response:
        while piece := response.read1(2**16):
            found += piece
            if len(found) > MAX_INDEX_BYTES:
                raise ValueError(f"it has more than {MAX_INDEX_BYTES} bytes")
            if time.monotonic() > until:
                raise TimeoutError(f"it took more than {seconds:g} s")
    return bytes(found)


def _explain(error: Exception) -> str:
    if isinstance(error, BadPackageFile):
        return error.reason
    status = getattr(error, "code", None)
    if isinstance(status, int):
        leads = " (it leads to an address that is not http or https)" if status < 400 else ""
        return f"HTTP status {status}{leads}"
    return str(getattr(error, "reason", "") or error)


def _format_age(seconds: float) -> str:
    hours = max(0.0, seconds) / 3600
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"


# ---- the cache


def get_cache_file(home: AlcHome, address: str) -> Path:
    """The copy of an index: its name is the FNV-1a hash of the address."""
    value = 0xCBF29CE484222325
    for byte in address.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return home.root / CACHE_FOLDER / f"{value:016x}.json"


def _load_copy(home: AlcHome, address: str) -> tuple[HubIndex | None, float, list[str]]:
    """The copy, its age in seconds, and a warning if it is damaged."""
    file = get_cache_file(home, address)
    try:
        age = time.time() - file.stat().st_mtime
        text = read_text_file(file)
        if text is None:
            return None, 0.0, []
        return parse_index(text, str(file)), age, []
    except FileNotFoundError:
        return None, 0.0, []
    except (EverholdError, OSError) as error:
        return None, 0.0, [f"the copy of {address} in hub_cache is damaged: {error}"]


def _save_copy(home: AlcHome, address: str, index: HubIndex) -> Iterator[str]:
    try:
        write_atomically(get_cache_file(home, address), dump_index(index))
    except EverholdError as error:
        yield f"the copy in hub_cache was not written: {error}"
