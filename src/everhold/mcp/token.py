"""The token that clients send over HTTP, and files that only their owner can read.

Rules
  1. The token comes from a file or from the environment, never from the command line, which every
     user of the machine can read (`ps`).
  2. The file is created readable by its owner only. A file that others can read is refused.
  3. The token stays the same after a restart, so that hosts keep working. To change it, delete the
     file.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from everhold.errors import BadSetting
from everhold.packages.settings import get_data_folder
from everhold.portability import may_others_read


def is_open_to_others(descriptor: int) -> bool:
    """Whether users other than the owner may read or change a file. Always false on Windows."""
    return may_others_read(os.fstat(descriptor))


def create_owner_file(file: Path, content: bytes) -> None:
    """Create a file, unless it exists. It appears whole, also if several processes create it.

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


TOKEN_VARIABLE: Final = "EVERHOLD_MCP_TOKEN"
TOKEN_FILE: Final = "mcp-token"
#: Characters that a header can contain unchanged.
_FIT: Final = re.compile(r"[!-~]+")
_LONGEST: Final = 4096


class Token(NamedTuple):
    value: str
    file: Path | None = None  # None: it came from the environment

    @property
    def shell(self) -> str:
        """A shell expression for the token."""
        return (
            f"${TOKEN_VARIABLE}" if self.file is None else f"$(cat {shlex.quote(str(self.file))})"
        )


def load_token(
    file: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None
) -> Token:
    """The token from this file, or else from the environment, or else from the user's data folder.

    A missing file is created. Raises `BadSetting`.
    """
    value = (os.environ if env is None else env).get(TOKEN_VARIABLE, "").strip()
    if file is None and value:
        return Token(_check_token(value, TOKEN_VARIABLE))
    path = get_data_folder() / TOKEN_FILE if file is None else Path(file).expanduser().absolute()
    try:
        if not path.exists():
            create_owner_file(path, secrets.token_urlsafe(32).encode() + b"\n")
        with path.open("rb") as source:
            is_open = is_open_to_others(source.fileno())
            found = source.read(_LONGEST + 1)
    except OSError as error:
        words = f"the token file {path} cannot be used: {error.strerror or error}"
        raise _make_error(
            words, f"Choose another file with --token-file, or set {TOKEN_VARIABLE}."
        ) from None
    if is_open:
        raise _make_error(
            f"the token file {path} can be read by others",
            f"Run `chmod 600 {shlex.quote(str(path))}`, or delete the file.",
        )
    return Token(_check_token(found.decode("latin-1").strip(), str(path)), path)


def _check_token(value: str, source: str) -> str:
    if not _FIT.fullmatch(value) or len(value) > _LONGEST:
        raise _make_error(
            f"the content of {source} is not a token",
            "A token is one word of at most 4096 ASCII characters, without spaces.",
        )
    return value


def _make_error(words: str, hint: str) -> BadSetting:
    error = BadSetting("token", words)
    error.hint = hint
    return error
