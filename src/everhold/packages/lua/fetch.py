"""Fetches a folder of packages: a local folder, or a git repository at one revision.

Rules
  1. Nothing in a repository is run: no hooks, no filters, no submodules. Only the transports http,
     https, ssh, git and file are used.
  2. git never prompts for a password, and is stopped after a minute.
  3. A fetched folder is identified by its commit. Credentials in an address are used, not recorded.

The source of a package, as installed.json and alc.lock record it:

    {"type": "git", "url": …, "rev": …}    fetched; `rev` is the commit, null in old files
    {"type": "path", "path": …}            copied from a folder (installed.json),
                                           or used in place (alc.lock)
    {"type": "installed"}                  installed from a source that was not recorded
    {"type": "bundled", "collection": …}   came with algocline
    {"type": "unknown"}

Old files have a string instead. It is read, and written back in the new form.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.errors import BadPackage
from everhold.packages.lua.paths import expand_path
from everhold.portability import kill_process_group


class UnknownSource(msgspec.Struct, frozen=True, tag="unknown"):
    shown = ""


class InstalledSource(msgspec.Struct, frozen=True, tag="installed"):
    shown = "installed"


class FolderSource(msgspec.Struct, frozen=True, tag="path"):
    path: str

    @property
    def shown(self) -> str:
        return self.path


class GitSource(msgspec.Struct, frozen=True, tag="git"):
    url: str
    rev: str | None = None

    @property
    def shown(self) -> str:
        return self.url


class BundledSource(msgspec.Struct, frozen=True, tag="bundled"):
    collection: str | None = None

    @property
    def shown(self) -> str:
        return f"bundled:{self.collection}" if self.collection else "bundled"


PackageSource = UnknownSource | InstalledSource | FolderSource | GitSource | BundledSource

UNKNOWN_SOURCE: Final = UnknownSource()
INSTALLED_SOURCE: Final = InstalledSource()


def parse_source(value: Any) -> PackageSource:
    """Read a source from a value of a file; raises `msgspec.ValidationError`."""
    if isinstance(value, str):
        if not value:
            return UNKNOWN_SOURCE
        if value == "bundled":
            return BundledSource()
        return INSTALLED_SOURCE if value.startswith("/") else GitSource(value)
    found: PackageSource = msgspec.convert(value, PackageSource)
    return found


def dump_source(of: PackageSource) -> dict[str, Any]:
    """A source as it is written to a file."""
    plain: dict[str, Any] = msgspec.to_builtins(of)
    return plain


def get_source_type(of: PackageSource) -> str:
    """The `type` of a source in a file."""
    return str(dump_source(of)["type"])


#: Seconds that git may take.
LIMIT: Final = 60.0

_SCHEMES: Final = ("http", "https", "ssh", "git", "file")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SHORT: Final = re.compile(r"[\w.-]+@[\w.-]+:(?!:)")  # git@host:path
_SECRET: Final = re.compile(r"(?<=://)[^/@]*@")
_SAFE_OPTIONS: Final = (
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "protocol.ext.allow=never"),
    *("-c", "submodule.recurse=false"),
    *("-c", "advice.detachedHead=false"),
)


@dataclass(frozen=True, slots=True)
class FetchedFolder:
    """A folder with packages, and its source."""

    folder: Path
    source: FolderSource | GitSource
    name: str  # of its package, if the folder is a single package and the user gave no name

    @property
    def is_local(self) -> bool:
        return isinstance(self.source, FolderSource)


@contextmanager
def fetch_packages(url: str, rev: str | None = None) -> Iterator[FetchedFolder]:
    """The folder at an address: an absolute path in place, else a temporary clone."""
    if url.startswith(("/", "~")):
        local = expand_path(url)
        if rev is not None:
            raise BadPackage(
                f"A directory has no revision: {url}", f"Give a git URL: file://{local}"
            )
        if not local.is_dir():
            raise BadPackage(
                f"folder {local} does not exist",
                "Give an existing folder or a git URL.",
            )
        local = local.resolve()
        yield FetchedFolder(local, FolderSource(str(local)), local.name)
        return
    at = normalize_git_url(url)
    with tempfile.TemporaryDirectory(prefix="everhold-") as place:
        folder = Path(place, "repository")
        commit = _clone(at, rev, folder)
        shutil.rmtree(folder / ".git")
        yield FetchedFolder(
            folder,
            GitSource(hide_credentials(at), commit),
            at.rstrip("/").rpartition("/")[2].removesuffix(".git"),
        )


def normalize_git_url(url: str) -> str:
    """The full address of a repository. An address without a scheme gets `https://`."""
    scheme = _SCHEME.match(url)
    is_word = "/" not in url and not _SHORT.match(url)  # a folder, not a host
    if is_word or url.startswith(("-", ".")) or not url.isprintable() or "::" in url:
        raise BadPackage(
            f"Not the address of a repository: {url!r}",
            "Give https://host/path, git@host:path or a folder.",
        )
    if scheme is None:
        return url if _SHORT.match(url) else f"https://{url}"
    if scheme[1].lower() not in _SCHEMES:
        raise BadPackage(
            f"Packages cannot be fetched by {scheme[1]}://", f"Use one of {', '.join(_SCHEMES)}."
        )
    return url


def hide_credentials(url: str) -> str:
    """The address without user name and password."""
    return url if url.startswith("ssh://") else _SECRET.sub("", url)


# ---- git


def _clone(url: str, rev: str | None, folder: Path) -> str:
    """Clone a revision, or the newest one, into a folder; returns the commit."""
    if rev is None:
        _git(url, "clone", "-q", "--depth", "1", "--no-tags", "--template=", "--", url, str(folder))
    else:
        if not rev or rev.startswith("-") or not rev.isprintable() or ":" in rev or " " in rev:
            raise BadPackage(f"Not a revision: {rev!r}", "Give a tag, a branch or a commit.")
        _git(url, "init", "-q", "--template=", str(folder))
        try:  # only this revision, if the server allows that
            _git(url, "-C", str(folder), "fetch", "-q", "--depth", "1", "--no-tags", "--", url, rev)
            _git(url, "-C", str(folder), "checkout", "-q", "--detach", "FETCH_HEAD", "--")
        except BadPackage:
            shutil.rmtree(folder)
            _git(url, "clone", "-q", "--no-checkout", "--template=", "--", url, str(folder))
            _git(url, "-C", str(folder), "checkout", "-q", "--detach", rev, "--")
    return _git(url, "-C", str(folder), "rev-parse", "HEAD").strip()


def _git(url: str, *words: str) -> str:
    env = {
        **os.environ,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -oBatchMode=yes"),
        "LC_ALL": "C",
    }
    try:
        process = subprocess.Popen(
            ["git", *_SAFE_OPTIONS, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,  # so that a timeout also ends the processes that git starts
        )
    except OSError as error:
        raise BadPackage(f"git cannot be started: {error.strerror}", "Install git.") from None
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise BadPackage(
            f"git clone failed: it took longer than {LIMIT:.0f} s: {hide_credentials(url)}",
            "Nothing was changed. Try again later.",
        ) from None
    finally:
        if process.poll() is None:
            kill_process_group(process)
            process.communicate()
    if process.returncode:
        reason = hide_credentials(" ".join(errors.decode("utf-8", "replace").split()))
        raise BadPackage(
            f"git clone failed: {reason}",
            "Nothing was changed. Check the address and revision.",
        )
    return output.decode("utf-8", "replace")
