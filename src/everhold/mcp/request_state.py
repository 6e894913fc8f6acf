"""The seal on what a client keeps for us between two rounds of a call.

Rules
  1. The client can neither read nor forge it (AES-256-GCM), nor use it for another call, another
     database or after its time: such a state is refused, and nothing is done.
  2. The key outlives the process. It is in the user's data folder, readable by nobody else; a key
     that others could read, or that is damaged, is replaced, which makes the states sealed with it
     worthless.
  3. Where no key can be kept, or nothing outlives the process anyway, the key is the process's own.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.methods import is_input_required

from everhold.errors import NotAllowed
from everhold.mcp import token
from everhold.packages.settings import get_data_folder
from everhold.wire import error_json

if TYPE_CHECKING:
    from mcp.server.request_state import AESGCMRequestStateCodec, RequestStateBoundary

log = logging.getLogger("everhold")

KEY_FILE: Final = "mcp.key"
#: Bytes of a key.
KEY_BYTES: Final = 32
#: Seconds after which a state is worthless.
TTL: Final = 24 * 3600.0
#: What no state is good for after the process.
_FLEETING: Final = "memory://"


class StateBoundary:
    """Seals and unseals the states of a server on a database.

    It is the library's, which is loaded with the first state, and whose refusal also says what to
    do.
    """

    def __init__(self, database: Callable[[], str], ttl: float = TTL) -> None:
        self._codec = StateCodec(database)
        self._ttl = ttl

    @cached_property
    def _library(self) -> RequestStateBoundary:
        from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

        return RequestStateBoundary(
            RequestStateSecurity(codec=self._codec, ttl=self._ttl), default_audience="everhold"
        )

    async def __call__(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        if (ctx.params or {}).get("requestState") is None:
            result = await call_next(ctx)
            return (
                await self._library(ctx, _returning(result))
                if is_input_required(result)
                else result
            )
        try:
            return await self._library(ctx, call_next)
        except MCPError as error:
            data = error.error.data
            if not isinstance(data, dict) or data.get("reason") != "invalid_request_state":
                raise
            refusal = NotAllowed(
                "the requestState is expired, changed, or was made for another call or database",
                "Nothing was done, and the session is as it was: the tool `sessions` finds it,"
                " `status` shows it.",
            )
            raise MCPError(
                error.error.code, error.error.message, {**data, **error_json(refusal)}
            ) from None


def _returning(result: HandlerResult) -> CallNext:
    async def call_next(ctx: ServerRequestContext[Any, Any]) -> HandlerResult:
        return result

    return call_next


class StateCodec:
    """Seals with the key of the data folder, made fit for one database. Nothing is read before it
    is needed.
    """

    def __init__(self, database: Callable[[], str]) -> None:
        self._database = database
        self._made: AESGCMRequestStateCodec | None = None

    def seal(self, payload: bytes) -> str:
        return self._codec().seal(payload)

    def unseal(self, token: str) -> bytes:
        return self._codec().unseal(token)

    def _codec(self) -> AESGCMRequestStateCodec:
        if self._made is None:
            from mcp.server.request_state import AESGCMRequestStateCodec

            database = self._database()
            root = (
                secrets.token_bytes(KEY_BYTES)
                if database == _FLEETING
                else load_state_key(get_data_folder())
            )
            self._made = AESGCMRequestStateCodec(
                [hmac.digest(root, database.encode(), hashlib.sha256)]
            )
        return self._made


def load_state_key(folder: Path) -> bytes:
    """The key in a folder, made if there is none; one of this process alone if none can be kept."""
    try:
        return _kept(folder / KEY_FILE) or _made(folder / KEY_FILE)
    except OSError as error:
        log.warning(
            "no key can be kept in %s (%s): what is asked now is forgotten on a restart",
            folder,
            error,
        )
        return secrets.token_bytes(KEY_BYTES)


def _kept(file: Path) -> bytes | None:
    """The key in a file; None if there is none that can be trusted."""
    try:
        with file.open("rb") as source:
            others = token.is_open_to_others(source.fileno())
            found = source.read(KEY_BYTES + 1)
    except FileNotFoundError:
        return None
    if others or len(found) != KEY_BYTES:
        log.warning("%s is %s: it is replaced", file, "open to others" if others else "damaged")
        file.unlink(missing_ok=True)
        return None
    return found


def _made(file: Path) -> bytes:
    """A new key in a file; of several processes that make one at once, all get the same."""
    token.create_owner_file(file, secrets.token_bytes(KEY_BYTES))
    found = _kept(file)
    if found is None:
        raise OSError(f"{file} cannot be kept readable by its owner alone")
    return found
