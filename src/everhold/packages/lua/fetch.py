"""Getting a folder of packages: one that is here, or a git repository at one revision.

Rules
  1. Of a repository files are taken, and nothing in it is run: no hooks, no filters of its own, no
     submodules. Only transports that fetch are used.
  2. Nobody is asked for a password, and after a minute it is over.
  3. What was fetched is known by its commit. Passwords in an address are used and not written down.

Where a package came from, as installed.json and alc.lock say it.

    {"type": "git", "url": …, "rev": …}    fetched; `rev` is the commit, null in old files
    {"type": "path", "path": …}            copied from a folder (installed.json),
                                           or used in place (alc.lock)
    {"type": "installed"}                  installed, and nobody wrote down from where
    {"type": "bundled", "collection": …}   came with algocline
    {"type": "unknown"}

Old files have a bare text in its place. It is understood, and written back in the new form.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.errors import BadPackage


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
    """The source that a value of a file means; raises `msgspec.ValidationError` if it means
    none.
    """
    if isinstance(value, str):
        return _old(value)
    found: PackageSource = msgspec.convert(value, PackageSource)
    return found


def dump_source(of: PackageSource) -> dict[str, Any]:
    """A source as it stands in a file."""
    told: dict[str, Any] = msgspec.to_builtins(of)
    return told


def get_source_type(of: PackageSource) -> str:
    """Its type, as files name it."""
    return str(dump_source(of)["type"])


def _old(text: str) -> PackageSource:
    if not text:
        return UNKNOWN_SOURCE
    if text == "bundled":
        return BundledSource()
    return INSTALLED_SOURCE if text.startswith("/") else GitSource(text)


#: Seconds in which a repository must be here.
LIMIT: Final = 60.0

_SCHEMES: Final = ("http", "https", "ssh", "git", "file")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SHORT: Final = re.compile(r"[\w.-]+@[\w.-]+:(?!:)")  # git@host:path
_SECRET: Final = re.compile(r"(?<=://)[^/@]*@")
_CAREFUL: Final = (
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "protocol.ext.allow=never"),
    *("-c", "submodule.recurse=false"),
    *("-c", "advice.detachedHead=false"),
)


@dataclass(frozen=True, slots=True)
class FetchedFolder:
    """A folder with packages, and where it came from."""

    folder: Path
    source: FolderSource | GitSource
    name: str  # of its package, if it is one and nobody chose another

    @property
    def is_local(self) -> bool:
        return isinstance(self.source, FolderSource)


@contextmanager
def fetch_packages(url: str, rev: str | None = None) -> Iterator[FetchedFolder]:
    """What is at an address, for a while: an absolute path as it stands, else a git repository."""
    if url.startswith(("/", "~")):
        yield _here(url, rev)
        return
    at = normalize_git_url(url)
    with tempfile.TemporaryDirectory(prefix="everhold-") as place:
        folder = Path(place, "repository")
        commit = _fetched(at, rev, folder)
        shutil.rmtree(folder / ".git")
        yield FetchedFolder(
            folder,
            GitSource(hide_credentials(at), commit),
            at.rstrip("/").rpartition("/")[2].removesuffix(".git"),
        )


def _here(url: str, rev: str | None) -> FetchedFolder:
    folder = Path(url).expanduser()
    if rev is not None:
        raise BadPackage(
            f"A directory has no revision: {url}", f"Name the repository: file://{folder}"
        )
    if not folder.is_dir():
        raise BadPackage(
            f"Source directory does not exist: {folder}",
            "Name a folder that is there, or a git URL.",
        )
    folder = folder.resolve()
    return FetchedFolder(folder, FolderSource(str(folder)), folder.name)


def normalize_git_url(url: str) -> str:
    """The full address of a repository; `https://` comes before what has no scheme."""
    scheme = _SCHEME.match(url)
    is_word = "/" not in url and not _SHORT.match(url)  # such as a folder's name: no host has it
    if is_word or url.startswith(("-", ".")) or not url.isprintable() or "::" in url:
        raise BadPackage(
            f"Not the address of a repository: {url!r}",
            "Say https://host/path, git@host:path or a folder.",
        )
    if scheme is None:
        return url if _SHORT.match(url) else f"https://{url}"
    if scheme[1].lower() not in _SCHEMES:
        raise BadPackage(
            f"Packages are not fetched by {scheme[1]}://", f"There are {', '.join(_SCHEMES)}."
        )
    return url


def hide_credentials(url: str) -> str:
    """An address without name and password."""
    return url if url.startswith("ssh://") else _SECRET.sub("", url)


# ---- git


def _fetched(url: str, rev: str | None, folder: Path) -> str:
    """Put the files of a revision, or of the newest, into a folder; returns the commit."""
    if rev is None:
        _git(url, "clone", "-q", "--depth", "1", "--no-tags", "--template=", "--", url, str(folder))
    else:
        _at_revision(url, rev, folder)
    return _git(url, "-C", str(folder), "rev-parse", "HEAD").strip()


def _at_revision(url: str, rev: str, folder: Path) -> None:
    if not rev or rev.startswith("-") or not rev.isprintable() or ":" in rev or " " in rev:
        raise BadPackage(f"Not a revision: {rev!r}", "Name a tag, a branch or a commit.")
    _git(url, "init", "-q", "--template=", str(folder))
    try:  # this alone, if the server gives it
        _git(url, "-C", str(folder), "fetch", "-q", "--depth", "1", "--no-tags", "--", url, rev)
        _git(url, "-C", str(folder), "checkout", "-q", "--detach", "FETCH_HEAD", "--")
    except BadPackage:
        shutil.rmtree(folder)
        _git(url, "clone", "-q", "--no-checkout", "--template=", "--", url, str(folder))
        _git(url, "-C", str(folder), "checkout", "-q", "--detach", rev, "--")


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
            ["git", *_CAREFUL, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,  # so that those whom git starts end with it
        )
    except OSError as error:
        raise BadPackage(f"Failed to run git: {error.strerror}", "Install git.") from None
    try:
        told, complaint = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise BadPackage(
            f"git clone timed out after {LIMIT:.0f}s: {hide_credentials(url)}",
            "Nothing was changed. Try again later.",
        ) from None
    finally:
        _end(process)
    if process.returncode:
        said = hide_credentials(" ".join(complaint.decode("utf-8", "replace").split()))
        raise BadPackage(
            f"git clone failed: {said}", "Nothing was changed. Check the address and the revision."
        )
    return told.decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
