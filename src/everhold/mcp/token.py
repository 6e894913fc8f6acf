"""The token that clients send over HTTP.

Rules
  1. It comes from a file or from the environment, never from the command line, which every user of
     the machine can read (`ps`).
  2. The file is readable by its owner alone: it is made so, and one that others can read is
     refused.
  3. A token stays the same over restarts, so that hosts keep working. To change it, delete the
     file.

Files that only their owner reads, made once.
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
    """Whether others than its owner may read or change a file; Windows does not say."""
    return may_others_read(os.fstat(descriptor))


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


TOKEN_VARIABLE: Final = "EVERHOLD_MCP_TOKEN"
TOKEN_FILE: Final = "mcp-token"
#: Characters that a header can bring as they are.
_FIT: Final = re.compile(r"[!-~]+")
_LONGEST: Final = 4096


class Token(NamedTuple):
    value: str
    file: Path | None = None  # where it is kept; None: the environment has it

    @property
    def shell(self) -> str:
        """The token as a shell finds it."""
        return (
            f"${TOKEN_VARIABLE}" if self.file is None else f"$(cat {shlex.quote(str(self.file))})"
        )


def load_token(
    file: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None
) -> Token:
    """The token of this file, else of the environment, else of the user's data folder; a missing
    file is made.
    """
    said = (os.environ if env is None else env).get(TOKEN_VARIABLE, "").strip()
    if file is None and said:
        return Token(_fit(said, TOKEN_VARIABLE))
    path = get_data_folder() / TOKEN_FILE if file is None else Path(file).expanduser().absolute()
    try:
        if not path.exists():
            create_owner_file(path, secrets.token_urlsafe(32).encode() + b"\n")
        with path.open("rb") as source:
            is_open = is_open_to_others(source.fileno())
            found = source.read(_LONGEST + 1)
    except OSError as error:
        words = f"the token file {path} cannot be used: {error.strerror or error}"
        raise _refusal(words, f"Name another with --token-file, or set {TOKEN_VARIABLE}.") from None
    if is_open:
        raise _refusal(
            f"the token file {path} can be read by others",
            f"chmod 600 {shlex.quote(str(path))}, or delete it.",
        )
    return Token(_fit(found.decode("latin-1").strip(), str(path)), path)


def _fit(value: str, source: str) -> str:
    if not _FIT.fullmatch(value) or len(value) > _LONGEST:
        raise _refusal(
            f"what {source} has is not a token",
            "A token is one word of letters, digits and signs, without spaces.",
        )
    return value


def _refusal(words: str, hint: str) -> BadSetting:
    error = BadSetting("token", words)
    error.hint = hint
    return error
